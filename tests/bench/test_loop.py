"""The timing loop and its figures."""

from __future__ import annotations

import gc
import time

import numpy as np
import pytest

from collectives.bench.loop import Pace, Times, ratio, sample


def test_each_call_comes_after_a_barrier_and_is_timed_alone() -> None:
    events: list[str] = []
    collecting: list[bool] = []

    def call() -> None:
        events.append("call")
        collecting.append(gc.isenabled())

    times = sample(call, lambda: events.append("barrier"), 3)
    assert events == ["barrier", "call"] * 3
    assert times.shape == (3,) and (times >= 0).all()
    assert not any(collecting) and gc.isenabled()


def test_input_is_written_before_the_barrier() -> None:
    events: list[str] = []
    call, barrier = (lambda: events.append("call")), (lambda: events.append("barrier"))
    sample(call, barrier, 2, lambda: events.append("renew"))
    assert events == ["renew", "barrier", "call"] * 2


def test_calls_in_a_row_have_one_barrier_and_their_mean_is_told() -> None:
    events: list[str] = []

    def call() -> None:
        events.append("call")
        end = time.perf_counter() + 0.001
        while time.perf_counter() < end:
            pass

    times = sample(call, lambda: events.append("barrier"), 2, row=3)
    assert events == ["barrier", "call", "call", "call"] * 2
    assert times.shape == (2,) and (times >= 0.001).all() and (times < 0.003).any()


def test_the_barrier_is_not_in_the_time() -> None:
    def slow() -> None:
        for _ in range(200_000):
            pass

    slow_call, slow_barrier = sample(slow, lambda: None, 5), sample(lambda: None, slow, 5)
    assert np.median(slow_barrier) < np.median(slow_call) / 10


def test_collection_is_on_again_after_a_failure() -> None:
    with pytest.raises(ZeroDivisionError):
        sample(lambda: 1 / 0, lambda: None, 1)
    assert gc.isenabled()


def test_figures() -> None:
    times = Times.of([3.0, 1.0, 2.0, 10.0])
    assert (times.median, times.mean, times.min, times.max) == (2.5, 4.0, 1.0, 10.0)
    assert times.p99 == pytest.approx(9.79)


def test_a_ratio_is_formed_within_rounds() -> None:
    """The machine is three times as slow in the second round; what is compared stays."""
    ours = [np.array([1.0, 1.0, 9.0]), np.array([3.0, 3.0, 3.0]), np.array([1.0, 1.0, 1.0])]
    theirs = [np.array([2.0, 2.0, 2.0]), np.array([6.0, 6.0, 0.1]), np.array([2.0, 2.0, 2.0])]
    assert ratio(ours, theirs) == 0.5


def test_iterations_fit_into_the_time() -> None:
    pace = Pace.of(0.2, 1)
    assert pace.iterations(lambda n: n * 0.001) == 200
    assert pace.iterations(lambda n: n * 1e-9) == pace.most
    assert pace.iterations(lambda n: n * 5.0) == pace.fewest == 7
    assert pace.iterations(lambda _n: 0.0) == pace.most


def test_a_first_attempt_that_was_slow_by_chance_does_not_count_for_much() -> None:
    assert Pace.of(0.2, 1).iterations(lambda n: n * 0.0001 + 0.01) > 1000


def test_rounds_share_the_time() -> None:
    pace = Pace.of(1.0, 5)
    assert pace.iterations(lambda n: n * 0.01) == 20
    assert pace.fewest * 5 >= 7 and pace.most == 400
