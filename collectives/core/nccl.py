"""Forms NCCL's communicator of a communicator: the ranks agree over their links, then meet by NCCL's unique id.

Invariant: every rank comes to the same decision, and learns of a failure on any rank. The records that ranks exchange
are authenticated with the job's secret, if there is one, as those in the store are.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from collectives.arrays.array import Array
from collectives.calls.moves import Calls, Deadline
from collectives.calls.prepare import Shape
from collectives.core.family import Origin
from collectives.core.links import Linked
from collectives.native import _engine
from collectives.native.errors import Aborted, AuthError, CollectiveError, ConfigMismatch
from collectives.rendezvous import secret as secrets
from collectives.transports import nccl

_RECORD: Final = 1024  # bytes of a rank's record, so that ranks need not exchange lengths
_SHARING: Final = (23200, "NCCL_MULTI_RANK_GPU_ENABLE")  # since that version, and with that variable


class Member(NamedTuple):
    """What a rank tells the others: NCCL's version, its device, and why it cannot take part ("" if it can).

    `shares`: whether NCCL lets several ranks use one device here. `wrong`: what is wrong with this call only.
    """

    version: int
    uuid: str
    problem: str
    shares: bool
    wrong: str


class Former:
    """Forms NCCL's communicator of one communicator; implements `collectives.calls.streamed.Form`."""

    def __init__(self, linked: Linked, calls: Calls, origin: Origin) -> None:
        self._linked: Final = linked
        self._calls: Final = calls
        self._origin: Final = origin

    def __call__(self, device: int, wrong: Exception | None, deadline: Deadline) -> str:
        library, mine = self._here(device, "" if wrong is None else str(wrong)[: _RECORD // 3])
        everyone = [_member(rank, data) for rank, data in enumerate(self._exchange(mine, "member", deadline))]
        if wrong is not None:
            raise wrong
        for rank, one in enumerate(everyone):
            if one.wrong:
                raise Aborted(f"rank {rank} cannot make this call: {one.wrong}")
        against = _against(everyone, [member.identity.host for member in self._linked.members])
        if against:
            return against
        assert library is not None
        first = self._calls.rank == 0
        given: dict[str, Any] = {}
        if first:
            try:
                given = {"id": library.unique_id().hex()}
            except CollectiveError as error:
                given = {"problem": str(error)}
        answer = self._exchange(given, "id", deadline)[0]
        if "problem" in answer:
            return f"rank 0: {answer['problem']}"
        unique = _unique_id(answer)
        self._linked.group.join_nccl(library, unique, device, 0, deadline.left)
        return ""

    def _here(self, device: int, wrong: str) -> tuple[_engine.NcclLibrary | None, dict[str, Any]]:
        library = None
        record: dict[str, Any] = {"version": 0, "uuid": "", "problem": "", "shares": False, "wrong": wrong}
        try:
            found = nccl.find()
            if found.problem:
                raise CollectiveError(found.problem)
            library = _engine.load_nccl(found.path)
            devices = _engine.cuda_devices()
            since, variable = _SHARING
            record |= {
                "version": library.version,
                "uuid": devices[device].uuid,
                "shares": library.version >= since and os.environ.get(variable) == "1",
            }
        except CollectiveError as error:
            record["problem"] = str(error)[: _RECORD // 3]
        return library, record

    def _exchange(self, mine: dict[str, Any], what: str, deadline: Deadline) -> Sequence[Any]:
        """The records of all ranks; AuthError if one is not authentic."""
        calls, origin = self._calls, self._origin
        secret = origin.policy.secret
        run = f"{origin.run} {origin.path}"
        body = json.dumps(mine, separators=(",", ":")).encode()
        tag = secrets.sign(secret, run, origin.epoch, f"nccl/{what}/{calls.rank}", body) if secret else b""
        row = np.zeros(_RECORD, np.uint8)
        sealed = tag + body
        row[: len(sealed)] = np.frombuffer(sealed, np.uint8)
        rows: Array = np.empty((calls.size, _RECORD), np.uint8)
        shape = Shape(
            "allgather", row.dtype, _RECORD, rows.size, _RECORD, purpose=f"to form NCCL's communicator: {what}"
        )
        operation = calls.prepare.collective(shape, "auto").operation
        self._linked.group.run(operation, row, rows, deadline.left)
        found = []
        for rank, one in enumerate(rows):
            data = one.tobytes().rstrip(b"\0")
            start = secrets.TAG_SIZE if secret else 0
            # A tag may end with zeros only if the body is missing.
            seal, text = one.tobytes()[:start], data[start:]
            key = f"nccl/{what}/{rank}"
            if secret and not secrets.verify(secret, run, origin.epoch, key, text, seal):
                raise AuthError(
                    f"what rank {rank} sent to form NCCL's communicator was not written by a rank of the job"
                )
            try:
                found.append(json.loads(text))
            except ValueError as error:
                raise ConfigMismatch(f"rank {rank} sent something that makes no sense: {text[:100]!r}") from error
        return found


def _member(rank: int, data: Any) -> Member:
    match data:
        case {
            "version": int(version),
            "uuid": str(uuid),
            "problem": str(problem),
            "shares": bool(shares),
            "wrong": str(wrong),
        }:
            return Member(version, uuid, problem, shares, wrong)
    raise ConfigMismatch(f"rank {rank} sent something that makes no sense: {str(data)[:200]}")


def _unique_id(data: Any) -> bytes:
    match data:
        case {"id": str(text)}:
            try:
                found = bytes.fromhex(text)
            except ValueError:
                found = b""
            if len(found) == 128:
                return found
    raise ConfigMismatch(f"rank 0 sent something that makes no sense: {str(data)[:200]}")


def _against(everyone: Sequence[Member], hosts: Sequence[str]) -> str:
    """Why these ranks do not use NCCL together; "" if they do."""
    for rank, one in enumerate(everyone):
        if one.problem:
            return f"rank {rank} on {hosts[rank]}: {one.problem}"
    first = everyone[0]
    for rank, one in enumerate(everyone):
        if one.version != first.version:
            return (
                f"rank 0 on {hosts[0]} has NCCL {_version(first.version)} and rank {rank} on {hosts[rank]} has "
                f"{_version(one.version)}: install the same version everywhere"
            )
    seen: dict[str, int] = {}
    for rank, one in enumerate(everyone):
        other = seen.setdefault(one.uuid, rank)
        if other != rank and not one.shares:
            return (
                f"ranks {other} and {rank} on {hosts[rank]} use one device: give each its own "
                "(CUDA_VISIBLE_DEVICES, or the local rank's device)"
            )
    return ""


def _version(code: int) -> str:
    return f"{code // 10000}.{code // 100 % 100}.{code % 100}"
