"""The native engine: reductions, links, handshake and the executor that runs schedules.

Invariant: no call here holds the GIL while it waits. Errors are those of `collectives.native.errors`; misuse by our own
Python code is ValueError or TypeError.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

import numpy as np
import numpy.typing as npt

DTYPES: Final[dict[str, int]]  # "float32" -> code, for every dtype of the contract ("bfloat16" included)
OPS: Final[dict[str, int]]  # "sum" -> code; "avg" is a sum whose final reduction divides by the group's size
COLLECTIVES: Final[dict[str, int]]  # "allreduce" -> code on the wire
CALLER_OP: Final[int]  # stands on the wire for a reduction that is a function of the caller's
WIRE_VERSION: Final[int]
INTERFACE: Final[str]  # the version of the C++ interface for shared objects of other packages

def supports(dtype: int, op: int) -> bool: ...
def reduce(dst: npt.NDArray[Any], sources: Sequence[npt.NDArray[Any]], dtype: int, op: int, scale: float = 1.0) -> None:
    """dst = sources left to right (the kernel the executor uses); for tests and calibration."""

def cpu_features() -> list[str]:
    """The instruction sets the reductions may use here, best last, e.g. ["avx2", "avx512"]."""

def sha256(data: bytes) -> bytes: ...
def hmac_sha256(key: bytes, data: bytes) -> bytes: ...

class Program:
    """One rank's schedule, compiled; immutable and shared between operations.

    `grid`, `scratch` as in Schedule. `steps[i]` is a tuple (kind, peers, dst, sources, final, dependencies):
    - kind: 0 send, 1 recv, 2 reduce, 3 copy
    - peers: ranks; for reduce see `sources`. Of a program that is one step only, this rank may be among them, and a
      receive may name several: from whichever sends first
    - dst: (buffer, first, count): where data goes (send: the chunk to send)
    - sources: for copy one chunk; for reduce the operands in order, a chunk (buffer, first, count) or a rank
    - dependencies: (step, buffer, block_there, block_here): this step may be at byte x of the buffer only
      when `step`, whose region there starts at block_there, has finished up to x; this step's region starts
      at block_here.

    `pooled`: an allreduce in which every rank reduces a part of the messages of all and sends it to all; ranks
    that share memory may do it by adding up in one place instead.

    `flat`: two chunks (buffer, first, count): what every rank that sends anything sends to all that receive, and which
    part of it this rank takes of each. Nothing that is sent may depend on what comes. Ranks that share memory exchange
    up to 4 KiB so on one board.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        grid: tuple[int, int],
        scratch: Sequence[Sequence[tuple[int, int]]],
        steps: Sequence[tuple[Any, ...]],
        pooled: bool = False,
        flat: tuple[tuple[int, int, int], tuple[int, int, int]] | None = None,
    ) -> None: ...
    @property
    def peers(self) -> list[int]: ...

class Operation:
    """A program bound to element type, reduction and sizes; reusable for any memory of those sizes.

    `in_bounds`, `out_bounds`: the number of elements (divided evenly: block b of B covers
    [n*b//B, n*(b+1)//B)), or an int64 array of blocks + 1 ascending offsets, in elements.
    `identity` = (collective, op, dtype, count, root, algorithm) is what ranks compare: `count` is 0 where it
    may differ between ranks, `algorithm` a 32-bit hash of name and parameters. `at_a_time`: elements that are
    worked on before the next ones, 0 for all; only where each element is reduced apart from the others, and both
    bounds are one number. `part`: 0 for a call by itself; of the messages that together are one call, PART_FIRST for
    the first and PART_OTHER for the rest.
    """

    def __init__(
        self,
        program: Program,
        dtype: int,
        op: int,
        in_bounds: int | npt.NDArray[np.int64],
        out_bounds: int | npt.NDArray[np.int64],
        identity: tuple[int, int, int, int, int, int],
        at_a_time: int = 0,
        part: int = 0,
    ) -> None: ...
    @property
    def sections(self) -> int: ...
    @property
    def in_bytes(self) -> int: ...
    @property
    def out_bytes(self) -> int: ...
    @property
    def memory(self) -> int:
        """Bytes that it takes, with its program."""

PART_FIRST: Final[int]
PART_OTHER: Final[int]

class Ticket:
    """An asynchronous operation; keeps its arrays alive until it is done."""

    def done(self) -> bool: ...
    @property
    def receipt(self) -> tuple[int, int]:
        """Of a message that was received, once it is done: from whom, and how many elements."""

    def wait(self, timeout: float | None) -> None:
        """Return when done; raise its error. A passed timeout raises OpTimeout and leaves it running."""

