"""Results compared: what counts as slower."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from collectives.bench.commands.bench import command
from collectives.bench.compare import FASTER, MODE, SAME, SLOWER, NotComparable, compare, read
from tests.bench.running import bench

FACTS = dict.fromkeys(
    ("host", "processor", "cores", "affinity", "kernel", "python", "numpy", "pycollectives"), "the same"
)


def document(
    times: dict[int, float],
    *,
    noise: float = 0.02,
    seed: int = 0,
    flag: float | None = 1e-7,
    core: float | None = None,
    rounds: int = 3,
    **more: Any,
) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    ping = {"flag": flag, "link": 1e-6, **({} if core is None else {"core": core})}  # older documents have none
    results = []
    for nbytes, seconds in times.items():
        samples = [(seconds * (1 + noise * random.standard_normal(50))).tolist() for _ in range(rounds)]
        case = {"collective": "allreduce", "trace": "", "bucket": 0, "bytes": nbytes, "dtype": "float32"}
        how = {"op": "sum", "root": -1, "asked": "auto", "pings": [[ping] * 2] * rounds}
        results.append({**case, **how, "measurements": {"in-place": {"rounds": samples}, "gloo": {"rounds": samples}}})
    group = {"ranks": [FACTS, FACTS], "pairs": {"shm": 1}}
    reported = {"group": group, "arguments": {"buffers": "plain"}, "results": results}
    return {"format": "pycollectives bench", "version": 1, **reported, **more}


def verdicts(first: dict[str, Any], second: dict[str, Any], threshold: float = 0.1) -> list[str]:
    return [change.verdict for change in compare([first], [second], threshold).changes]


def test_what_is_slower() -> None:
    before = document({8: 1e-6, 64: 1e-6, 512: 1e-6})
    after = document({8: 1.2e-6, 64: 1.05e-6, 512: 0.8e-6}, seed=1)
    assert verdicts(before, after) == [SLOWER, SAME, FASTER]
    assert verdicts(before, after, 0.3) == [SAME, SAME, SAME]
    assert verdicts(after, before) == [FASTER, SAME, SLOWER]
    (first, *_) = compare([before], [after], 0.1).changes
    assert 1.15 < first.low < first.quotient < first.high < 1.25


def test_noise_is_not_slower() -> None:
    times = dict.fromkeys((8 << i for i in range(20)), 1e-6)
    found = [verdicts(document(times, noise=0.4, seed=s), document(times, noise=0.4, seed=s + 100)) for s in range(5)]
    assert sum(verdict == SLOWER for run in found for verdict in run) <= 1


def test_one_noisy_round_is_not_slower() -> None:
    before, after = document({8: 1e-6}, rounds=5), document({8: 1e-6}, seed=1, rounds=5)
    disturbed = after["results"][0]["measurements"]["in-place"]["rounds"]
    for number in (1, 2):
        disturbed[number] = [5 * s for s in disturbed[number]]
    assert verdicts(before, after) == [SAME]


def test_modes_are_not_compared() -> None:
    assert verdicts(document({8: 1e-6}), document({8: 3e-6}, flag=3e-7)) == [MODE]
    assert verdicts(document({8: 1e-6}), document({8: 3e-6}, flag=None)) == [SLOWER]
    assert verdicts(document({8: 1e-6}, core=2e-5), document({8: 2e-6}, core=4e-5)) == [MODE]
    assert verdicts(document({8: 1e-6}), document({8: 2e-6}, core=4e-5)) == [SLOWER]


def test_only_like_is_compared() -> None:
    found = compare([document({8: 1e-6, 64: 1e-6})], [document({64: 1e-6, 512: 1e-6})], 0.1)
    assert [change.nbytes for change in found.changes] == [64] and found.missing == 2
    with pytest.raises(NotComparable, match="no case of ours is in both"):
        compare([document({8: 1e-6})], [document({8: 1e-6}, arguments={"buffers": "shared"})], 0.1)
    other = document({8: 1e-6}, group={"ranks": [{**FACTS, "cores": 64}] * 2, "pairs": {"shm": 1}})
    assert compare([document({8: 1e-6})], [other], 0.1).remarks == ("cores: the same and 64",)


def test_the_command(tmp_path: Path) -> None:
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    first.write_text(json.dumps(document({8: 1e-6, 64: 1e-6})))
    second.write_text(
        json.dumps({"format": "pycollectives bench standing", "version": 1, "runs": [document({8: 2e-6})]})
    )
    run = CliRunner()
    done = run.invoke(command, ["compare", str(first), str(second)])
    assert done.exit_code == 1 and "SLOWER" in done.output and "1 in one file only" in done.output
    done = run.invoke(command, ["compare", str(second), str(first), "--all"])
    assert done.exit_code == 0 and " faster\n" in done.output


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "is no JSON"), ("{}", "no result of this benchmark"), ('{"version": 1, "format": "x"}', "no result")],
)
def test_other_files(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(NotComparable, match=message):
        read(str(tmp_path / "x.json"))
    assert CliRunner().invoke(command, ["compare", str(tmp_path / "x.json"), str(tmp_path / "x.json")]).exit_code == 2


def test_results_of_real_runs(tmp_path: Path) -> None:
    bench("-e", "64", "--iters", "5", "-w", "1", "--json", "run.json", folder=tmp_path)
    done = bench("compare", "run.json", "run.json", "--all", folder=tmp_path)
    assert "0 SLOWER, 0 faster, 8 same, 0 mode; geometric mean of quotients 1.000" in done.stdout
