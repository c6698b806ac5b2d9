"""`collectives bench chaos`: kills, stops, cuts off and misleads ranks, and looks at what the others do.

Invariant: the exit code shows whether every run met its bar. Each run that did not is printed with what its ranks said,
and with the command that repeats it.
"""

from __future__ import annotations

import sys
import time

import click
from rich.text import Text

from collectives.bench.chaos import start, table
from collectives.bench.chaos.case import Case, Finding
from collectives.bench.chaos.cases import CASES
from collectives.bench.commands.options import names, screen, writable
from collectives.bench.document import FORMAT, VERSION, write
from collectives.bench.exits import FAILED, REFUTED
from collectives.bench.report import Progress, remaining


@click.command("chaos")
@click.option("--rows", multiple=True, callback=names, metavar="N,...", help="Only these rows of the fault matrix.")
@click.option("--only", multiple=True, callback=names, metavar="CASES", help="Only these cases; --list names them.")
@click.option("--list", "listed", is_flag=True, help="List the cases, and run none.")
@click.option(
    "--transport",
    "transports",
    multiple=True,
    callback=names,
    metavar="NAMES",
    help="[default: those that a case is for]",
)
@click.option("-n", "--ranks", type=click.IntRange(2, 64), default=None, metavar="N", help="[default: each case's own]")
@click.option("--runs", type=click.IntRange(min=1), default=None, metavar="N", help="Of each case and transport.")
@click.option("--seed", type=int, default=None, metavar="S", help="Of the first run of each case; the next has S + 1.")
@click.option("--short/--long", default=True, show_default=True, help="Short bars and few runs, or the full ones.")
@click.option("--store", type=click.Choice(["file", "redis"]), default="file", show_default=True)
@click.option("--jobs", type=click.IntRange(1, 64), default=1, show_default=True, metavar="N", help="Runs at a time.")
@click.option("--json", metavar="FILE", callback=writable, help="Write the table, and all about runs that missed.")
def command(
    rows: tuple[str, ...],
    only: tuple[str, ...],
    listed: bool,
    transports: tuple[str, ...],
    ranks: int | None,
    runs: int | None,
    seed: int | None,
    short: bool,
    store: str,
    jobs: int,
    json: str | None,
) -> None:
    """Inject faults into small jobs of real processes, and check that the ranks raise the right error in time.

    Each run starts some ranks, waits until they run collectives, and injects one fault. For example, it kills or stops
    a rank, cuts a network link, or lets one rank call another collective than the rest.

    The command counts the ranks that raise the right error in time, and measures how long the slowest takes. It also
    counts errors that name a healthy rank, and ranks that hang. Finally it lists what the job leaves behind: file
    descriptors, threads, shared memory, store keys.

    Faults between hosts need root, because network namespaces stand for the hosts. Faults of the store need a Redis
    server, which the command starts.

    The exit code is 1 if a rank did not react to a fault as it should, 3 if the command itself failed.
    """
    chosen = _chosen(rows, only, short)
    if listed:
        for case in chosen:
            print(f"{case.row:>3} {case.name:<34} {case.injected}")
        return
    console = screen().console()
    wanted = start.units(chosen, transports, long=not short, runs=runs or 0, seed=seed, ranks=ranks or 0, store=store)
    by_name = {case.name: case for case in chosen}
    progress = Progress(screen().progress)
    findings: list[Finding] = []
    begun = time.monotonic()
    try:
        for finding in start.perform(wanted, jobs=jobs):
            findings.append(finding)
            if not (finding.held or finding.absent):
                progress.clear()
                _print_missed(finding)
            steps = remaining(len(findings), len(wanted), time.monotonic() - begun)
            progress.show(f"{finding.unit.case} over {finding.unit.transport}: {steps}")
    except (RuntimeError, OSError) as error:
        progress.clear()
        click.echo(f"collectives bench: {type(error).__name__}: {error}", err=True)
        sys.exit(FAILED)
    progress.clear()
    console.print(Text(f"# {table.HEAD}", style="bold"))
    found = table.lines(findings, by_name)
    for line in found:
        style = "dim" if not line.runs else "green" if line.held == line.runs else "bold red"
        console.print(Text(f"  {line.text}", style=style))
    missed = sum(line.runs - line.held for line in found)
    made = sum(line.runs for line in found)
    absent = sum(line.absent for line in found)
    console.print(
        Text(
            f"# {made} runs in {time.monotonic() - begun:.0f} s: {missed} missed a bar, "
            f"{sum(line.blamed for line in found)} errors named a healthy rank, {absent} could not be run here"
        )
    )
    if json is not None:
        head = {"format": f"{FORMAT} chaos", "version": VERSION, "seconds": time.monotonic() - begun}
        write(json, {**head, "lines": table.document(findings, by_name)})
    sys.exit(REFUTED if missed else 0)


def _chosen(rows: tuple[str, ...], only: tuple[str, ...], short: bool) -> list[Case]:
    known = {case.name for case in CASES}
    if unknown := [name for name in only if name not in known]:
        raise click.BadParameter(f"no case {unknown[0]!r}; --list names them", param_hint="'--only'")
    if unknown := [row for row in rows if row not in {str(case.row) for case in CASES}]:
        raise click.BadParameter(f"no case of row {unknown[0]!r}; --list names them", param_hint="'--rows'")
    if only:
        return [case for case in CASES if case.name in only]
    form = "short" if short else "long"
    return [case for case in CASES if case.form in ("", form) and (not rows or str(case.row) in rows)]


def _print_missed(finding: Finding) -> None:
    unit = finding.unit
    print(f"# missed: {unit.case} over {unit.transport}; to repeat: {unit.command}")
    for text in (*finding.problems, *(f"left: {leak}" for leak in finding.leaks)):
        print(f"#   {text}")
    for text in finding.reports:
        print(f"#     {text}")
    sys.stdout.flush()
