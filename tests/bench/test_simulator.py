"""`collectives bench simulator`: sizes, the report, and the command from measuring to what the simulator goes by."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from collectives.bench.commands.simulator import report, split
from collectives.bench.simulator import fastest
from collectives.calibration.costs import Case, Measured
from collectives.simulation.cost import Costs
from tests.bench.running import bench, command, environment


@pytest.mark.parametrize("most", [1, 64, 5000, 16 << 20])
def test_costs_are_checked_between_the_sizes_they_are_found_at(most: int) -> None:
    to_fit, to_check = split(most)
    assert to_fit[0] == 8 and to_fit[-1] <= max(most, 64)
    assert all(a < middle < b for a, middle, b in zip(to_fit, to_check, to_fit[1:], strict=False))
    assert len(to_check) == len(to_fit) - 1 >= 1


def test_a_line_for_each_algorithm() -> None:
    cases = [Case("allreduce", name, ranks, 2, 24) for name in ("ring", "tree") for ranks in (2, 4)]
    checked = [Measured(case, 1e-6) for case in cases]
    lines = [" ".join(line.split()) for line in report(checked, [0.1, -0.3, 0.0, 0.5], (2, 4))]
    assert lines == [
        "2 ranks 4 ranks all",
        "allreduce ring 10% 30% 20%",
        "allreduce tree 0% 50% 25%",
        "all 5% 40% 20%",
        "4 predictions, 50% of them within 20%",
    ]


def test_of_several_measurements_the_least_counts() -> None:
    one, other = (Case("allreduce", "ring", ranks, 2, 8) for ranks in (2, 4))
    runs = [[Measured(one, 2.0)], [Measured(other, 5.0)], [Measured(one, 1.0)], [Measured(other, 6.0)]]
    assert fastest(runs) == [Measured(one, 1.0), Measured(other, 5.0)]


def test_from_measuring_to_simulating(tmp_path: Path) -> None:
    env = environment(XDG_CACHE_HOME=str(tmp_path))
    quick = ("-n", "2", "-e", "512", "--budget", "0.2", "--despite-noise")
    output = bench("simulator", "broadcast", *quick, "--json", "found.json", folder=tmp_path, env=env).stdout
    (file,) = tmp_path.rglob("shm.costs")
    assert output.startswith(f"# costs found at 8, 64, 512 bytes: {file}\n")
    assert "# checked at 24, 180 bytes, over shm" in output and "broadcast binomial" in output
    assert "pairs of algorithms differ by 20% or more" in output
    reported = json.loads((tmp_path / "found.json").read_text())
    assert Costs(**reported["costs"]) == Costs.from_text(file.read_text())
    assert {m["nbytes"] for m in reported["checked"]} == {24, 180}
    assert all(m["measured"] > 0 and m["error"] > -1 for m in reported["checked"])
    shown = command("simulate", "--here", "shm", "--show-costs", env=env).stdout
    assert Costs.from_text(shown) == Costs(**reported["costs"])
    again = bench("simulator", "broadcast", *quick, "--kept", env=env).stdout
    assert "costs found" not in again and "# checked at 24, 180 bytes" in again


def test_what_is_refused(tmp_path: Path) -> None:
    env = environment(XDG_CACHE_HOME=str(tmp_path))
    assert (
        "no costs for tcp have been found" in bench("simulator", "--kept", "--transport", "tcp", code=2, env=env).stderr
    )
    assert "2 to 64 ranks" in bench("simulator", "-n", "1", code=2, env=env).stderr
    assert "no costs for shm are known here" in command("simulate", "--here", "shm", code=2, env=env).stderr
