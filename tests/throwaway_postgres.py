"""A PostgreSQL cluster in a temporary folder, under an ordinary user, reached by a socket in that folder only."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def programs() -> Path | None:
    """Where Debian keeps the server's programs; None if there is no server."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda place: place.parts)
    on_path = shutil.which("initdb")
    return found[-1].parent if found else Path(on_path).parent if on_path else None


@contextmanager
def cluster() -> Iterator[str]:
    """The address of a server that runs as long as the context does."""
    where = programs()
    assert where is not None
    # PostgreSQL does not run as root
    user = "nobody" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
    with tempfile.TemporaryDirectory(prefix="cfpg", dir="/tmp") as name:  # a socket's path must be short
        folder = Path(name)
        own = pwd.getpwnam(user)
        if os.geteuid() == 0:
            os.chown(folder, own.pw_uid, own.pw_gid)

        def run(*command: object) -> None:
            as_user = {"user": own.pw_uid, "group": own.pw_gid, "extra_groups": []} if os.geteuid() == 0 else {}
            plain = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "HOME": name}
            subprocess.run(
                list(map(str, command)), check=True, capture_output=True, timeout=60, env=plain, cwd=name, **as_user
            )

        data = folder / "data"
        run(where / "initdb", "-D", data, "-U", "reader", "-A", "trust", "-E", "UTF8", "--no-sync", "--locale=C")
        settings = f"-c listen_addresses='' -c unix_socket_directories='{folder}' -c fsync=off -c max_connections=8"
        run(where / "pg_ctl", "-D", data, "-w", "-l", folder / "log", "-o", settings, "start")
        try:
            yield f"postgresql://reader@/postgres?host={folder}"
        finally:
            run(where / "pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")
