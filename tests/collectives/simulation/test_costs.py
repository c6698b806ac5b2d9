"""Costs found by measuring: those that predict what was measured come out, and are kept for the machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from collectives.calibration.costs import START, Case, Measured, errors, fit, ordered, predict
from collectives.core import tables
from collectives.core.tables import Machine
from collectives.simulation.cost import Costs

NAMES = ("one_shot", "two_shot", "ring", "recursive_doubling")
TRUE = Costs(
    call=3e-6,
    inside_latency=1e-6,
    inside_overhead=0.4e-6,
    inside_bandwidth=4e9,
    reduce_bandwidth=6e9,
    switch=3e-6,
    stagger=9e-6,
    cached=2.0,
    cache=5e5,
)
MACHINE = Machine("processor", "kernel", 2, "1.0")


def cases(sizes: Sequence[int], counts: Sequence[int] = (2, 4), cores: int = 2) -> list[Case]:
    return [Case("allreduce", name, ranks, cores, nbytes) for name in NAMES for ranks in counts for nbytes in sizes]


def as_measured(found: Sequence[Case], costs: Costs) -> list[Measured]:
    return [Measured(case, seconds) for case, seconds in zip(found, predict(found, costs).tolist(), strict=True)]


def test_costs_that_were_in_force_predict_other_sizes_too() -> None:
    measured = as_measured(cases([8, 32 << 10, 1 << 20, 16 << 20]), TRUE)
    measured[7] = Measured(measured[7].case, 10 * measured[7].seconds)  # something else was running
    found = fit(measured)
    others = as_measured(cases([128, 4 << 10, 256 << 10, 4 << 20], (2, 3, 4)), TRUE)
    assert np.median(np.abs(errors(others, START))) > 0.3
    assert np.median(np.abs(errors(others, found))) < 0.05


def test_what_cannot_be_seen_stays_as_it_is() -> None:
    found = fit(as_measured(cases([8, 64 << 10], (2,)), TRUE), [START])
    assert (found.latency, found.bandwidth, found.hop) == (START.latency, START.bandwidth, START.hop)
    assert found.switch == found.stagger == 0  # each rank had a core of its own


def test_errors_have_a_sign() -> None:
    measured = as_measured(cases([8]), TRUE)
    twice, half = ([Measured(m.case, m.seconds * factor) for m in measured] for factor in (2, 0.5))
    assert errors(twice, TRUE).tolist() == pytest.approx([-0.5] * len(measured))
    assert errors(half, TRUE).tolist() == pytest.approx([1.0] * len(measured))


def test_pairs_that_differ_are_counted() -> None:
    found = cases([8, 16 << 20], (2,))
    measured = as_measured(found, TRUE)
    right, pairs = ordered(measured, TRUE)
    assert right == pairs > 0
    seconds = [m.seconds for m in measured]
    far_apart = sum(
        a >= 1.2 * b for i in (0, 1) for a in seconds[i::2] for b in seconds[i::2]
    )  # sizes alternate, and only what has the same size is compared
    assert pairs == far_apart
    upside_down = [Measured(m.case, 1 / m.seconds) for m in measured]
    assert ordered(upside_down, TRUE)[0] == 0
    alike = [Measured(m.case, 1.0) for m in measured]
    assert ordered(alike, TRUE) == (0, 0)


def test_nothing_was_measured() -> None:
    with pytest.raises(ValueError, match="nothing was measured"):
        fit([])


def test_costs_are_kept_for_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert tables.load_costs(MACHINE, "shm") is None
    path = tables.costs_path(MACHINE, "shm")
    assert path is not None
    tables.save_costs(path, TRUE, MACHINE, "by hand")
    assert tables.load_costs(MACHINE, "shm") == TRUE
    assert "# how: by hand\n" in path.read_text()
    assert tables.load_costs(MACHINE, "tcp") is tables.load_costs(Machine("other", "kernel", 2, "1.0"), "shm") is None
    path.write_text("call = soon\n")
    with pytest.raises(ValueError, match=r"shm\.costs: line 1: call: 'soon' is not a time"):
        tables.load_costs(MACHINE, "shm")
