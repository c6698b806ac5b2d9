"""Callbacks, model averaging, scattering and normalization, with two processes on TensorFlow."""

from __future__ import annotations

import pytest

from tests.collectives.keras.outcomes import Results, same, work
from tests.lazily import needs

needs("tensorflow", "pip install keras tensorflow")
needs("keras", "pip install keras tensorflow")

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    results = work(2, "worker_callbacks.py", str(tmp_path_factory.mktemp("callbacks")))
    results.job.succeeded()
    return results


def test_metrics_are_means_over_ranks(results: Results) -> None:
    (mine, means, _, _), (other, theirs, _, _) = results["callbacks"]
    assert means == theirs and means.keys() - {"lr"} == mine.keys()
    assert set(mine) == {"loss", "mae", "mape", "val_loss", "val_mae", "val_mape"}
    for name, value in mine.items():
        assert value != other[name]
        assert means[name] == pytest.approx((value + other[name]) / 2, rel=1e-12)


def test_learning_rates(results: Results) -> None:
    rates = same([found[2] for found in results["callbacks"]])
    assert rates == pytest.approx([0.5, 0.6, 0.7, 0.8, 0.8, 0.8, 0.08, 0.08])


def test_only_rank_0_saves(results: Results) -> None:
    assert [found[3] for found in results["callbacks"]] == [True, False]


def test_a_model_built_by_its_first_batch_is_broadcast_after_it(results: Results) -> None:
    same(results["built_by_its_first_batch"])


def test_model_averaging(results: Results) -> None:
    synchronous, local, executions = same(results["model_averaging"])
    assert synchronous[1] == 8 and synchronous[2] < 1e-5
    assert local[1] == 3  # after 3, 6 and, as training ends, 8 steps
    assert executions[1] == 4


@pytest.mark.parametrize(
    ("what", "error", "says"),
    [
        ("distributed", "ValueError", "needs a plain optimizer"),
        ("execution", "ValueError", "steps_per_execution=2"),
        ("lengths", "ValueError", "rank 0 has 2, rank 1 has 4"),
        ("steps", "DesyncError", "rank 0 has made 3, rank 1 has made 4"),
    ],
)
def test_averaging_that_cannot_be(results: Results, what: str, error: str, says: str) -> None:
    for found in results["averaging_refused"]:
        assert found[what]["error"] == error and says in found[what]["says"]


def test_scattered_data(results: Results) -> None:
    (first, wrong), (second, same_error) = results["scattered"]
    assert first[:2] == [[[0, 1], [2, 3], [4, 5]], [0, 1, 2]]
    assert second[:2] == [[[6, 7], [8, 9], [10, 11]], [3, 4, 5]]
    assert first[3] == [0, 1, 2, 3] and second[3] == [4, 5, 6]
    assert wrong == same_error and "rank 0: arrays differ in length" in wrong["says"]


def test_normalization_far_from_zero(results: Results) -> None:
    _, away, reloaded = same(results["normalization"])
    assert away < 5e-5 and reloaded


def test_normalization_with_masks_and_unequal_batches(results: Results) -> None:
    for away, moving, _ in results["normalization_masked"]:
        assert away < 1e-5 and max(moving) < 1e-5
    same([digest for *_, digest in results["normalization_masked"]])
