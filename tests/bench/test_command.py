"""`collectives bench`, run as users run it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collectives.algorithms import algorithms
from collectives.bench.cases import KINDS
from collectives.bench.loop import Times
from tests.bench.running import COMMAND, HOME, bench, command, environment, table

QUICK = ("-w", "1", "--iters", "3")
BROKEN = """
from collectives import algorithm
from collectives.schedule.form import Builder

@algorithm("allreduce")
def forgetful(rank, size):
    b = Builder("allreduce", "forgetful", rank, size, grid=(1, 1))
    b.copy(b.out(), b.inp())
    return b.build()
"""


def test_every_collective(tmp_path: Path) -> None:
    done = bench("all", "-b", "4K", "-e", "400K", "-f", "100", *QUICK, "--json", "all.json", folder=tmp_path)
    lines = table(done.stdout)
    assert all(len(line) == 14 for line in lines)
    assert [line[0] for line in lines] == ["4096", "409600"] * (len(KINDS) - 1) + ["0"]
    for line in lines:
        assert {line[9], line[13]} <= {"0", "N/A"} and "0" in (line[9], line[13])
    assert "Wrong values         : 0 OK" in done.stdout
    reported = json.loads((tmp_path / "all.json").read_text())
    assert [r["collective"] for r in reported["results"]] == [k for k in KINDS for _ in range(2 - (k == "barrier"))]
    for result in reported["results"]:
        kind = KINDS[result["collective"]]
        assert {n for n, m in result["measurements"].items() if "unsupported" not in m} == set(kind.places)
        assert result["root"] == (0 if kind.rooted else -1) and (result["op"] == "sum") == kind.reduces


def test_the_document(tmp_path: Path) -> None:
    bench("-e", "8", "-n", "3", *QUICK, "--rounds", "2", "--limits", "--json", "run.json", folder=tmp_path)
    reported: dict[str, Any] = json.loads((tmp_path / "run.json").read_text())
    assert reported["format"] == "pycollectives bench" and reported["version"] == 1 and reported["complete"]
    assert reported["arguments"]["iterations"] == 3 and "store" not in reported["arguments"]
    assert reported["group"]["pairs"] == {"shm": 3} and len(reported["group"]["ranks"]) == 3
    facts = reported["group"]["ranks"][2]
    assert facts["rank"] == 2 and facts["numpy"] == np.__version__ and facts["cores"] >= 1
    assert reported["group"]["outnumbered"] == (facts["cores"] < 3)
    (result,) = reported["results"]
    assert (result["bytes"], result["count"], result["dtype"], result["asked"]) == (8, 2, "float32", "auto")
    assert set(result["measurements"]) == {"out-of-place", "in-place", "flag", "copy", "push"}
    for name, found in result["measurements"].items():
        samples = [*found["rounds"][0], *found["rounds"][1]]
        if name == "flag":  # between two ranks, as often as always
            assert min(samples) > 0 and len(found["rounds"]) == 2
            continue
        assert [len(samples) for samples in found["rounds"]] == [3, 3]
        assert found["iterations"] == 6 and found["wrong"] == 0 and len(found["rank_medians"]) == 3
        assert found["seconds"]["median"] == pytest.approx(Times.of(samples).median, abs=1e-9)
        assert found["seconds"]["min"] <= found["seconds"]["median"] <= found["seconds"]["p99"] <= max(samples) + 1e-9
        assert found["busbw"] == pytest.approx(8 / found["seconds"]["median"] / 1e9 * 4 / 3)
        assert ("ours_over_this" in found) == (name in ("copy", "push"))
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_a_wrong_value_is_found(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    arguments = ("--import", "broken", "--algorithm", "forgetful", "-e", "8", *QUICK)
    done = bench(*arguments, "-d", "int64", folder=tmp_path, code=1)
    (line,) = table(done.stdout)
    assert line[5] == "forgetful" and int(line[9]) > 0 and int(line[13]) > 0
    assert "FAILED" in done.stdout
    unchecked = bench(*arguments, "-c", "0", folder=tmp_path)
    assert table(unchecked.stdout)[0][9] == "N/A" and "not checked" in unchecked.stdout


def test_dtypes_ops_and_ways(tmp_path: Path) -> None:
    done = bench("-b", "96", "-e", "96", "-n", "3", "-d", "bf16,int8", "-o", "sum,max", "--transport", "tcp", *QUICK)
    assert [(line[2], line[3]) for line in table(done.stdout)] == [
        ("bfloat16", "sum"),
        ("bfloat16", "max"),
        ("int8", "sum"),
        ("int8", "max"),
    ]
    assert "transport tcp (3 pairs)" in done.stdout
    shared = bench("-e", "8", "--buffers", "shared", "--in-place", *QUICK)
    (line,) = table(shared.stdout)
    assert line[6:10] == ["N/A"] * 4 and line[13] == "0" and "buffers shared" in shared.stdout


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_small_odd_segments(tmp_path: Path, transport: str) -> None:
    arguments = ("-b", "4", "-e", "40000", "-f", "100", "-n", "3", "--transport", transport, "--algorithm", "all")
    done = bench(*arguments, *QUICK, "--segment", "100", "--json", "run.json", folder=tmp_path)
    assert f"transport {transport} (3 pairs), buffers plain, segments of 100" in done.stdout
    assert all({line[9], line[13]} == {"0"} for line in table(done.stdout))
    assert json.loads((tmp_path / "run.json").read_text())["arguments"]["segment"] == 100


def test_gradients_of_a_model(tmp_path: Path) -> None:
    done = bench("--trace", "mnist-cnn", "--bucket", "8M", *QUICK, "--json", "trace.json", folder=tmp_path)
    assert "# allreduce of the gradients of mnist-cnn" in done.stdout
    lines = table(done.stdout)
    assert [line[:2] + line[5:7] for line in lines] == [
        ["13098536", "3274634", "8_calls", "N/A"],
        ["13098536", "3274634", "3_buckets", "N/A"],
    ]
    assert [line[13] for line in lines] == ["0", "0"]
    reported = json.loads((tmp_path / "trace.json").read_text())
    assert [(r["trace"], r["bucket"]) for r in reported["results"]] == [("mnist-cnn", 0), ("mnist-cnn", 8 << 20)]


def test_every_algorithm() -> None:
    done = bench("reduce_scatter", "-b", "1K", "-e", "1K", "-n", "3", "--algorithm", "all", "--out-of-place", *QUICK)
    assert [line[5] for line in table(done.stdout)] == [known.name for known in algorithms("reduce_scatter", 3)]


def test_in_a_running_job(tmp_path: Path) -> None:
    script = tmp_path / "bench.sh"
    script.write_text(f'exec {sys.executable} -c "{COMMAND[2]}" bench -e 8 {" ".join(QUICK)} --json joined.json\n')
    done = command("run", "-n", "3", "--", "sh", str(script), folder=tmp_path)
    assert "[0] # ranks 3" in done.stdout
    assert not any(line.startswith(("[1]", "[2]")) for line in done.stdout.splitlines())
    assert len(json.loads((tmp_path / "joined.json").read_text())["group"]["ranks"]) == 3


def test_under_another_launcher() -> None:
    """Two ranks started as torchrun starts them; the second one is silent."""
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    run = {"TORCHELASTIC_RUN_ID": f"bench-{os.getpid()}"}
    ranks = [
        subprocess.Popen(
            [*COMMAND, "bench", "-e", "8", *QUICK],
            env=environment(**shared, **run, RANK=str(rank), LOCAL_RANK=str(rank)),
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=100)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert len(table(outputs[0])) == 1 and outputs[1] == ""


def test_ranks_that_were_told_different_things(tmp_path: Path) -> None:
    script = tmp_path / "bench.sh"
    script.write_text(f'exec {sys.executable} -c "{COMMAND[2]}" bench -e 8 -w $COLLECTIVES_RANK --iters 3\n')
    done = command("run", "-n", "2", "--", "sh", str(script), folder=tmp_path, code=3)
    assert "the ranks were given different arguments" in done.stderr


def test_a_run_that_is_cut_short_leaves_what_it_has(tmp_path: Path) -> None:
    arguments = ("-b", "8", "-e", "16", "--iters", "20000", "--json", "cut.json")
    # Without a check, the first line of the table appears long before the second is done.
    process = subprocess.Popen(
        [*COMMAND, "bench", "-c", "0", "--out-of-place", *arguments],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if table(line):
            break
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    reported = json.loads((tmp_path / "cut.json").read_text())
    assert not reported["complete"] and [r["bytes"] for r in reported["results"]] == [8]


def test_the_command_of_its_own() -> None:
    code = "import sys; from collectives.commands.main import allreduce_bench; allreduce_bench()"
    done = subprocess.run(
        [sys.executable, "-c", code, "-e", "8", *QUICK],
        check=True,
        capture_output=True,
        text=True,
        env=environment(),
        timeout=100,
    )
    assert "# allreduce" in done.stdout and len(table(done.stdout)) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["allred"], "'allred'"),
        (["-b", "4Q"], "'4Q' is not a size"),
        (["-b", "4M", "-e", "4K"], "the largest size, 4K, is below the smallest, 4M"),
        (["-f", "2", "-i", "8"], "a factor or by a step"),
        (["-d", "float31"], "no dtype 'float31'"),
        (["-o", "band"], "band has no meaning for float32"),
        (["-r", "2"], "root 2 is not one of 2 ranks"),
        (["--algorithm", "fastest"], "no algorithm 'fastest'"),
        (["--import", "not_there"], "cannot import not_there"),
        (["--segment", "0"], "a segment is 1 byte to 64M, not 0"),
        (["--segment", "1G"], "a segment is 1 byte to 64M, not 1073741824"),
        (["--transport", "pigeon"], "unknown transport 'pigeon'"),
        (["--store", "pigeon://loft"], "'pigeon://loft': the ranks can meet at"),
        (["--store", "memory://here"], "cannot meet there"),
        (["--timeout", "nan"], "nan is not a positive"),
        (["--json", "/nowhere/x.json"], "/nowhere/x.json cannot be written"),
        (["--plot", "x.gif"], "x.gif: its name has to end in .svg, .png, .pdf"),
        (["--trace", "alexnet"], "no trace 'alexnet'; there are resnet50"),
        (["--trace", "vgg16", "-b", "8"], "--trace has sizes of its own"),
        (["--trace", "vgg16", "--bucket", "2"], "a bucket of 2 bytes"),
        (["--bucket", "1M"], "--bucket is for --trace"),
        (["--peers", "pigeon"], "no peer 'pigeon'; there are gloo"),
        (["--memory", "--limits"], "goes with no other figures"),
        (["--transport", "verbs", "--limits"], "is measured by perftest"),
        (["--renew", "--row", "2"], "calls without anything between them"),
        (["-b", "512T", "-e", "512T"], "need"),
        (["-n", "0"], "0 is not in the range"),
    ],
)
def test_what_is_refused(arguments: list[str], message: str) -> None:
    """In this process: nothing is started."""
    from click.testing import CliRunner

    from collectives.bench.commands.bench import command as under_test

    result = CliRunner().invoke(under_test, arguments, env=dict.fromkeys(_launchers(), ""))
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def _launchers() -> set[str]:
    return set(os.environ) - set(environment())


def test_a_store_that_cannot_be_used_is_named() -> None:
    done = bench("--store", "file:///proc/nowhere", "-e", "8", code=3)
    assert "/proc/nowhere" in done.stderr


def test_a_folder_with_the_same_name_does_no_harm(tmp_path: Path) -> None:
    """Ranks find our packages, also where the current folder has others of those names."""
    for name in ("bench", "native"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ImportError('the wrong one')\n")
    code = f"import sys; sys.path[0] = {str(HOME)!r}; {COMMAND[2]}"
    done = subprocess.run(
        [sys.executable, "-c", code, "bench", "-e", "8", *QUICK],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment(),
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
