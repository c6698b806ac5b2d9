"""How receives from any rank are matched, where messages come at the worst moment."""

from __future__ import annotations

from typing import Any

import pytest

from collectives.native.errors import OpTimeout, PeerLost
from tests.lazily import needs
from tests.waiting import eventually

needs("torch", "PyTorch is not installed")


class Coming:
    """A channel whose messages come between two looks: the first look at each sees nothing."""

    def __init__(self) -> None:
        self.looks = 0

    def start(self, operation: Any, seconds: float) -> Coming:
        self.looks = 0
        return self

    def done(self) -> bool:
        self.looks += 1
        return self.looks > 1

    def wait(self, timeout: float | None = None) -> None:
        assert self.done()


def test_a_later_receive_does_not_overtake_one_from_any_rank() -> None:
    from collectives.torch.intake import FromAny, Intake

    channel = Coming()
    intake = Intake([1], lambda source: channel, "intake")  # type: ignore[arg-type,return-value]
    order: list[str] = []
    receives = [
        FromAny(wanted, lambda _, name=name: order.append(name), 30.0)  # type: ignore[arg-type,misc]
        for wanted, name in ((None, "first"), (1, "second"), (None, "third"))
    ]
    for receive in receives:
        intake.put(receive)
    assert eventually(lambda: len(order) == 3)
    assert order == ["first", "second", "third"]
    assert [receive.source for receive in receives] == [1, 1, 1]


def test_who_waited_in_vain_learns_which_ranks_were_lost() -> None:
    from collectives.torch.intake import FromAny, Intake

    def channel(source: int) -> Any:
        if source == 2:
            return None  # it has asked for nothing yet
        lost = Coming()
        lost.wait = _raise  # type: ignore[method-assign]
        return lost

    intake = Intake([1, 2], channel, "intake")
    receive = FromAny(None, lambda _: None, 0.5)  # type: ignore[arg-type,return-value]
    intake.put(receive)
    with pytest.raises(OpTimeout, match=r"within 0\.5 s; rank 1 can send none: its host is on fire"):
        receive.wait()


def _raise(timeout: float | None = None) -> None:
    raise PeerLost("its host is on fire", (1,))
