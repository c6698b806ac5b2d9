"""Chooses the transport of every pair of ranks from the records (host and addresses) that all ranks have published.

Invariant: both ranks of a pair choose the same transport, since they decide from the same two records. Records come
from peers and are checked before they are used.
"""

from __future__ import annotations

import hashlib
import socket
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar

from collectives.calls.moves import Deadline
from collectives.native._engine import HEARTBEATS, Group, Job
from collectives.native.errors import ConfigMismatch, TransportUnavailable
from collectives.schedule.layout import Layout
from collectives.schedule.table import Situation
from collectives.transports import abstract, neighbours, registry, shm
from collectives.transports.cache import cache_share
from collectives.transports.host import HostIdentity, fill_cores, home_core, oversubscribed
from collectives.transports.transport import ChoosesPorts, Listener, Place, Scope

T = TypeVar("T")

HasEnded = Callable[[int], bool]  # given a rank

_MOST_SCHEMES: Final = 16
_LONGEST_PROBLEM: Final = 1500  # characters
NETWORKS: Final = ("verbs", "tcp")  # transports between hosts, the fastest first


def _nobody_has(_rank: int) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings by which ranks of a group, and of groups split from it, connect to each other.

    - `transport`: as in `collectives.init`. If it names a library for device memory, such as "nccl", ranks connect as
      with "auto"
    - `scope`: which machines may connect to this rank
    - `secret`: bytes that only the ranks of the job know; may be empty
    - `segment`: how many bytes are copied through shared memory at a time, 0 if the C++ engine chooses
    - `sockets`: the number of TCP connections between two ranks, 0 if the algorithm table contains the number
    - `heartbeats`: seconds between heartbeats, and seconds of silence before a rank counts as dead. An interval of 0
      means no heartbeats
    - `rendezvous`: from which number of bytes on messages over verbs use the rendezvous protocol, 0 if the algorithm
      table contains the number, or else the C++ engine chooses
    """

    transport: str
    scope: Scope
    secret: bytes
    segment: int = 0
    sockets: int = 0  # of each link over TCP
    heartbeats: tuple[float, float] = HEARTBEATS
    rendezvous: int = 0  # bytes

    @property
    def schemes(self) -> tuple[str, ...]:
        return (self.transport,) if self.names_one else registry.AUTO

    @property
    def names_one(self) -> bool:
        """Whether `transport` names one transport, for all pairs of ranks."""
        return self.transport not in ("auto", *registry.LIBRARIES)

    @property
    def libraries(self) -> tuple[str, ...]:
        """The libraries for device memory that may be used."""
        return tuple(name for name in registry.LIBRARIES if self.transport in ("auto", name))


@dataclass(frozen=True, slots=True)
class Member:
    """The record that a rank sends to all others: its host, and the addresses at which it listens, by transport.

    `problem`: why it cannot use the transport on which all ranks agree; "" if it can.
    """

    identity: HostIdentity
    addresses: Mapping[str, tuple[str, ...]]
    problem: str = ""

    def to_json(self) -> dict[str, Any]:
        found = {"host": self.identity.to_json(), "addresses": {s: list(a) for s, a in self.addresses.items()}}
        return {**found, "problem": self.problem[:_LONGEST_PROBLEM]} if self.problem else found

    @staticmethod
    def from_json(value: Any) -> Member:
        """Decodes a rank's host and addresses from `value`, made by `to_json`. Raises ValueError for invalid data."""
        match value:
            case {"host": identity, "addresses": dict(addresses), **rest} if len(addresses) <= _MOST_SCHEMES:
                problem = rest.get("problem", "")
                if not isinstance(problem, str) or len(problem) > _LONGEST_PROBLEM:
                    raise ValueError(f"not a problem: {str(problem)[:200]}")
                found = {}
                for scheme, texts in addresses.items():
                    if not isinstance(texts, list) or not all(isinstance(t, str) and len(t) <= 255 for t in texts):
                        raise ValueError(f"not a list of addresses: {str(texts)[:200]}")
                    found[str(scheme)] = tuple(texts)
                return Member(HostIdentity.from_json(identity), found, problem)
        raise ValueError(f"not a rank's record: {str(value)[:200]}")