class GeneralizedTicket(Ticket):
    """An operation that Python code does, once all ranks have made the same call, and whose end it reports."""

    def wait_until_begun(self) -> bool:
        """Wait until all ranks have made the call. False if the operation has ended before."""

    def complete(self) -> None:
        """The result is in place."""

    def fail(self, kind: str, message: str, ranks: list[int]) -> None:
        """It has failed: the group breaks. `kind`: PeerLost, OpTimeout or DesyncError; anything else means Aborted."""

def transports() -> list[str]:
    """The transports that this engine has links of, in alphabetical order."""

def refused_transports() -> list[str]:
    """Why transports that loaded objects brought could not be registered, since the last call."""

def why_no_room(transport: str, ranks: int, segment: int = 0) -> str | None:
    """Why this process's limits (ulimit -f, -v) leave no room for a group of so many ranks over that transport; None
    where they do. `segment` as of Group. TransportUnavailable for a transport that the engine has no links of."""

class Job:
    """What the communicators of one `init`, and those made from it, have in common: their control thread, which ends
    with the last of them."""

    def __init__(self) -> None: ...
    def expect(self, context: bytes) -> None:
        """A Group with this context is about to be made here: peers that call it sooner are kept waiting."""

    def forget(self, context: bytes) -> None:
        """That group will not be made: peers that call it are refused. Nothing where it has been made."""

class Group:
    """The native side of one communicator: its links, executor, progress thread and shared memory."""

    def __init__(
        self,
        rank: int,
        size: int,
        context: bytes,
        epoch: int,
        secret: bytes,
        segment: int = 0,
        oversubscribed: bool = False,
        home: int = -1,
        crowded: bool = False,
        sockets: int = 1,
        cache: int = 0,
        heap: bool = True,
        job: Job | None = None,
        job_ranks: Sequence[int] = (),
    ) -> None:
        """`context`: 16 bytes naming run and communicator. `secret` may be empty (insecure).
        `segment`: bytes per slice, 0 for the default. `oversubscribed`: more ranks than cores on this host; `home`: the
        core that this rank's threads go back to when they wait in vain, -1 for none.
        `crowded`: ranks outnumber cores, on some host; the same on all ranks. `sockets`: of each link over TCP, 1 to
        16, the same on all ranks. `cache`: bytes of the last cache that this rank has, 0 where nobody knows.
        `heap`: False where a rank that shares memory with this one has too little address space for what
        `empty` would give. `job`: that it belongs to, None for one of its own; `job_ranks`: by rank of the
        group, the rank in that job, empty where they are the same."""

    def listen(self, scheme: str, fd: int) -> None:
        """Accept peers of the transport `scheme` on this bound, listening, non-blocking socket; the job owns it, for
        all its groups."""

    def accept(self, scheme: str) -> None:
        """Let peers reach this group, too, where the job listens for that scheme."""

    def listen_in_process(self, scheme: str) -> str:
        """The address under which threads of this process reach this group over that transport."""

    def route(self, peer: int, scheme: str, addresses: Sequence[str], host: str) -> None:
        """How to reach `peer`: shm "name of an abstract socket", tcp "ip%scope port" (tried in order), inproc
        the peer's `listen_in_process`. `host` is for messages. Opens nothing."""

    def connect(self, peers: Sequence[int], timeout: float) -> None:
        """Open the links to `peers`, where not yet open. PeerLost, OpTimeout, AuthError, ConfigMismatch."""

    def run(self, operation: Operation, inp: Any, out: Any, timeout: float) -> tuple[int, int]:
        """Run now, on this thread. `inp`, `out`: contiguous arrays or None; the same array in place.

        Gives, of a message that was received, from whom, and how many elements; (-1, 0) else.
        """

    def exchange(self, send: Operation, inp: Any, recv: Operation, out: Any, timeout: float) -> tuple[int, int]:
        """Run both now, at once. Gives what `run` gives for the second."""

    def run_together(self, calls: Sequence[tuple[Operation, Any, Any]], timeout: float) -> list[tuple[int, int]]:
        """Run all of these (operation, inp, out) at once: all are under way before any has to be complete, however many
        there are. Gives what `run` gives for each. The caller keeps the arrays if waiting is interrupted."""

    def start(self, operation: Operation, inp: Any, out: Any, timeout: float) -> Ticket:
        """Queue for the progress thread; operations complete in the order they were started."""

    def start_generalized(self, agreement: Operation, timeout: float, engine: str) -> GeneralizedTicket:
        """Start an operation that Python code does. Ranks agree on the call by running `agreement`, a barrier in its
        name. `engine`: its name in records. After `timeout` there are 10 s more to report the cause."""

    def empty(self, nbytes: int) -> npt.NDArray[np.uint8] | None:
        """Uninitialised bytes that peers on this host can read directly: a uint8 array, 64-byte aligned, that
        goes back to the kernel with the last reference. None where no peer shares memory with us."""

    def link_kind(self, peer: int) -> str | None:
        """The scheme of the open link to `peer`, None if none is open."""

    def bytes_sent(self) -> int: ...
    def records(self) -> list[dict[str, Any]]:
        """The last 1 000 operations, oldest first, then those that wait for the progress thread. Times in seconds of
        CLOCK_MONOTONIC, None where it has not come; codes as in DTYPES, OPS and COLLECTIVES; `state`: 0 queued, 1
        started, 2 done, 3 failed. `number` is 0 for those that wait. Also after an error, and when closed."""

    def memory(self) -> dict[str, int]:
        """Bytes, by kind, see `Communicator.memory`; empty in a forked child."""

    def engines(self, operation: Operation) -> list[tuple[str, str | None]]:
        """The engines in the order in which they are asked to run such an operation, each with its reason not to, None
        where it can: the first of these does. Waits for operations that are under way."""

    def confirm(self, grace: float) -> None:
        """Raises DesyncError if a rank that shares memory with this one has begun another collective under the number
        of one of this rank's. Waits up to `grace` seconds for those that have begun fewer. Nothing while closed, broken
        or in use."""
    @property
    def broken(self) -> BaseException | None:
        """The first error after which no operation can run; None while all is well."""

    def close(self) -> None:
        """Close links, threads and memory; idempotent; peers see this rank as gone."""

