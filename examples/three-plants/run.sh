#!/usr/bin/env bash
# Three plants and a coordinator on this machine, each with a folder and keys of its own: from simulated logs to a
# fit and a question.
#
#   examples/three-plants/run.sh [FOLDER]      FOLDER is new; without it, a temporary one that is removed at the end
#
# PORT (8102) is where the coordinator's server listens, COUNTERFLOW (counterflow) the command, STEPS (600) how long the
# simulated logs are. On three machines the same lines are run, each at its own; the two files of each plant are sent.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
port=${PORT:-8102}
steps=${STEPS:-600}
read -ra counterflow <<<"${COUNTERFLOW:-counterflow}"
units=(boiler turbine condenser)

if [ $# -gt 0 ]; then
    mkdir -p "$1"
    folder=$(cd "$1" && pwd)
else
    folder=$(mktemp -d)
fi
cd "$folder"

cf() { "${counterflow[@]}" "$@"; }
say() { printf '\n== %s\n' "$*"; }
all() { # run a command for every plant at the same time; an error of one is an error of all
    local ids=() id
    for unit in "${units[@]}"; do
        "$1" "$unit" &
        ids+=($!)
    done
    for id in "${ids[@]}"; do wait "$id"; done
}

end() {
    local code=$?
    trap - EXIT INT TERM
    say "stop"
    for party in boiler-site turbine-site condenser-site coordinator; do
        if [ -f "$party/party.json" ]; then cf federation stop "$party" & fi
    done
    wait || true
    if [ $# -gt 0 ]; then cd / && rm -rf "$folder"; fi
    exit "$code"
}
if [ $# -gt 0 ]; then trap end EXIT; else trap 'end temporary' EXIT; fi
trap 'exit 130' INT
trap 'exit 143' TERM

say "logs and local models; in earnest, every plant has its own"
cf simulate --units boiler,turbine,condenser --steps "$steps" --seed 7 --out data/recording.safetensors

say "coordinator: found a federation"
cf federation init coordinator --name waterworks --host localhost --port "$port"
fingerprint=$(sed -n 's/.*"fingerprint": "\(.*\)".*/\1/p' coordinator/party.json)

say "plants: make a key, bind log and policy, ask to join"
ask_to_join() {
    cf federation join "$1-site" --unit "$1" --federation waterworks --fingerprint "$fingerprint" \
        --log data/federation.toml --policy "$here/policies/$1.toml"
}
all ask_to_join

say "coordinator: admit them"
for unit in "${units[@]}"; do
    cf federation approve coordinator "$unit-site/$unit.join" --yes
done

say "plants: take the answer"
be_welcomed() { cf federation join "$1-site" --welcome "coordinator/approved/$1.welcome"; }
all be_welcomed

say "start"
start() { cf federation start "$1-site" --detach; }
cf federation start coordinator --detach
all start

say "coordinator: fit"
cf federation fit coordinator --id first

say "turbine: what would my outputs do if the boiler were run differently?"
cf federation ask turbine-site --cause boiler --change u1=+1 --horizon 20 --out answer.json

say "condenser: the boiler lets it ask about u1 only"
if cf federation ask condenser-site --cause boiler --change u2=+1; then exit 1; fi

say "status"
cf federation status coordinator
cf federation status boiler-site
