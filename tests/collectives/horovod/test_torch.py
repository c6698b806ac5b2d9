"""Horovod's API of PyTorch, with two processes: every function's results, refusals, and a script."""

from __future__ import annotations

from typing import Any

import pytest

from tests.collectives.horovod.results import Results
from tests.lazily import needs
from tests.warm.parents import TORCH

needs("torch", "pip install torch")
needs("sklearn", "the example's data: pip install scikit-learn")

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def results() -> Results:
    return Results(2, "worker_torch.py", warm=TORCH)


def test_names_arguments_and_defaults_are_horovods(results: Results) -> None:
    assert results.same("names") == []


def test_what_works_in_place_is_an_in_place_operation_to_autograd(results: Results) -> None:
    for rank, found in enumerate(results["in_place"]):
        for refusal, _ in found.values():
            assert refusal["error"] == "RuntimeError" and "modified by an inplace operation" in refusal["says"]
        assert {name: gradient for name, (_, gradient) in found.items()} == {
            "allreduce_": [4.5, 4.5],
            "allreduce_async_": [4.5, 4.5],
            "grouped_allreduce_": [9.0, 9.0],
            "broadcast_": [4.5, 4.5] if rank else [0.0, 0.0],
            "broadcast_async_": [4.5, 4.5] if rank else [0.0, 0.0],
        }


def test_allreduce(results: Results) -> None:
    average, total = [1.5, -6.0, 9.0], [3.0, -12.0, 18.0]
    for rank, found in enumerate(results["allreduce"]):
        assert found == {
            "average": average,
            "sum": total,
            "min": [1.0, -8.0, 6.0],
            "max": [2.0, -4.0, 12.0],
            "product": [2.0, 32.0, 72.0],
            "scaled": [6.0, -24.0, 36.0],
            "integers": [3, -7],
            "fp16": average,
            "bf16": average,
            "async": total,
            "grouped": [3, -7],
            "untouched": [1.0 + rank, -4.0 - 4 * rank, 6.0 + 6 * rank],
            "returned": [6.0, -24.0, 36.0],
            "in place": [6.0, -24.0, 36.0],
            "grouped in place": [6.0, -24.0, 36.0],
            "integers in place": [3, -7],
            "scaled integers": [9, -21],  # halves of 3, 4 and -8, -7, rounded towards 0, added, and times 3
            "scaled average": [5, -11],  # 7 * 1.5 / 2 and -15 * 1.5 / 2
            "scaled in place": [3, -7],
            "scaled rows": [3, -7],
            "old sum": total,
            "handle": [total, total],
        }


@pytest.mark.parametrize(
    ("what", "error", "says"),
    [
        ("adasum", "NotImplementedError", "op=Average"),
        ("both", "ValueError", "only one of them"),
        ("factor", "TypeError", "torch.bool"),
        ("sparse", "TypeError", "allreduce_async"),
        ("compression", "TypeError", "Compression.none"),
        ("elastic", "NotImplementedError", "hvd.elastic.TorchState"),
        ("timeline", "NotImplementedError", "there is no timeline"),
        ("splits", "ValueError", "3 rows"),
        ("optimizer op", "ValueError", "Average or Sum"),
        ("optimizer adasum", "NotImplementedError", "op=Average"),
        ("predivide", "ValueError", "op != Average"),
        ("names", "ValueError", "model.named_parameters()"),
        ("params", "ValueError", "invalid params"),
    ],
)
def test_what_is_refused(results: Results, what: str, error: str, says: str) -> None:
    found = results.same("refused")[what]
    assert found["error"] == error and says in found["says"]


def test_what_is_no_tensor_is_a_type_error_everywhere(results: Results) -> None:
    found = {what: error for what, error in results.same("refused").items() if " of " in what}
    assert len(found) == 14 * 4
    for what, error in found.items():
        kind = what.split(" of ")[1]
        assert error == {"error": "TypeError", "says": f"a tensor is needed, not {kind}"}, what


def test_sparse_gradients_that_went_as_dense_are_sparse_again(results: Results) -> None:
    assert results.same("sparse_as_dense") == [[True, True], True]


def test_a_rank_that_has_joined_takes_part_by_zeros(results: Results) -> None:
    first, second = results["joined"]
    assert first[1] == second[1] == 0.5
    # Two steps together, by the mean of 1 and 2 times (1, -4); then two of rank 1 alone, by half of its own.
    (last, weights, rows, metrics), (last_0, _, _, refused) = first[0]
    assert last == 1 and weights == [-3.0, 12.0] and rows == [-1.0, -1.0, 0.0] and metrics == [2.0, 2.0]
    assert last_0 == 1 and refused[0]["error"] == "DesyncError" and "ranks [0] have joined" in refused[0]["says"]
    (last, weights, rows, metrics), (last_1, alone, _, sums) = second[0]
    assert last == 1 and weights == [-5.0, 20.0] and rows == [-1.0, -2.0, 0.0] and metrics == [2.0, 2.0, 1.0, 1.0]
    assert last_1 == 1 and alone == [-2.0, 8.0]
    assert sums[:-1] == [0.0, 1.0, 2.0, float(sum(n * (n + 1) for n in range(70))), 4.0, 4.0]
    assert sums[-1]["error"] == "DesyncError" and "not 'max'" in sums[-1]["says"]


