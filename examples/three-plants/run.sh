#!/usr/bin/env bash
# Three plants and a coordinator on this machine, each with a folder and keys of its own: runs the commands of the
# runbook in docs/how-to/federation.md as they are written there, and one question that is refused.
#
#   examples/three-plants/run.sh [FOLDER]      FOLDER is new; without it, a temporary one that is removed at the end
#
# PORT (8102) is where the coordinator's server listens, COUNTERFLOW (counterflow) the command.
set -euo pipefail

runbook=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/docs/how-to/federation.md
read -ra command <<<"${COUNTERFLOW:-counterflow}"

if [ $# -gt 0 ]; then
    mkdir -p "$1"
    folder=$(cd "$1" && pwd)
else
    folder=$(mktemp -d)
fi
cd "$folder"

counterflow() {
    printf '\n== counterflow %s\n' "$*"
    "${command[@]}" "$@"
}

end() {
    local code=$?
    trap - EXIT INT TERM
    for party in boiler-site turbine-site condenser-site coordinator; do
        if [ -f "$party/party.json" ]; then counterflow federation stop "$party" & fi
    done
    wait || true
    if [ $# -gt 0 ]; then cd / && rm -rf "$folder"; fi
    exit "$code"
}
if [ $# -gt 0 ]; then trap end EXIT; else trap 'end temporary' EXIT; fi
trap 'exit 130' INT
trap 'exit 143' TERM

# the indented lines of the section "The runbook"
commands=$(sed -n '/^## The runbook/,/^## More/s/^    //p' "$runbook" | sed "s/8102/${PORT:-8102}/")
eval "$commands"

# the boiler lets the turbine ask, and nobody else
if counterflow federation ask condenser-site --cause boiler --change pump=+1; then exit 1; fi
counterflow federation status coordinator
counterflow federation status boiler-site
