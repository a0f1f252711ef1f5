"""A child process that runs several of FLARE's commands; see ``certificates``. Not for users.

Reads a JSON list of command lines, writes the JSON answer of each in a line of its own, and stops at the first that
fails. FLARE's commands may end the process and print what they like, which is why they do not run in ours.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys

from nvflare.tool.cert.cert_cli import def_cert_cli_parser, handle_cert_cmd
from nvflare.tool.cli_output import set_output_format
from nvflare.tool.package.package_cli import def_package_cli_parser, handle_package_cmd


def main() -> None:
    """Run what stands in the standard input."""
    parser = argparse.ArgumentParser(prog="nvflare")
    known = parser.add_subparsers(dest="command")
    def_cert_cli_parser(known)
    def_package_cli_parser(known)
    set_output_format("json")
    for command in json.load(sys.stdin):
        given = parser.parse_args(command)
        handle = handle_cert_cmd if given.command == "cert" else handle_package_cmd
        printed = io.StringIO()
        failed = False
        try:
            with contextlib.redirect_stdout(printed):
                failed = bool(handle(given))
        except SystemExit as ending:
            failed = bool(ending.code)
        lines = printed.getvalue().strip().splitlines() or [""]
        try:
            answer = json.loads(lines[-1])
        except ValueError:
            answer = {"message": printed.getvalue()[-600:]}
        if failed or not isinstance(answer, dict):
            print(json.dumps({**(answer if isinstance(answer, dict) else {}), "status": "error"}))
            break
        print(json.dumps(answer))


if __name__ == "__main__":
    main()
