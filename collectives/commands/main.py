"""The `collectives` command: imports the module of the subcommand that the user calls, and of no other.

Invariant: `--help` and `--version` import no subcommand.
"""

from __future__ import annotations

import importlib
import sys
from typing import Final, NamedTuple

import click

from collectives.native.spelling import hint


class _Entry(NamedTuple):
    module: str
    summary: str


COMMANDS: Final = {
    "run": _Entry("collectives.commands.run", "Start the ranks of a program on this host."),
    "bench": _Entry("collectives.bench.commands.bench", "Measure collectives, here or in a running job."),
    "calibrate": _Entry("collectives.bench.commands.calibrate", "Measure which algorithms are fastest here."),
    "explain": _Entry("collectives.commands.explain", "Show what an algorithm does, step by step."),
    "simulate": _Entry("collectives.commands.simulate", "Predict times among ranks that need not be there."),
    "doctor": _Entry("collectives.commands.doctor", "Say what works on this machine, and why not."),
}


class _Group(click.Group):
    """A group whose commands are imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        found: click.Command = importlib.import_module(COMMANDS[cmd_name].module).command
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(f"there is no command {args[0]!r}{hint(args[0], COMMANDS)}; there are {', '.join(COMMANDS)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(click.style(name, bold=True), entry.summary) for name, entry in COMMANDS.items()])


@click.group(
    cls=_Group,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Each command has its own --help. Documentation: docs/ in the source, help(collectives) in Python.",
)
@click.version_option(package_name="pycollectives", prog_name="collectives", message="%(prog)s %(version)s")
def main() -> None:
    """Collective communication for Python, with a C++ data plane.

    Processes find each other through a store, communicate over shared memory or TCP, and run verified algorithms.
    """


def allreduce_bench() -> None:
    """The command `allreduce-bench`: `collectives bench allreduce` as a command of its own."""
    bench: click.Command = importlib.import_module(COMMANDS["bench"].module).command
    bench.main(args=["allreduce", *sys.argv[1:]], prog_name="allreduce-bench")


if __name__ == "__main__":
    main()
