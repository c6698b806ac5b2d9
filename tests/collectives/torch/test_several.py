"""Several works that are waited for as one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from collectives.native.errors import OpTimeout

pytest.importorskip("torch", reason="PyTorch is not installed")

from collectives.torch import group


class Slow:
    """A work that takes `seconds` of a clock that it moves itself."""

    def __init__(self, clock: list[float], seconds: float) -> None:
        self.clock, self.left = clock, seconds
        self.limits: list[float | None] = []

    def is_completed(self) -> bool:
        return self.left == 0.0

    def settle(self, limit: float | None = None) -> None:
        self.limits.append(limit)
        spent = self.left if limit is None else min(limit, self.left)
        self.clock[0] += spent
        self.left -= spent
        if self.left:
            raise OpTimeout("too late", [1])


def several(monkeypatch: pytest.MonkeyPatch, *seconds: float) -> tuple[Any, list[Slow], list[float]]:
    clock = [100.0]
    monkeypatch.setattr(group, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    works = [Slow(clock, each) for each in seconds]
    several: Any = group.Several
    return several(works), works, clock


def test_works_that_are_waited_for_as_one_share_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    together, works, clock = several(monkeypatch, 2.0, 2.0, 2.0)
    with pytest.raises(OpTimeout):
        together.wait(5.0)
    assert clock[0] == 105.0
    assert [work.limits for work in works] == [[5.0], [3.0], [1.0]]
    assert not together.done()
    together.wait(5.0)
    assert clock[0] == 106.0 and together.done()


def test_a_deadline_that_has_passed_still_finds_works_that_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    together, works, _ = several(monkeypatch, 5.0, 0.0)
    together.wait(5.0)
    assert [work.limits for work in works] == [[5.0], [0.0]]


def test_without_a_timeout_each_work_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    together, works, clock = several(monkeypatch, 2.0, 400.0)
    together.wait()
    assert [work.limits for work in works] == [[None], [None]] and clock[0] == 502.0
