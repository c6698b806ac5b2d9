"""Horovod's API of TensorFlow, with two processes: every function's results, tapes, refusals, and a script."""

from __future__ import annotations

from typing import Any

import pytest

from tests.collectives.horovod.results import Results, of_tensorflow
from tests.lazily import needs

needs("tensorflow", "pip install tensorflow")
needs("keras", "pip install keras tensorflow")
needs("sklearn", "the example's data: pip install scikit-learn")

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def results() -> Results:
    return of_tensorflow()


def test_names_arguments_and_defaults_are_horovods(results: Results) -> None:
    assert results.same("names") == []


def test_collectives_eagerly_and_traced(results: Results) -> None:
    reductions, traced_reductions, others, traced_others = results.same("collectives_of_tensors")
    average, total = [1.5, -6.0, 9.0], [3.0, -12.0, 18.0]
    assert (
        reductions
        == traced_reductions
        == {
            "average": average,
            "sum": total,
            "min": [1.0, -8.0, 6.0],
            "max": [2.0, -4.0, 12.0],
            "product": [2.0, 32.0, 72.0],
            "scaled": [6.0, -24.0, 36.0],
            "integers": [3, -7],
            "fp16": average,
            "bf16": average,
            "own": average,
            "grouped": total,
            "grouped integers": [3, -7],
            "scaled integers": [9, -21],
            "scaled average": [5, -11],
            "sparse integers": [[-2], [0], [2]],  # (1 - 5 + 4 + 1 - 5) / 2, nothing, and 4 / 2
            "sparse integers sum": [[-8], [0], [8]],
            "sparse": [[0.5, 0.5], [1.0, 1.0], [0.0, 0.0]],
            "variable": average,
        }
    )
    assert (
        others
        == traced_others
        == {
            "allgather": [0.0, 1.0, 10.0, 11.0, 12.0],
            "grouped allgather": [1.0, 2.0, 11.0, 12.0, 13.0],
            "broadcast": [2.0, 4.0, 6.0],
            "bool": [True],
            "size": 2,
            "local size": 2,
            "included": 1,
        }
    )


def test_collectives_that_give_each_rank_its_own(results: Results) -> None:
    wanted: dict[str, list[Any]] = {
        "reducescatter": [[3.0, 6.0], [9.0]],
        "average": [[3.0, 6.0], [9.0, 12.0]],
        "integers": [[7], [-7]],
        "scaled integers": [[3], [-3]],
        "grouped": [[3.0, 6.0], [9.0, 12.0]],
        "alltoall": [[0, 1, 10, 11], [2, 3, 12, 13]],
        "split": [[0, 10], [1, 2, 11, 12]],
        "counts": [[1, 1], [2, 2]],
        "rank": [0, 1],
        "local rank": [0, 1],
    }
    for rank, (eager, traced, counts) in enumerate(results["by_rank"]):
        assert eager == traced == {name: values[rank] for name, values in wanted.items()}
        assert counts == "int32"


def test_gradients_are_on_horovods_scale(results: Results) -> None:
    for rank, found in enumerate(results["gradients"]):
        assert found == {
            "average": [1.5, 1.5],
            "sum": [1.5, 1.5],
            "grouped": [4.5, 4.5],
            "fp16": [1.5, 1.5],
            "allgather": [1.5, 1.5],
            "broadcast": [1.5, 1.5] if rank == 1 else [0.0, 0.0],
            "reducescatter": [1.0, 2.0],
            "reducescatter sum": [2.0, 4.0],
            "alltoall": [1.0, 2.0],
        }


def test_variables_and_objects(results: Results) -> None:
    assert results.same("variables_and_objects") == [[[2.0, 4.0], 1, 0.0], [[1], [0, 1], [1]]]


def test_sessions_of_tensorflow_1(results: Results) -> None:
    assert results.same("sessions") == [[True, 2.0]] * 4


def test_errors_are_what_handlers_catch(results: Results) -> None:
    assert results.same("errors") == [True] * 4


def test_none_is_a_type_error_everywhere(results: Results) -> None:
    found = [error for what, error in results.same("refused").items() if what.endswith(" of None")]
    assert len(found) == 7
    assert [error["error"] for error in found] == ["TypeError"] * 7


@pytest.mark.parametrize(
    ("what", "error", "says"),
    [
        ("adasum", "NotImplementedError", "op=Average"),
        ("both", "ValueError", "only one of them"),
        ("factor", "TypeError", "bool"),
        ("compression", "TypeError", "Compression.none"),
        ("elastic", "NotImplementedError", "hvd.elastic.run"),
        ("global variables", "RuntimeError", "hvd.broadcast_variables"),
        ("object", "TypeError", "Horovod pickles any object"),
        ("optimizer of TensorFlow 1", "NotImplementedError", "tf.keras.optimizers"),
        ("tape op", "ValueError", "Average or Sum"),
        ("predivide", "ValueError", "op != Average"),
        ("layers", "ValueError", "local layers"),
        ("name", "AttributeError", "no_such_name"),
    ],
)
def test_what_is_refused(results: Results, what: str, error: str, says: str) -> None:
    found = results.same("refused")[what]
    assert found["error"] == error and says in found["says"]


def test_tapes(results: Results) -> None:
    dense, rows = [1.5, -6.0], [0.5, 1.0]
    for found, _ in results["tapes"]:
        assert found == {
            "average": [dense, rows, True],
            "sum": [[3.0, -12.0], [1.0, 2.0], True],
            "dense": [dense, rows, False],
            "predivided": [dense, rows, True],
            "fp16": [dense, rows, True],
            "own": [dense, rows, True],
            "calls": ["compress", "half"],  # not of what is sparse
            "grouped": [[dense, rows, True], ["device '/gpu:0", "groups are Hor"]],
        }


def test_gradients_that_stay_on_their_rank(results: Results) -> None:
    rows = [0.5, 1.0]
    (_, first), (_, second) = results["tapes"]
    assert first == [[[1.0, -4.0], [1.0, 0.0], True], [[0.5, -2.0], rows, True], [[1.0, -4.0], rows, True]]
    assert second == [[[2.0, -8.0], [0.0, 2.0], True], [[1.0, -4.0], rows, True], [[2.0, -8.0], rows, True]]


def test_a_traced_step_with_a_broadcast_and_a_rank_that_joins(results: Results) -> None:
    first, second = results["traced"]
    assert first == [[5.0, 20.0], [5.0, 20.0], 1, "int32"]
    assert second == [[5.0, 20.0], [4.0, 24.0], 1, "int32"]  # averaged with zeros


def test_a_script(results: Results) -> None:
    ended, accuracy, _ = results.same("script")
    assert ended is None and accuracy > 0.93


def test_the_script_notices_that_nothing_was_exchanged(results: Results) -> None:
    assert results.same("script_that_is_not_distributed") == "FAILED: the weights differ between ranks"
