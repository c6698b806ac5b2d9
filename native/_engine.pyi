"""The native engine: reductions, links, handshake and the executor that runs schedules.

Invariant: no function here holds the GIL while it waits. Errors are those of `collectives.native.errors`; wrong
arguments, which are faults of this library's Python code, raise ValueError or TypeError.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn, overload

import numpy as np
import numpy.typing as npt

DTYPES: Final[dict[str, int]]  # "float32" -> code, for every supported dtype ("bfloat16" included)
OPS: Final[dict[str, int]]  # "sum" -> code; "avg" is a sum whose final reduction divides by the group's size
COLLECTIVES: Final[dict[str, int]]  # "allreduce" -> code in frames
CALLER_OP: Final[int]  # code in frames for a reduction by a Python function of the caller
VERSION: Final[str]  # of the library; "" if it was not built by pip
WIRE_VERSION: Final[int]
HEARTBEATS: Final[tuple[float, float]]  # the defaults of Job
INTERFACE: Final[str]  # the version of the C++ interface for shared objects of other packages

def supports(dtype: int, op: int) -> bool: ...
def reduce(dst: npt.NDArray[Any], sources: Sequence[npt.NDArray[Any]], dtype: int, op: int, scale: float = 1.0) -> None:
    """Reduce `sources` into `dst`, from left to right, with the executor's kernel; for tests and calibration."""

BLOCK_NUMBERS: Final[int]  # in an element of "int8_blocks" or "float8_blocks"

def encode(dst: npt.NDArray[Any], source: npt.NDArray[np.float32], dtype: int, factor: float = 1.0) -> None:
    """Write `source` times `factor` to `dst`, as elements of the encoded type with the code `dtype`.

    Encoded types: "float16", "bfloat16", and "int8_blocks" and "float8_blocks", of which an element has BLOCK_NUMBERS
    numbers; zeros fill the last one. The arrays do not overlap.
    """

def decode(dst: npt.NDArray[np.float32], source: npt.NDArray[Any], dtype: int, factor: float = 1.0) -> None:
    """Write the numbers that `source` encodes, times `factor`, to `dst`."""

def cpu_features() -> list[str]:
    """Return the instruction sets that reductions may use on this machine, best last, e.g. ["avx2", "avx512"]."""

def sha256(data: bytes) -> bytes: ...
def hmac_sha256(key: bytes, data: bytes) -> bytes: ...

