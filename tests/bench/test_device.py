"""`collectives bench --device cuda` on the stand-ins for the driver, NCCL and CuPy, and without a device.

Figures of stand-ins mean nothing and are not looked at: only which columns there are, that results are checked, and
what is said where something is missing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest

from collectives.native import _engine
from tests.bench.running import COMMAND, HOME, environment, table
from tests.finished import finished
from tests.stand_in.build import HERE, StandIn, older_nccl

QUICK = ("--device", "cuda", "-b", "4K", "-e", "4K", "-w", "1", "--iters", "3", "--rounds", "2")


def variables(found: StandIn, files: Path, **more: str) -> dict[str, str]:
    path = os.pathsep.join([str(HERE / "modules"), str(HOME)])
    return environment(**found.environment(files), PYTHONPATH=path, **more)


def bench(
    *arguments: str, env: Mapping[str, str], folder: Path | None = None, code: int = 0
) -> subprocess.CompletedProcess[str]:
    """`collectives bench ...` in a new process: a forked one would not find other shared objects."""
    done = finished([*COMMAND, "bench", *arguments], cwd=folder, env=env)
    assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def test_columns_floors_and_nccl(stand_in: StandIn, tmp_path: Path) -> None:
    arguments = (*QUICK, "--limits", "--peers", "nccl,cupy,torch-nccl", "--json", "run.json")
    done = bench("allreduce", *arguments, folder=tmp_path, env=variables(stand_in, tmp_path))
    (line,) = table(done.stdout)
    assert line[5] == "nccl" and line[9] == line[13] == "0", done.stdout
    assert "1 rank on stand-in 0 (device 0)" in done.stdout and "CuPy stand-in" in done.stdout
    assert "Wrong values         : 0 OK" in done.stdout
    found = json.loads((tmp_path / "run.json").read_text())["results"][0]["measurements"]
    assert list(found) == ["out-of-place", "in-place", "copy", "launch", "hop", "nccl", "cupy", "torch-nccl"]
    for name in ("out-of-place", "in-place", "copy", "launch", "nccl"):
        assert found[name]["wrong"] == 0 and [len(samples) for samples in found[name]["rounds"]] == [3, 3], name
    assert found["hop"]["iterations"] == 6
    assert "cannot import name 'nccl'" in found["cupy"]["unsupported"]  # the stand-in for CuPy has none
    assert "torch" in found["torch-nccl"]["unsupported"]


IN_WINDOWS = """
import ctypes, sys
from pathlib import Path
import cupy
from collectives.bench.peers.nccl import Member
from collectives.transports import nccl

rank = int(sys.argv[1])
member = Member(nccl.find().path, Path(sys.argv[2]), 2, rank)

def in_window(value):
    address = member.window(4096)
    interface = {"shape": (1024,), "typestr": "<f4", "data": (address, False), "strides": None, "version": 3}
    made = cupy.asarray(type("Window", (), {"__cuda_array_interface__": interface})())
    made.fill(value)
    return made

x, y = in_window(rank + 1.0), in_window(0.0)
call = member.allreduce(x, y)
call()
member.settle()
assert (y.get() == 3.0).all(), y.get()
member.barrier()
member.close()
"""


def test_nccl_on_memory_in_windows(stand_in: StandIn, tmp_path: Path) -> None:
    """What tests/gpu/sharing.py compares with; without the function, the reason is said."""
    env = variables(stand_in, tmp_path)
    commands = [[sys.executable, "-c", IN_WINDOWS, str(rank), str(tmp_path)] for rank in range(2)]
    running = [subprocess.Popen(one, env=env, stderr=subprocess.PIPE, text=True) for one in commands]
    for one in running:
        _, error = one.communicate(timeout=60)
        assert one.returncode == 0, error
    old = {**env, "COLLECTIVES_NCCL": str(older_nccl(stand_in, 22303))}
    done = finished([sys.executable, "-c", IN_WINDOWS.replace(", 2, rank", ", 1, 0"), "0", str(tmp_path)], env=old)
    assert "NotImplementedError: NCCL 2.23.3 has no ncclCommWindowRegister" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("transport", "name"),
    [("leader", "allreduce"), ("leader", "alltoall"), ("nccl", "reduce_scatter"), ("nccl", "broadcast")],
)
def test_one_transport(transport: str, name: str, stand_in: StandIn, tmp_path: Path) -> None:
    devices = {"STAND_IN_DEVICES": "1"} if transport == "leader" else {}
    done = bench(name, *QUICK, "--transport", transport, env=variables(stand_in, tmp_path, **devices))
    (line,) = table(done.stdout)
    assert line[5] == transport and {line[9], line[13]} <= {"0", "N/A"}, done.stdout


def test_all_of_them(stand_in: StandIn, tmp_path: Path) -> None:
    done = bench("all", *QUICK, "--peers", "nccl", "--buffers", "shared", env=variables(stand_in, tmp_path))
    lines = table(done.stdout)
    assert len(lines) == 10 and all({line[9], line[13]} <= {"0", "N/A"} for line in lines), done.stdout
    assert {line[5] for line in lines} == {"nccl", "staging"}
    assert "nccl: NCCL has no scan" in done.stdout and "!" not in done.stdout


def test_without_a_device() -> None:
    if _engine.why_no_cuda() is None:
        pytest.skip("this machine has a CUDA driver")
    done = bench("--device", "cuda", code=3, env=environment())
    assert "TransportUnavailable: --device cuda: " in done.stderr and "driver" in done.stderr
    assert done.stdout == ""


@pytest.mark.skipif(find_spec("cupy") is not None, reason="CuPy is installed")
def test_without_cupy(stand_in: StandIn, tmp_path: Path) -> None:
    env = {**variables(stand_in, tmp_path), "PYTHONPATH": str(HOME)}
    done = bench("--device", "cuda", code=3, env=env)
    assert "TransportUnavailable" in done.stderr and 'pip install "pycollectives[cuda12]"' in done.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--device", "cuda", "--peers", "gloo"), "--peers gloo: with --device cuda there are nccl"),
        (("--peers", "nccl"), "without it gloo"),
        (("--device", "cuda", "--trace", "resnet50"), "not with --device cuda"),
        (("--device", "cuda", "--memory"), "not with --device cuda"),
        (("barrier", "--device", "cuda"), "barrier has no arrays"),
        (("--device", "gpu"), "'cuda'"),
        (("--transport", "nccl"), "--transport nccl is for arrays on devices: give --device cuda"),
    ],
)
def test_wrong_command_lines(arguments: tuple[str, ...], text: str) -> None:
    assert text in bench(*arguments, code=2, env=environment()).stderr
