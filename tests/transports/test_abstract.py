"""The names of abstract sockets, looked up one at a time and all together."""

from __future__ import annotations

import re

import pytest

from collectives.transports import abstract


@pytest.mark.parametrize("hidden", [False, True])
def test_names_are_looked_up_together(hidden: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's list is read once; if it is hidden, each name is tried."""
    reads: list[float] = []

    class Sockets(abstract._Sockets):
        def has(self, text: str, since: float) -> bool:
            before = self._read
            found = super().has(text, since)
            reads.extend([self._read] if self._read != before else [])
            return found

    monkeypatch.setattr(abstract, "_sockets", Sockets())
    if hidden:
        monkeypatch.setattr(abstract, "_IN_THE_LIST", re.compile(rb"(nothing like this)"))
    bound = [abstract.bound() for _ in range(5)]
    closed_name, closed = abstract.bound()
    assert closed is not None
    closed.close()
    try:
        with abstract.asked_together():
            assert all(abstract.is_bound(name) for name, _ in bound)
            assert not abstract.is_bound(closed_name)
            assert not abstract.is_bound(abstract.name())
        assert len(reads) == 1
        assert abstract.is_bound(bound[0][0])
        later, socket = abstract.bound()
        assert socket is not None
        with socket, abstract.asked_together():  # a list that was read before is read again for a name it lacks
            assert abstract.is_bound(later)
        assert len(reads) == 2
    finally:
        for _, socket in bound:
            assert socket is not None
            socket.close()
    assert not abstract.is_bound(bound[0][0])


def test_a_wrong_name_is_refused_in_a_block_too() -> None:
    with abstract.asked_together(), pytest.raises(ValueError, match="not the name"):
        abstract.is_bound("@else")
