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
from collectives.bench import exits
from collectives.bench.cases import Case
from collectives.bench.document import document, write
from collectives.bench.exits import REFUTED
from collectives.bench.gate import Gate
from collectives.bench.hosts import Group, agree, cores, gather
from collectives.bench.limits import floors
from collectives.bench.measure import Contestant, Memory, Ours, Row, measure
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
    with collectives.init(store, transport=plan.transport, timeout=plan.timeout, segment=plan.segment) as comm:
        if not agree(comm, plan.fingerprint):
            raise ValueError("the ranks were given different arguments")
        todo = cases(plan, comm.size)
        group = gather(comm)
        with ExitStack() as stack:
            ping = Ping(comm)
            progress = Progress(screen.progress and comm.rank == 0)
            contestants = _contestants(comm, plan, ping, folder, stack, progress.show)
            progress.clear()
            peers = {peer.name: peer.versions for peer in contestants if isinstance(peer, MeasuredPeer)}
            session = _Session(plan, group, peers, Table(plan, screen, todo)) if comm.rank == 0 else None
            if session is not None:
                stack.callback(session.end)
            for number, case in enumerate(todo):
                if session is not None:
                    session.expect(case)
                note = _nobody if session is None else session.table.note
                row = measure(comm, plan, contestants, ping, case, number, note)
                if session is not None:
                    session.take(row)
            return 0 if session is None else session.finish()


def _contestants(
    comm: collectives.Communicator,
    plan: Plan,
    ping: Ping,
    folder: str,
    stack: ExitStack,
    show: Callable[[str], None],
) -> list[Contestant]:
    """What is timed: this library, lower limits, other systems. `stack` closes them; `show` displays long steps."""
    memory = Memory(comm, plan)
    found: list[Contestant] = [Ours(comm, plan, place, memory) for place in plan.places]
    found += floors(comm, plan.limits, ping, stack)
    if plan.peers:
        gate = stack.enter_context(Gate(comm))
        everywhere = cores(comm)  # the ranks of another system share all cores of ours, which may be bound to one each
        for peer in plan.peers:
            show(f"starting {peer.name}: its {comm.size} ranks import it, and meet")
            measured = MeasuredPeer(gate, plan, peer, comm.size, folder, everywhere)
            stack.callback(measured.close)
            found.append(measured)
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
