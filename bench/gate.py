"""Lets our own ranks sleep while other systems are measured.

Invariant: a sleeping rank uses no processor time, and no rank continues before rank 0 wakes it.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Final

import numpy as np

from collectives import Communicator
from collectives.bench.channel import Channel, Listener, connect

JOIN: Final = 30.0  # seconds for connecting
WAIT: Final = 3600.0  # seconds that a rank sleeps at most; if rank 0 ends, the others wake up at once
_NAME: Final = 128


class Gate:
    """Lets all ranks of a communicator except rank 0 sleep, without using CPU time, while rank 0 does something.

    All ranks must be on this machine. Close the object, or use it in a `with` statement.
    """

    def __init__(self, comm: Communicator) -> None:
        """Collective. Raises OSError, CollectiveError."""
        self._up: Channel | None = None
        self._channels: Final[dict[int, Channel]] = {}
        name = np.zeros(_NAME, np.uint8)
        if comm.rank == 0:
            with Listener() as listener:
                name[: len(listener.name)] = np.frombuffer(listener.name.encode(), np.uint8)
                comm.broadcast(name)
                while missing := set(range(1, comm.size)) - self._channels.keys():
                    number, channel = listener.accept(missing, JOIN)
                    self._channels[number] = channel
        else:
            comm.broadcast(name)
            self._up = connect(name.tobytes().rstrip(b"\0").decode(), comm.rank, JOIN)

    def while_asleep(self, work: Callable[[], str]) -> str:
        """Run `work` on rank 0 while the other ranks sleep.

        All ranks must call this. All ranks get the text that `work` returns.
        """
        if self._up is not None:
            return str(self._up.receive(WAIT))
        answer = work()
        for channel in self._channels.values():
            channel.send(answer, JOIN)
        return answer

    def close(self) -> None:
        for channel in self._channels.values():
            channel.close()
        if self._up is not None:
            self._up.close()

    def __enter__(self) -> Gate:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
