"""`collectives bench sharing`: whether ranks that share cores yield to each other and to other programs as they should.

Invariant: the exit code is 0 if the ranks yield as they should. If other programs use the machine, a message says that
the figures mean little.
"""

from __future__ import annotations

import sys

import click

from collectives.bench.commands.options import say
from collectives.bench.exits import FAILED, REFUTED
from collectives.bench.sharing import BAR, CASES, measure
from collectives.calibration.noise import beforehand
from collectives.commands.child import StartError


@click.command("sharing")
def command() -> None:
    """Count how often ranks sleep during collectives if they share two cores with each other and with a busy program.

    There are two measurements, one without and one with a busy program on one of the cores. The command needs a machine
    on which nothing else runs.

    The exit code is 1 if a rank sleeps once per call or more, or does not leave the core to the busy program. It is 3
    if a rank failed.
    """
    if reasons := beforehand(2):
        say(f"this machine is not quiet, so figures mean little: {'; '.join(reasons)}")
    well = True
    for case in CASES:
        try:
            found = measure(case)
        except (StartError, OSError, RuntimeError) as error:
            say(str(error))
            sys.exit(FAILED)
        sleeps = f"at most {max(found.slept):.2f} sleeps in a call (less than {BAR:g})"
        where = f", {max(found.on_busy_core)} of 20 turns on its core" if case.beside else ""
        verdict = "" if found.well else "  MISSED"
        click.echo(f"{case.ranks} ranks {case.name}: {sleeps}{where}{verdict}")
        well = well and found.well
    sys.exit(0 if well else REFUTED)
