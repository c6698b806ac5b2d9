"""A part of torch's own DistributedTest; `python -m tests.collectives.torch.distributed_test` runs all of it."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("expecttest", reason="torch's tests need it: pip install expecttest")

from tests.collectives.torch.distributed_test.expected import ON_CPU, Expected
from tests.collectives.torch.distributed_test.running import outcomes

# One of each kind.
NAMES = [
    "test_DistributedDataParallelCPU",
    "test_all_gather",
    "test_all_gather_coalesced_simple",
    "test_all_reduce_coalesced_sum",
    "test_all_reduce_sum_async",
    "test_all_to_all_single_unequal_split",
    "test_barrier_full_group",
    "test_batch_isend_irecv_gloo_tags",
    "test_broadcast_group",
    "test_gather",
    "test_get_backend",
    "test_irecv",
    "test_isend_autograd_profiler",
    "test_reduce_max",
    "test_scatter_complex",
    "test_send_recv_any_source",
    "test_send_recv_any_source_torch_profiler",
    "test_sparse_all_reduce_sum",
]


def test_a_part_of_the_tests_inside_torch() -> None:
    found = outcomes("collectives", 3, NAMES)
    assert sorted(found) == NAMES
    for name, outcome in found.items():
        assert outcome.what == "passed", f"{name}: {outcome.why}"


def test_an_expected_difference_is_one() -> None:
    """The command would tell one that fails otherwise than it should."""
    name = "test_monitored_barrier_gloo"
    outcome = outcomes("collectives", 3, [name])[name]
    assert outcome.what == "failed" and ON_CPU[name].covers(outcome.why), outcome.why
    assert outcome.error.startswith("ValueError: monitored_barrier")
    assert not Expected("another", "no such text").covers(outcome.why)
