"""init(): makes a communicator of all ranks, from its arguments and the environment variables of the launcher.

Invariant: arguments are checked before anything is opened, and everything that was opened is closed again if `init`
raises. Before it returns, all ranks have completed a first barrier over the new links.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Final

from collectives.arrays.array import check_timeout
from collectives.base import sizes
from collectives.base.version import library_version
from collectives.calls.moves import Deadline
from collectives.core import choosing, default, losses
from collectives.core.choosing import TableLike, Wish
from collectives.core.communicator import Communicator
from collectives.core.family import Origin, separate
from collectives.core.links import Endpoints, Linked, Member, Policy, check_usable, context, decode, link, settle
from collectives.core.tables import Machine
from collectives.engines import registered
from collectives.native import _engine
from collectives.native.errors import CollectiveError, StoreError, TransportUnavailable
from collectives.rendezvous import Keeper, Membership, Store, exchange, first_cause, form, open_store, release
from collectives.rendezvous._environment import seconds
from collectives.rendezvous.bootstrap import Launch, bootstrap
from collectives.rendezvous.mpi import check_world
from collectives.schedule.table import MOST_SOCKETS, Table
from collectives.transports import registry
from collectives.transports.transport import Scope

TIMEOUT: Final = 300.0  # seconds for one operation
LARGEST_SEGMENT: Final = 64 << 20  # bytes; a rank has two segments for each peer, and seven more
_RELEASE: Final = 1.0  # seconds for removing the keys of the formed group from the store
# Seconds for which a rank that cannot use the transport waits for the others, to tell them why.
_TELLS: Final = 5.0
_REPORT: Final = 0.3  # seconds for exchanging the first cause of a failure


def init(
    store: str | Store | None = None,
    *,
    rank: int | None = None,
    size: int | None = None,
    name: str | None = None,
    transport: str | None = None,
    timeout: float | None = None,
    join_timeout: float = 60.0,
    secret: bytes | None = None,
    insecure: bool = False,
    table: TableLike | None = None,
    calibrate: str | None = None,
    segment: int | None = None,
    sockets: int | None = None,
    deterministic: bool = False,
    _agreed: str = "",  # a further setting, of code of this library, on which ranks have to agree
) -> Communicator:
    """Form a group with the other ranks of this job, and return its communicator.

    Blocks until all ranks have joined and are connected. Arguments that are None are read from the environment: the
    variables COLLECTIVES_*, and those that torchrun, Slurm, Open MPI, MPICH, Intel MPI and Kubernetes set. If neither
    rank nor size is set anywhere, the group has one rank; if only one of both is set, ValueError is raised.
    `rank=0, size=1` makes a group of one rank in any environment.

    - `store`: the URL of the store, through which ranks find each other, or a Store. URLs are "file:///dir",
      "redis://host", "rediss://host", "tcp://host:port" (served by rank 0), "mpi://", and "memory://name" (for threads
      of one process)
    - `rank`, `size`: this process's number, from 0, and the number of ranks
    - `name`: name of the job; jobs that use one store at the same time need different names. "default" if not set
    - `transport`: "auto" chooses for each pair of ranks the first of inproc, shm, verbs (between hosts only) and tcp
      that works. Any other value is the transport between all ranks: "inproc" (threads of one process), "shm" (shared
      memory), "tcp", "verbs" (RDMA), "leader", "nccl", or a transport of another package. With "auto", calls on arrays
      in CUDA memory are run by one rank for all ("leader") if ranks share a device, or by NCCL if all ranks can use it.
      With "leader" or "nccl", all ranks must be able to use it, arrays in host memory are refused, and the ranks
      exchange control messages as with "auto"
    - `timeout`: seconds that an operation waits for other ranks; 300 if not set
    - `join_timeout`: seconds for forming the group and opening connections, in total
    - `secret`: at least 16 bytes that only the ranks of the job know; None reads the file that COLLECTIVES_SECRET_FILE
      names. Without a secret, ranks accept connections from this machine only, unless `insecure` is set
    - `insecure`: without a secret, accept connections from other machines too
    - `table`: a Table, or the path of a file, with rows that choose algorithms. Next in priority are the variables
      COLLECTIVES_ALGORITHM (rows as text: "allreduce:ring,...") and COLLECTIVES_TABLE (a path), then the tables of
      `calibrate`. The settings of rank 0 apply to all ranks
    - `calibrate`: "auto" uses the table that was measured on this machine for this kind of group. If there is no such
      table, the ranks measure it now, in less than 2 s, but only in a group on one host with a core for each rank.
      "cached" never measures, "off" uses no measured table. None reads COLLECTIVES_CALIBRATE; the default is "auto"
    - `segment`: from 1 byte to 64 MiB, the same on all ranks: how many bytes are copied through shared memory or
      reduced at a time. It is rounded up to whole cache lines. None reads COLLECTIVES_SEGMENT (for example "64K"); by
      default the library chooses. If a segment is set, `init` measures no table, because tables are valid for the
      default only
    - `sockets`: from 1 to 16, the same on all ranks: the number of TCP connections between two ranks. Messages of more
      than 96 KiB are divided among them, which helps if one connection cannot use the whole bandwidth of the network.
      None reads COLLECTIVES_SOCKETS; the default is the number that `collectives calibrate` found, else 1
    - `deterministic`: the same on all ranks: reductions combine their operands in the order of ranks, for every array
      size, transport, placement of ranks and load. So the bits of a result depend only on the inputs and the number of
      ranks. Tables, calibration and their environment variables are not used; ValueError for `table` or `calibrate`

    COLLECTIVES_INTERFACE names the network interface to use between machines, or one of its addresses.
    COLLECTIVES_VERBS_DEVICE names this rank's RDMA device, its port and GID index ("mlx5_0:1:3"). Ranks send heartbeats
    every COLLECTIVES_HEARTBEAT_INTERVAL seconds (default 1). A rank that is silent for COLLECTIVES_HEARTBEAT_LIMIT
    seconds (default 10) counts as dead, and operations raise PeerLost.

    Raises:

    - ValueError and TypeError for wrong arguments
    - TransportUnavailable if ranks cannot be connected by the given transport
    - StoreError if the store fails
    - OpTimeout, which names the missing ranks, if ranks do not join in time
    - ConfigMismatch if ranks disagree on size, version, transport, segment, sockets or deterministic, or if two ranks
      have the same number
    - AuthError if ranks disagree on the secret
    """
    limit = check_timeout(join_timeout, "join_timeout")
    chosen_timeout = None if timeout is None else check_timeout(timeout)
    for what, text in (("name", name), ("transport", transport)):
        if text is not None and not isinstance(text, str):
            raise TypeError(f"{what} must be a str, not {type(text).__name__}")
    launch = bootstrap(
        store=store, rank=rank, size=size, name=name, transport=transport, timeout=chosen_timeout, secret=secret
    )
    scheme = launch.transport or "auto"
    if scheme != "auto":
        registry.check(scheme)  # raises for a name that is unknown, or not installed
    wanted = choosing.wish(launch.rank, table, calibrate, deterministic=deterministic)
    forced = number_asked("segment", segment, check_segment, os.environ)
    if forced and wanted.mode == "auto":
        wanted = replace(wanted, mode="cached")
    policy = Policy(
        scheme,
        Scope(
            launch.secret is not None or insecure,
            os.environ.get("COLLECTIVES_INTERFACE") or None,
            launch.size,
            forced,
        ),
        launch.secret or b"",
        forced,
        number_asked("sockets", sockets, check_sockets, os.environ),
        heartbeats_asked(os.environ),
    )
    losses.watch(os.environ)
    try:
        comm = _join(launch, policy, wanted, insecure, _agreed, Deadline(limit))
    except StoreError as error:
        if launch.rank != 0 and str(launch.store).startswith(("tcp:", "mpi:")):  # rank 0 serves the store
            losses.note(str(error))
        raise
    losses.forget()
    return comm


def _join(
    launch: Launch, policy: Policy, wanted: Wish, insecure: bool, agreed: str, deadline: Deadline
) -> Communicator:
    name = launch.name or "default"
    with ExitStack() as opened:
        endpoints = Endpoints(policy, launch.store is None, tells=launch.size > 1)
        opened.callback(endpoints.close)
        closing = _Closing()
        opened.callback(closing)
        if launch.store is None:
            run = secrets.token_hex(16)
        else:
            if launch.store == "mpi://":
                check_world(launch.rank, launch.size, launch.variables)
            closing.store = open_store(
                launch.store,
                timeout=deadline.left,
                host=launch.rank == 0,
                secret=launch.secret,
                insecure=insecure,
            )
            closing.owned = isinstance(launch.store, str)
            with _in_vain(endpoints.member):
                closing.membership = form(
                    closing.store,
                    rank=launch.rank,
                    size=launch.size,
                    name=name,
                    record=endpoints.member.to_json(),
                    fingerprint=_fingerprint(policy, wanted.deterministic, agreed),
                    run_id=launch.run_id,
                    secret=launch.secret,
                    timeout=min(deadline.left, _TELLS) if endpoints.member.problem else deadline.left,
                    silence=policy.heartbeats[1],
                )
            closing.keep()
            run = closing.membership.run_id.hex()
        origin = Origin(run, 0, "0", policy)
        try:
            members = _members(closing.membership, endpoints)
            check_usable(members)
            linking = partial(link, launch.rank)
            if closing.store is not None and closing.membership is not None:
                linking = partial(linking, has_ended=closing.membership.has_ended)
                variables = partial(
                    exchange, closing.store, closing.membership, timeout=deadline.left, silence=policy.heartbeats[1]
                )
                members = settle(launch.rank, members, endpoints, variables)
            linked = linking(members, endpoints, policy, context(run, 0, origin.path), 0, deadline)
            timeout = TIMEOUT if launch.timeout is None else launch.timeout
            comm = Communicator(launch.rank, linked, origin, name, timeout, closing)
            opened.callback(comm.close)
            comm.barrier(algorithm="dissemination", timeout=deadline.left)  # the table is not known yet
        except BaseException as error:
            cause = closing.cause_of(error)
            if cause is error:
                raise
            raise cause from error
        closing.met(launch.rank)

        def machine() -> Machine:
            return Machine.of([member.identity for member in members], library_version())

        chosen = choosing.agree(comm, wanted, machine, deadline)
        wanted_links = _measured(policy, chosen, comm._linked)
        if wanted_links != policy:
            comm = _relinked(comm, origin, wanted_links, closing, deadline)
            opened.callback(comm.close)
        comm._choose_by(chosen)
        comm._use_streams()
        comm._use_engines(registered())
        opened.pop_all()
        default.register(comm)
        return comm


@contextmanager
def _in_vain(member: Member) -> Iterator[None]:
    """If this rank cannot use the transport, that is the error to raise, whatever keeps it from telling the others."""
    try:
        yield
    except CollectiveError as error:
        if member.problem:
            raise TransportUnavailable(member.problem) from error
        raise


def _members(membership: Membership | None, endpoints: Endpoints) -> Sequence[Member]:
    """Returns the host and addresses of each rank. Ranks that are threads of one process decode the records once."""
    if membership is None:
        return [decode(0, endpoints.member.to_json())]
    found = membership
    return found.roster.once(lambda: tuple(decode(rank, record) for rank, record in enumerate(found.records)))


def check_segment(size: int) -> int:
    """Return `size`, in bytes. ValueError if it is out of range."""
    if not 1 <= size <= LARGEST_SEGMENT:
        raise ValueError(f"a segment is 1 byte to {sizes.text(LARGEST_SEGMENT)}, not {size}")
    return size


def check_sockets(count: int) -> int:
    """Return `count`. ValueError if it is out of range."""
    if not 1 <= count <= MOST_SOCKETS:
        raise ValueError(f"a link has 1 to {MOST_SOCKETS} sockets, not {count}")
    return count


def number_asked(name: str, given: int | None, check: Callable[[int], int], env: Mapping[str, str]) -> int:
    """Returns the number for the argument `name` of `init`: `given`, or if `given` is None, an environment variable.

    The variable is COLLECTIVES_ followed by `name` in capitals. Returns 0 if neither is set. `check` raises ValueError
    for a number out of range. Raises TypeError if `given` is no int, and ValueError if the variable does not contain a
    number.
    """
    if isinstance(given, bool) or not isinstance(given, int | None):
        raise TypeError(f"{name} must be an int, not {type(given).__name__}")
    if given is not None:
        return check(given)
    variable = f"COLLECTIVES_{name.upper()}"
    text = env.get(variable)
    if not text:
        return 0
    try:
        return check(sizes.parse(text))
    except ValueError as error:
        raise ValueError(f"{variable}: {error}") from None


def heartbeats_asked(env: Mapping[str, str]) -> tuple[float, float]:
    """Returns the seconds between heartbeats, and the seconds of silence after which a rank counts as dead.

    Both are read from COLLECTIVES_HEARTBEAT_INTERVAL (default 1) and COLLECTIVES_HEARTBEAT_LIMIT (default 10). An
    interval of 0 means that no heartbeats are sent. Raises ValueError for invalid values.
    """
    asked = seconds(env, "COLLECTIVES_HEARTBEAT_INTERVAL"), seconds(env, "COLLECTIVES_HEARTBEAT_LIMIT")
    interval, limit = (
        usual if found is None else found for usual, found in zip(_engine.HEARTBEATS, asked, strict=True)
    )
    if interval == 0:
        raise ValueError("COLLECTIVES_HEARTBEAT_INTERVAL is 0: it must be a number of seconds above 0")
    if 0 < limit < 2 * interval:
        raise ValueError(
            f"COLLECTIVES_HEARTBEAT_LIMIT is {limit:g} s: it must be at least twice the interval, {interval:g} s, or 0"
        )
    return interval, limit


def _measured(policy: Policy, table: Table, linked: Linked) -> Policy:
    """Returns `policy` with what `table` says about links of the kind of `linked`, where `policy` leaves it open."""
    kind = linked.situation.kind
    sockets = table.sockets or linked.sockets
    if kind == "tcp" and not policy.sockets and sockets != linked.sockets:
        return replace(policy, sockets=sockets)
    if kind == "verbs" and not policy.rendezvous and table.rendezvous:
        return replace(policy, rendezvous=table.rendezvous)
    return policy


def _relinked(
    comm: Communicator, origin: Origin, policy: Policy, closing: _Closing, deadline: Deadline
) -> Communicator:
    """A new communicator of the same ranks, whose links follow `policy`; `comm` is closed."""
    wanted = origin.child("links", policy)
    found = separate(comm.rank, 0, comm.rank, wanted, comm._everyones, deadline, comm._linked)
    assert found is not None
    rank, linked = found
    wider = Communicator(rank, linked, wanted, comm.name, comm.timeout, closing.moved())
    try:
        wider.barrier(algorithm="dissemination", timeout=deadline.left)
    except BaseException:
        wider.close()
        raise
    comm.close()
    return wider


def _fingerprint(policy: Policy, deterministic: bool, agreed: str = "") -> str:
    """The settings on which ranks have to agree; `agreed`: those of the caller."""
    segment = f"{policy.segment} bytes" if policy.segment else "usual"
    links = f"transport {policy.transport}, segment {segment}, sockets {policy.sockets or 'usual'}"
    if policy.heartbeats != _engine.HEARTBEATS:
        interval, limit = policy.heartbeats
        links += f", heartbeats {interval:g} s, limit {limit:g} s"
    order = ", deterministic" if deterministic else ""
    names = ", ".join(engine.name for engine in registered())
    order += f", engines {names}" if names else ""
    order += f", {agreed}" if agreed else ""
    return f"pycollectives {library_version()}, wire {_engine.WIRE_VERSION}, {links}{order}"


class _Closing:
    """Called when the communicator is closed: closes the store that `init` opened, and removes the group's keys."""

    def __init__(self) -> None:
        self.store: Store | None = None
        self.owned = False
        self.membership: Membership | None = None
        self._keeper: Keeper | None = None

    def keep(self) -> None:
        """Makes sure that the store keeps the list of the group's members until `met` is called.

        Called when this rank has joined the group. If the store loses the list, the rank that wrote it restores it, so
        that all other ranks can join too.
        """
        assert self.store is not None and self.membership is not None
        if self.membership.leader == self.membership.rank and self.membership.size > 1:
            self._keeper = Keeper(self.store, self.membership)

    def _stop_keeping(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.stop()

    def met(self, rank: int) -> None:
        """Removes from the store the keys through which the group formed; called when all ranks have joined.

        To do so when the communicator is closed would be too late, because the process that serves the store may have
        ended.
        """
        self._stop_keeping()
        membership, self.membership = self.membership, None
        if rank == 0 and membership is not None and self.store is not None:
            release(self.store, membership, _RELEASE)

    def cause_of(self, error: BaseException) -> BaseException:
        """Returns the error to raise after this rank has failed to connect: the first error of any rank.

        `error`: the error of this rank.
        """
        if self.store is None or self.membership is None:
            return error
        cause = first_cause(self.store, self.membership, error, _REPORT)
        if isinstance(cause, StoreError):
            self.membership = None  # the store is lost, and its keys cannot be removed
        return cause

    def moved(self) -> _Closing:
        """Returns a new object, which closes the store and removes the group's keys in place of this one."""
        other = _Closing()
        other.store, other.owned, other.membership = self.store, self.owned, self.membership
        self.store = None
        return other

    def __call__(self) -> None:
        self._stop_keeping()
        store, self.store = self.store, None
        if store is None:
            return
        with contextlib.suppress(CollectiveError):
            if self.membership is not None:
                release(store, self.membership, _RELEASE)
        if self.owned:
            store.close()
