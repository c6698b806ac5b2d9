"""What `collectives simulate --plot` draws: lines that can be told apart, and efficiency in percent."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from collectives.algorithms import algorithms
from collectives.commands.curves import Panel, plot, spread, style
from collectives.commands.main import main
from collectives.schedule.conditions import COLLECTIVES
from collectives.simulation.bounds import efficiency, least_bytes
from collectives.simulation.cost import Costs
from collectives.simulation.simulate import simulate
from collectives.simulation.topology import Topology


def drawn(tmp_path: Path, *arguments: str) -> str:
    """The picture's SVG, its words as text."""
    mpl = pytest.importorskip("matplotlib", reason="drawing is optional: pip install matplotlib")
    with mpl.rc_context({"svg.fonttype": "none"}):
        done = CliRunner().invoke(main, ["simulate", *arguments, "--plot", str(tmp_path / "a.svg")])
    assert done.exit_code == 0, done.output
    return (tmp_path / "a.svg").read_text()


def test_no_two_lines_look_the_same_even_without_colours() -> None:
    count = len(algorithms("allreduce"))
    assert count >= 12
    looks = [(str(s["linestyle"]), s["marker"]) for s in (style(number, count) for number in range(52))]
    assert len({*looks}) == len(looks)
    first, last = style(0, count), style(count - 1, count)
    assert first["linewidth"] > 2 * last["linewidth"]  # one on top of the other, both are seen


@pytest.mark.parametrize(
    ("wanted", "places"),
    [
        ([], []),
        ([0.5], [0.5]),
        ([0.2, 0.8], [0.2, 0.8]),
        ([0.5, 0.5], [0.45, 0.55]),
        ([0.5, 0.5, 0.58], [0.4266667, 0.5266667, 0.6266667]),
        ([0.0, 0.0], [0.0, 0.1]),
        ([1.0, 1.0], [0.9, 1.0]),
    ],
)
def test_names_are_spread(wanted: list[float], places: list[float]) -> None:
    assert spread(wanted, 0.1) == pytest.approx(places)


def test_many_names_share_the_room_there_is() -> None:
    places = spread([0.5] * 40, 0.1)
    assert len(places) == 40 and places[0] >= 0 and places[-1] <= 1
    assert all(b - a == pytest.approx(1 / 40) for a, b in itertools.pairwise(places))


def test_every_algorithm_has_its_name_at_its_line_in_both_panels(tmp_path: Path) -> None:
    svg = drawn(tmp_path, "-n", "8", "-b", "1K:1M:32")
    for known in algorithms("allreduce"):
        assert svg.count(f">{known.name}<") == 2  # at its time, and at its efficiency
    assert ">100 %<" in svg and "share of the cards&#x27; bandwidth" in svg.replace("'", "&#x27;")


def test_efficiency_of_a_step(tmp_path: Path) -> None:
    arguments = ("--gradients", "4M", "--compute-time", "10ms", "-n", "1:4", "--algorithms", "ring")
    svg = drawn(tmp_path, *arguments, "--json", str(tmp_path / "a.json"))
    assert "efficiency: speed-up over ranks" in svg and ">100 %<" in svg
    for step in json.loads((tmp_path / "a.json").read_text())["steps"]:
        assert step["efficiency"] == pytest.approx(step["speedup"] / step["ranks"])


def test_a_barrier_has_no_efficiency(tmp_path: Path) -> None:
    assert "efficiency" not in drawn(tmp_path, "barrier", "-n", "2:8")


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize(("ranks", "per_host"), [(2, 1), (8, 1), (8, 4), (12, 4)])
def test_no_algorithm_between_hosts_needs_less_than_the_bound(collective: str, ranks: int, per_host: int) -> None:
    topology, costs = Topology(per_host), Costs()
    for known, nbytes in itertools.product(algorithms(collective, ranks), (1000, 1 << 20, 64 << 20)):
        seconds = simulate(known, ranks, nbytes, topology, costs).seconds
        share = efficiency(collective, ranks, nbytes, seconds, topology, costs)
        assert share is None if collective == "barrier" else share is not None and 0 < share <= 1 + 1e-9


def test_bounds() -> None:
    assert least_bytes("allreduce", 4, 1000, Topology(1)) == 1500
    assert least_bytes("allreduce", 8, 1000, Topology(4)) == 1000  # between two hosts
    assert least_bytes("allgather", 8, 1000, Topology(4)) == 500
    assert least_bytes("alltoall", 8, 1000, Topology(4)) == 2000  # each of four ranks sends a half away
    assert least_bytes("broadcast", 8, 1000, Topology(8)) == 1000
    assert least_bytes("allreduce", 1, 1000, Topology(1)) == least_bytes("barrier", 4, 0, Topology(1)) == 0
    ring = simulate(algorithms("allreduce")[0], 64, 1 << 30, Topology(1)).seconds
    assert efficiency("allreduce", 64, 1 << 30, ring, Topology(1), Costs()) == pytest.approx(0.9, abs=0.1)


def test_names_of_lines_that_end_at_one_point_do_not_overlap(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="drawing is optional: pip install matplotlib")
    lines = {f"line {number}": [(1.0, 1.0), (8.0, 5.0)] for number in range(13)}
    plot([Panel("t", "x", "y", lines)], tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
