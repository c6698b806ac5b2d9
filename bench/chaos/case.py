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
    """What a rank has to do after a fault was injected.

    `raises`: the names of the error classes that are right, or FINE if no error is right too. `within`: seconds that an
    error may take, from the moment called `since`. `names`: whether the error has to name a rank that the fault hits.
    `text`: a pattern that the message matches. `warns`: instead, a pattern of a warning that this rank has to give
    within that time; {} stands for the rank that the fault hits.
    """

    raises: tuple[str, ...]
    within: float = AT_ONCE
    names: bool = True
    since: str = "injected"
    text: str = ""
    warns: str = ""


@dataclass(frozen=True, slots=True)
class Ends:
    """How the process of a rank that a fault hits has to end: how soon after the fault, and with which exit codes."""

    within: float
    codes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """A kind of fault to inject: a row of the list of all faults (the fault matrix), or a part of a row.

    `program` runs on every rank; meanwhile `inject` runs in the process that has started the ranks. `victims` says what
    the ranks that the fault hits have to do (None: anything), `survivors` what the others have to do. `values` are for
    `program` and `inject`.

    `sizes`: the numbers of ranks, one of which is drawn for each run. `chosen`: for how many ranks, drawn at random,
    the fault is. `hosts`: each rank is in a network namespace of its own. `servers`: each run has a Redis server of its
    own. `form`: whether the case is for the "short" or the "long" form of the command, "" for both. `runs`: how many
    runs each form makes. `why_not`: the reason why the case cannot run on this machine, or None. `keys_stay`: whether a
    death may leave keys in the store.
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
        """How many seconds after the fault (or a later moment) a rank that has not ended counts as hanging."""
        longest = [self.survivors.within, *([self.victims.within] if self.victims else [])]
        return max(*longest, self.ends.within if self.ends else 0.0) + 5.0


@dataclass(frozen=True, slots=True)
class Unit:
    """One run of a case (a kind of fault) over one transport; `seed` determines all that is drawn at random.

    `ranks`: the number of ranks; 0 draws one of those that the case allows.
    """

    case: str
    transport: str
    seed: int
    ranks: int = 0
    store: str = "file"

    @property
    def command(self) -> str:
        """The command line that repeats this run with the same seed."""
        size = f" -n {self.ranks}" if self.ranks else ""
        where = f" --store {self.store}" if self.store != "file" else ""
        rest = f"--transport {self.transport}{size}{where} --runs 1 --seed {self.seed}"
        return f"collectives bench chaos --only {self.case} {rest}"


@dataclass(slots=True)
class Finding:
    """What one run with an injected fault has shown.

    `seconds`: how long the slowest rank took to raise an error, None if none did. `ranks`: how many ranks had to raise
    one; `detected`: how many did so in time, and named the right rank. `blamed`: errors that name a rank that was
    healthy. `hangs`: ranks that had to be killed. `leaks`: what is left. `problems`: sentences about all of these.
    `reports`: what each rank said, for the reader. `absent`: why the case cannot run here.
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
        """Whether all ranks did what the case expects after the fault."""
        return not (self.problems or self.leaks or self.blamed or self.hangs) and self.detected == self.ranks