class _Shared:
    """A listener and the number of communicators that use it; the listener is closed with the last of them."""

    def __init__(self, listener: Listener) -> None:
        self.listener: Final = listener
        self._users = 1
        self._lock: Final = threading.Lock()

    def split(self) -> _Shared:
        """Returns a listener for one more communicator: this listener, if it can serve several, or else a new one.

        Raises TransportUnavailable if no more can be made.
        """
        own = self.listener.split()
        if own is not self.listener:
            return _Shared(own)
        with self._lock:
            self._users += 1
        return self

    def close(self) -> None:
        with self._lock:
            self._users -= 1
            last = self._users == 0
        if last:
            self.listener.close()


class Endpoints:
    """The listeners on which this rank accepts connections of the other ranks of a group, one for each transport.

    The listeners are open from before the group forms until the group is closed.
    """

    def __init__(
        self, policy: Policy, alone: bool = False, parent: Endpoints | None = None, *, tells: bool = False
    ) -> None:
        """Opens the listeners that `policy` asks for, or with `parent` those that `split` describes.

        `alone`: no other rank will connect, so none is opened. Raises TransportUnavailable if `policy` names one
        transport and it does not work here, but not if this rank `tells` the others: then `member.problem` says why,
        for all ranks to raise it (`check_usable`). Raises ValueError for an unknown network interface.
        """
        self.member: Member
        self._problem = ""
        # Why a transport is not offered.
        self.reasons: Mapping[str, str] = {} if parent is None else parent.reasons
        self._policy: Final = policy
        self._listeners: dict[str, _Shared] = {}
        self._proof: socket.socket | None = None
        try:
            if parent is not None:
                place: HostIdentity = parent.member.identity
                for scheme, shared in parent._listeners.items():
                    self._open(scheme, shared.split)
                identity = replace(HostIdentity.here(place.proof), boot=place.boot, netns=place.netns)
            else:
                for scheme in () if alone else policy.schemes:
                    self._open(scheme, partial(_listen, scheme, policy))
                proof, self._proof = ("", None) if alone else abstract.bound()
                identity = HostIdentity.here(proof)
            addresses = {scheme: tuple(shared.listener.addresses) for scheme, shared in self._listeners.items()}
            if parent is None:
                for name in policy.libraries:
                    self._offer(name, addresses)
            else:
                addresses |= {name: a for name, a in parent.member.addresses.items() if name in policy.libraries}
            # First the host that this rank claims, later the host that all ranks agree on: see `settled`.
            self.member = Member(identity, addresses, self._problem)
            if self._problem and not tells:
                raise TransportUnavailable(self._problem)
            if parent is not None and parent.member == self.member:
                self.member = parent.member
        except BaseException:
            self.close()
            raise

    def split(self) -> Endpoints:
        """Returns the listeners for a communicator that `split` or `dup` makes from the one with these listeners.

        Listeners that can serve several communicators are shared. Raises TransportUnavailable if only one transport is
        allowed and its listener has no room for another communicator.
        """
        return Endpoints(self._policy, parent=self)

    def _open(self, scheme: str, opened: Callable[[], _Shared]) -> None:
        try:
            self._listeners[scheme] = opened()
        except TransportUnavailable as error:
            if self._policy.transport == scheme:
                self._problem = f"transport {scheme!r} cannot be used here: {error}"
            self.reasons = {**self.reasons, scheme: str(error)}  # the parent's may be shared

    def _offer(self, name: str, addresses: dict[str, tuple[str, ...]]) -> None:
        """Add to `addresses` what a library for device memory publishes, if this process can use it."""
        library = registry.library(name)
        reason = library.available()
        if reason is None:
            addresses[name] = tuple(library.published())
        else:
            if self._policy.transport == name:
                self._problem = f"transport {name!r} cannot be used here: {reason}"
            self.reasons = {**self.reasons, name: reason}

    def attach(self, group: Group, schemes: Iterable[str]) -> None:
        """From now on, let `group`, the C++ engine's group of ranks, accept connections over the transports `schemes`.

        Listeners of other transports stay open, for communicators made from `group`.
        """
        for scheme in sorted(schemes, key=lambda s: s == "inproc"):  # the engine needs processes before threads
            self._listeners[scheme].listener.attach(group)

    def settled(self, member: Member) -> None:
        """Store `member`, the record with this rank's host and addresses.

        Call it when all ranks know which ranks share a host. It closes the socket by which other ranks checked that
        they are on this rank's host.
        """
        self.member = member
        self._close_proof()

    def _close_proof(self) -> None:
        if self._proof is not None:
            self._proof.close()

    def close(self) -> None:
        """May be called again. Never raises."""
        self._close_proof()
        while self._listeners:
            self._listeners.popitem()[1].close()


