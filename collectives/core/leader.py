"""Forms the engine for ranks that share a CUDA device: ranks compare their devices, then meet on their host.

Invariant: every rank comes to the same decision, and learns of a failure on any rank.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from collectives.calls.leading import Compared
from collectives.calls.moves import Calls, Deadline
from collectives.core.agreed import RECORD, Exchange, nonsense
from collectives.core.family import Origin
from collectives.core.links import Linked
from collectives.native import _engine
from collectives.native.errors import Aborted, CollectiveError
from collectives.transports import leader

ENGINE: Final = "leader"
_MOST_DEVICES: Final = 32  # whose hashes fit into a record


class _Device(NamedTuple):
    """What a rank tells the others first. `reach`: hashes of the devices that this rank's device and which reach each
    other, its own included. `wrong`: what is wrong with this call only, "" if nothing is.
    """

    uuid: str
    reach: list[int]
    problem: str
    wrong: str


class Former:
    """Forms the leader engine of one communicator, with which one rank's CUDA kernel works for all ranks.

    Implements `collectives.calls.leading.Form`.
    """

    def __init__(self, linked: Linked, calls: Calls, origin: Origin) -> None:
        self._linked: Final = linked
        self._calls: Final = calls
        self._exchange: Final = Exchange(ENGINE, linked, calls, origin)

    def compare(self, device: int, wrong: Exception | None, deadline: Deadline) -> Compared:
        mine = _Device("", [], "", "" if wrong is None else str(wrong)[: RECORD // 4])
        try:
            everyone = _engine.cuda_devices()
            mine = mine._replace(uuid=everyone[device].uuid, reach=_reach(device, everyone))
        except CollectiveError as error:
            mine = mine._replace(problem=str(error)[: RECORD // 4])
        ranks = [_device(rank, data) for rank, data in enumerate(self._exchange(mine._asdict(), "device", deadline))]
        if wrong is not None:
            raise type(wrong)(f"rank {self._calls.rank}: {wrong}") from wrong
        for rank, one in enumerate(ranks):
            if one.wrong:
                raise Aborted(f"rank {rank} cannot make this call: {one.wrong}")
        hosts = [member.identity.host for member in self._linked.members]
        places = {(host, one.uuid) for host, one in zip(hosts, ranks, strict=True)}
        shared = len(places) < len(hosts)
        for rank, one in enumerate(ranks):
            if one.problem:
                return Compared(shared, f"rank {rank} on {hosts[rank]}: {one.problem}")
            if hosts[rank] != hosts[0]:
                return Compared(shared, f"ranks 0 and {rank} are on different hosts, {hosts[0]} and {hosts[rank]}")
            if _hash(one.uuid) not in ranks[0].reach or _hash(ranks[0].uuid) not in one.reach:
                return Compared(shared, f"the devices of ranks 0 and {rank} cannot be reached from each other")
        return Compared(shared, "")

    def form(self, device: int, deadline: Deadline) -> tuple[_engine.LeaderMember | None, str]:
        member, given = self._member(device)
        records = [_record(rank, data) for rank, data in enumerate(self._exchange(given, "record", deadline))]
        against = _first([problem for problem, _ in records])
        if against:
            return None, against
        assert member is not None
        problem = member.meet([record for _, record in records], deadline.left)
        outcome = self._exchange({"problem": problem[: RECORD // 2]}, "outcome", deadline)
        against = _first([_problem(rank, data) for rank, data in enumerate(outcome)])
        if against:
            return None, against
        member.use()
        return member, ""

    def _member(self, device: int) -> tuple[_engine.LeaderMember | None, dict[str, Any]]:
        try:
            found = leader.find_compiler()
            if found.problem:
                raise CollectiveError(found.problem)
            member = _engine.LeaderMember(self._linked.group, device, found.path)
        except CollectiveError as error:
            return None, {"problem": str(error)[: RECORD // 2], "record": ""}
        return member, {"problem": "", "record": member.record.hex()}


def _hash(uuid: str) -> int:
    return zlib.crc32(uuid.encode())


def _reach(device: int, everyone: Sequence[_engine.CudaDevice]) -> list[int]:
    """Hashes of the visible devices that reach `device` and are reached from it."""
    others = [one.number for one in everyone[:_MOST_DEVICES] if one.number != device]
    both = _engine.can_access_cuda_peer
    reached = [other for other in others if both(device, other) and both(other, device)]
    return [_hash(everyone[number].uuid) for number in (device, *reached)]


def _device(rank: int, data: Any) -> _Device:
    match data:
        case {"uuid": str(uuid), "reach": [*reach], "problem": str(problem), "wrong": str(wrong)}:
            return _Device(uuid, reach, problem, wrong)
    raise nonsense(rank, data)


def _record(rank: int, data: Any) -> tuple[str, bytes]:
    match data:
        case {"problem": str(problem), "record": str(text)}:
            try:
                return problem, bytes.fromhex(text)
            except ValueError as error:
                raise nonsense(rank, data) from error
    raise nonsense(rank, data)


def _problem(rank: int, data: Any) -> str:
    match data:
        case {"problem": str(problem)}:
            return problem
    raise nonsense(rank, data)


def _first(problems: Sequence[str]) -> str:
    """The problem of the first rank that has one; "" if none has."""
    return next((f"rank {rank}: {problem}" for rank, problem in enumerate(problems) if problem), "")
