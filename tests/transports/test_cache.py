"""How much of the second and of the last cache each rank has."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from transports.cache import Caches, caches_of_rank
from transports.host import HostIdentity

HERE = HostIdentity.here()


def index(root: Path, core: int, number: int, level: str, size: str, cores: int) -> None:
    folder = root / f"cpu{core}" / "cache" / f"index{number}"
    folder.mkdir(parents=True)
    (folder / "level").write_text(level + "\n")
    (folder / "size").write_text(size + "\n")
    words = f"{cores:016x}"
    (folder / "shared_cpu_map").write_text(f"{words[:8]},{words[8:]}\n")


def on(*masks: int) -> list[HostIdentity]:
    return [dataclasses.replace(HERE, cpus=mask) for mask in masks]


@pytest.mark.parametrize(
    ("masks", "second", "last"),
    [
        ([0b11], 1024, 32),
        ([0b11] * 2, 1024, 16),
        ([0b11] * 8, 256, 4),  # ranks that share cores share what those have
        ([0b11] * 3, 512, 10.67),
        ([0b01, 0b10], 1024, 16),
        ([0xFF] * 2, 1024, 16),
        ([0xFF] * 4, 1024, 8),
    ],
)
def test_ranks_share_them(tmp_path: Path, masks: list[int], second: int, last: float) -> None:
    index(tmp_path, 0, 2, "2", "1024K", 0b1)
    index(tmp_path, 0, 3, "3", "32768K", 0xFF)
    everyone = on(*masks)
    found = caches_of_rank(everyone[0], everyone, str(tmp_path))
    assert found.second == second << 10
    assert found.last / (1 << 20) == pytest.approx(last, abs=0.01)


def test_several_caches(tmp_path: Path) -> None:
    index(tmp_path, 4, 3, "3", "16M", 0xF0)
    everyone = on(*[0xFF0] * 4)  # two of these have it
    assert caches_of_rank(everyone[0], everyone, str(tmp_path)) == Caches(0, 8 << 20)


def test_ranks_elsewhere_do_not_count(tmp_path: Path) -> None:
    index(tmp_path, 0, 3, "3", "32768K", 0b11)
    other = dataclasses.replace(HERE, cpus=0b11, boot="another boot")
    mine = on(0b11)
    assert caches_of_rank(mine[0], [*mine, other, other], str(tmp_path)) == Caches(0, 32 << 20)


def test_what_nobody_knows_is_nothing(tmp_path: Path) -> None:
    assert caches_of_rank(HERE, [HERE], str(tmp_path)) == Caches(0, 0)
    mine = on(0b1)
    index(tmp_path, 0, 2, "2", "1024K", 0b1)
    assert caches_of_rank(mine[0], mine, str(tmp_path)) == Caches(1 << 20, 0)
    index(tmp_path, 0, 3, "3", "much", 0b1)
    assert caches_of_rank(mine[0], mine, str(tmp_path)) == Caches(1 << 20, 0)


def test_here() -> None:
    alone, four = caches_of_rank(HERE, [HERE]), caches_of_rank(HERE, [HERE] * 4)
    assert 0 <= four.second <= alone.second
    assert 0 <= four.last <= alone.last
