"""How much of the last cache each rank has."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from collectives.transports.cache import cache_share
from collectives.transports.host import HostIdentity

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
    ("masks", "share"),
    [
        ([0b11], 32),
        ([0b11] * 2, 16),
        ([0b11] * 8, 4),  # ranks that share cores share what those have
        ([0b01, 0b10], 16),
        ([0xFF] * 2, 16),
        ([0xFF] * 4, 8),
    ],
)
def test_ranks_share_it(tmp_path: Path, masks: list[int], share: int) -> None:
    index(tmp_path, 0, 2, "2", "1024K", 0b1)
    index(tmp_path, 0, 3, "3", "32768K", 0xFF)
    everyone = on(*masks)
    assert cache_share(everyone[0], everyone, str(tmp_path)) == share << 20


def test_several_caches(tmp_path: Path) -> None:
    index(tmp_path, 4, 3, "3", "16M", 0xF0)
    everyone = on(*[0xFF0] * 4)  # two of these have it
    assert cache_share(everyone[0], everyone, str(tmp_path)) == 8 << 20


def test_ranks_elsewhere_do_not_count(tmp_path: Path) -> None:
    index(tmp_path, 0, 3, "3", "32768K", 0b11)
    other = dataclasses.replace(HERE, cpus=0b11, boot="another boot")
    mine = on(0b11)
    assert cache_share(mine[0], [*mine, other, other], str(tmp_path)) == 32 << 20


def test_what_nobody_knows_is_nothing(tmp_path: Path) -> None:
    assert cache_share(HERE, [HERE], str(tmp_path)) == 0
    mine = on(0b1)
    index(tmp_path, 0, 2, "2", "1024K", 0b1)
    assert cache_share(mine[0], mine, str(tmp_path)) == 0
    index(tmp_path, 0, 3, "3", "much", 0b1)
    assert cache_share(mine[0], mine, str(tmp_path)) == 0


def test_here() -> None:
    alone, four = cache_share(HERE, [HERE]), cache_share(HERE, [HERE] * 4)
    assert 0 <= four <= alone
