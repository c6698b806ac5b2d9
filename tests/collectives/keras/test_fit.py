"""The ways in which Keras trains on TensorFlow, and what can be wrong with them, with two processes."""

from __future__ import annotations

import pytest

from tests.collectives.keras.outcomes import Results, same, work
from tests.lazily import needs

needs("tensorflow", "pip install keras tensorflow")
needs("keras", "pip install keras tensorflow")

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    results = work(2, "worker_fit.py", str(tmp_path_factory.mktemp("fit")))
    results.job.succeeded()
    return results


@pytest.mark.parametrize(
    ("way", "exchanges"),
    [("steps_per_execution", 8), ("run_eagerly", 8), ("train_on_batch", 4)],
)
def test_ways_to_train(results: Results, way: str, exchanges: int) -> None:
    _, calls, away = same(results[way])
    assert calls == exchanges
    assert away < 1e-5


def test_custom_loops_under_autograph(results: Results) -> None:
    by_gradients, by_apply = same(results["custom_loop"])
    assert by_gradients == by_apply
    assert by_gradients[1] == 8 and by_gradients[2] < 1e-5


def test_data_of_unknown_length_counts_as_many_steps_on_every_rank(results: Results) -> None:
    made, calls = same(results["unknown_length"])
    assert made == calls == [3, 6, 9]


def test_embeddings_stay_sparse_and_unused_variables_have_no_gradient(results: Results) -> None:
    _, kinds, away = same(results["embedding"])
    assert kinds[:2] == ["NoneType", "IndexedSlices"]
    assert away < 1e-5


def test_sparse_gradients_of_several_passes_are_added_up_as_dense_ones(results: Results) -> None:
    _, away = same(results["embedding_passes"])
    assert away < 1e-5


def test_none_on_one_rank_alone(results: Results) -> None:
    for rank, ((error, before), (nothing, after)) in enumerate(results["missing_on_one_rank"]):
        assert error["error"] == "DesyncError"
        assert f"rank {rank}" in error["says"] and "unused' is None on rank 0 and float32[3] on rank 1" in error["says"]
        assert nothing == {} and before != after
    zeroed = [found[1][1] for found in results["missing_on_one_rank"]]
    assert zeroed[0] == zeroed[1]


def test_mixed_float16_skips_the_same_step_on_all_ranks(results: Results) -> None:
    first, second, third, fourth = same(results["mixed_precision"])
    assert first[2:] == [1024.0, 1]
    assert second[2:] == [512.0, 1] and second[0] == first[0]
    assert third[3] == 2 and fourth[3] == 3 and len({second[0], third[0], fourth[0]}) == 3


def test_wrong_nesting_is_refused_wherever_it_is_made(results: Results) -> None:
    for error in same(results["wrong_nesting"]):
        assert error["error"] == "ValueError"
        assert "DistributedOptimizer(LossScaleOptimizer(" in error["says"]


def test_saved_models_are_plain_and_go_on_where_they_were(results: Results) -> None:
    kinds, same_state, after, same_config = same(results["saved_and_loaded"])
    assert kinds == [True, True, True] and same_state and same_config
    assert after[0] == after[1] == after[2]


def test_a_step_traced_before_the_optimizer_was_distributed_is_noticed(results: Results) -> None:
    found = results["trained_before_distributed"]
    for rank, (epoch, batch, _, slots) in enumerate(found):
        assert epoch["error"] == batch["error"] == "RuntimeError"
        assert f"rank {rank}, epoch 0" in epoch["says"] and "compile it again" in epoch["says"]
        assert "updated the weights 2 times, but exchanged gradients 0 times" in epoch["says"]
        assert slots[0] == slots[1]
    assert found[0][2] == found[1][2]  # once compiled again


def test_an_optimizer_that_nothing_uses_is_noticed_in_the_first_epoch(results: Results) -> None:
    for rank, (error, epochs, left_alone) in enumerate(results["never_used"]):
        assert error["error"] == "RuntimeError" and epochs == [0] and left_alone
        assert f"rank {rank}, epoch 0" in error["says"] and "was not used" in error["says"]


def test_an_optimizer_of_the_models_own_is_watched_too(results: Results) -> None:
    (used, bypassed), (theirs, _) = results["own_optimizer"]
    assert used[:2] == [{}, 2] and used == theirs
    assert bypassed[0]["error"] == "RuntimeError" and "exchanged gradients 0 times" in bypassed[0]["says"]


@pytest.mark.parametrize(
    ("what", "error", "says"),
    [
        ("jit", "ValueError", "jit_compile=False"),
        ("jit later", "ValueError", "jit_compile=False"),
        ("twice", "ValueError", "distributed already"),
        ("passes", "ValueError", "backward_passes_per_step must be a number from 1 up"),
        ("op", "ValueError", "op must be one of"),
        ("kind", "ValueError", "optimizer identifier"),
        ("comm", "TypeError", "must be a Communicator"),
        ("missing", "ValueError", "missing must be"),
        ("sparse passes", "ValueError", "sparse_as_dense=True"),
        ("unbuilt", "ValueError", "build it first"),
        ("root", "ValueError", "root_rank must be from 0 to 1"),
        ("momentum", "ValueError", "momentum_correction"),
        ("every", "ValueError", "every must be a number of steps"),
    ],
)
def test_what_cannot_be_is_refused(results: Results, what: str, error: str, says: str) -> None:
    for found in results["refused"]:
        assert found[what]["error"] == error and says in found[what]["says"]


def test_names_and_other_models_are_left_alone(results: Results) -> None:
    found = same(
        [{key: each[key] for key in ("by name", "plain models", "jit left to Keras")} for each in results["refused"]]
    )
    assert found == {"by name": "Adam", "plain models": {}, "jit left to Keras": False}


def test_uneven_data_is_known_before_it_is_used(results: Results) -> None:
    for known, epochs, calls in results["uneven"]:
        assert known["error"] == epochs["error"] == "ValueError" and calls == 0
        assert "steps in an epoch: rank 0: 4, rank 1: 3" in known["says"]
        assert "epochs: rank 0: 1, rank 1: 2" in epochs["says"]


def test_ranks_that_stop_at_different_times(results: Results) -> None:
    (apart, _), (nothing, calls) = same(results["stopping_apart"])
    assert apart["error"] == "RuntimeError"
    assert "ends on ranks [0]" in apart["says"] and "MetricAverageCallback" in apart["says"]
    assert nothing == {} and calls == 1


def test_models_that_differ(results: Results) -> None:
    for weights, gradients, untouched in results["models_differ"]:
        assert weights["error"] == "ConfigMismatch" and gradients["error"] == "DesyncError" and untouched
        assert "float32[6, 9] on rank 1" in weights["says"] and "float32[6, 8] on rank 0" in weights["says"]
        assert "float32[6, 8] on rank 0 and float32[6, 9] on rank 1" in gradients["says"]