class Latch:
    """Lets one thread at a time in, until it is shut for good; by the GIL, so both cost next to nothing."""

    def __init__(self) -> None: ...
    @property
    def taken(self) -> bool:
        """Whether somebody is in."""

    def acquire(self) -> bool:
        """Whether the caller is in. False while another thread is, and after `shut`."""

    def release(self) -> None: ...
    def shut(self) -> None: ...

class Repeater:
    """Made by `repeater`: the calls of one method that the engine repeats by itself."""

    @property
    def known(self) -> int:
        """How many calls it remembers."""

def repeater(
    group: Group,
    latch: Latch,
    timeout: float,
    positional: tuple[tuple[str, Any], ...],
    keywords: tuple[tuple[str, Any], ...],
    arrays: tuple[npt.NDArray[Any], npt.NDArray[Any]] | None,
) -> Repeater:
    """Runs at once the calls that `remember` was told of.

    They are made with an array x and the parameters, (name, default) each, `positional` ones in this order or by
    name, and `out` by name. `arrays`: x and where the result goes for calls that have no arrays of their own.
    """

class Repeating:
    """The base of a class with methods that are repeated, see `method`."""

    _repeaters: tuple[Repeater, ...]

class Method:
    """Made by `method`. Behaves as a function does in a class."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

def method(function: Callable[..., Any], index: int) -> Method:
    """For a class derived from `Repeating`: calls that `_repeaters[index]` knows it runs, others `function` does."""

AS_IT_IS: Final[int]  # what an operation wants of x: to read it where it lies,
COPIED: Final[int]  # a copy, since the result overwrites it,
NO_INPUT: Final[int]  # nothing

def remember(
    repeater: Repeater,
    x: npt.NDArray[Any],
    values: tuple[Any, ...],
    in_place: bool,
    operation: Operation,
    input: int,
    result: tuple[int, ...] | npt.NDArray[Any] | None,
) -> None:
    """Calls with arrays like x, these values of the parameters, and `out` x itself or not, are `operation`.

    `result`: x where x is overwritten, the shape of another array, or None where there is none.
    """

class Plan:
    """Made by `plan`. Calling it runs the operation and returns `out`."""

    def __call__(self) -> Any: ...
    @property
    def out(self) -> Any: ...
    @property
    def start(self) -> Callable[[], Any]: ...

def plan(
    group: Group,
    latch: Latch,
    timeout: float,
    operation: Operation,
    inp: npt.NDArray[Any] | None,
    out: npt.NDArray[Any] | None,
    result: Any,
    copied: bool,
    refuse: Callable[[], NoReturn],
    start: Callable[[], Any],
    owner: object,
) -> Plan:
    """`refuse` raises what is wrong where the latch does not open. `start` becomes its attribute; `owner` is kept."""
