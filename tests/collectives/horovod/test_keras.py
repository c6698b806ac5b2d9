"""Horovod's API of Keras, with two processes: optimizers, callbacks, layers, values, refusals, and a script."""

from __future__ import annotations

import pytest

from tests.collectives.horovod.told import Told, of_tensorflow
from tests.lazily import needs

needs("tensorflow", "pip install keras tensorflow")
needs("keras", "pip install keras tensorflow")
needs("sklearn", "the example's data: pip install scikit-learn")

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def told() -> Told:
    return of_tensorflow()


def test_names_arguments_and_defaults_are_horovods(told: Told) -> None:
    assert told.same("keras_names") == []


def test_values(told: Told) -> None:
    average = [1.5, -6.0, 9.0]
    for rank, found in enumerate(told["values"]):
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


def test_optimizers(told: Told) -> None:
    step = [[-1.5, 6.0]]
    assert told.same("optimizers") == {
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


def test_weights_that_stay_on_their_rank(told: Told) -> None:
    shared, thrice = [-1.5, 6.0], [-4.5, 18.0]
    first, second = told["local_and_sets"]
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
def test_what_is_refused(told: Told, what: str, error: str, says: str) -> None:
    found = told.same("keras_refused")[what]
    assert found["error"] == error and says in found["says"]


def test_training_without_an_exchange_raises(told: Told) -> None:
    """What Horovod did on Keras 3 was to train on in silence."""
    for rank, found in enumerate(told["without_an_exchange"]):
        assert found["error"] == "RuntimeError" and f"rank {rank}, epoch 0" in found["says"]


def test_schedules(told: Told) -> None:
    decayed, warmed, without, with_momentum = told.same("schedules")
    assert decayed == pytest.approx([0.5, 0.5, 0.8, 0.8, 0.4, 0.4, 0.2, 0.2])
    assert warmed == pytest.approx([0.5, 0.6, 0.7, 0.8, 0.8, 0.8])
    assert without == [] and len(with_momentum) == 1  # of the one that did not say momentum_correction=False


def test_metrics_checkpoints_and_loading(told: Told) -> None:
    first, second = told["metrics_and_checkpoints"]
    assert first[0] == second[0] and (first[1], second[1]) == (True, False)
    assert first[2] == second[2] == "SGD" and first[3] == second[3]


def test_broadcasts(told: Told) -> None:
    (*alike, mine), (*the_same, theirs) = told["broadcasts"]
    kept, *digests = alike
    assert kept and alike == the_same and len(set(digests)) == 3 and mine != theirs


def test_normalization(told: Told) -> None:
    moving, kind = told.same("normalization")
    assert moving == [[1.5, -6.0], [0.25, 4.0]] and kind == "SyncBatchNormalization"


def test_a_script(told: Told) -> None:
    ended, accuracy, _ = told.same("keras_script")
    assert ended is None and accuracy > 0.93


def test_the_script_notices_that_nothing_was_exchanged(told: Told) -> None:
    assert told.same("keras_script_that_is_not_distributed") == "FAILED: the weights differ between ranks"
