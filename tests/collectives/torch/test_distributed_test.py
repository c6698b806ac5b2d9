"""A part of torch's own DistributedTest; `python -m tests.collectives.torch.distributed_test` runs all of it."""

from __future__ import annotations

import pytest

from tests.collectives.torch.distributed_test.expected import ON_CPU, Expected
from tests.collectives.torch.distributed_test.running import Outcome, outcomes
from tests.lazily import needs

needs("torch", "PyTorch is not installed")
needs("expecttest", "torch's tests need it: pip install expecttest")

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


DIFFERENT = "test_monitored_barrier_gloo"


@pytest.fixture(scope="module")
def found() -> dict[str, Outcome]:
    return outcomes("collectives", 3, [*NAMES, DIFFERENT])


def test_a_part_of_the_tests_inside_torch(found: dict[str, Outcome]) -> None:
    assert sorted(found) == sorted([*NAMES, DIFFERENT])
    for name in NAMES:
        assert found[name].what == "passed", f"{name}: {found[name].why}"


def test_an_expected_difference_is_one(found: dict[str, Outcome]) -> None:
    """The command would tell one that fails otherwise than it should."""
    outcome = found[DIFFERENT]
    assert outcome.what == "failed" and ON_CPU[DIFFERENT].covers(outcome.why), outcome.why
    assert outcome.error.startswith("ValueError: monitored_barrier")
    assert not Expected("another", "no such text").covers(outcome.why)
