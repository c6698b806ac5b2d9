"""Four ranks with seeds of their own train on digits as one process with four times the batch would."""

from __future__ import annotations

import pytest

from tests.collectives.keras.outcomes import Results, same, work
from tests.lazily import needs

needs("tensorflow", "pip install keras tensorflow")
needs("keras", "pip install keras tensorflow")
needs("sklearn", "the digits: pip install scikit-learn")

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def results() -> Results:
    return work(4, "worker_digits.py")


def test_weights_and_slots_have_the_same_bits_and_are_those_of_one_process(results: Results) -> None:
    _, away, calls, accuracy = same(results["same_bits"])
    assert away < 1e-5
    assert calls == 28
    assert accuracy > 0.8  # it has learned something


def test_without_the_hook_they_are_not_and_it_is_noticed(results: Results) -> None:
    for rank, (noticed, _, away) in enumerate(results["disabled"]):
        assert noticed["error"] == "RuntimeError"
        assert f"rank {rank}, epoch 0" in noticed["says"]
        assert "updated the weights 14 times, but exchanged gradients 0 times" in noticed["says"]
        assert away > 1e-3
    weights = [state[0] for _, state, _ in results["disabled"]]
    assert len(set(weights)) == 4
