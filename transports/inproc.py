"""The transport between ranks that are threads of one process.

Invariant: a listener publishes a random token. Only this process knows the address to which the token belongs, and it
forgets the address when the listener closes.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from collectives.native.errors import OpTimeout
from collectives.transports.transport import Listener, Place, Scope, left_out

if TYPE_CHECKING:
    from collectives.native._engine import Group


class InprocTransport:
    @property
    def scheme(self) -> str:
        return "inproc"

    def available(self) -> str | None:
        return left_out("inproc")

    def listen(self, scope: Scope) -> Listener:
        return _InprocListener()

    def reaches(self, mine: Place, theirs: Place) -> str | None:
        if not mine.addresses or not theirs.addresses:
            return f"{theirs if mine.addresses else mine} does not offer inproc"
        if not mine.identity.same_process(theirs.identity):
            return f"{mine} and {theirs} are different processes"
        return None

    def route(self, group: Group, mine: Place, theirs: Place, scope: Scope, timeout: float) -> None:
        addresses = [_attached.get(token, theirs, timeout) for token in theirs.addresses]
        group.route(theirs.rank, self.scheme, addresses, theirs.identity.host)


class _InprocListener:
    """Publishes a token instead of an address, because the engine makes the address only after the group has formed."""

    def __init__(self) -> None:
        self._token = secrets.token_hex(16)

    @property
    def addresses(self) -> Sequence[str]:
        return (self._token,)

    def attach(self, group: Group) -> None:
        _attached.put(self._token, group.listen_in_process("inproc"))

    def split(self) -> Listener:
        return _InprocListener()  # an address is valid for one group only

    def close(self) -> None:
        _attached.forget(self._token)


class _Attached:
    """Maps the token of each listener to its address in the engine, for all groups of this process."""

    def __init__(self) -> None:
        self._addresses: dict[str, str] = {}
        self._changed = threading.Condition()

    def put(self, token: str, address: str) -> None:
        with self._changed:
            self._addresses[token] = address
            self._changed.notify_all()

    def get(self, token: str, peer: Place, timeout: float) -> str:
        with self._changed:
            if not self._changed.wait_for(lambda: token in self._addresses, timeout):
                raise OpTimeout(f"{peer} met us but did not open its links within {timeout:g} s", [peer.rank])
            return self._addresses[token]

    def forget(self, token: str) -> None:
        with self._changed:
            self._addresses.pop(token, None)


_attached = _Attached()
