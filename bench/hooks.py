"""Compares our gradient hooks with the frameworks' own exchange of gradients: the cases, the systems, and the targets.

Invariant: a factor is the framework's time divided by ours; both are measured in one run, alternately, and the results
of the calls are checked. If a call has several forms, the framework's fastest form is compared with our fastest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final

from collectives import Communicator
from collectives.bench.calls import algorithm_of
from collectives.bench.cases import Case
from collectives.bench.gate import Gate
from collectives.bench.measure import Measurement, Note, Row, measure
from collectives.bench.networks import NETWORKS, parameters
from collectives.bench.peers.measured import MeasuredPeer
from collectives.bench.ping import Ping
from collectives.bench.plan import PeerPlan, Plan
from collectives.bench.traces import TRACES, gradients

_ITEMSIZE: Final = 4
_LISTS: Final = {"fused": 10}  # memory of one rank of each system, over the list's size; gRPC's copies are included
_USUALLY: Final = 6


@dataclass(frozen=True, slots=True)
class Framework:
    """An ML framework, with the settings for comparing two ways to sum its gradients over all ranks.

    `ours` names this library's hook for the framework, and `theirs` the framework's own allreduce, both in
    `peers.HOOKS`. `what` describes the framework's allreduce to users. `ways` are the forms in which it can be called,
    such as once for each tensor. `own_ways` tells whether the hook of this library can be called in these forms, too.
    `bar` is the target: the hook has to be at least `bar` times as fast as the framework's allreduce.
    """

    name: str
    ours: str
    theirs: str
    what: str
    ways: tuple[str, ...]
    own_ways: bool
    bar: float


FRAMEWORKS: Final = {
    framework.name: framework
    for framework in (
        Framework(
            "tensorflow", "hook-tensorflow", "ring-tensorflow", "CollectiveReduce", ("each", "fused"), False, 10.0
        ),
        Framework("torch", "hook-torch", "gloo-torch", "Gloo", ("each", "coalesced", "buckets"), True, 3.0),
    )
}
BARRED: Final = ("resnet50", "bert-large")  # lists with the target `bar`; for steps of training the target is 1
NAMES: Final = (*TRACES, *NETWORKS)


def cases(framework: Framework, names: Sequence[str], ranks: int) -> Iterator[Case]:
    """Yield the measurements to make: each model's gradients with each form of the framework's allreduce.

    `names` are the names of the models, and `ranks` the number of ranks. For networks in `NETWORKS`, whole training
    steps are measured, with PyTorch only.
    """
    for name in names:
        if name in NETWORKS:
            if framework.name == "torch":
                yield _case(name, parameters(name), "step", ranks)
        else:
            for way in framework.ways:
                yield _case(name, sum(gradients(name)), way, ranks)


def _case(name: str, count: int, way: str, ranks: int) -> Case:
    return Case("allreduce", "float32", _ITEMSIZE, "sum", -1, way, ranks, count, name)


def memory_needed(case: Case) -> int:
    """Return about how many bytes the ranks of this library and of the framework together use to measure `case`."""
    return _LISTS.get(case.algorithm, _USUALLY) * case.ranks * case.nbytes


def run(
    comm: Communicator,
    plan: Plan,
    framework: Framework,
    todo: Sequence[Case],
    folder: str,
    note: Note,
    take: Callable[[Row], None],
) -> dict[str, dict[str, str]]:
    """Measure `todo` with this library's hook and with the framework's own allreduce, in alternation.

    `comm` has this process as its only rank. The ranks that are measured are other processes, which this function
    starts and ends. `folder` is a private directory for these processes. `plan` has the options of the benchmark.
    `note` is called with messages about progress, and `take` with each result. Return a dict from the hook's and the
    allreduce's name to the versions of their packages.
    """
    by_name = {peer.name: peer for peer in plan.peers}
    ranks = todo[0].ranks
    with ExitStack() as stack:
        gate = stack.enter_context(Gate(comm))
        pair = []
        for name in (framework.ours, framework.theirs):
            note(todo[0], f"{name} starts")
            mine = by_name[name]
            measured = MeasuredPeer(gate, plan, mine, ranks, folder, is_ours=name == framework.ours)
            stack.callback(measured.close)
            pair.append(measured)
        for number, case in enumerate(todo):
            take(measure(plan, pair, Ping(comm), case, number, note, partial(algorithm_of, comm)))
        return {measured.name: measured.versions for measured in pair}


def peers(frameworks: Sequence[Framework], python: str) -> tuple[PeerPlan, ...]:
    return tuple(PeerPlan(name, python) for framework in frameworks for name in (framework.ours, framework.theirs))


def factor(row: Row) -> float | None:
    """Return the framework's time divided by the time of this library's hook, or None unless both were measured.

    `row` has both times. The result is the median of the ratios of all rounds of measurement.
    """
    ours, theirs = _pair(row)
    return None if ours.unsupported or theirs.unsupported else 1 / row.ratio(theirs)


def missing_figures(row: Row) -> list[str]:
    """The systems that were not measured, each with the reason."""
    return [f"{m.contestant}: {' '.join(m.unsupported.split())}" for m in _pair(row) if m.unsupported]


def _pair(row: Row) -> tuple[Measurement, Measurement]:
    ours, theirs = row.measurements.values()
    return ours, theirs


@dataclass(frozen=True, slots=True)
class Verdict:
    """The comparison of this library's hook with a framework's own allreduce, on the gradients of one model.

    `ours` and `theirs` are the times of the hook and of the framework, in seconds. `our_way` and `their_way` are the
    forms of call that were fastest. `factor` is theirs / ours. `bar` is the smallest accepted factor, or None if there
    is no target for the model.
    """

    framework: str
    name: str
    ours: float
    our_way: str
    theirs: float
    their_way: str
    factor: float
    bar: float | None

    @property
    def passed(self) -> bool | None:
        return None if self.bar is None else self.factor >= self.bar


def verdicts(framework: Framework, rows: Sequence[Row]) -> list[Verdict]:
    """Compare this library's hook with the framework on each model for which both gave correct results.

    `rows` has both times for each model and each form in which the gradients can be passed.
    """
    found = []
    for name in dict.fromkeys(row.case.trace for row in rows):
        sound = [row for row in rows if row.case.trace == name and _sound(row)]
        if not sound:
            continue
        theirs = min(sound, key=lambda row: _pair(row)[1].times.median)
        ours = min(sound, key=lambda row: _pair(row)[0].times.median) if framework.own_ways else theirs
        our_time, their_time = _pair(ours)[0].times.median, _pair(theirs)[1].times.median
        times = factor(ours) if ours is theirs else their_time / our_time
        bar = framework.bar if name in BARRED else 1.0 if name in NETWORKS else None
        found.append(
            Verdict(
                framework.name,
                name,
                our_time,
                ours.case.algorithm if framework.own_ways else "",
                their_time,
                theirs.case.algorithm,
                times or 0.0,
                bar,
            )
        )
    return found


def _sound(row: Row) -> bool:
    return not any(m.unsupported or m.wrong for m in _pair(row))
