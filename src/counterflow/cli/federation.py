"""``counterflow federation``: fits between machines, and what a plant asks of them."""

from __future__ import annotations

import os

from counterflow.cli.groups import group

app = group(
    "federation",
    {
        "init": ("federation_members", "Coordinator: found a federation."),
        "join": ("federation_members", "Plant: join a federation, in two steps."),
        "approve": ("federation_members", "Coordinator: admit a plant, after a look at who asks."),
        "remove": ("federation_members", "Coordinator: cut a plant off."),
        "start": ("federation_service", "Run a party until it is stopped."),
        "stop": ("federation_service", "End a party's processes; nothing is lost."),
        "status": ("federation_status", "How does it stand?"),
        "fit": ("federation_fit", "Coordinator: fit, with all plants that are members."),
        "ask": ("questions:federation_ask", "Plant: what would my outputs do, or have done, with other inputs?"),
    },
    help="Fits between machines that do not trust each other; needs pip install 'counterflow[federation]'.\n\n"
    "Coordinator: init, approve, start, fit, remove. Plant: join, start, ask. Both: status, stop.",
    epilog="Key rotation: the plant runs join --new-key, the coordinator remove and approve, the plant join --welcome.",
)


@app.callback()
def root() -> None:
    """Fits between machines that do not trust each other; needs pip install 'counterflow[federation]'."""
    os.umask(0o077)  # whatever a party writes is its own
