"""``python -m counterflow``: the command line."""

from counterflow.cli import main

main()
