"""`collectives bench`: runs the named subcommand; without a subcommand it measures collectives.

Invariant: a subcommand's file is imported only when that subcommand is called.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

import click

from collectives.bench.commands import measure

OTHERS: Final = {
    "standing": "This machine's figures beside the best MPI's and Gloo's, and targets.",
    "cores": "Allreduce beside MPI where every rank has a core of its own, and slow launches.",
    "hooks": "Gradients through TensorFlow and PyTorch, beside what they have of their own.",
    "overlap": "How much of an exchange of gradients hides behind backpropagation.",
    "compare": "Find what has become slower between two results (--json).",
    "meeting": "How long many ranks take to meet, through each store.",
    "simulator": "Find the costs that the simulator goes by here, and how far off it is.",
    "choice": "How close the automatic choice comes to the best algorithm.",
    "sharing": "How ranks that share cores give way, to each other and to other programs.",
    "lifetimes": "Make and close communicators many times, and look for what is left.",
    "chaos": "Kill, stop, cut off and mislead ranks, and look at what the others do.",
}


class _Bench(click.Command):
    """Runs the subcommand that the first argument names; without a subcommand's name, measures collectives."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args and args[0] in OTHERS:
            name = args[0]
            other: click.Command = importlib.import_module(f"collectives.bench.commands.{name}").command
            return other.make_context(f"{info_name} {name}", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        return super().invoke(ctx) if ctx.command is self else ctx.command.invoke(ctx)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Other commands"):
            formatter.write_dl([(f"{ctx.command_path} {name}", summary) for name, summary in OTHERS.items()])


_measure: Final = measure.command
command: Final = _Bench(
    "bench",
    params=_measure.params,
    callback=_measure.callback,
    help=_measure.help,
    context_settings=_measure.context_settings,
)