def _listen(scheme: str, policy: Policy) -> _Shared:
    """Open a listener of a transport. Raises TransportUnavailable, and ValueError for an unknown network interface."""
    transport = registry.transport(scheme) if policy.names_one else registry.automatic(scheme)
    reason = transport.available()
    if reason is not None:
        raise TransportUnavailable(reason)
    return _Shared(transport.listen(policy.scope))


@dataclass(frozen=True, slots=True)
class Linked:
    """A group of ranks that know how to reach each other: the C++ engine's objects, and the properties of the group.

    - `job_ranks`: for each rank, its number in the communicator that `init` made
    - `members`: the host and addresses of each rank
    - `endpoints`: this rank's listeners
    - `situation`, `layout`: the properties of the group on which algorithms depend, and which ranks share a host
    - `kinds`: the transport to each rank, "self" for this rank
    - `local_rank`, `local_size`: this rank's number among the ranks of its host, and how many ranks its host has
    - `home`: this rank's core
    """

    group: Group
    job: Job
    job_ranks: tuple[int, ...]  # by rank: the rank's number in the job, the communicator that `init` made
    members: tuple[Member, ...]  # by rank
    endpoints: Endpoints
    situation: Situation
    layout: Layout
    kinds: tuple[str, ...]  # by rank: the transport to that rank, "self" for this rank
    hosts: tuple[str, ...]
    local_rank: int
    local_size: int
    home: int  # the core to wait on if ranks use all cores
    sockets: int  # of each link over TCP
    rendezvous: int  # bytes of the shortest message over verbs that uses this protocol, 0 if the C++ engine chooses
    without: Mapping[str, str]  # by library for device memory, why the group does not use it; "" if it may

    @property
    def place(self) -> HostIdentity:
        """This rank's host, on which all ranks agree."""
        return self.endpoints.member.identity

    def close(self) -> None:
        self.group.close()
        self.endpoints.close()


def check_usable(members: Sequence[Member]) -> None:
    """Raises TransportUnavailable, with the same text on all ranks, if one cannot use the transport of the group."""
    for rank, member in enumerate(members):
        if member.problem:
            raise TransportUnavailable(f"rank {rank} ({member.identity.host}): {member.problem}")


def context(run: str, epoch: int, path: str) -> bytes:
    """16 bytes that identify one communicator of one run."""
    return hashlib.sha256(f"pycollectives {run} {epoch} {path}".encode()).digest()[:16]


