"""The values that describe a fault and what has to happen then.

Invariant: a case says what is injected and what is expected, and nothing about how either is done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collectives.bench.chaos.rank import Rank
    from collectives.bench.chaos.run import Run

FINE: Final = ""  # in `Expect.raises`: the rank may also end without an error
AT_ONCE: Final = 2.0  # seconds: bar C of the fault matrix
SILENT: Final = 12.0  # seconds: bar H, with the heartbeat's usual limit
EVERYBODY: Final = 64  # as `Case.chosen`: all ranks are victims
BOTH: Final = ("shm", "tcp")
ALL: Final = ("shm", "tcp", "inproc")


@dataclass(frozen=True, slots=True)
class Expect:
    """What a rank has to do after the injection.

    `raises`: the names of the error classes that are right, or FINE. `within`: seconds that an error may take, from the
    moment called `since`. `names`: whether the error has to name a victim. `text`: a pattern that the message matches.
    `warns`: instead, a pattern of a warning that this rank has to give within that time; {} stands for the victim.
    """

    raises: tuple[str, ...]
    within: float = AT_ONCE
    names: bool = True
    since: str = "injected"
    text: str = ""
    warns: str = ""


@dataclass(frozen=True, slots=True)
class Ends:
    """How the victim's process has to end: within so many seconds of the injection, with one of these exit codes."""

    within: float
    codes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """One fault: a row of the fault matrix, or a part of it.

    `program` runs on every rank; `inject` runs in the runner meanwhile. `survivors` and `victims` say what has to
    happen; what victims do is left open if that is None. `values` are for `program` and `inject`.

    `sizes`: the numbers of ranks, one of which is drawn for each run. `chosen`: how many victims are drawn. `hosts`:
    each rank is in a network namespace of its own. `servers`: each run has a Redis server of its own. `form`: "short",
    "long" or "" for both. `runs`: how many runs the short and the long form make. `why_not`: the reason why the case
    cannot run on this machine, or None. `keys_stay`: whether a death may leave keys in the store.
    """

    row: int
    name: str
    injected: str
    program: Callable[[Rank], None]
    inject: Callable[[Run], None]
    survivors: Expect
    victims: Expect | None = None
    ends: Ends | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    sizes: tuple[int, ...] = (4,)
    chosen: int = 1
    transports: tuple[str, ...] = BOTH
    hosts: bool = False
    servers: bool = False
    form: str = ""
    runs: tuple[int, int] = (1, 10)
    why_not: Callable[[], str | None] = lambda: None
    keys_stay: bool = False

    @property
    def limit(self) -> float:
        """Seconds after the injection, or a later moment, after which a rank that has not ended hangs."""
        longest = [self.survivors.within, *([self.victims.within] if self.victims else [])]
        return max(*longest, self.ends.within if self.ends else 0.0) + 5.0


@dataclass(frozen=True, slots=True)
class Unit:
    """One run: a case, the transport, and what the seed leaves open. `ranks`: 0 draws one of the case's sizes."""

    case: str
    transport: str
    seed: int
    ranks: int = 0
    store: str = "file"

    @property
    def command(self) -> str:
        """The command that repeats this run."""
        size = f" -n {self.ranks}" if self.ranks else ""
        where = f" --store {self.store}" if self.store != "file" else ""
        rest = f"--transport {self.transport}{size}{where} --runs 1 --seed {self.seed}"
        return f"collectives bench chaos --only {self.case} {rest}"


@dataclass(slots=True)
class Finding:
    """What one run has shown. `seconds`: the slowest detection, None if nothing was to be detected or nobody did.

    `ranks`: how many ranks had something to detect; `detected`: how many did so, within the bar and by name.
    `blamed`: errors that name a rank that was healthy. `hangs`: ranks that had to be killed. `leaks`: what is left.
    `problems`: sentences about all of these. `reports`: what each rank said, for the reader. `absent`: why the case
    cannot run here.
    """

    unit: Unit
    ranks: int = 0
    detected: int = 0
    seconds: float | None = None
    blamed: int = 0
    hangs: int = 0
    leaks: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    reports: list[str] = field(default_factory=list)
    absent: str | None = None

    @property
    def held(self) -> bool:
        """Whether the run met its bar in everything."""
        return not (self.problems or self.leaks or self.blamed or self.hangs) and self.detected == self.ranks
