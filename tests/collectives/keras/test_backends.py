"""What DistributedOptimizer and its company do on each of Keras's backends, with two processes.

Most of it test_fit.py and test_callbacks.py check on TensorFlow: it is repeated there in the long form only.
"""

from __future__ import annotations

import importlib.util

import pytest

from tests.collectives.keras.outcomes import Results, same, work
from tests.depth import LONG
from tests.lazily import needs

needs("keras", "pip install keras tensorflow")

# Processes import large frameworks, and machines that run tests may have other things to do.
pytestmark = pytest.mark.timeout(240)


def on(*backends: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("results", backends, indirect=True, scope="module")


everywhere = on("torch", "jax", "tensorflow")
elsewhere = everywhere if LONG else on("torch", "jax")
compiled_or_not = everywhere if LONG else on("torch")  # nothing of it depends on how a backend runs a step
SHORT = {
    "tensorflow": ("compressed", "passes", "uneven", "killed"),
    "jax": ("fit", "compressed", "loss_scaling", "passes", "missing", "uneven", "killed"),
    "torch": (),  # all
}


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Results:
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"pip install {request.param}")
    folder = tmp_path_factory.mktemp(request.param)
    wanted = () if LONG else SHORT[request.param]
    return work(2, "worker_backends.py", str(folder), *wanted, backend=request.param)


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.node.callspec.params["results"]
    return name


@elsewhere
def test_weights_and_slots_are_those_of_one_process(results: Results) -> None:
    _, calls, away = same(results["fit"])
    assert calls == 8
    assert away < 1e-5


@everywhere
def test_compression_halves_what_is_sent(results: Results) -> None:
    (_, halves, away), (_, brains, further), (_, bytes_, furthest) = same(results["compressed"])
    assert halves == brains == 8 * (6 * 8 + 8 + 8 * 3 + 3) * 2
    assert 0 < away < 1e-3 and 0 < further < 1e-2
    assert bytes_ == 8 * 4 * 260 and 0 < furthest < 2e-2  # each variable has a block of its own


@elsewhere
def test_an_infinity_on_one_rank_skips_the_step_of_all(results: Results) -> None:
    first, second, third, fourth = same(results["loss_scaling"])
    assert first[2:] == [1024.0, 1] and second[2:] == [512.0, 1]
    assert first[0] == second[0]  # weights
    assert third[3] == 2 and fourth[3] == 3 and len({second[0], third[0], fourth[0]}) == 3


@everywhere
def test_passes_are_added_up(results: Results, backend: str) -> None:
    own, by_keras = same(results["passes"])
    assert by_keras[1] == 8 and by_keras[2] < 1e-5
    if backend == "jax":
        assert "gradient_accumulation_steps" in own
    else:
        assert own[1] == 4 and own[2] < 1e-5


@compiled_or_not
def test_averaging_models_at_every_step_is_synchronous_sgd(results: Results) -> None:
    _, averages, away = same(results["averaged"])
    assert averages == 8 and away < 1e-5


@compiled_or_not
def test_momentum_outside_is_momentum_on_averaged_gradients(results: Results) -> None:
    exact, rounded = same(results["outer_steps"])
    assert exact[1] == rounded[1] == 8
    assert exact[2] < 1e-5 < rounded[2] < 0.02


@compiled_or_not
def test_learning_rates_are_those_of_the_batch(results: Results) -> None:
    assert same(results["warmed_up"])[1] < 1e-5


@compiled_or_not
def test_normalization_over_all_ranks(results: Results) -> None:
    assert same(results["normalized"])[1] < 1e-5


@compiled_or_not
def test_a_saved_model_reloads_plain_and_goes_on(results: Results) -> None:
    plain, same_state, _, goes_on = same(results["reloaded"])
    assert plain and same_state and goes_on


@elsewhere
def test_a_gradient_missing_on_one_rank(results: Results, backend: str) -> None:
    first, second = results["missing"]
    if backend == "jax":  # where there are none: zeros instead
        assert first == second and first[0][0] == first[1][0] == {}
        return
    for rank, ((error, _), (nothing, _)) in enumerate((first, second)):
        assert error["error"] == "DesyncError" and nothing == {}
        assert f"rank {rank}" in error["says"] and "weight' is None on rank 0" in error["says"]
    assert first[1][1] == second[1][1]


@everywhere
def test_uneven_data_found_out_on_the_way(results: Results) -> None:
    for error in results["uneven"]:
        assert error["error"] == "DesyncError"
        assert "rank 0: was in epoch 0 after 2 steps, rank 1: had ended epoch 0 after 2 steps" in error["says"]


@everywhere
def test_a_rank_that_is_killed_is_named_out_of_fit(results: Results) -> None:
    (found,) = results.survivors("killed")
    error, ranks, calls = found
    assert error["error"] == "PeerLost" and ranks == [1]
    assert "rank 0, step" in error["says"] and "rank 1" in error["says"]
    assert 8 < calls < 16  # in the second epoch: batches are made ahead