def link(
    rank: int,
    members: Sequence[Member],
    endpoints: Endpoints,
    policy: Policy,
    name: bytes,
    epoch: int,
    deadline: Deadline,
    parent: Linked | None = None,
    job_ranks: Sequence[int] | None = None,
    has_ended: HasEnded = _nobody_has,
) -> Linked:
    """Makes the C++ engine's group, and tells it how to reach every peer; opens no connection yet.

    - `members`: the hosts and addresses of all ranks, by rank
    - `endpoints`: this rank's listeners. If `link` raises, it closes the objects that it made, but not the listeners
    - `policy`: which transports to use, and their settings
    - `name`: 16 bytes that identify the communicator
    - `parent`: the communicator from which this one is made, if any
    - `job_ranks`: for each rank, its number in the communicator that `init` made
    - `has_ended`: whether a rank's process is known to have ended

    Raises TransportUnavailable, with the reason against each transport, if no allowed transport connects a pair of
    ranks.
    """
    with abstract.asked_together():
        kinds = tuple(
            "self" if peer == rank else scheme_between(rank, peer, members, policy, endpoints.reasons, has_ended)
            for peer in range(len(members))
        )
    without = _without(members, policy)
    if without.get(policy.transport):
        raise TransportUnavailable(f"transport {policy.transport!r} cannot be used: {without[policy.transport]}")
    identities = [m.identity for m in members]
    mine = identities[rank]
    _warn_of_detours(mine, identities, kinds, endpoints.reasons)
    layout = Layout.of((identity.boot, identity.netns) for identity in identities)
    outnumbered = any(oversubscribed(i, identities) for i in {(i.boot, i.cpus): i for i in identities}.values())
    here = oversubscribed(mine, identities)
    # The core of this rank is that of the group that it first belonged to. In a communicator made from another one,
    # ranks may fill the cores that they shared there.
    home = None if parent is None else parent.home
    returns = here or (home is None and fill_cores(mine, identities))
    if home is None:
        home = home_core(rank, identities)
    wait_on = home if returns else -1
    sockets = policy.sockets or 1
    job = Job(*policy.heartbeats) if parent is None else parent.job
    numbers = tuple(job_ranks or range(len(members)))
    group = Group(
        rank,
        len(members),
        name,
        epoch,
        policy.secret,
        policy.segment,
        here,
        wait_on,
        outnumbered,
        sockets,
        cache_share(mine, identities),
        shm.have_heaps(
            m.addresses.get("shm", ()) for m, kind in zip(members, kinds, strict=True) if kind not in NETWORKS
        ),
        job,
        numbers,
        mine.host,
        policy.rendezvous,
    )
    try:
        for kind in sorted(set(kinds) - {"self"}):
            chooser = registry.transport(kind)
            if isinstance(chooser, ChoosesPorts):
                theirs = [_place(peer, kind, members) for peer, other in enumerate(kinds) if other == kind]
                chooser.choose_ports(group, _place(rank, kind, members), theirs)
        endpoints.attach(group, set(kinds) - {"self"})
        for peer, kind in enumerate(kinds):
            if peer != rank:
                transport = registry.transport(kind)
                places = _place(rank, kind, members), _place(peer, kind, members)
                _checked(peer, partial(transport.route, group, *places, policy.scope, deadline.left))
    except BaseException:
        group.close()
        raise
    situation = Situation(
        len(members), slowest(kinds), outnumbered, per_host=max(map(len, layout.members)), hosts=len(layout.members)
    )
    hosts = tuple(identity.host for identity in identities)
    if parent is not None:  # a duplicate keeps no copies of what is the same
        numbers, members = _one_of(parent.job_ranks, numbers), _one_of(parent.members, tuple(members))
        situation, layout = _one_of(parent.situation, situation), _one_of(parent.layout, layout)
        kinds, hosts = _one_of(parent.kinds, kinds), _one_of(parent.hosts, hosts)
    return Linked(
        group=group,
        job=job,
        job_ranks=numbers,
        members=tuple(members),
        endpoints=endpoints,
        situation=situation,
        layout=layout,
        kinds=kinds,
        hosts=hosts,
        local_rank=layout.local_rank(rank),
        local_size=len(layout.members[layout.hosts[rank]]),
        home=home,
        sockets=sockets,
        rendezvous=policy.rendezvous,
        without=without,
    )


def _without(members: Sequence[Member], policy: Policy) -> Mapping[str, str]:
    """By library for device memory, why this group does not use it; the same on every rank."""
    found = {}
    for name in registry.LIBRARIES:
        if name not in policy.libraries:
            found[name] = f'transport="{policy.transport}" was asked for'
            continue
        lacking = [rank for rank, member in enumerate(members) if not member.addresses.get(name)]
        found[name] = ""
        if lacking:
            host = members[lacking[0]].identity.host
            more = f", nor do {len(lacking) - 1} others" if len(lacking) > 1 else ""
            found[name] = f"rank {lacking[0]} on {host} does not offer it{more} (collectives doctor says why)"
    return found


def _one_of(existing: T, new: T) -> T:
    """`existing` if both are equal."""
    return existing if existing == new else new