def test_what_a_joined_rank_cannot_take_part_in(results: Results) -> None:
    for error, works in results["others_while_a_rank_has_joined"]:
        assert error["error"] == "DesyncError" and works


def test_the_other_collectives(results: Results) -> None:
    rows, more, root = [0.0, 1.0, 10.0, 11.0, 12.0], [1.0, 2.0, 11.0, 12.0, 13.0], [2.0, 4.0, 6.0]
    assert results.same("others") == {
        "allgather": rows,
        "allgather async": rows,
        "grouped allgather": more,
        "grouped allgather async": more,
        "broadcast": root,
        "broadcast async": root,
        "broadcast in place": [1.0, 1.0],
        "in place": [1.0, 1.0],
        "broadcast async in place": [1.0, 1.0],
        "bool": [True],
        "sparse": [0.5, 0.5, 2.0, 0.0],
        "sparse sum": [1.0, 1.0, 4.0, 0.0],
    }


def test_collectives_that_give_each_rank_its_own(results: Results) -> None:
    wanted: dict[str, list[Any]] = {
        "reducescatter": [[3.0, 6.0], [9.0]],
        "average": [[3.0, 6.0], [9.0, 12.0]],
        "integers": [[7], [-7]],
        "reducescatter async": [[6.0, 12.0], [18.0]],
        "even async": [[1.5, 3.0], [4.5, 6.0]],
        "grouped": [[1.5, 3.0], [4.5, 6.0]],
        "grouped async": [[3.0, 6.0], [9.0]],
        "alltoall": [[0, 1, 10, 11], [2, 3, 12, 13]],
        "split": [[0, 10], [1, 2, 11, 12]],
        "counts": [[1, 1], [2, 2]],
        "split async": [[0, 10], [1, 2, 11, 12]],
        "counts async": [[1, 1], [2, 2]],
    }
    for rank, found in enumerate(results["by_rank"]):
        assert found == {name: values[rank] for name, values in wanted.items()}


def test_gradients_are_on_horovods_scale(results: Results) -> None:
    for rank, found in enumerate(results["gradients"]):
        refused = found.pop("max")
        assert refused["error"] == "NotImplementedError" and "no gradient" in refused["says"]
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


def test_process_sets(results: Results) -> None:
    outside, inside = results["process_sets"]
    assert outside[0]["error"] == "ValueError" and "rank 0 is not part of" in outside[0]["says"]
    assert inside[:2] == [{}, [5.0]]
    assert outside[2] == [[-1.0, 4.0]] and inside[2] == [[-2.0, 8.0]]  # each for itself


def test_optimizers(results: Results) -> None:
    found = results.same("optimizers")
    own, calls = found.pop("own")
    groups, warned = found.pop("groups")
    assert own == groups == [-3.0, 12.0] and calls == ["compress", "half"] * 2
    assert len(warned) == 1 and "buckets" in warned[0]
    assert found == {
        "average": [-3.0, 12.0],
        "sum": [-6.0, 24.0],
        "predivided": [-3.0, 12.0],
        "passes": [-9.0, 36.0],
        "fp16": [-3.0, 12.0],
        "fp16 predivided": [-3.0, 12.0],
    }


def test_clipping_between_synchronize_and_step(results: Results) -> None:
    norm, made = results.same("clipping")
    assert norm == pytest.approx((1.5**2 + 6.0**2) ** 0.5) and made == pytest.approx(1.0, abs=1e-5)


def test_parameters_and_optimizer_state_are_the_roots(results: Results) -> None:
    _, _, moments, rate = results.same("start")
    assert moments == 18 and rate == 0.1


def test_normalization_is_that_of_one_batch(results: Results) -> None:
    for layers, refused in results["normalization"]:
        for away, batches, _ in layers:
            assert max(away) < 1e-3 and batches == 2
        assert refused["error"] == "ValueError"
    first, second = ([state for *_, state in layers] for layers, _ in results["normalization"])
    assert first == second


def test_a_script(results: Results) -> None:
    for ended, accuracy, _ in results.same("script"):
        assert ended is None and accuracy > 0.93


def test_the_script_notices_that_nothing_was_exchanged(results: Results) -> None:
    assert results.same("script_that_is_not_distributed") == "FAILED: the weights differ between ranks"
