"""Horovod's API of Keras, with two processes: optimizers, callbacks, layers, values, refusals, and a script."""

from __future__ import annotations

import pytest

from tests.collectives.horovod.results import Results, of_tensorflow
from tests.lazily import needs

needs("tensorflow", "pip install keras tensorflow")
needs("keras", "pip install keras tensorflow")
needs("sklearn", "the example's data: pip install scikit-learn")

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def results() -> Results:
    return of_tensorflow()


def test_names_arguments_and_defaults_are_horovods(results: Results) -> None:
    assert results.same("keras_names") == []


def test_values(results: Results) -> None:
    average = [1.5, -6.0, 9.0]
    for rank, found in enumerate(results["values"]):
        kinds = [(refused["error"], refused["says"].split(" ")[0]) for refused in found.pop("refused")]
        assert kinds == [
            ("TypeError", "prescale_factor"),
            *(("TypeError", f"{name}:") for name in ("allreduce", "allgather", "broadcast")),
            ("RuntimeError", "hvd.broadcast_global_variables()"),
            ("NotImplementedError", "op=Adasum"),
        ]
        assert found == {
            "average": average,
            "sum": [3.0, -12.0, 18.0],
            "scaled": [6.0, -24.0, 36.0],
            "fp16": average,
            "number": 0.5,
            "integers": [3, -7],
            "scaled integers": [6, -24],
            "scaled average": [5, -11],
            "allgather": [[0], [1], [1]],
            "broadcast": [2.0, -8.0, 12.0],
            "reducescatter": [1.0 + rank],
        }


def test_optimizers(results: Results) -> None:
    step = [[-1.5, 6.0]]
    assert results.same("optimizers") == {
        "average": step,
        "sum": [[-3.0, 12.0]],
        "predivided": step,
        "fp16": step,
        "own": step,
        "passes": [[-4.5, 18.0]],
        "mean of passes": [[-2.25, 9.0]],
        "grouped": step,
        "warned": ["groups", "use_locking"],
    }


def test_weights_that_stay_on_their_rank(results: Results) -> None:
    shared, thrice = [-1.5, 6.0], [-4.5, 18.0]
    first, second = results["local_and_sets"]
    assert first == [
        [[-1.0, 4.0]],  # not in the set
        [shared, [-0.5, 2.0]],  # on the scale of averages
        [shared, [-1.0, 4.0]],
        [thrice, [-1.5, 6.0]],
    ]
    assert second == [[[-2.0, 8.0]], [shared, [-1.0, 4.0]], [shared, [-2.0, 8.0]], [thrice, [-3.0, 12.0]]]


@pytest.mark.parametrize(
    ("what", "error", "says"),
    [
        ("op", "ValueError", "Average or Sum"),
        ("adasum", "NotImplementedError", "op=Average"),
        ("predivide", "ValueError", "op != Average"),
        ("passes", "ValueError", "from 1 up"),
        ("twice", "ValueError", "wrap it once"),
        ("unbuilt", "ValueError", "build the model"),
        ("no layer", "ValueError", "local layers"),
        ("legacy", "ValueError", "no legacy optimizers"),
        ("fused", "ValueError", "fused=True"),
        ("checkpoint", "ValueError", "filepath='best.keras'"),
        ("no rate", "ValueError", "`initial_lr` is required"),
    ],
)
def test_what_is_refused(results: Results, what: str, error: str, says: str) -> None:
    found = results.same("keras_refused")[what]
    assert found["error"] == error and says in found["says"]


def test_training_without_an_exchange_raises(results: Results) -> None:
    """What Horovod did on Keras 3 was to train on in silence."""
    for rank, found in enumerate(results["without_an_exchange"]):
        assert found["error"] == "RuntimeError" and f"rank {rank}, epoch 0" in found["says"]


def test_schedules(results: Results) -> None:
    decayed, warmed, without, with_momentum = results.same("schedules")
    assert decayed == pytest.approx([0.5, 0.5, 0.8, 0.8, 0.4, 0.4, 0.2, 0.2])
    assert warmed == pytest.approx([0.5, 0.6, 0.7, 0.8, 0.8, 0.8])
    assert without == [] and len(with_momentum) == 1  # of the one that did not say momentum_correction=False


def test_metrics_checkpoints_and_loading(results: Results) -> None:
    first, second = results["metrics_and_checkpoints"]
    assert first[0] == second[0] and (first[1], second[1]) == (True, False)
    assert first[2] == second[2] == "SGD" and first[3] == second[3]


def test_broadcasts(results: Results) -> None:
    (*alike, mine), (*the_same, theirs) = results["broadcasts"]
    kept, *digests = alike
    assert kept and alike == the_same and len(set(digests)) == 3 and mine != theirs


def test_normalization(results: Results) -> None:
    moving, kind = results.same("normalization")
    assert moving == [[1.5, -6.0], [0.25, 4.0]] and kind == "SyncBatchNormalization"


def test_a_script(results: Results) -> None:
    ended, accuracy, _ = results.same("keras_script")
    assert ended is None and accuracy > 0.93


def test_the_script_notices_that_nothing_was_exchanged(results: Results) -> None:
    assert results.same("keras_script_that_is_not_distributed") == "FAILED: the weights differ between ranks"
