"""Finds the order in which processes ended.

Invariant: processes that ended between two calls of `take` are returned in the order in which they ended. An epoll
instance watches a descriptor (pidfd) of each process, which becomes ready when the process becomes a zombie. Linux
returns ready descriptors in the order in which they became ready. Polling each process in turn would lose this order.
"""

from __future__ import annotations

import os
import select

from collectives.commands.child import Child


class Endings:
    """Tells a launcher which of its child processes have ended.

    Owns a descriptor (pidfd) for each child until the child has ended.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._children: dict[int, Child] = {}
        self._unordered: list[Child] = []  # children for which the system gives no descriptor

    def watch(self, child: Child) -> None:
        try:
            descriptor = os.pidfd_open(child.pid)
        except OSError:
            self._unordered.append(child)
            return
        self._children[descriptor] = child
        self._epoll.register(descriptor, select.EPOLLIN)

    def take(self) -> list[Child]:
        """Returns the child processes that have ended since the last call, in the order in which they ended.

        Does not block. Sets the attribute `end` of each, which says how the process ended.
        """
        found = []
        while ready := self._epoll.poll(0, max(1, len(self._children))):
            for descriptor, _ in ready:
                self._epoll.unregister(descriptor)
                os.close(descriptor)
                found.append(self._children.pop(descriptor))
        found += self._unordered
        ended = [child for child in found if child.poll() is not None]
        self._unordered = [child for child in found if child.end is None]
        return ended

    def close(self) -> None:
        for descriptor in self._children:
            os.close(descriptor)
        self._children.clear()
        self._epoll.close()
