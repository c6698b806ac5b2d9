"""The worker processes of a peer (another measured system), which rank 0 of the benchmark controls.

Invariant: if a worker does not answer a command within a deadline, PeerFailed is raised; the caller then ends the
peer's processes and does not start them again. When a `PeerProcesses` is closed, none of its processes is left.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Collection, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np

from collectives.bench.cases import Case
from collectives.bench.channel import Channel, Listener
from collectives.bench.loop import Samples
from collectives.bench.peers import system
from collectives.bench.peers.worker import BOOT
from collectives.bench.plan import PeerPlan

START: Final = 120.0  # seconds: some systems are slow to import
ANSWER: Final = 300.0
END: Final = 10.0


class PeerFailed(Exception):
    """The processes of another library, such as Open MPI, have failed or did not answer. The message has the reason."""


class PeerCannot(Exception):
    """Another library, such as Open MPI, does not support the collective to be measured. The message has the reason."""


class PeerProcesses:
    """The processes in which the benchmark measures another library, such as Open MPI: one process for each rank.

    This object starts the processes and sends them commands. The processes sleep between commands, so that they use no
    CPU time while this library is measured.
    """

    def __init__(self, plan: PeerPlan, ranks: int, folder: str, cores: Collection[int] = ()) -> None:
        """Start the workers, and wait until all have connected to this process. Raises PeerFailed.

        `folder`: a private directory, which the caller removes. `cores`: the cores that the workers may use; if empty,
        they may use the cores of this process.
        """
        self._name: Final = plan.name
        self._processes: Final[list[subprocess.Popen[bytes]]] = []
        self._channels: dict[int, Channel] = {}
        self._log: Final = Path(folder, f"{plan.name}.log")
        private = Path(folder, plan.name)
        private.mkdir()
        known = system(plan.name)
        bench = str(Path(__file__).resolve().parents[1])
        try:
            with Listener() as listener, self._log.open("wb") as log, _on(cores):
                worker = ["-I", "-c", BOOT, bench, plan.name, listener.name, str(private), str(ranks)]
                environment = {**os.environ, **known.environment(str(private))}
                for command in known.commands(Path(plan.python), worker, ranks):
                    process = subprocess.Popen(
                        command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                    )  # in our process group, so that the launcher ends it if we do not
                    self._processes.append(process)
                self._meet(listener, ranks)
            installed = self._told({"do": "about"})[0]["versions"]
            versions = {name.replace("_", "-"): version for name, version in installed.items()}
            wanted = {r.partition("=")[0] for r in (*known.REQUIREMENTS, *known.BARE)} | {"numpy"}
            self.versions: Final[dict[str, str]] = {name: versions[name] for name in sorted(wanted & versions.keys())}
        except (OSError, ValueError) as error:
            self.close()
            raise PeerFailed(f"{self._name} did not start: {error}{self._last_words()}") from error
        except BaseException:
            self.close()
            raise

    def _meet(self, listener: Listener, ranks: int) -> None:
        """Wait until all workers have connected. Raises an OSError if a worker ends, or after a deadline."""
        end = time.monotonic() + START
        while missing := set(range(ranks)) - self._channels.keys():
            with contextlib.suppress(TimeoutError):
                number, channel = listener.accept(missing, 0.5)
                self._channels[number] = channel
                continue
            if any(process.poll() is not None for process in self._processes):
                raise ConnectionError("a process of it has ended")
            if time.monotonic() > end:
                raise TimeoutError(f"ranks {sorted(missing)} did not come within {START:g} s")

    def prepare(self, case: Case, warmup: int, renew: bool = False, row: int = 1) -> None:
        """Let all processes of another library, such as Open MPI, prepare the collective `case`.

        The processes run the collective `warmup` times without timing it. `renew` tells whether to write the input
        again before each timed iteration. `row` is the number of calls in an iteration. Raises: PeerCannot if the other
        library does not support the collective; PeerFailed.
        """
        answers = self._ask({"do": "prepare", "case": asdict(case), "warmup": warmup, "renew": renew, "row": row})
        reasons = [a.get("unsupported") or a.get("error") for a in answers]
        if all(reasons):
            self._ask({"do": "finish"})
            raise PeerCannot(str(reasons[0]))
        self._all_well(answers)

    def wrong(self, salt: int) -> int:
        return sum(int(a["wrong"]) for a in self._told({"do": "wrong", "salt": salt}))

    def elapsed(self, iterations: int) -> float:
        return max(float(a["seconds"]) for a in self._told({"do": "elapsed", "iterations": iterations}))

    def turn(self, iterations: int, warmup: int) -> tuple[Samples, ...]:
        answers = self._told({"do": "turn", "iterations": iterations, "warmup": warmup})
        return tuple(np.array(a["samples"], np.float64) for a in answers)

    def finish(self) -> None:
        self._told({"do": "finish"})

    def _told(self, command: dict[str, Any]) -> list[dict[str, Any]]:
        answers = self._ask(command)
        self._all_well(answers)
        return answers

    def _all_well(self, answers: list[dict[str, Any]]) -> None:
        for rank, answer in enumerate(answers):
            if "error" in answer or "unsupported" in answer:
                raise PeerFailed(f"{self._name}, rank {rank}: {answer.get('error') or answer.get('unsupported')}")

    def _ask(self, command: dict[str, Any]) -> list[dict[str, Any]]:
        channels = [self._channels[rank] for rank in sorted(self._channels)]
        if not channels:
            raise PeerFailed(f"{self._name} has been ended")
        try:
            for channel in channels:
                channel.send(command, END)
            return [dict(channel.receive(ANSWER)) for channel in channels]
        except (OSError, ValueError) as error:
            raise PeerFailed(f"{self._name}, at {command['do']!r}: {error}{self._last_words()}") from error

    def _last_words(self) -> str:
        with contextlib.suppress(OSError):
            lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
            if lines:
                return "; it says: " + " | ".join(lines[-3:])
        return ""

    def close(self) -> None:
        """Ask all processes of another library, such as Open MPI, to end.

        Kill the processes that do not end in time. Raises nothing.
        """
        for channel in self._channels.values():
            with contextlib.suppress(OSError):
                channel.send({"do": "end"}, 1.0)
            channel.close()
        polite = END if self._channels else 0.0
        self._channels = {}
        for end in (subprocess.Popen.terminate, subprocess.Popen.kill):
            deadline = time.monotonic() + polite
            for process in self._processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - time.monotonic()))
            for process in self._processes:
                end(process)  # does nothing if the process has ended
            polite = END
        for process in self._processes:
            process.wait()


@contextlib.contextmanager
def _on(cores: Collection[int]) -> Iterator[None]:
    """In a `with` block, new processes may use these cores, even if this rank was bound to other cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores or before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
