"""Sizes as people write them."""

from __future__ import annotations

import pytest

from collectives.bench import sizes


@pytest.mark.parametrize(
    ("text", "size"),
    [("8", 8), ("4K", 4096), ("4k", 4096), ("64M", 64 << 20), ("1.5M", 3 << 19), ("2GiB", 2 << 30), ("1 KB", 1024)],
)
def test_what_a_size_means(text: str, size: int) -> None:
    assert sizes.parse(text) == size


@pytest.mark.parametrize("text", ["", "K", "-8", "4Q", "1e6", "8 8", "0x10", "1.", "nan", "99999T"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a size|more than any machine"):
        sizes.parse(text)


@pytest.mark.parametrize("size", [0, 1, 8, 1000, 1023, 1024, 3 << 10, 64 << 20, (1 << 30) + 1, 5 << 40])
def test_what_is_written_can_be_read(size: int) -> None:
    assert sizes.parse(sizes.text(size)) == size


def test_series() -> None:
    assert sizes.series(8, 64, 2, None) == [8, 16, 32, 64]
    assert sizes.series(8, 63, None, None) == [8, 16, 32]
    assert sizes.series(8, 100, 8, None) == [8, 64]
    assert sizes.series(10, 31, None, 10) == [10, 20, 30]
    assert sizes.series(5, 5, 2, None) == [5]
    assert sizes.series(1, 4, 1.2, None) == [1, 2, 3, 4]  # small numbers grow by one at least


@pytest.mark.parametrize(("first", "last", "factor", "step"), [(8, 4, 2, None), (8, 64, 1, None), (8, 64, None, 0)])
def test_series_without_an_end(first: int, last: int, factor: float | None, step: int | None) -> None:
    with pytest.raises(ValueError):
        sizes.series(first, last, factor, step)