class Program:
    """One rank's schedule, compiled; immutable and shared between operations.

    `grid` and `scratch` are as in Schedule. `steps[i]` is a tuple (kind, peers, dst, sources, final, dependencies):
    - kind: 0 send, 1 recv, 2 reduce, 3 copy
    - peers: ranks; empty for a reduce (see `sources`). If the program has only one step, this rank may be among the
      peers, and a receive may name several ranks: it takes the message of the rank that sends first
    - dst: (buffer, first, count), the chunk to which data goes; for a send the chunk to send
    - sources: for a copy one chunk; for a reduce the operands in order, each a chunk (buffer, first, count) or a rank
    - dependencies: (step, buffer, block_there, block_here): this step may process byte x of the buffer only after
      `step` has finished that byte. In the buffer, the region of `step` starts at block_there, and the region of this
      step at block_here.

    `pooled`: whether this is an allreduce in which every rank reduces a part of all ranks' arrays and sends the result
    to all. Ranks that share memory may instead add up their arrays in the pool, a part of the shared memory.

    `flat`: two chunks (buffer, first, count), for an exchange in one round. This rank sends the first chunk to every
    rank that receives. The second chunk is the part of each message that this rank takes. The sent data must not depend
    on received data. Ranks that share memory may exchange such messages on a board, memory that all these ranks read.
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
    """A program bound to element type, reduction and sizes; it can be run on any arrays of these sizes.

    `in_bounds`, `out_bounds`: the number of elements (divided evenly: block b of B covers
    [n*b//B, n*(b+1)//B)), or an int64 array of blocks + 1 ascending offsets, in elements.
    `identity` = (collective, op, dtype, count, root, algorithm): the values that ranks compare. `count` is 0 if the
    number may differ between ranks, `algorithm` is a 32-bit hash of name and parameters. `at_a_time`: the operation is
    run on sections of so many elements, one after the other; 0: on everything at once. Sections need bounds that are
    numbers, and a program that processes each element independently. `part`: 0 for an operation that is a call by
    itself. If several messages make up one call, PART_FIRST for the first message and PART_OTHER for the others.
    `divisor`: of an average, if it is not the number of ranks.
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
        call_bytes: int = 0,
        divisor: int = 0,
    ) -> None: ...
    @property
    def sections(self) -> int: ...
    @property
    def in_bytes(self) -> int: ...
    @property
    def out_bytes(self) -> int: ...
    @property
    def memory(self) -> int:
        """The bytes of memory that the operation takes, including its program."""

PART_FIRST: Final[int]
PART_OTHER: Final[int]

class Ticket:
    """An asynchronous operation, which keeps its arrays alive until it is done."""

    def done(self) -> bool: ...
    @property
    def receipt(self) -> tuple[int, int]:
        """Return the sender and the number of elements of the received message. Call it when the operation is done."""

    def wait(self, timeout: float | None) -> None:
        """Wait until the operation is done; raise its error. OpTimeout after `timeout` s, but the operation goes on."""

class GeneralizedTicket(Ticket):
    """An operation that Python code runs after all ranks have made the same call. Methods report its end."""

    def wait_until_begun(self) -> bool:
        """Wait until all ranks have made the call. Return False if an error has already ended the operation."""

    def complete(self) -> None:
        """Report success: the result is in the caller's arrays."""

    def fail(self, kind: str, message: str, ranks: list[int]) -> None:
        """Report failure, which breaks the group. `kind`: PeerLost, OpTimeout, DesyncError; any other means Aborted."""

def transports() -> list[str]:
    """The names of the transports that this engine can use to link ranks, in alphabetical order."""

def refused_transports() -> list[str]:
    """Return the reasons why transports of loaded plug-ins could not be registered since the last call."""

def why_no_room(transport: str, ranks: int, segment: int = 0) -> str | None:
    """Return why this process's limits (ulimit -f, -v) leave no room for a group of `ranks` ranks; None if they do not.

    `segment` is as for Group. TransportUnavailable if the engine has no links of the transport."""

class Job:
    """The control thread that the communicator of one `init` shares with all communicators made from it.

    The thread ends with the last of these communicators. `interval`: seconds between the heartbeats that neighbours
    exchange. `limit`: seconds of silence after which a neighbour is dead. With a limit of 0, nobody is watched and
    ranks do not tell each other of errors. ValueError for an interval of 0."""

    def __init__(self, interval: float = 1.0, limit: float = 10.0) -> None: ...
    def expect(self, context: bytes) -> None:
        """Announce that a Group with this context will be made. Until then, peers that connect to it have to wait."""

    def forget(self, context: bytes) -> None:
        """Revoke `expect`: refuse peers that connect to that group. Does nothing if that group has been made."""

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
        host: str = "",
        rendezvous: int = 0,
    ) -> None:
        """`context`: 16 bytes that identify run and communicator. `secret` may be empty (insecure).
        `segment`: bytes per slice, 0 for the default. `oversubscribed`: ranks outnumber cores on this host. `home`:
        the core to which this rank's threads return when they have waited for long, -1 for none.
        `crowded`: ranks outnumber cores on some host of the group; the same on all ranks. `sockets`: the number of
        sockets of each link over TCP, 1 to 16, the same on all ranks. `cache`: bytes of this rank's share of the
        last-level cache, 0 if unknown. `heap`: False if the address space of this rank, or of a rank that shares
        memory with it, is too small for the heap from which `empty` allocates. `job`: the job that the group belongs
        to, None for a new one. `job_ranks[r]`: the rank in that job of the group's rank r; empty if they are equal.
        `host`: this rank's, for messages. `rendezvous`: the shortest message, in bytes, for which links over verbs use
        the rendezvous protocol; 0 for the default."""

    def listen(self, scheme: str, fd: int) -> None:
        """Accept peers of the transport `scheme` on the socket `fd`, which is bound, listening and non-blocking.

        The job owns the socket, and uses it for all its groups."""

    def accept(self, scheme: str) -> None:
        """Let peers connect to this group through the sockets on which the job already listens for that transport."""

    def listen_in_process(self, scheme: str) -> str:
        """Return the address under which threads of this process reach this group over the transport `scheme`."""

    def use_port(self, peer: int, scheme: str, port: str) -> None:
        """Set the network port of this rank through which it reaches `peer`. Call it before `listen` and `accept`.

        `port` is the transport's name for the port: of verbs "device:port:GID index". TransportUnavailable if the port
        cannot be used."""

    def route(self, peer: int, scheme: str, addresses: Sequence[str], host: str) -> None:
        """Set how to reach `peer` over the transport `scheme`. Opens nothing. `host` is for messages.

        An address of shm is the name of an abstract socket. An address of tcp is "ip%scope port"; several addresses are
        tried in order. An address of inproc is the result of the peer's `listen_in_process`."""

    def connect(self, peers: Sequence[int], timeout: float) -> None:
        """Open the links to `peers` that are not open yet. Raises PeerLost, OpTimeout, AuthError, ConfigMismatch."""

    def run(
        self, operation: Operation, inp: Any, out: Any, timeout: float, transfer: CudaTransfer | None = None
    ) -> tuple[int, int]:
        """Run an operation on this thread. `inp`, `out`: contiguous arrays or None; in place, both are the same array.

        `transfer`: copies both arrays meanwhile; the caller calls `finish` when the operation is done.

        Returns sender and number of elements of a received message; (-1, 0) for other operations.
        """

    def exchange(
        self,
        send: Operation,
        inp: Any,
        recv: Operation,
        out: Any,
        timeout: float,
        transfer: CudaTransfer | None = None,
    ) -> tuple[int, int]:
        """Run both operations at the same time. Returns what `run` returns for `recv`."""

    def run_together(
        self, calls: Sequence[tuple[Operation, Any, Any, CudaTransfer | None]], timeout: float
    ) -> list[tuple[int, int]]:
        """Run all calls (operation, inp, out, transfer) at the same time: all are started before any has to complete.

        Returns the result of `run` for each call. If waiting is interrupted, the caller has to keep the arrays."""

    def start(
        self, operation: Operation, inp: Any, out: Any, timeout: float, transfer: CudaTransfer | None = None
    ) -> Ticket:
        """Queue an operation for the progress thread; operations complete in the order in which they were started."""

    def start_generalized(self, agreement: Operation, timeout: float, engine: str) -> GeneralizedTicket:
        """Start an operation that Python code runs.

        Ranks agree on the call by running `agreement`, a barrier with the fingerprint of the operation. `engine`: the
        name by which records show the code. After `timeout` seconds the code has 10 s more to report the cause."""

    def empty(self, nbytes: int) -> npt.NDArray[np.uint8] | None:
        """Return uninitialised memory that peers on this host can read directly, as a uint8 array, 64-byte aligned.

        The memory returns to the kernel with the last reference. None if no peer shares memory with this rank."""

    def link_kind(self, peer: int) -> str | None:
        """Return the transport of the open link to `peer`, None if no link is open."""

    def link_counts(self, peer: int) -> dict[str, int]:
        """Return the counters of the link to `peer`, by name; {} if no link is open or its transport counts nothing."""

    def link_path(self, peer: int) -> str:
        """Return the two network ports that the link to `peer` connects, as text.

        Return "" if no link is open, or if its transport uses no ports."""

    def bytes_sent(self) -> int: ...
    def records(self) -> list[dict[str, Any]]:
        """The last 1 000 operations, oldest first, then the operations that wait for the progress thread.

        Times are seconds of CLOCK_MONOTONIC, None if the moment has not come. Codes are those of DTYPES, OPS and
        COLLECTIVES. `state`: 0 queued, 1 started, 2 done, 3 failed. `number` is 0 for operations that wait. Works also
        after an error, and after `close`."""

    def memory(self) -> dict[str, int]:
        """Return bytes of memory by kind, see `Communicator.memory`; an empty dict in a forked child."""

    def engines(self, operation: Operation) -> list[tuple[str, str | None]]:
        """Return the engines that may run `operation`, in the order in which they are asked.

        With each comes its reason to refuse. The first engine whose reason is None runs the operation. Waits for
        operations that are under way."""

    def confirm(self, grace: float) -> None:
        """Raise DesyncError if a rank that shares memory with this rank has begun another collective under the same
        sequence number. Waits up to `grace` seconds for ranks that have begun fewer collectives than this rank. Does
        nothing if the group is closed, broken or in use."""

    def abandon(self, kind: str, message: str) -> None:
        """Break the group: a call that consists of several operations has ended after some of them.

        `kind`: "OpTimeout", or another name for Aborted. Other ranks learn the reason, and raise it, too. Waits up to a
        second for operations that are under way."""
    @property
    def broken(self) -> BaseException | None:
        """Return the first error after which no operation can run; None if there was none."""

    def close(self) -> None:
        """Close the links, threads and memory. Idempotent. Peers then see this rank as gone."""

