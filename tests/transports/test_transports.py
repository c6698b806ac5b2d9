"""Every transport listens, is found from one process and not from another, and leaves nothing behind."""

from __future__ import annotations

import dataclasses
import os
import socket
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from collectives.native import _engine
from collectives.native.errors import OpTimeout, TransportUnavailable
from collectives.transports import abstract, registry
from collectives.transports.host import HostIdentity
from collectives.transports.inproc import InprocTransport
from collectives.transports.transport import Listener, Place, Scope

LOCAL, NETWORK = Scope(network=False), Scope(network=True)
EVERYWHERE = [scheme for scheme in registry.AUTO if scheme != "verbs"]  # tests/verbs has devices for these
HERE = HostIdentity.here(abstract.name())
ELSEWHERE = dataclasses.replace(HERE, host="elsewhere", boot="another", netns=1, cookie="another")


class RecordingGroup:
    """Stands where the engine's group stands, and keeps what it was told (and owns what it was given)."""

    def __init__(self) -> None:
        self.listening: list[tuple[str, socket.socket]] = []
        self.routes: list[tuple[int, str, list[str], str]] = []
        self.accepted: list[str] = []

    def accept(self, scheme: str) -> None:
        self.accepted.append(scheme)

    def listen(self, scheme: str, fd: int) -> None:
        self.listening.append((scheme, socket.socket(fileno=fd)))

    def listen_in_process(self, scheme: str) -> str:
        return f"inproc-{id(self)}"

    def route(self, peer: int, scheme: str, addresses: list[str], host: str) -> None:
        self.routes.append((peer, scheme, addresses, host))

    def close(self) -> None:
        for _, listening in self.listening:
            listening.close()


@pytest.fixture
def group() -> Iterator[RecordingGroup]:
    recording = RecordingGroup()
    yield recording
    recording.close()


def place(rank: int, listener: Listener, identity: HostIdentity = HERE) -> Place:
    return Place(rank, identity, tuple(listener.addresses))


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("scheme", EVERYWHERE)
def test_listens_and_is_reached(scheme: str, group: RecordingGroup) -> None:
    transport = registry.transport(scheme)
    assert transport.scheme == scheme
    assert transport.available() is None
    mine, theirs = transport.listen(LOCAL), transport.listen(LOCAL)
    try:
        here, there = place(0, mine), place(1, theirs)
        assert here.addresses != there.addresses
        assert transport.reaches(here, there) is None
        assert transport.reaches(there, here) is None
        theirs.attach(group)  # type: ignore[arg-type]
        transport.route(group, here, there, LOCAL, 1.0)  # type: ignore[arg-type]
        ((peer, routed, addresses, host),) = group.routes
        assert (peer, routed, host) == (1, scheme, HERE.host)
        assert addresses
    finally:
        mine.close()
        theirs.close()


@pytest.mark.parametrize("scheme", EVERYWHERE)
@pytest.mark.parametrize("scope", [LOCAL, NETWORK])
def test_leaves_nothing_behind(scheme: str, scope: Scope) -> None:
    before = descriptors()
    for _ in range(3):
        listener = registry.transport(scheme).listen(scope)
        listener.close()
        listener.close()
    assert descriptors() == before


@pytest.mark.parametrize("scheme", ["shm", "tcp"])
def test_attached_sockets_belong_to_the_group(scheme: str, group: RecordingGroup) -> None:
    listener = registry.transport(scheme).listen(LOCAL)
    listener.attach(group)  # type: ignore[arg-type]
    listener.close()
    for _, listening in group.listening:
        assert listening.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        assert not os.get_blocking(listening.fileno())
        assert not os.get_inheritable(listening.fileno())


@pytest.mark.parametrize("scheme", ["shm", "tcp"])
def test_one_listener_serves_all_groups_of_a_job(scheme: str, group: RecordingGroup) -> None:
    listener = registry.transport(scheme).listen(LOCAL)
    listener.attach(group)  # type: ignore[arg-type]
    assert listener.split() is listener
    sockets = len(group.listening)
    assert sockets == len(listener.addresses) and not group.accepted
    listener.attach(group)  # type: ignore[arg-type]
    assert group.accepted == [scheme] and len(group.listening) == sockets
    listener.close()


def test_threads_reach_each_group_at_an_address_of_its_own() -> None:
    listener = registry.transport("inproc").listen(LOCAL)
    other = listener.split()
    assert set(listener.addresses).isdisjoint(other.addresses)
    for each in (listener, other):
        each.close()


@pytest.mark.parametrize("scheme", ["inproc", "shm"])
def test_another_machine_is_not_reached_although_it_has_our_name(scheme: str) -> None:
    transport = registry.transport(scheme)
    listener = transport.listen(NETWORK)
    try:
        theirs = place(1, listener, dataclasses.replace(ELSEWHERE, host=HERE.host))
        assert "rank 1" in str(transport.reaches(place(0, listener), theirs))
    finally:
        listener.close()


def test_shm_is_not_offered_across_network_namespaces() -> None:
    transport = registry.transport("shm")
    listener = transport.listen(LOCAL)
    try:
        theirs = place(1, listener, dataclasses.replace(HERE, netns=HERE.netns + 1))
        assert "namespace" in str(transport.reaches(place(0, listener), theirs))
    finally:
        listener.close()


def test_shm_is_not_taken_for_granted_on_a_clone_of_this_machine() -> None:
    transport = registry.transport("shm")
    mine, theirs = transport.listen(LOCAL), transport.listen(LOCAL)
    there = place(1, theirs)
    theirs.close()  # now nobody here listens at that name, as on a machine cloned from ours
    try:
        assert "not on this machine" in str(transport.reaches(place(0, mine), there))
    finally:
        mine.close()


