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
    """The error, or the success, that is correct for a rank after a fault was injected.

    `raises` has the names of the error classes that are correct. If it includes `FINE`, it is also correct that the
    rank raises no error. `within` is the time limit for the error in seconds, from the event `since`. `names` tells
    whether the error must name a rank that the fault has hit. `text` is a regular expression that the message must
    match.

    If `warns` is given, the rank must warn instead. `warns` is a regular expression for the warning, in which {} stands
    for the rank that the fault has hit.
    """

    raises: tuple[str, ...]
    within: float = AT_ONCE
    names: bool = True
    since: str = "injected"
    text: str = ""
    warns: str = ""


@dataclass(frozen=True, slots=True)
class Ends:
    """How the process of a rank must end if an injected fault has hit this rank.

    The process must end within `within` seconds after the fault, with one of the exit codes `codes`.
    """

    within: float
    codes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """A kind of fault to inject into a job, and how the ranks must react to it.

    All ranks run `program`. Meanwhile the process that has started the ranks runs `inject`. Both functions find their
    parameters in `values`. `victims` says which behaviour is correct for the ranks that the fault hits (None: any),
    `survivors` for the other ranks. `ends` says how the processes of the hit ranks must end. `row` is a number in the
    list of all kinds of faults.

    `sizes` are the possible numbers of ranks; each run draws one of these numbers. The fault hits `chosen` ranks, drawn
    at random. If `hosts`, each rank is in a network namespace of its own. If `servers`, each run has a Redis server of
    its own. `runs` has the number of runs in the short and in the long form of the command. If `form` is "short" or
    "long", only that form of the command runs the case, unless `--only` names it: then either form does. `why_not`
    returns a text if the case cannot run on this machine. `keys_stay` tells whether a rank that dies may leave keys in
    the store.
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
        """The seconds after the injected fault at which a rank counts as hanging if it still runs."""
        longest = [self.survivors.within, *([self.victims.within] if self.victims else [])]
        return max(*longest, self.ends.within if self.ends else 0.0) + 5.0


@dataclass(frozen=True, slots=True)
class Unit:
    """One run with an injected fault: the name of the kind of fault, the transport, and the seed of all random choices.

    `ranks` is the number of ranks; 0 means that it is drawn at random.
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
    """The result of one run with an injected fault.

    `seconds` is how long the slowest rank took to raise an error, or None if no rank raised one. `ranks` ranks had to
    raise an error; `detected` of these ranks did so in time and named the right rank. `blamed` is the number of errors
    that name a healthy rank. `hangs` is the number of ranks that had to be killed. `leaks` lists the resources that
    the job left behind, such as files or store keys.

    `problems` has a sentence for each problem. `reports` has a text about each rank. `absent` is the reason why the run
    was impossible on this machine, or None.
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
