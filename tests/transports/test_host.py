"""Who shares a machine, a namespace, a process; and how many cores there are for them."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest

from collectives.transports.host import (
    HostIdentity,
    cpu_quota,
    fill_cores,
    home_core,
    oversubscribed,
    usable_cores,
)

HERE = HostIdentity.here()


def like(**changes: object) -> HostIdentity:
    return dataclasses.replace(HERE, **changes)  # type: ignore[arg-type]


def test_the_host_name_decides_nothing() -> None:
    assert HERE.same_machine(like(host="elsewhere"))
    assert not HERE.same_machine(like(boot="another boot"))


def test_another_namespace_of_one_machine() -> None:
    other = like(netns=HERE.netns + 1)
    assert HERE.same_machine(other)
    assert not HERE.same_network(other)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_is_another_process() -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, json.dumps(HostIdentity.here().to_json()).encode())
        os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        theirs = HostIdentity.from_json(json.load(pipe))
    assert os.waitpid(child, 0)[1] == 0
    assert HERE.same_network(theirs)
    assert not HERE.same_process(theirs)
    assert HERE.same_process(HostIdentity.here())


def test_survives_json() -> None:
    assert HostIdentity.from_json(json.loads(json.dumps(HERE.to_json()))) == HERE


@pytest.mark.parametrize(
    "change",
    [
        {"netns": "1"},
        {"boot": 5},
        {"cpus": "xyz"},
        {"cpus": ""},
        {"host": "h" * 300},
        {"quota": -1},
        {"quota": None},
    ],
)
def test_what_a_peer_sends_is_checked(change: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        HostIdentity.from_json({**HERE.to_json(), **change})
    with pytest.raises(ValueError):
        HostIdentity.from_json([change])


@pytest.mark.parametrize(
    ("masks", "quotas", "expected"),
    [
        ([0b11, 0b11], [0.0, 0.0], False),
        ([0b11, 0b11, 0b11], [0.0] * 3, True),
        ([0b01, 0b10], [0.0, 0.0], False),  # pinned, a core each
        ([0b01, 0b01, 0b1110], [0.0] * 3, True),  # two pinned to one core
        ([0b1111] * 4, [2.5] * 4, True),
        ([0b1111] * 2, [2.5] * 2, False),
        ([0b1], [0.5], False),  # one rank alone waits for no rank on its machine
    ],
)
def test_ranks_are_counted_against_cores(masks: list[int], quotas: list[float], expected: bool) -> None:
    everyone = [like(cpus=m, quota=q) for m, q in zip(masks, quotas, strict=True)]
    assert oversubscribed(everyone[0], [*everyone, like(boot="another", cpus=0b1)]) is expected


def test_ranks_of_other_machines_do_not_count() -> None:
    assert not oversubscribed(like(cpus=1), [like(cpus=1), *[like(cpus=1, boot=str(i)) for i in range(5)]])
    assert not fill_cores(like(cpus=0b11), [like(cpus=0b11), *[like(cpus=0b11, boot=str(i)) for i in range(5)]])


@pytest.mark.parametrize(
    ("masks", "expected"),
    [
        ([0b11], False),
        ([0b11] * 2, True),
        ([0b11] * 3, True),
        ([0b1, 0b10], True),  # pinned
        ([0b11, 0b1100, 0b1100], False),  # mine has a core to spare
        ([0b1100, 0b1100, 0b11], True),
    ],
)
def test_ranks_that_may_use_the_same_cores_fill_them(masks: list[int], expected: bool) -> None:
    everyone = [like(cpus=mask) for mask in masks]
    assert fill_cores(everyone[0], everyone) is expected


@pytest.mark.parametrize(
    ("masks", "homes"),
    [
        ([0b11] * 4, [0, 0, 1, 1]),
        ([0b1010] * 3, [1, 1, 3]),
        ([0b111] * 8, [0, 0, 0, 1, 1, 1, 2, 2]),
        ([0b1, 0b10, 0b1, 0b10], [0, 1, 0, 1]),  # pinned already
        ([0b11, 0b11, 0b1100, 0b1100], [0, 1, 2, 3]),
    ],
)
def test_homes_are_spread_over_the_cores_that_ranks_may_use(masks: list[int], homes: list[int]) -> None:
    everyone = [like(cpus=mask) for mask in masks]
    assert [home_core(rank, everyone) for rank in range(len(masks))] == homes
    # Ranks of another machine, in between, change nothing.
    mixed = [identity for mask in masks for identity in (like(cpus=mask), like(cpus=mask, boot="another"))]
    assert [home_core(rank, mixed) for rank in range(0, len(mixed), 2)] == homes


def test_under_a_quota_no_core_is_home() -> None:
    assert [home_core(r, [like(cpus=0b1111, quota=2.0)] * 8) for r in range(8)] == [-1] * 8
    assert home_core(7, [like(cpus=0b1111, quota=4.0)] * 8) == 3


def test_the_quota_of_cgroup_v2_is_the_tightest_on_the_way_up(tmp_path: Path) -> None:
    inner = tmp_path / "job" / "task"
    inner.mkdir(parents=True)
    (tmp_path / "job" / "cpu.max").write_text("150000 100000\n")
    (inner / "cpu.max").write_text("max 100000\n")
    membership = tmp_path / "membership"
    membership.write_text("0::/job/task\n")
    assert cpu_quota(str(tmp_path), str(membership)) == 1.5


def test_the_quota_of_cgroup_v1(tmp_path: Path) -> None:
    folder = tmp_path / "cpu,cpuacct" / "job"
    folder.mkdir(parents=True)
    (folder / "cpu.cfs_quota_us").write_text("50000\n")
    (folder / "cpu.cfs_period_us").write_text("100000\n")
    membership = tmp_path / "membership"
    membership.write_text("12:memory:/job\n4:cpu,cpuacct:/job\n")
    assert cpu_quota(str(tmp_path), str(membership)) == 0.5


def test_no_quota(tmp_path: Path) -> None:
    membership = tmp_path / "membership"
    membership.write_text("0::/nowhere\n")
    assert cpu_quota(str(tmp_path), str(membership)) == 0.0
    assert cpu_quota(str(tmp_path), str(tmp_path / "missing")) == 0.0


def test_usable_cores_are_at_most_the_affinity() -> None:
    assert 1 <= usable_cores() <= len(os.sched_getaffinity(0))