def why_no_cuda() -> str | None:
    """Return why this process has no NVIDIA driver that is new enough; None if it has one. Does not initialise it."""

def cuda_driver() -> tuple[str, int]:
    """Return the CUDA driver's library file, and the newest CUDA version that the driver supports, such as 13000.

    "" and 0 without a driver. Does not initialise the driver."""

class CudaDevice:
    """A CUDA device that is visible to this process."""

    @property
    def number(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def uuid(self) -> str:
        """32 hexadecimal digits, the same in every process."""
    @property
    def multiprocessors(self) -> int: ...
    @property
    def capability(self) -> int:
        """90 for compute capability 9.0."""

def cuda_devices() -> list[CudaDevice]:
    """Return the devices visible to this process. Initialises the driver. TransportUnavailable without a driver."""

def cuda_memory(address: int) -> tuple[str, int]:
    """Return ("cuda", device) for an address in a device's memory.

    For other memory return ("host", n): n is the device that can reach the memory, or -1."""

def network_ports(transport: str) -> list[dict[str, Any]]:
    """Return the ports of network devices that `transport` finds on this machine, usable or not, a dict for each port.

    A dict has `device`, `port`, `layer` ("Ethernet", "InfiniBand"), `state`, and `mtu` in bytes. It has the `address`,
    the `address_kind` ("RoCE v2"), and the `address_index` in the port's table. `numa_node` is -1 if unknown; `near`
    tells whether the calling thread may run on a core of that node. `problem` is the reason why the port cannot be
    used, or "". `left_out` tells whether the user has chosen other ports. TransportUnavailable if the engine has no
    links of the transport, or if the transport cannot look for ports."""

def check_cuda_stream(stream: int, device: int) -> None:
    """ValueError unless `stream` is the handle of a stream of `device`, and is not being captured into a CUDA graph."""

def is_capturing(stream: int, device: int) -> bool:
    """Whether `stream` is being captured into a CUDA graph. ValueError if `stream` is not a stream of `device`."""

def current_cuda_device() -> int | None:
    """Return the number of the CUDA device that the calling thread uses now; None if the thread uses none."""

def can_access_cuda_peer(device: int, other: int) -> bool:
    """Whether kernels on `device` can access memory of the device `other`. TransportUnavailable without a driver."""

LEADER_MOST_RANKS: Final[int]

def cuda_heap_bytes(device: int) -> int:
    """Return how many bytes of the device's memory this process has allocated for itself and for `CudaMemory`.

    Unused bytes are included."""

class CudaMemory:
    """Memory of a device that other processes can open. The memory is used again when this object is gone."""

    def __init__(self, nbytes: int, device: int) -> None:
        """Uninitialised. TransportUnavailable if the device's memory is full."""
    @property
    def address(self) -> int: ...

class StagedCopy:
    """Copies to the host, made by `CudaStaging.fetch`."""

    def wait(self, timeout: float) -> bool:
        """Wait until they are complete; return False if they are not complete after `timeout` seconds."""

class CudaStaging:
    """Host memory through which arrays of a device pass, by copies on two CUDA streams that only this object uses."""

    def __init__(self, memory: npt.NDArray[np.uint8], nbytes: int, device: int) -> None:
        """`memory` has `nbytes` bytes. TransportUnavailable if it cannot be registered."""

    def begin(self, stream: int) -> None:
        """Let copies begin after the work that is in `stream` now."""

    def fetch(self, copies: Sequence[tuple[int, int, int]]) -> StagedCopy:
        """Copy to the memory. `copies`: offsets in the memory, addresses on the device, bytes.

        ValueError if they do not fit.
        """

    def put(self, copies: Sequence[tuple[int, int, int]]) -> None:
        """Copy to the device. `copies` and errors: as of `fetch`."""

    def reuse(self) -> None:
        """Let copies to the host from now on begin after all copies to the device until now."""

    def end(self, stream: int) -> None:
        """Let work that is put into `stream` from now on begin after all copies."""
    @property
    def is_free(self) -> bool:
        """Whether all copies are over."""

class CudaTransfer:
    """Copies of arrays on devices to and from host memory while operations of one call run on this memory."""

    def __init__(
        self,
        arrays: Sequence[tuple[CudaStaging, npt.NDArray[Any], int, int, bool, bool]],
        ordered: bool,
        early: bool,
    ) -> None:
        """`arrays`: for each its staging, the beginning of the staging's memory, its address on the device, its stream,
        and whether operations may read it, and write it. `ordered`: results are copied after all inputs. `early`:
        results may be copied before `finish`."""

    def finish(self) -> None:
        """Copy what is left, after the operations. Work that is put into the streams from now on begins after all."""

class LeaderCall:
    """A call with its arguments, made by `LeaderMember.prepare`."""

def copy_cuda(
    memory: npt.NDArray[np.uint8], address: int, nbytes: int, device: int, stream: int, to_host: bool
) -> None:
    """Copy between host memory and memory of a device, after the work in `stream`; return when the copy is over.

    ValueError for memory or a stream that does not belong to the device, or a stream that is being captured."""

class LeaderMember:
    """One rank of a group whose ranks share a device, so that one of them, the leader, runs the kernels of all."""

    def __init__(self, group: Group, device: int, compiler: str) -> None:
        """`compiler`: the path of NVRTC. TransportUnavailable if the device's memory cannot be shared."""
    @property
    def record(self) -> bytes:
        """What all other ranks have to be told."""

    def meet(self, records: Sequence[bytes], timeout: float) -> str:
        """Meet the other ranks; return the reason why this rank cannot meet them, or "" if it can.

        `records` has the `record` of each rank, by rank. An OpTimeout or PeerLost breaks the group."""

    def use(self) -> None:
        """Run calls of the group from now on. Call it when all ranks have met."""

    def prepare(
        self,
        operation: Operation,
        kind: str,
        inp: int,
        out: int,
        count: int,
        dtype: int,
        unit: int,
        op: int,
        root: int,
        stream: int,
        producer: int | None,
    ) -> LeaderCall:
        """Describe a collective on device memory.

        `operation`: a description of the call, which ranks compare; it is not run. `kind`: the name of the
        collective. `inp`, `out`: addresses, 0 if this rank has none. `count`: the elements in each rank's part; for
        allreduce, reduce and broadcast in the whole array. `unit`: bytes of an element. `producer`: the stream in which
        the input was written, if it is not `stream`."""

    @property
    def memory(self) -> int:
        """The bytes of the device's memory that this object holds; 0 when it is closed."""

    def issue(self, call: LeaderCall, timeout: float) -> StreamTicket:
        """Put a call into its stream; return when it is there. ValueError for memory or a stream that does not belong
        to the device; other errors break the group."""

    def mark(self, stream: int) -> StreamTicket:
        """Return a ticket for all that is in this stream now, replays of graphs included."""

    def compile(self, dtype: int, op: int) -> None:
        """On the leader: compile the kernels that move elements, and those that reduce `dtype` by `op`."""

class NcclLibrary:
    """The NCCL of this process, made by `load_nccl`."""

    @property
    def path(self) -> str: ...
    @property
    def version(self) -> int:
        """23203 for 2.32.3."""
    @property
    def features(self) -> list[str]:
        """The names of the functions that this NCCL has, among functions that only some versions have."""

    def unique_id(self) -> bytes:
        """Return an id, of 128 bytes, by which the ranks of one communicator of NCCL meet. Aborted if NCCL fails."""

def loaded_nccl() -> str:
    """Return the path of the libnccl that this process has loaded, or "". ConfigMismatch if it has loaded several."""

def load_nccl(path: str) -> NcclLibrary:
    """Load the libnccl at the absolute path `path`. If it is already loaded, return it; a process uses only one.

    TransportUnavailable if the file cannot be used; ConfigMismatch if this process has loaded another libnccl."""

def why_nccl_does_not_reduce(dtype: str, op: int, version: int, capability: int) -> str:
    """Return why NCCL cannot reduce elements of `dtype` on devices of compute capability `capability`; "" if it can."""

class StreamTicket:
    """An operation that is ordered by a stream."""

    def done(self) -> bool:
        """Whether the stream has passed the operation, or the operation has failed."""

    def wait(self, timeout: float | None) -> None:
        """Block until the operation is done; raise its error, or OpTimeout after `timeout` seconds."""

class NcclCall:
    """A call of NCCL that `NcclMember.prepare` has made. It can be issued several times."""

class NcclRounds:
    """An operation's schedule as a device runs it: rounds of messages, and after each round reductions and copies."""

    def __init__(self, operation: Operation, rounds: Sequence[Sequence[int]]) -> None:
        """`rounds`: for each step of the schedule its round, for a send one for each peer; see `schedule.rounds`."""
    @property
    def reduces(self) -> bool:
        """Whether this rank reduces anything."""
    @property
    def temporary(self) -> int:
        """The bytes of the device's memory that a call needs in addition to its arrays."""

class NcclMember:
    """A communicator of NCCL as one group uses it. It is closed with the last group that uses it."""

    @overload
    def __init__(
        self,
        group: Group,
        library: NcclLibrary,
        id: bytes,
        device: int,
        capability: int,
        least: int,
        most: int,
        timeout: float,
    ) -> None:
        """Make NCCL's communicator, together with all other ranks of the group, with the `id` of one of them.

        `capability`: of the oldest device of all ranks. `least`, `most`: thread blocks that NCCL may use, 0 for its own
        choice. An error breaks the group: OpTimeout, PeerLost, Aborted if NCCL fails."""
    @overload
    def __init__(self, group: Group, other: NcclMember) -> None:
        """Use the communicator of another group, which has the same ranks."""

    def prepare(
        self,
        operations: Sequence[Operation],
        pieces: Sequence[tuple[str, int, int, int, int, str, int, int]],
        stream: int,
        producer: int | None,
    ) -> NcclCall:
        """Make a call that runs the pieces, each one call of NCCL, together in `stream`.

        `operations`: descriptions of the call, which ranks compare. A piece has: the name, such as
        "allreduce", "send" or "recv"; the addresses of input and output, 0 if this rank has none; the number of
        elements; the bytes of an element; dtype and op, if it reduces; the root, or the other rank of a message. For
        allreduce, reduce, broadcast and messages, elements of the whole array count, else of the part of each rank.
        `producer`: the stream in which the input is written, if it is not `stream`."""

    def schedule(
        self, rounds: NcclRounds, inp: int, out: int, compiler: str, stream: int, producer: int | None
    ) -> NcclCall:
        """Make a call that runs a schedule in `stream`: its messages by NCCL, its reductions by kernels.

        `inp`, `out`: addresses, 0 if this rank has none; they may be equal. `compiler`: the path of NVRTC, for a
        schedule that reduces. `producer`: the stream in which the input is written, if it is not `stream`."""

    def together(self, calls: Sequence[NcclCall]) -> NcclCall:
        """Make one call that runs the pieces of all `calls`. ValueError if the calls are for different streams."""

    def issue(self, call: NcclCall, timeout: float) -> StreamTicket:
        """Put a call into its stream, or into the graph into which the stream is captured; return when it is there.

        ValueError for memory or a stream that does not belong to the device; other errors break the group."""

    def connect(self, operation: Operation, kinds: Sequence[str], timeout: float) -> StreamTicket:
        """Run NCCL's functions `kinds` on memory that is only for this, so that NCCL has made its connections."""

    def mark(self, stream: int) -> StreamTicket:
        """Return a ticket that is done when `stream` has passed all work that is in it now."""

    @property
    def memory(self) -> int:
        """The bytes of the device's memory that NCCL's communicator holds; 0 when it is closed."""
    @property
    def is_over(self) -> bool:
        """Whether it was closed or aborted."""
    @property
    def communicator(self) -> int:
        """A number that is equal for all objects that share a communicator of NCCL."""

class Latch:
    """A lock that never waits and can be shut for good. The GIL protects it, so it costs almost nothing."""

    def __init__(self) -> None: ...
    @property
    def taken(self) -> bool:
        """Whether a thread has it."""

    def acquire(self) -> bool:
        """Try to take the lock. Return False while another thread has it, and after `shut`."""

    def release(self) -> None: ...
    def shut(self) -> None: ...

class Repeater:
    """The calls of one method that C++ code repeats without running Python code. Made by `repeater`."""

    @property
    def known(self) -> int:
        """The number of remembered calls."""

def repeater(
    group: Group,
    latch: Latch,
    timeout: float,
    positional: tuple[tuple[str, Any], ...],
    keywords: tuple[tuple[str, Any], ...],
    arrays: tuple[npt.NDArray[Any], npt.NDArray[Any]] | None,
) -> Repeater:
    """Make a Repeater, which runs the calls that are passed to `remember`.

    The arguments of a call are an array x, then parameters, and `out`. `positional` and `keywords` describe each
    parameter as (name, default). `positional` parameters may be passed in this order or by name, all others and `out`
    by name. `arrays`: x and the result's array, for methods whose calls have no array arguments.
    """

class Repeating:
    """The base of a class with methods whose calls are repeated, see `method`."""

    _repeaters: list[Repeater | None]

class Method:
    """Made by `method`; behaves like a function in a class."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

def method(function: Callable[..., Any], index: int) -> Method:
    """Make a method of a class derived from `Repeating`.

    `_repeaters[index]` runs the calls that it knows, and `function` runs all other calls."""

AS_IT_IS: Final[int]  # the input of an operation is x itself
COPIED: Final[int]  # the input is a copy of x, since the result overwrites it
NO_INPUT: Final[int]  # there is no input

def remember(
    repeater: Repeater,
    x: npt.NDArray[Any],
    values: tuple[Any, ...],
    in_place: bool,
    operation: Operation,
    input: int,
    result: tuple[int, ...] | npt.NDArray[Any] | None,
) -> None:
    """Let `repeater` run `operation` for calls with arrays like x and the parameter values `values`.

    `in_place`: whether `out` is x itself. `input`: AS_IT_IS, COPIED or NO_INPUT. `result`: x if x is overwritten, the
    shape of a new array, or None if there is no result.
    """

class Plan:
    """A prepared call, made by `plan`; calling it runs the operation and returns `out`."""

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
    """Make a Plan. `refuse` raises the error if the latch cannot be taken. `start` becomes the attribute of this name;
    `owner` is kept alive."""
