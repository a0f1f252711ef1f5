"""Groups of commands. A command's module is imported when the command runs: ``counterflow --help`` is instant."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from counterflow.cli.output import tell_error
from counterflow.errors import CounterflowError

HELP = {"help_option_names": ["-h", "--help"]}
VERBOSE = "counterflow.verbose"  # where the root's context keeps --verbose
_PLAIN: dict[str, Any] = {"rich_markup_mode": None}  # boxes take as long to import as the rest


def group(
    name: str, commands: Mapping[str, tuple[str | typer.Typer, str]], completion: bool = False, **settings: Any
) -> typer.Typer:
    """A group whose commands are given as name: (module of counterflow.cli, short help).

    ``completion``: whether it has the options that install completion in a shell.

    The function is called as the command, or the module is given as "module:function". A group is given as it is.
    """

    class Lazy(TyperGroup):
        def list_commands(self, ctx: Any) -> list[str]:
            return list(commands)

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            if cmd_name not in commands:
                return None
            where = commands[cmd_name][0]
            if isinstance(where, typer.Typer):
                return typer.main.get_group(where)
            module, _, attribute = where.partition(":")
            found = getattr(import_module(f"counterflow.cli.{module}"), attribute or cmd_name)
            single = typer.Typer(add_completion=False, **_PLAIN)
            single.command(cmd_name, context_settings=HELP)(found)
            return typer.main.get_command(single)

        def invoke(self, ctx: Any) -> Any:
            try:
                return super().invoke(ctx)
            except CounterflowError as error:
                if ctx.find_root().meta.get(VERBOSE):
                    traceback.print_exception(error)
                raise typer.Exit(tell_error(ctx, error)) from error

        def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
            """Commands by their names: none of their modules is imported for it."""
            from typer._click.shell_completion import CompletionItem

            if incomplete.startswith("-"):
                return list(super().shell_complete(ctx, incomplete))
            return [
                CompletionItem(name, help=text) for name, (_, text) in commands.items() if name.startswith(incomplete)
            ]

        def format_commands(self, ctx: Any, formatter: Any) -> None:
            with formatter.section("Commands"):
                formatter.write_dl([(name, text) for name, (_, text) in commands.items()])

    return typer.Typer(
        name=name,
        cls=Lazy,
        no_args_is_help=True,
        add_completion=completion,
        context_settings=HELP,
        **_PLAIN,
        **settings,
    )