def settle(
    rank: int, members: Sequence[Member], endpoints: Endpoints, exchanged: Callable[[int], Sequence[Any]]
) -> Sequence[Member]:
    """Returns `members`, the hosts and addresses of all ranks, with hosts on which all ranks agree.

    If it is uncertain which ranks share a host, the ranks find out by a test, and the hosts in `members` are corrected.
    All ranks get the same list. `exchanged` sends its argument to all ranks, and returns the arguments of all ranks;
    either all ranks call it or no rank does. Raises ConfigMismatch if a rank sent invalid data, and the errors of
    `exchanged`.
    """
    identities = [member.identity for member in members]
    if not neighbours.doubtful(identities):
        endpoints.settled(members[rank])
        return members
    answers = exchanged(neighbours.seen(rank, identities))
    if not all(isinstance(answer, int) for answer in answers):
        raise ConfigMismatch(f"a rank published something that makes no sense: {str(answers)[:200]}")
    try:
        places = neighbours.settled(identities, answers)
    except ValueError as error:
        raise ConfigMismatch(f"a rank published something that makes no sense: {error}") from error
    found = [replace(member, identity=place) for member, place in zip(members, places, strict=True)]
    endpoints.settled(found[rank])
    return found


def _warn_of_detours(
    mine: HostIdentity, everyone: Sequence[HostIdentity], kinds: Sequence[str], reasons: Mapping[str, str]
) -> None:
    """Warns if this rank reaches ranks of its own host over TCP because it cannot use shared memory."""
    detours = [
        rank
        for rank, (identity, kind) in enumerate(zip(everyone, kinds, strict=True))
        if kind == "tcp" and mine.same_machine(identity) and mine.same_network(identity)
    ]
    if detours and "shm" in reasons:
        text = f"ranks of this host are reached over TCP, which is slower than shared memory: {reasons['shm']}"
        warnings.warn(text, RuntimeWarning, stacklevel=5)


def decode(rank: int, record: Any) -> Member:
    """Decodes `record`, the host and addresses that rank `rank` published. Raises ConfigMismatch for invalid data."""
    return _checked(rank, partial(Member.from_json, record))


def _place(rank: int, scheme: str, members: Sequence[Member]) -> Place:
    return Place(rank, members[rank].identity, members[rank].addresses.get(scheme, ()))


def scheme_between(
    rank: int,
    peer: int,
    members: Sequence[Member],
    policy: Policy,
    reasons: Mapping[str, str],
    has_ended: HasEnded = _nobody_has,
) -> str:
    """Returns the first allowed transport that both ranks offer and that connects them; the same on both ranks.

    `members`: the hosts and addresses of all ranks. `policy`: which transports are allowed. `reasons`: by transport,
    why this rank does not offer it. `has_ended`: whether a rank's process is known to have ended. If the peer has
    ended, returns the transport that would have connected them. The failing connection then shows all ranks that the
    peer is gone. If no transport is left, raises TransportUnavailable with the reason against each transport.
    """
    problems = []
    find = registry.transport if policy.names_one else registry.automatic
    for scheme in policy.schemes:
        transport = find(scheme)
        mine, theirs = _place(rank, scheme, members), _place(peer, scheme, members)
        problem = _checked(peer, partial(transport.reaches, mine, theirs))
        if problem is None:
            return scheme
        # Whether the process has ended takes longer to find out, so it is asked only if it makes a difference.
        if _checked(peer, partial(transport.reaches, mine, replace(theirs, ended=True))) is None and has_ended(peer):
            return scheme
        problems.append(f"{scheme}: {reasons.get(scheme, problem)}")
    raise TransportUnavailable(f"rank {rank} cannot reach rank {peer}; " + "; ".join(problems))


def slowest(kinds: Sequence[str]) -> str:
    """Returns the slowest transport among `kinds`, this rank's transport to each rank ("self" to itself).

    All ranks get the same answer: if there are several processes, every rank has a peer in another process, and if
    there are several machines, every rank has a peer on another machine.
    """
    order = ("self", "inproc", "shm", *NETWORKS)
    return max(kinds, key=lambda kind: order.index(kind) if kind in order else len(order))


def _checked(rank: int, use: Callable[[], T]) -> T:
    """Run `use`, which decodes data that rank `rank` published."""
    try:
        return use()
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise ConfigMismatch(f"rank {rank} published something that makes no sense: {error}") from error
