"""Whether a site can listen, and whether somebody does."""

from __future__ import annotations

import socket
import time

from counterflow.errors import StorageError


def check_port(port: int, patience: float = 0.0) -> None:
    """Refuse a port on which somebody still listens after so many seconds: a server may share it in silence."""
    deadline = time.monotonic() + patience
    while True:
        with socket.socket() as test:
            test.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                test.bind(("", port))
                return
            except OSError as error:
                if time.monotonic() >= deadline:
                    raise StorageError(
                        f"port {port} cannot be listened on: {error.strerror or error}. End what uses it, or found the "
                        "federation with another --port."
                    ) from error
        time.sleep(0.1)


def reachable(host: str, port: int, patience: float = 2.0) -> str:
    """ "" if somebody listens at an address; else why not."""
    try:
        socket.create_connection((host, port), timeout=patience).close()
    except OSError as error:
        return f"{host}:{port}: {error.strerror or error}"
    return ""
