"""The command line as first-time users type it: other launchers' habits, misspelt names, nothing at all."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

import collectives
from collectives.algorithms import get
from collectives.commands.main import COMMANDS, main
from collectives.native import _engine
from collectives.native.spelling import hint, meant
from collectives.schedule.conditions import collective
from tests.bench.running import command, environment
from tests.collectives.groups import ranks


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, prog_name="collectives")


def refused(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    return " ".join(result.output.split())


# --- names


@pytest.mark.parametrize(
    ("name", "known", "found"),
    [
        ("average", _engine.OPS, "avg"),
        ("mean", _engine.OPS, "avg"),
        ("AVG", _engine.OPS, "avg"),
        ("sun", _engine.OPS, "sum"),
        ("rnig", ("tree", "ring"), "ring"),
        ("Halving-Doubling", ("halving_doubling", "ring"), "halving_doubling"),
        ("all_reduce", ("allreduce", "reduce"), "allreduce"),
        ("zzz", ("allreduce", "reduce"), None),
        ("mean", ("sum", "max"), None),
        (7, ("sum", "max"), None),
    ],
)
def test_what_is_meant(name: object, known: tuple[str, ...], found: str | None) -> None:
    assert meant(name, known) == found
    assert hint(name, known) == ("" if found is None else f" (did you mean {found!r}?)")


def test_calls_ask_back_about_names() -> None:
    def body(comm: collectives.Communicator) -> list[str]:
        with pytest.raises(ValueError) as op:
            comm.allreduce(np.ones(1), op="average")
        with pytest.raises(ValueError) as algorithm:
            comm.allreduce(np.ones(1), algorithm="rnig")
        with pytest.raises(TypeError) as dtype:
            comm.empty(3, "flaot32")
        return [str(caught.value) for caught in (op, algorithm, dtype)]

    op, algorithm, dtype = ranks(1, body)[0]
    assert "'average' (did you mean 'avg'?); there are sum" in op
    assert "'rnig' for allreduce (did you mean 'ring'?); there are: " in algorithm
    assert "'flaot32' is not supported (did you mean 'float32'?); there are float16" in dtype


def test_registries_ask_back_about_names() -> None:
    with pytest.raises(ValueError, match=r"'allreduse' \(did you mean 'allreduce'\?\)"):
        collective("allreduse")
    with pytest.raises(ValueError, match=r"'thre' for allreduce \(did you mean 'tree'\?\)"):
        get("allreduce", "thre")
    with pytest.raises(ValueError, match=r"'shmm' \(did you mean 'shm'\?\)"):
        collectives.init("memory://names", rank=0, size=1, transport="shmm")


@pytest.mark.parametrize(
    ("arguments", "meaning"),
    [
        (("explian",), "explain"),
        (("explain", "allreduse"), "allreduce"),
        (("explain", "--algorithm", "rnig"), "ring"),
        (("explain", "-d", "flaot32"), "float32"),
        (("explain", "--transport", "shn"), "shm"),
        (("simulate", "allgahter"), "allgather"),
        (("simulate", "--algorithms", "rnig"), "ring"),
        (("simulate", "--cost", "latancy=1us"), "latency"),
        (("run", "-n", "2", "--transport", "tpc", "true"), "tcp"),
        (("calibrate", "allredcue"), "allreduce"),
        (("calibrate", "--transport", "tpc"), "tcp"),
        (("bench", "allredcue"), "allreduce"),
        (("bench", "--op", "mean"), "avg"),
        (("bench", "-d", "flaot32"), "float32"),
        (("bench", "--peers", "glo"), "gloo"),
        (("bench", "--trace", "resnet5"), "resnet50"),
        (("bench", "choice", "allredcue"), "allreduce"),
    ],
)
def test_commands_ask_back_about_names(arguments: tuple[str, ...], meaning: str) -> None:
    assert f"did you mean '{meaning}'?" in refused(*arguments)


def test_an_unknown_command_is_told_which_there_are() -> None:
    printed = refused("zzz")
    assert "did you mean" not in printed and all(name in printed for name in COMMANDS)


# --- habits


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "collectives", "explain", "--list"],
        check=False,
        capture_output=True,
        text=True,
        env=environment(),
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == run("explain", "--list").output


@pytest.mark.parametrize("how", [("-np", "2"), ("-n", "2"), ("-n2",), ("--ranks", "2"), ("--ranks=2",)])
def test_the_number_of_ranks_as_mpirun_takes_it(how: tuple[str, ...]) -> None:
    done = command("run", *how, "--", sys.executable, "-c", "import os; print(os.environ['COLLECTIVES_SIZE'])")
    assert sorted(done.stdout.splitlines()) == ["[0] 2", "[1] 2"]


def test_an_unknown_transport_is_refused_once_and_before_a_rank_starts(tmp_path: Path) -> None:
    script = tmp_path / "started.py"
    script.write_text("print('started')\n")
    done = command("run", "-n", "3", "--transport", "pigeon", str(script), code=2)
    assert done.stdout == "" and done.stderr.count("pigeon") == 1
    by_variable = command("run", "-n", "3", str(script), code=2, env=environment(COLLECTIVES_TRANSPORT="pigeon"))
    assert by_variable.stdout == "" and by_variable.stderr.count("pigeon") == 1


def test_explain_explains_an_allreduce_unless_another_is_named() -> None:
    assert run("explain", "-n", "3").output == run("explain", "allreduce", "-n", "3").output
    assert len(re.findall(r"^\w+$", run("explain", "--list").output, re.MULTILINE)) > 5  # of all, not of one


# --- pictures


@pytest.mark.parametrize(
    "arguments",
    [
        ("simulate", "-n", "4", "--plot", "a.svg"),
        ("explain", "-n", "4", "--draw", "a.svg"),
        ("bench", "-n", "2", "--plot", "a.svg"),
    ],
)
def test_matplotlib_is_asked_for_before_anything_is_computed(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    printed = refused(*arguments)
    assert "drawing needs matplotlib: pip install matplotlib" in printed
    assert "algorithm" not in printed and not list(tmp_path.iterdir())
