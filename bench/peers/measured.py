"""Lets a peer (a system in processes of its own) take part in the benchmark as one of the contestants.

Invariant: while the peer's processes run, our own ranks sleep. A peer that fails is not called again, and the reason is
shown; our own figures are not affected.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from collectives.bench.cases import Case
from collectives.bench.gate import Gate
from collectives.bench.loop import Pace, Samples
from collectives.bench.measure import AGAIN, Unsupported
from collectives.bench.peers.processes import PeerCannot, PeerFailed, PeerProcesses
from collectives.bench.plan import PeerPlan, Plan


class MeasuredPeer:
    """Another library that the benchmark measures, such as Open MPI. Implements `bench.measure.Contestant`.

    Every rank of the benchmark calls each method. Rank 0 sends commands to the processes of the other library, while
    the other ranks of this library sleep.
    """

    def __init__(
        self,
        gate: Gate,
        plan: Plan,
        peer: PeerPlan,
        ranks: int,
        folder: str,
        cores: Collection[int] = (),
        is_ours: bool = False,
    ) -> None:
        """Start the peer's workers. If they fail to start, `prepare` raises Unsupported with the reason.

        `folder`: a private directory, which the caller removes. `cores`: the cores that the workers may use; if empty,
        they may use the cores of this process. `is_ours`: whether the peer is this library, called through a framework.
        """
        self.name: Final = peer.name
        self.is_ours: Final = is_ours
        self._gate: Final = gate
        self._warmup: Final = plan.warmup
        self._renew: Final = plan.renew
        self._row: Final = plan.row
        self._processes: PeerProcesses | None = None
        self._over = ""  # the reason that the peer takes no part any more
        self.versions: dict[str, str] = {}  # versions of its packages, on rank 0
        gate.while_asleep(lambda: self._start(peer, ranks, folder, cores))

    def _start(self, peer: PeerPlan, ranks: int, folder: str, cores: Collection[int]) -> str:
        try:
            self._processes = PeerProcesses(peer, ranks, folder, cores)
            self.versions = self._processes.versions
        except PeerFailed as error:
            self._over = str(error)
        return ""

    def prepare(self, case: Case) -> None:
        if reason := self._gate.while_asleep(lambda: self._prepare(case)):
            raise Unsupported(reason)

    def _prepare(self, case: Case) -> str:
        if self._processes is None:
            return self._over
        try:
            self._processes.prepare(case, self._warmup, self._renew, self._row)
        except PeerCannot as error:
            return str(error)
        except PeerFailed as error:
            return self._end(error)
        return ""

    def wrong(self, case: Case, salt: int) -> int:
        found: list[int] = []

        def work(processes: PeerProcesses) -> None:
            found.append(processes.wrong(salt))

        self._lead(work)
        return sum(found)

    def iterations(self, pace: Pace) -> int:
        found: list[int] = [0]

        def work(processes: PeerProcesses) -> None:
            found.append(pace.iterations(processes.elapsed))

        self._lead(work)
        return found[-1]

    def turn(self, iterations: int) -> tuple[Samples, ...]:
        found: list[tuple[Samples, ...]] = [()]

        def work(processes: PeerProcesses) -> None:
            found.append(processes.turn(iterations, AGAIN))

        self._lead(work)
        return found[-1]

    def finish(self) -> None:
        self._lead(PeerProcesses.finish)

    def close(self) -> None:
        """End the processes of the other system."""
        if self._processes is not None:
            self._processes.close()
            self._processes = None

    def _lead(self, work: Callable[[PeerProcesses], None]) -> None:
        """Run `work` on rank 0, while the other ranks sleep."""

        def guarded() -> str:
            if self._processes is not None:
                try:
                    work(self._processes)
                except PeerFailed as error:
                    self._end(error)
            return ""

        self._gate.while_asleep(guarded)

    def _end(self, error: PeerFailed) -> str:
        self._over = str(error)
        self.close()
        return self._over
