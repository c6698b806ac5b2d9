"""One rank of a benchmark, from forming the group to the last line of the table.

Invariant: every rank goes through the same steps; only rank 0 prints, and it writes the JSON file even if the run is
interrupted.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial

import collectives
from collectives.bench import device, device_limits, exits
from collectives.bench.calls import algorithm_of, engine_of
from collectives.bench.cases import Case
from collectives.bench.document import document, write
from collectives.bench.exits import REFUTED
from collectives.bench.gate import Gate
from collectives.bench.hosts import Group, agree, cores, gather
from collectives.bench.limits import floors
from collectives.bench.measure import Binder, Contestant, Memory, Ours, Row, measure
from collectives.bench.on_device import DeviceMemory
from collectives.bench.peers.measured import MeasuredPeer
from collectives.bench.ping import Ping
from collectives.bench.plan import Plan, cases, load
from collectives.bench.plot import plot
from collectives.bench.report import Progress, Screen, Table


def run(plan: Plan, screen: Screen, store: str | None = None, folder: str = "") -> int:
    """Run the benchmark `plan` as one rank of a job, and return the exit code.

    Environment variables give the rank and the size of the job. `screen` says how to print. `store` is the URL of the
    store through which the ranks find each other. `folder` is a private directory for files of the other libraries that
    are measured. Raises: CollectiveError, ValueError, OSError.
    """
    on_device = plan.device != "cpu"
    if on_device:
        device.check()
    # Such a communicator refuses arrays in host memory, by which the benchmark's ranks agree.
    alone = on_device and plan.transport in device.TRANSPORTS
    init = partial(collectives.init, store, timeout=plan.timeout, segment=plan.segment)
    with init(transport="auto" if alone else plan.transport) as comm:
        if not agree(comm, plan.fingerprint):
            raise ValueError("the ranks were given different arguments")
        todo = cases(plan, comm.size)
        with ExitStack() as stack:
            used = stack.enter_context(device.using(comm.local_rank)) if on_device else None
            group = gather(comm, "" if used is None else device.description(used))
            measured = stack.enter_context(init(name="measured", transport=plan.transport)) if alone else comm
            ping = Ping(comm)
            progress = Progress(screen.progress and comm.rank == 0)
            contestants = _contestants(comm, measured, plan, ping, folder, stack, progress.show, used)
            progress.clear()
            named = algorithm_of if used is None else engine_of
            peers = {peer.name: peer.versions for peer in contestants if isinstance(peer, MeasuredPeer)}
            session = _Session(plan, group, peers, Table(plan, screen, todo)) if comm.rank == 0 else None
            if session is not None:
                stack.callback(session.end)
            for number, case in enumerate(todo):
                if session is not None:
                    session.expect(case)
                note = _nobody if session is None else session.table.note
                row = measure(plan, contestants, ping, case, number, note, partial(named, measured))
                if session is not None:
                    session.take(row)
            return 0 if session is None else session.finish()


def _contestants(
    comm: collectives.Communicator,
    measured: collectives.Communicator,
    plan: Plan,
    ping: Ping,
    folder: str,
    stack: ExitStack,
    show: Callable[[str], None],
    used: device.Device | None,
) -> list[Contestant]:
    """What is timed: this library, lower limits, other systems. `stack` closes them; `show` displays long steps.

    `comm` is the benchmark's communicator, `measured` the one that is timed. `used`: the device with the arrays.
    """
    memory: Binder = Memory(measured, plan) if used is None else DeviceMemory(measured, plan, used)
    found: list[Contestant] = [Ours(comm, plan, place, memory) for place in plan.places]
    if used is None:
        found += floors(comm, plan.limits, ping, stack)
    elif plan.limits:
        found += device_limits.floors(comm, plan.limits, used, stack)
    if plan.peers:
        gate = stack.enter_context(Gate(comm))
        everywhere = cores(comm)  # the ranks of another system share all cores of ours, which may be bound to one each
        for peer in plan.peers:
            show(f"starting {peer.name}: its {comm.size} ranks import it, and meet")
            other = MeasuredPeer(gate, plan, peer, comm.size, folder, everywhere)
            stack.callback(other.close)
            found.append(other)
    return found


@dataclass(slots=True)
class _Session:
    """The records of a run on rank 0."""

    plan: Plan
    group: Group
    peers: dict[str, dict[str, str]]  # versions of the packages of other systems
    table: Table
    rows: list[Row] = field(default_factory=list)
    complete: bool = False
    started: datetime = field(default_factory=lambda: datetime.now(timezone.utc).astimezone())
    clock: float = field(default_factory=time.monotonic)

    def expect(self, case: Case) -> None:
        if not self.rows or case.title != self.rows[-1].case.title:
            self.table.head(case.title, self.group, self.peers, self.started)

    def take(self, row: Row) -> None:
        self.rows.append(row)
        self.table.row(row)

    def finish(self) -> int:
        """Print the last lines of the table of results, and return the exit code of the benchmark."""
        self.complete = True
        self.table.foot(time.monotonic() - self.clock)
        return REFUTED if any(row.wrong for row in self.rows) else 0

    def end(self) -> None:
        self.table.close()
        seconds = time.monotonic() - self.clock
        result = document(self.plan, self.group, self.peers, self.rows, self.started, seconds, self.complete)
        if self.plan.json is not None:
            write(self.plan.json, result)
        if self.plan.plot is not None:
            plot(result, self.plan.plot)


def _nobody(_case: Case, _what: str) -> None:
    """Ranks other than 0 do not report their progress."""


def guarded(plan: Plan, screen: Screen, store: str | None = None, folder: str = "") -> int:
    """Run the benchmark `plan` as one rank, and return the exit code. An error is printed in one line, not raised."""
    return exits.guarded("collectives bench", partial(run, plan, screen, store, folder))


def main() -> None:
    """The main function of a rank's process. `collectives.bench.start` starts one process for each rank.

    The first command-line argument has the options of the benchmark as JSON.
    """
    result = json.loads(sys.argv[1])
    plan = Plan.from_json(result["plan"])
    load(plan.modules, result["cwd"])
    # The launcher's directory for this job. Other users cannot read it, and the launcher always removes it.
    private = os.path.dirname(os.environ["COLLECTIVES_SECRET_FILE"])
    sys.exit(guarded(plan, Screen(**result["screen"]), folder=private))
