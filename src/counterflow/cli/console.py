"""``counterflow console``."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option


def console(
    model: Annotated[Path, Argument(metavar="MODEL", help="Directory of a saved fit, or a plant's folder.")],
    data: Annotated[
        Path | None, Option(metavar="FILE", help="A recording, or a federation file with logs: for the past.")
    ] = None,
    seat: Annotated[
        list[str] | None, Option(metavar="NAME", help="Whose view: 'server' or a unit; may repeat (all).")
    ] = None,
    policy: Annotated[
        list[Path] | None, Option(metavar="FILE", help="A unit's policy on questions (.toml); may repeat.")
    ] = None,
    host: Annotated[
        str, Option(metavar="ADDRESS", help="Where to listen; if others can reach it, a token is asked for.")
    ] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="Where to listen; 0: any free port.")] = 8437,
    token: Annotated[
        bool | None, Option("--token/--no-token", help="Ask for a token (only if others can reach it).")
    ] = None,
    hours: Annotated[float, Option(help="How long the token is good.")] = 12.0,
    behind: Annotated[
        str | None, Option(metavar="URL", help="Address of a proxy with a certificate: https://NAME.")
    ] = None,
    metrics_token: Annotated[
        Path | None, Option(metavar="FILE", help="Holds a token that opens /metrics and nothing else.")
    ] = None,
    access_log: Annotated[Path | None, Option(metavar="FILE", help="Where requests are logged (near MODEL).")] = None,
    no_access_log: Annotated[
        bool, Option("--no-access-log", help="Log no requests (if no token is asked for).")
    ] = False,
    browser: Annotated[bool, Option("--browser/--no-browser", help="Open the browser.")] = True,
) -> None:
    """Ask in a browser, see the answer. Needs pip install 'counterflow[console]'.

    Example: counterflow console fit --data recording.safetensors --seat turbine
    """
    # Command line and console are two ways in, side by side: neither imports the other. This command is the one that
    # starts it, so it finds it by name.
    import_module("counterflow.console").require()
    service = import_module("counterflow.console.service")

    def make() -> Any:
        app = import_module("counterflow.console.app")
        brought: Any = data
        if data is not None and data.suffix.lower() == ".toml":
            brought = import_module("counterflow.cli.federation_file").read_federation(data).recording
        return app.create(model, data=brought, seats=seat or (), policies=policy or ())

    log = access_log or import_module("counterflow.console.visits").usual_place(model)
    service.serve(
        make, host=host, port=port, token=token, hours=hours, behind=behind, browser=browser,
        metrics_token=metrics_token, log=log,
        logged=False if no_access_log else True if access_log is not None else None,
    )  # fmt: skip
