"""Forms NCCL's communicator of a communicator: the ranks agree over their links, then meet by NCCL's unique id.

Invariant: every rank comes to the same decision, and learns of a failure on any rank.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from weakref import WeakValueDictionary

from collectives.calls.moves import Calls, Deadline
from collectives.calls.nccl import Formed
from collectives.core.agreed import RECORD, Exchange, nonsense
from collectives.core.family import Origin
from collectives.core.links import Linked
from collectives.native import _engine
from collectives.native.errors import Aborted, CollectiveError
from collectives.transports import nccl
from collectives.transports.leader import find_compiler

_MOST_BLOCKS: Final = 1024  # far more than NCCL uses
_SHARING: Final = (23200, "NCCL_MULTI_RANK_GPU_ENABLE")  # since that version, and with that variable
_LEAST: Final = "COLLECTIVES_NCCL_MIN_CTAS"
_MOST: Final = "COLLECTIVES_NCCL_MAX_CTAS"
_ONE_FOR_ALL: Final = "COLLECTIVES_NCCL_SHARE"

# With COLLECTIVES_NCCL_SHARE: what this process has of communicators of NCCL that others may use, too.
_held: Final[WeakValueDictionary[tuple[object, ...], _engine.NcclMember]] = WeakValueDictionary()


class Device(NamedTuple):
    """`capability`: 90 for 9.0."""

    uuid: str
    multiprocessors: int
    capability: int


class Settings(NamedTuple):
    """The settings for NCCL from environment variables; they have to be the same on all ranks.

    `least`, `most`: limits of the number of thread blocks; 0 for NCCL's own choice. `one_for_all`: whether
    communicators with the same ranks share one NCCL communicator.
    """

    least: int
    most: int
    one_for_all: bool


class Member(NamedTuple):
    """The record that a rank sends to all others: NCCL's version, the rank's device, and why NCCL cannot be used.

    `problem`: why the rank cannot use NCCL, "" if it can. `shares`: whether NCCL lets several ranks use one device
    here. `compiles`: whether the rank has a compiler of kernels. `wrong`: an error in this call only. `holds`: whether
    the rank has an NCCL communicator that can be shared.
    """

    version: int
    device: Device
    settings: Settings
    problem: str
    shares: bool
    compiles: bool
    wrong: str
    holds: bool


class Former:
    """Makes the NCCL communicator for a communicator of this library; implements `collectives.calls.nccl.Form`."""

    def __init__(self, linked: Linked, calls: Calls, origin: Origin) -> None:
        self._linked: Final = linked
        self._calls: Final = calls
        self._origin: Final = origin
        self._exchange: Final = Exchange("nccl", linked, calls, origin)

    def __call__(self, device: int, wrong: Exception | None, deadline: Deadline) -> Formed:
        key = (self._origin.run, self._origin.epoch, tuple(self._linked.job_ranks), self._calls.rank, device)
        held = _held.get(key)
        holds = held is not None and not held.is_over
        library, mine = self._here(device, "" if wrong is None else str(wrong)[: RECORD // 3], holds)
        everyone = [_member(rank, data) for rank, data in enumerate(self._exchange(mine, "member", deadline))]
        if wrong is not None:
            raise type(wrong)(f"rank {self._calls.rank}: {wrong}") from wrong
        for rank, one in enumerate(everyone):
            if one.wrong:
                raise Aborted(f"rank {rank} cannot make this call: {one.wrong}")
        hosts = [member.identity.host for member in self._linked.members]
        against = _against(everyone, hosts)
        if against:
            return Formed(against)
        assert library is not None
        # For reductions in schedules, which NCCL itself does not need.
        lacking = [f"rank {r} on {hosts[r]} has no NVRTC" for r, one in enumerate(everyone) if not one.compiles]
        no_compiler = f"{lacking[0]}: collectives doctor says why" if lacking else ""
        compiler = "" if lacking else find_compiler().path
        group, settings = self._linked.group, everyone[0].settings
        capability = min(one.device.capability for one in everyone)
        if settings.one_for_all and all(one.holds for one in everyone):
            assert held is not None
            shared = _engine.NcclMember(group, held)
            return Formed("", shared, library.version, capability, compiler, no_compiler)
        given: dict[str, Any] = {}
        if self._calls.rank == 0:
            try:
                given = {"id": library.unique_id().hex()}
            except CollectiveError as error:
                given = {"problem": str(error)}
        answer = self._exchange(given, "id", deadline)[0]
        if "problem" in answer:
            return Formed(f"rank 0: {answer['problem']}")
        most = settings.most or _most_that_fit(everyone)
        made = _engine.NcclMember(
            group, library, _unique_id(answer), device, capability, settings.least, most, deadline.left
        )
        if settings.one_for_all:
            _held[key] = made
        return Formed("", made, library.version, capability, compiler, no_compiler)

    def _here(self, device: int, wrong: str, holds: bool) -> tuple[_engine.NcclLibrary | None, dict[str, Any]]:
        library = None
        none = Member(0, Device("", 0, 0), Settings(0, 0, False), "", False, False, wrong, holds)
        record = none
        try:
            settings = _settings(os.environ)
            found = nccl.find()
            if found.problem:
                raise CollectiveError(found.problem)
            library = _engine.load_nccl(found.path)
            one = _engine.cuda_devices()[device]
            since, variable = _SHARING
            record = none._replace(
                compiles=not find_compiler().problem,
                version=library.version,
                device=Device(one.uuid, one.multiprocessors, one.capability),
                settings=settings,
                shares=library.version >= since and os.environ.get(variable) == "1",
            )
        except (CollectiveError, ValueError) as error:
            record = none._replace(problem=str(error)[: RECORD // 3])
        return library, record._asdict()


def _member(rank: int, data: Any) -> Member:
    match data:
        case {
            "version": int(version),
            "device": [str(uuid), int(multiprocessors), int(capability)],
            "settings": [int(least), int(most), bool(one_for_all)],
            "problem": str(problem),
            "shares": bool(shares),
            "compiles": bool(compiles),
            "wrong": str(wrong),
            "holds": bool(holds),
        }:
            device = Device(uuid, multiprocessors, capability)
            settings = Settings(least, most, one_for_all)
            return Member(version, device, settings, problem, shares, compiles, wrong, holds)
    raise nonsense(rank, data)


def _settings(env: Mapping[str, str]) -> Settings:
    """ValueError, which names the variable, for a value that is none."""
    numbers = []
    for name in (_LEAST, _MOST):
        text = env.get(name) or "0"
        if not text.isdecimal() or int(text) > _MOST_BLOCKS:
            raise ValueError(
                f"{name} is {text!r}: give a number of thread blocks from 1 to {_MOST_BLOCKS}, or unset it"
            )
        numbers.append(int(text))
    least, most = numbers
    if most and least > most:
        raise ValueError(f"{_LEAST} is {least}, more than {_MOST}, which is {most}")
    return Settings(least, most, env.get(_ONE_FOR_ALL) == "1")


def _most_that_fit(everyone: Sequence[Member]) -> int:
    """The largest number of thread blocks with which all ranks that share a device fit on it; 0 if none share one."""
    sharing = Counter(one.device.uuid for one in everyone)
    bounds = [
        one.device.multiprocessors // sharing[one.device.uuid] for one in everyone if sharing[one.device.uuid] > 1
    ]
    return max(1, min(bounds)) if bounds else 0


def _unique_id(data: Any) -> bytes:
    match data:
        case {"id": str(text)}:
            try:
                found = bytes.fromhex(text)
            except ValueError:
                found = b""
            if len(found) == 128:
                return found
    raise nonsense(0, data)


def _against(everyone: Sequence[Member], hosts: Sequence[str]) -> str:
    """Why these ranks do not use NCCL together; "" if they do."""
    for rank, one in enumerate(everyone):
        if one.problem:
            return f"rank {rank} on {hosts[rank]}: {one.problem}"
    first = everyone[0]
    for rank, one in enumerate(everyone):
        if one.version != first.version:
            return (
                f"rank 0 on {hosts[0]} has NCCL {nccl.version_text(first.version)} and rank {rank} on {hosts[rank]} "
                f"has {nccl.version_text(one.version)}: install the same version everywhere"
            )
    for rank, one in enumerate(everyone):
        if one.settings != first.settings:
            return (
                f"rank 0 on {hosts[0]} and rank {rank} on {hosts[rank]} have different values of {_LEAST}, {_MOST} or "
                f"{_ONE_FOR_ALL}: set the same everywhere"
            )
    seen: dict[str, int] = {}
    for rank, one in enumerate(everyone):
        other = seen.setdefault(one.device.uuid, rank)
        if other != rank and not one.shares:
            return (
                f"ranks {other} and {rank} on {hosts[rank]} use one device: give each its own "
                "(CUDA_VISIBLE_DEVICES, or the local rank's device)"
            )
    return ""
