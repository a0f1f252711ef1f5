"""The what-if console: a fitted federation in a browser, seen from a unit or from the server.

``app`` makes the application, ``guard`` stands before it, ``service`` runs both for ``counterflow console``. FastAPI
and uvicorn come with ``pip install 'counterflow[console]'``; nothing of them is imported here.
"""

from importlib.util import find_spec

from counterflow.errors import OptionError

NEEDED = ("fastapi", "uvicorn", "plotly", "prometheus_client")


def require() -> None:
    """Refuse in one sentence if what the console is built on is not installed."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise OptionError(f"the console needs {', '.join(missing)}: pip install 'counterflow[console]'.")