def test_a_rank_that_does_not_offer_a_transport_is_named() -> None:
    for scheme in EVERYWHERE:
        transport = registry.transport(scheme)
        listener = transport.listen(LOCAL)
        silent = Place(3, HERE, ())
        assert "rank 3" in str(transport.reaches(place(0, listener), silent))
        assert "rank 3" in str(transport.reaches(silent, place(0, listener)))
        listener.close()


def test_tcp_without_a_secret_listens_on_loopback_only_and_says_so() -> None:
    transport = registry.transport("tcp")
    listener = transport.listen(LOCAL)
    try:
        assert [a.split()[0] for a in listener.addresses] == ["127.0.0.1"]
        far = Place(1, ELSEWHERE, ("192.0.2.77 80",))
        reason = str(transport.reaches(place(0, listener), far))
        assert reason == str(transport.reaches(far, place(0, listener)))
        assert "rank 0" in reason
        assert "secret" in reason
    finally:
        listener.close()


def test_tcp_on_every_interface_also_answers_on_loopback_of_both_families() -> None:
    listener = registry.transport("tcp").listen(NETWORK)
    try:
        port = int(listener.addresses[0].split()[1])
        families = {"127.0.0.1": True, "::1": Path("/proc/net/if_inet6").exists()}
        for host in (h for h, there in families.items() if there):
            socket.create_connection((host, port), timeout=5).close()
    finally:
        listener.close()


def test_tcp_on_one_interface_publishes_that_one(group: RecordingGroup) -> None:
    transport = registry.transport("tcp")
    listener = transport.listen(Scope(network=True, interface="lo"))
    try:
        hosts = {a.split()[0] for a in listener.addresses}
        assert "127.0.0.1" in hosts
        assert hosts <= {"127.0.0.1", "::1"}
    finally:
        listener.close()
    with pytest.raises(ValueError, match="no interface"):
        transport.listen(Scope(network=True, interface="nothere0"))


def test_tcp_with_no_usable_address_says_which_were_tried(group: RecordingGroup) -> None:
    transport = registry.transport("tcp")
    far = Place(1, ELSEWHERE, ("127.0.0.1 80",))
    with pytest.raises(TransportUnavailable, match=r"rank 1 on elsewhere.*127\.0\.0\.1 80"):
        transport.route(group, Place(0, HERE, ()), far, NETWORK, 1.0)  # type: ignore[arg-type]
    assert group.routes == []


@pytest.mark.parametrize(
    ("scheme", "address"),
    [("tcp", "localhost 80"), ("tcp", "10.0.0.1"), ("shm", "\0other"), ("shm", "pycollectives-" + "\n" * 32)],
)
def test_malformed_addresses_of_peers_are_refused(scheme: str, address: str, group: RecordingGroup) -> None:
    transport = registry.transport(scheme)
    mine = Place(0, HERE, ())
    with pytest.raises(ValueError):
        transport.route(group, mine, Place(1, HERE, (address,)), LOCAL, 1.0)  # type: ignore[arg-type]


def test_too_many_addresses_are_refused() -> None:
    transport = registry.transport("tcp")
    with pytest.raises(ValueError, match="100 addresses"):
        transport.reaches(Place(0, HERE, ("127.0.0.1 80",)), Place(1, HERE, ("127.0.0.1 80",) * 100))


def test_inproc_waits_for_a_thread_that_met_us_but_is_not_ready(group: RecordingGroup) -> None:
    transport = InprocTransport()
    listener = transport.listen(LOCAL)
    with pytest.raises(OpTimeout, match="rank 1") as caught:
        transport.route(group, Place(0, HERE, ()), place(1, listener), LOCAL, 0.01)  # type: ignore[arg-type]
    assert caught.value.late == (1,)


def test_unknown_schemes_list_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"'pigeon'.*auto, inproc, shm, tcp, verbs, nccl, leader$"):
        registry.transport("pigeon")


class Pigeon(InprocTransport):
    @property
    def scheme(self) -> str:
        return "pigeon"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package whose metadata names transports, as pip would have installed it."""
    info = tmp_path / "pigeon-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pigeon\nVersion: 1.0\n")
    lines = [f"pigeon = {__name__}:Pigeon", f"liar = {__name__}:Pigeon", "broken = no_such_module:Thing"]
    (info / "entry_points.txt").write_text(f"[{registry.ENTRY_POINTS}]\n" + "\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(registry, "_loaded", {})
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    assert EntryPoint("pigeon", f"{__name__}:Pigeon", registry.ENTRY_POINTS).load() is Pigeon


@pytest.mark.usefixtures("installed")
def test_packages_can_add_transports() -> None:
    assert isinstance(registry.transport("pigeon"), Pigeon)
    assert registry.transport("pigeon") is registry.transport("pigeon")
    assert registry.schemes()[-3:] == ("broken", "liar", "pigeon")
    assert "no_such_module" in str(registry.available("broken"))
    assert "calls itself 'pigeon'" in str(registry.available("liar"))


def test_a_transport_that_the_build_leaves_out_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(registry.transport(scheme).available() is None for scheme in EVERYWHERE)
    monkeypatch.setattr(_engine, "transports", lambda: ["tcp"])
    for scheme in ("inproc", "shm"):
        reason = registry.available(scheme)
        assert reason is not None and scheme in reason and "those of tcp" in reason
    assert registry.available("tcp") is None
