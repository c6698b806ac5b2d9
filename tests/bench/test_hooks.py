"""`collectives bench hooks` and `overlap`: real frameworks in real processes, with little to do; and the reckoning.

Invariant: no test says how fast anything is; every process that is started has ended when its test has.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from collectives.bench import hooks
from collectives.bench.cases import Case
from collectives.bench.commands import hooks as subcommand
from collectives.bench.commands import overlap as overlap_command
from collectives.bench.hooks import FRAMEWORKS, Framework, cases, factor, memory_needed, verdicts
from collectives.bench.measure import Measurement, Row
from collectives.bench.namespaces import why_not
from collectives.bench.networks import NETWORKS, parameters
from collectives.bench.overlap import Bucket, Overlap, Setting, Step
from collectives.bench.peers import HOOKS, NAMES, here, peer, system
from collectives.bench.peers.here import Gradients
from collectives.bench.peers.worker import Worker
from collectives.bench.traces import TRACES, gradients
from tests.bench.running import environment, table
from tests.finished import finished
from tests.warm import parents

pytestmark = pytest.mark.timeout(240)  # processes import TensorFlow

QUICK = ("--repeats", "2", "--iters", "1")
LIST = Case("allreduce", "float32", 4, "sum", -1, "each", 2, 12, "resnet50")
TORCH, TENSORFLOW = FRAMEWORKS["torch"], FRAMEWORKS["tensorflow"]


def installed(framework: str) -> pytest.MarkDecorator:
    reason = here.missing(framework)
    return pytest.mark.skipif(reason is not None, reason=str(reason))


# --- whole runs

# The ranks have one thread each, and import neither PyTorch nor TensorFlow.
SETTINGS = {"OMP_NUM_THREADS": "1"}
OF_TENSORFLOW = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}  # by the benchmark, for its ranks


def warm_command(framework: str, *arguments: str) -> list[str]:
    """`collectives bench hooks`, to be run with SETTINGS."""
    return _warm(framework, "hooks", "--framework", framework, *arguments)


def _warm(framework: str, *arguments: str) -> list[str]:
    modules, more = (parents.TORCH, {}) if framework == "torch" else (parents.TENSORFLOW, OF_TENSORFLOW)
    program = parents.interpreter(modules, environment(**SETTINGS, **more))
    main = "from collectives.commands.main import main; main(prog_name='collectives')"
    code = f"import sys; sys.executable = {program!r}; {main}"
    return [parents.python(environment(**SETTINGS)), "-c", code, "bench", *arguments]


@installed("torch")
def test_torch(tmp_path: Path) -> None:
    arguments = ("--trace", "mnist-cnn,ddp-digits", *QUICK, "--json", "hooks.json")
    done = finished(warm_command("torch", *arguments), env=environment(**SETTINGS), cwd=tmp_path)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    lines = table(done.stdout)
    assert [line[0::3][:2] for line in lines] == [["mnist-cnn", way] for way in TORCH.ways] + [["ddp-digits", "step"]]
    assert all(line[2] == "torch" and line[7:] == ["0", "0"] and float(line[6]) > 0 for line in lines), done.stdout
    assert "torch mnist-cnn: " in done.stdout and "times as fast; bar 1: " in done.stdout
    reported = json.loads((tmp_path / "hooks.json").read_text())
    assert reported["format"] == "pycollectives bench hooks" and reported["complete"] and reported["ranks"] == 2
    assert {bar["name"]: bar["bar"] for bar in reported["bars"]} == {"mnist-cnn": None, "ddp-digits": 1.0}
    assert "torch" in reported["peers"]["hook-torch"] and "torch" in reported["peers"]["gloo-torch"]
    for result in reported["results"]:
        assert result["bytes"] == 4 * (parameters("ddp-digits") if result["asked"] == "step" else 3274634)
        for name in ("hook-torch", "gloo-torch"):
            found = result["measurements"][name]
            assert found["wrong"] == 0 and [len(turn) for turn in found["rounds"]] == [1, 1]
            assert len(found["rank_medians"]) == 2


@installed("tensorflow")
def test_tensorflow(tmp_path: Path) -> None:
    arguments = ("--trace", "mnist-cnn", "--repeats", "1", "--iters", "1")
    done = finished(warm_command("tensorflow", *arguments), env=environment(**SETTINGS))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    lines = table(done.stdout)
    assert [line[3] for line in lines] == list(TENSORFLOW.ways)
    assert all(line[7:] == ["0", "0"] and float(line[6]) > 0 for line in lines), done.stdout
    assert "CollectiveReduce" in done.stdout and "bar" not in done.stdout.splitlines()[-2]


@installed("torch")
def test_nothing_is_left_where_it_is_ended(tmp_path: Path) -> None:
    arguments = warm_command("torch", "--trace", "mnist-cnn", "--budget", "60")[1:]
    running = subprocess.Popen(
        [sys.executable, *arguments],  # its children are looked at
        env=environment(**SETTINGS),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        children: list[int] = []
        end = time.monotonic() + 60
        while len(children) < 4 and time.monotonic() < end:
            assert running.poll() is None
            children = workers(running.pid)
            time.sleep(0.05)
        running.send_signal(signal.SIGTERM)
        running.communicate(timeout=60)
    finally:
        running.kill()
        running.communicate()
    assert running.returncode == 130 and len(children) == 4
    assert not [child for child in children if Path(f"/proc/{child}").exists()]


def workers(parent: int) -> list[int]:
    tasks = Path(f"/proc/{parent}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


@installed("tensorflow")
@pytest.mark.skipif(why_not("100mbit") is not None, reason=str(why_not("100mbit")))
def test_overlap(tmp_path: Path) -> None:
    size = ("--layers", "3", "--width", "64", "--batch", "16", "--bucket", "16K", "--rate", "100mbit", "--steps", "2")
    command = _warm("tensorflow", "overlap", *size, "--json", "overlap.json")
    done = finished(command, env=environment(**SETTINGS, **OF_TENSORFLOW), cwd=tmp_path)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert [line[0] for line in table(done.stdout)] == ["none", "fused", "bucketed"]
    assert "buckets save " in done.stdout and "backpropagation ended at" in done.stdout
    reported = json.loads((tmp_path / "overlap.json").read_text())
    assert reported["format"] == "pycollectives bench overlap" and len(reported["ranks"]) == 2
    for rank in reported["ranks"]:
        assert [step["way"] for step in rank] == ["none", "fused", "bucketed"] * 2
        assert [len(step["buckets"]) for step in rank] == [0, 1, 3] * 2
        assert all(0 < step["backward"] <= step["seconds"] for step in rank)
    assert reported["passed"] == (reported["gain"] >= reported["bar"] and np.median(reported["leads"]) > 0)


# --- what is refused


@pytest.mark.parametrize("command", [subcommand, overlap_command])
def test_a_framework_that_is_missing(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(here, "find_spec", lambda name: None)
    done = CliRunner().invoke(command.command, [])
    assert done.exit_code in (1, 2) and "pip install tensorflow" in done.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--trace", "gpt"], "there is no 'gpt'; there are resnet50"),
        (["--framework", "tensorflow", "--trace", "ddp-mlp"], "tensorflow has none of ddp-mlp"),
        (["-n", "1"], "1 is not in the range"),
        (["-n", "5000", "--trace", "bert-large"], "is left out: its ranks need about"),
    ],
)
def test_wrong_arguments(arguments: list[str], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subcommand, "missing", lambda name: None)
    done = CliRunner().invoke(subcommand.command, arguments)
    assert done.exit_code == 2 and says in done.output


def test_not_inside_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subcommand, "missing", lambda name: None)
    for name, value in (("RANK", "0"), ("SIZE", "1"), ("STORE", "file:///tmp")):
        monkeypatch.setenv(f"COLLECTIVES_{name}", value)
    done = CliRunner().invoke(subcommand.command, [])
    assert done.exit_code == 2 and "not inside a running job" in done.output


def test_no_links_of_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap_command, "missing", lambda name: None)
    monkeypatch.setattr(overlap_command, "why_not", lambda rate: f"links of {rate} cannot be made here")
    done = CliRunner().invoke(overlap_command.command, ["--rate", "200mbit"])
    assert done.exit_code == 1 and "links of 200mbit cannot be made here" in done.output
    assert CliRunner().invoke(overlap_command.command, ["--rate", "fast"]).exit_code == 2


# --- results that are wrong


def test_every_element_is_looked_at() -> None:
    parts = [[np.zeros(shape, np.float32) for shape in ((3, 2), (), (5,))] for _ in range(2)]
    mine, theirs = (Gradients(LIST, rank, arrays) for rank, arrays in enumerate(parts))
    mine.fill(7)
    theirs.fill(7)
    assert not np.array_equal(parts[0][0], parts[1][0])
    sums = [a + b for a, b in zip(*parts, strict=True)]
    assert mine.wrong(sums, 7) == theirs.wrong(sums, 7) == 0
    assert mine.wrong(sums, 8) > 0 and mine.wrong(parts[0], 7) > 0
    assert mine.wrong(sums[:-1], 7) == 12
    sums[1] += 1
    assert mine.wrong(sums, 7) == 1


class Lonely:
    """torch.distributed, where every rank keeps what it has; or, `helped`, gets what `help` makes of it."""

    def __init__(self, help: Callable[[Any], None]) -> None:
        self._help = help

    def get_rank(self) -> int:
        return 0

    def all_reduce(self, tensor: Any, async_op: bool = False) -> Lonely:
        self._help(tensor)
        return self

    def wait(self) -> None: ...


@installed("torch")
@pytest.mark.parametrize("way", ["each", "buckets"])
def test_a_backend_that_does_nothing_is_wrong(way: str) -> None:
    import torch

    from collectives.bench.peers.hook_torch import GradientAllreduce

    case = Case("allreduce", "float32", 4, "sum", -1, way, 1, sum(gradients("mnist-cnn")), "mnist-cnn")
    right = GradientAllreduce(torch, Lonely(lambda tensor: None), case)  # which is right for a group of one
    assert right.wrong(1) == 0
    wrong = GradientAllreduce(torch, Lonely(lambda tensor: tensor.reshape(-1)[-1:].add_(1)), case)
    assert wrong.wrong(1) == (8 if way == "each" else 1)


# --- the reckoning


def row(case: Case, ours: list[list[float]], theirs: list[list[float]], of: Framework = TORCH, **what: Any) -> Row:
    """`ours`, `theirs`: the times of each turn. `what` else is known of theirs."""
    mine, other = (
        Measurement(name, is_ours, [np.array(turn) for turn in turns], wrong=0)
        for name, is_ours, turns in ((of.ours, True, ours), (of.theirs, False, theirs))
    )
    return Row(case, case.algorithm, {of.ours: mine, of.theirs: replace(other, **what)})


def test_the_best_of_theirs_stands_against_the_best_of_ours() -> None:
    each = row(LIST, [[1.0], [3.0]], [[8.0], [8.0]])
    other = replace(LIST, algorithm="buckets")
    buckets = row(other, [[0.5], [0.5]], [[9.0], [9.0]])
    assert factor(each) == pytest.approx(4.0)  # the median of 1/8 and 3/8, the other way up
    (verdict,) = verdicts(TORCH, [each, buckets])
    assert (verdict.our_way, verdict.their_way, verdict.factor, verdict.bar) == ("buckets", "each", 16.0, 3.0)
    assert verdict.passed
    (same,) = verdicts(TORCH, [each])
    assert same.factor == factor(each) and not verdicts(TORCH, [row(LIST, [[1.0]], [[8.0]], wrong=1)])
    (slow,) = verdicts(TORCH, [row(LIST, [[4.0]], [[8.0]])])
    assert not slow.passed


def test_tensorflows_best_way_was_timed_beside_the_hook() -> None:
    each = row(LIST, [[1.0]], [[8.0]], TENSORFLOW)
    fused = row(replace(LIST, algorithm="fused"), [[2.0]], [[6.0]], TENSORFLOW)
    (verdict,) = verdicts(TENSORFLOW, [each, fused])
    assert (verdict.ours, verdict.our_way, verdict.their_way, verdict.factor) == (2.0, "", "fused", 3.0)
    assert verdict.bar == 10.0 and not verdict.passed


def test_what_failed_has_no_factor() -> None:
    failed = row(LIST, [[1.0]], [[1.0]], unsupported="ended\nsuddenly")
    assert factor(failed) is None and hooks.missing_figures(failed) == ["gloo-torch: ended suddenly"]
    assert verdicts(TORCH, [failed]) == []


def test_cases() -> None:
    names = ("resnet50", "ddp-mlp")
    torch, tensorflow = (list(cases(framework, names, 4)) for framework in (TORCH, TENSORFLOW))
    assert [case.algorithm for case in torch] == [*TORCH.ways, "step"]
    assert [case.algorithm for case in tensorflow] == list(TENSORFLOW.ways)
    assert {case.count for case in tensorflow} == {25557032} and torch[-1].count == parameters("ddp-mlp")
    assert [memory_needed(case) for case in tensorflow] == [6 * 4 * 4 * 25557032, 10 * 4 * 4 * 25557032]
    assert not set(TRACES) & set(NETWORKS)
    assert parameters("ddp-digits") == 64 * 128 + 128 + 128 * 128 + 128 + 128 * 10 + 10


def test_systems_of_this_interpreter() -> None:
    assert not set(HOOKS) & set(NAMES)
    assert {name for f in FRAMEWORKS.values() for name in (f.ours, f.theirs)} == set(HOOKS)
    with pytest.raises(ValueError, match="there is no peer 'hook-torch'"):
        peer("hook-torch")
    for name in HOOKS:
        known = system(name)
        assert known.commands(Path("/bin/python"), ["-I"], 2) == [
            ["/bin/python", "-I", "0"],
            ["/bin/python", "-I", "1"],
        ]
        assert json.loads(known.environment("")["BENCH_IMPORT_PATH"]) == sys.path


class Counting:
    """A system of one rank, whose tasks count their calls and are wrong by the salt."""

    rank = 0

    def barrier(self) -> None: ...
    def close(self) -> None: ...
    def task(self, case: Case) -> Counting:
        self.calls = 0
        return self

    def call(self) -> None:
        self.calls += 1

    def wrong(self, salt: int) -> int:
        return salt


def test_tasks() -> None:
    member = Counting()
    worker = Worker(member)
    assert (
        worker.handle({"do": "prepare", "case": asdict(LIST), "warmup": 2, "renew": False, "row": 1}) == {}
        and member.calls == 2
    )
    assert worker.handle({"do": "wrong", "salt": 5}) == {"wrong": 5}
    assert len(worker.handle({"do": "turn", "iterations": 3, "warmup": 1})["samples"]) == 3 and member.calls == 6


def steps(*reported: tuple[str, float, float]) -> tuple[Step, ...]:
    """Each a way, its seconds, and when its first bucket started; backpropagation ends at 1."""
    return tuple(Step(way, seconds, 1.0, (Bucket(0, first, 2.0),)) for way, seconds, first in reported)


def test_gain_of_overlapping() -> None:
    setting = Setting("1gbit", 2, 512, 1, 1 << 20, 2)
    one = steps(("fused", 10.0, 1.1), ("bucketed", 8.0, 0.5), ("fused", 10.0, 1.1), ("bucketed", 6.0, 0.7))
    two = steps(("fused", 9.0, 1.1), ("bucketed", 7.0, 0.6), ("fused", 10.0, 1.1), ("bucketed", 7.0, 0.8))
    found = Overlap(setting, (one, two))
    assert setting.nbytes == 2 << 20 and found.times("bucketed") == [8.0, 7.0]
    assert found.gain == pytest.approx(0.25) and found.leads == pytest.approx([0.5, 0.3, 0.4, 0.2]) and found.passed
    late = steps(("fused", 10.0, 1.1), ("bucketed", 5.0, 1.5))
    assert not Overlap(setting, (late, late)).passed
    small = steps(("fused", 10.0, 1.1), ("bucketed", 9.0, 0.5))
    assert not Overlap(setting, (small, small)).passed
    assert found.to_json()["gain"] == found.gain and Step.of(found.to_json()["ranks"][0][1]) == one[1]
