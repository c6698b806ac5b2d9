"""`collectives bench hooks`: compares our hooks' exchange of gradients with the frameworks' own exchange.

Invariant: all errors in the command line are reported before a process is started.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any, Final

import click
from rich.text import Text

import collectives
from collectives.bench.cases import Case
from collectives.bench.commands.options import names, positive, say, screen, writable
from collectives.bench.document import FORMAT, document, write
from collectives.bench.exits import FAILED, INTERRUPTED, REFUTED
from collectives.bench.hooks import (
    FRAMEWORKS,
    NAMES,
    Framework,
    Verdict,
    cases,
    factor,
    memory_needed,
    missing_figures,
    peers,
    run,
    verdicts,
)
from collectives.bench.hosts import Group, gather
from collectives.bench.hosts import memory as machine_memory
from collectives.bench.measure import Measurement, Row
from collectives.bench.networks import NETWORKS
from collectives.bench.peers.here import missing
from collectives.bench.plan import Plan
from collectives.bench.report import ABSENT, Progress, Screen
from collectives.commands.options import Names
from collectives.native.errors import CollectiveError
from collectives.native.spelling import hint
from collectives.rendezvous.bootstrap import bootstrap

RANKS: Final = 2
BUDGET: Final = 2.0  # seconds for each system, form of the call and list
USUAL: Final = ("resnet50", *NETWORKS)


def _frameworks(ctx: click.Context, param: click.Parameter, value: str) -> list[Framework]:
    wanted = list(FRAMEWORKS.values()) if value == "all" else [FRAMEWORKS[value]]
    for framework in wanted:
        if (reason := missing(framework.name)) is not None:
            raise click.BadParameter(reason)
    return wanted


def _traces(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    wanted = names(ctx, param, values)
    for name in wanted:
        if name not in NAMES:
            raise click.BadParameter(f"there is no {name!r}{hint(name, NAMES)}; there are {', '.join(NAMES)}")
    return wanted


@click.command("hooks")
@click.option(
    "--framework",
    "frameworks",
    type=Names([*FRAMEWORKS, "all"]),
    default="all",
    show_default=True,
    callback=_frameworks,
    help="Which installed framework to measure.",
)
@click.option("-n", "--ranks", type=click.IntRange(min=2), default=RANKS, show_default=True, metavar="N")
@click.option(
    "--trace",
    "traces",
    multiple=True,
    callback=_traces,
    metavar="NAMES",
    help=f"Of {', '.join(NAMES)}.  [default: {','.join(USUAL)}]",
)
@click.option(
    "--repeats", type=click.IntRange(min=1), default=5, show_default=True, metavar="N", help="Turns that systems take."
)
@click.option(
    "--iters", type=click.IntRange(min=1), metavar="N", help="Iterations in a turn.  [default: as --budget allows]"
)
@click.option(
    "--budget",
    type=float,
    callback=positive,
    default=BUDGET,
    show_default=True,
    metavar="SECONDS",
    help="For each figure; every turn has 3 iterations at least.",
)
@click.option("--json", metavar="FILE", callback=writable, help="Write everything, raw samples included.")
@click.option("--strict", is_flag=True, help="Exit with code 1 also if a target is missed.")
def command(
    frameworks: list[Framework],
    ranks: int,
    traces: tuple[str, ...],
    repeats: int,
    iters: int | None,
    budget: float,
    json: str | None,
    strict: bool,
) -> None:
    """Compare the gradient hooks of this library with the allreduce that TensorFlow and PyTorch have themselves.

    \b
      tensorflow  this library: GradientExchange in a tf.function
                  TensorFlow: CollectiveReduce in a ring over gRPC, one call
                  for each tensor or one call for all tensors joined
      torch       torch.distributed's all_reduce, with the backend of this
                  library and with Gloo: asynchronous for each tensor,
                  coalesced, and in buckets as in DistributedDataParallel;
                  also training steps with DistributedDataParallel
                  (models ddp-…)

    The ranks are processes on this machine, and use the Python of this command. This library and the framework take
    turns, and every result is checked. A time is that of the slowest rank. The factor is the framework's time divided
    by that of this library, the median over all rounds.

    \b
      collectives bench hooks
      collectives bench hooks --framework tensorflow --trace resnet50,bert-large --json hooks.json

    The exit code is 1 if a result of this library was wrong, 3 if one of its hooks failed.
    """
    try:
        launcher = bootstrap().launcher
    except (ValueError, CollectiveError) as error:
        raise click.UsageError(str(error)) from error
    if launcher != "none":
        raise click.UsageError("this starts ranks of its own: not inside a running job")
    todo = {f.name: list(cases(f, traces or USUAL, ranks)) for f in frameworks}
    if empty := [name for name, found in todo.items() if not found]:
        raise click.UsageError(f"{empty[0]} has none of {', '.join(traces)}")
    free = machine_memory("MemAvailable")
    left_out = [case for found in todo.values() for case in found if 0 < free < memory_needed(case)]
    todo = {name: [case for case in found if case not in left_out] for name, found in todo.items()}
    reasons = [f"{case.trace} {case.algorithm} is left out: {_too_much(case, free)}" for case in left_out]
    if not all(todo.values()):
        raise click.UsageError(reasons[0])
    plan = Plan(
        collectives=("allreduce",),
        sizes=(),
        warmup=1,
        iterations=iters,
        budget=budget,
        rounds=repeats,
        peers=peers(frameworks, sys.executable),
        traces=traces or USUAL,
        json=json,
    )
    signal.signal(signal.SIGTERM, _end)
    for reason in reasons:
        say(reason)
    sys.exit(_Session(plan, screen(), ranks, strict).run(frameworks, todo))


def _too_much(case: Case, free: int) -> str:
    return f"its ranks need about {memory_needed(case) / 2**30:.1f} GiB, and {free / 2**30:.1f} are available"


def _end(_signal: int, _frame: Any) -> None:
    """End the started processes, as Ctrl-C does."""
    raise KeyboardInterrupt


class _Session:
    """The results of a run, and their output."""

    def __init__(self, plan: Plan, here: Screen, ranks: int, strict: bool) -> None:
        self._plan: Final = plan
        self._ranks: Final = ranks
        self._strict: Final = strict
        self._console: Final = here.console()
        self._progress: Final = Progress(here.progress)
        self._rows: Final[list[Row]] = []
        self._verdicts: Final[list[Verdict]] = []
        self._versions: Final[dict[str, dict[str, str]]] = {}

    def run(self, frameworks: Sequence[Framework], todo: dict[str, list[Case]]) -> int:
        """Compare this library's hooks with each of `frameworks`, print the results, and return the exit code.

        `todo` has the measurements to make, by the framework's name.
        """
        started, clock = datetime.now(timezone.utc).astimezone(), time.monotonic()
        complete = False
        # The measuring functions need a communicator: this one has one rank. The measured ranks form their own group.
        with (
            tempfile.TemporaryDirectory(prefix="collectives-hooks-") as folder,
            collectives.init("memory://bench-hooks", rank=0, size=1) as comm,
        ):
            group = gather(comm)
            try:
                self._head(group, started)
                for framework in frameworks:
                    first = len(self._rows)
                    versions = run(comm, self._plan, framework, todo[framework.name], folder, self._note, self._take)
                    self._versions.update(versions)
                    self._verdicts.extend(verdicts(framework, self._rows[first:]))
                complete = True
            except KeyboardInterrupt:
                return INTERRUPTED
            except (CollectiveError, OSError) as error:
                click.echo(f"collectives bench hooks: {type(error).__name__}: {error}", err=True)
                return FAILED
            finally:
                self._progress.clear()
                if self._plan.json is not None:
                    seconds = time.monotonic() - clock
                    reported = document(self._plan, group, self._versions, self._rows, started, seconds, complete)
                    bars = [{**asdict(verdict), "passed": verdict.passed} for verdict in self._verdicts]
                    write(
                        self._plan.json, {**reported, "format": f"{FORMAT} hooks", "ranks": self._ranks, "bars": bars}
                    )
        self._foot(time.monotonic() - clock)
        if any(m.is_ours and m.unsupported for row in self._rows for m in row.measurements.values()):
            return FAILED
        missed = any(verdict.passed is False for verdict in self._verdicts)
        return REFUTED if any(row.wrong for row in self._rows) or (self._strict and missed) else 0

    def _note(self, case: Case, what: str) -> None:
        self._progress.show(f"{case.trace} {case.algorithm}: {what}")

    def _show(self, text: str, style: str = "") -> None:
        self._progress.clear()
        self._console.print(Text(text.rstrip(), style=style))
        sys.stdout.flush()

    def _head(self, group: Group, started: datetime) -> None:
        facts, plan = group.ranks[0], self._plan
        turn = f"{plan.iterations} iterations" if plan.iterations else f"iterations for {plan.budget:g} s"
        self._show(f"# pycollectives {facts.pycollectives} bench hooks, {started.isoformat(' ', 'seconds')}", "dim")
        cores = f"{facts.cores} core{'s' * (facts.cores != 1)}"
        self._show(f"# ranks {self._ranks}, {cores}, {facts.processor}, {facts.kernel}, python {facts.python}", "dim")
        self._show(f"# time: median over {turn} in {plan.rounds} turns, of the slowest rank", "dim")
        self._show("#")
        heads = f"{'ours':>10} {'theirs':>10} {'factor':>8} {'#wrong':>7} {'#wrong':>7}"
        self._show(f"# {'gradients':<12} {'size':>12} {'framework':<11} {'way':<10} {heads}", "bold")
        units = f"{'(ms)':>10} {'(ms)':>10} {'':>8} {'ours':>7} {'theirs':>7}"
        self._show(f"# {'':<12} {'(B)':>12} {'':<11} {'':<10} {units}", "bold")

    def _take(self, row: Row) -> None:
        self._rows.append(row)
        ours, theirs = row.measurements.values()
        framework = next(f for f in FRAMEWORKS.values() if f.ours == ours.contestant)
        times = factor(row)
        reported = f"{times:8.2f}" if times is not None else f"{ABSENT:>8}"
        figures = f"{_time(ours)} {_time(theirs)} {reported} {_wrong(ours)} {_wrong(theirs)}"
        case = row.case
        self._show(f"  {case.trace:<12} {case.nbytes:>12} {framework.name:<11} {case.algorithm:<10} {figures}")
        for reason in missing_figures(row):
            self._show(f"# {reason}", "bold red")

    def _foot(self, seconds: float) -> None:
        self._show("#")
        for name, versions in self._versions.items():
            self._show(f"# {name}: {', '.join(f'{package} {version}' for package, version in versions.items())}", "dim")
        for verdict in self._verdicts:
            what = FRAMEWORKS[verdict.framework].what
            best = f"{verdict.ours * 1e3:.2f} ms{_way(verdict.our_way)}"
            against = f"{what} {verdict.theirs * 1e3:.2f} ms{_way(verdict.their_way)}"
            bar = "" if verdict.bar is None else f"; bar {verdict.bar:g}: {'pass' if verdict.passed else 'FAIL'}"
            style = "" if verdict.passed is None else "green" if verdict.passed else "bold red"
            reported = f"{verdict.framework} {verdict.name}: {best}, {against}: {verdict.factor:.2f} times as fast{bar}"
            self._show(f"# {reported}", style)
        self._show(f"# took {seconds:.0f} s", "dim")


def _time(found: Measurement) -> str:
    return f"{ABSENT:>10}" if found.unsupported else f"{found.times.median * 1e3:10.3f}"


def _wrong(found: Measurement) -> str:
    return f"{ABSENT if found.wrong is None else found.wrong:>7}"


def _way(name: str) -> str:
    return f" ({name})" if name else ""
