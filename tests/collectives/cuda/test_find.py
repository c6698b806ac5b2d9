"""Where NCCL is found, and how that is reported: with a wheel, a setting, another loaded libnccl, or nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

from collectives.commands.gpus import cupy_problems
from tests.launched import _HOME
from tests.stand_in.build import StandIn, build_nccl


def python(program: str, **environment: str) -> str:
    """What the program prints, in a process that knows of no NCCL but through `environment`."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("COLLECTIVES_", "LD_LIBRARY_PATH"))}
    before = [environment.pop("FIRST")] if "FIRST" in environment else []
    paths = os.pathsep.join([*before, str(_HOME), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=False,
        capture_output=True,
        text=True,
        env={**kept, "PYTHONPATH": paths, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


FIND = "from collectives.transports import nccl; f = nccl.find(); print(f.path, f.origin, f.problem, sep='|')"


def wheel(folder: Path, library: Path, name: str = "nvidia-nccl-cu12", version: str = "2.32.3") -> Path:
    """A folder of packages with the wheel of NVIDIA that brings NCCL, as pip installs it."""
    target = folder / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    target.parent.mkdir(parents=True)
    target.symlink_to(library)
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return folder


def test_the_wheel_is_found(stand_in: StandIn, tmp_path: Path) -> None:
    packages = wheel(tmp_path, stand_in.nccl)
    path, origin, problem = python(FIND, FIRST=str(packages)).split("|")
    assert path == str(packages / "nvidia" / "nccl" / "lib" / "libnccl.so.2")
    assert (origin, problem) == ("nvidia-nccl-cu12 2.32.3", "")


def test_a_wheel_for_newer_drivers_is_refused(stand_in: StandIn, tmp_path: Path) -> None:
    packages = wheel(tmp_path, stand_in.nccl, "nvidia-nccl-cu13")
    old = {"LD_LIBRARY_PATH": str(stand_in.folder), "STAND_IN_CUDA": "12040"}
    assert "needs a driver for CUDA 13, but this one supports CUDA up to 12.4" in python(
        FIND, FIRST=str(packages), **old
    )
    assert python(FIND, FIRST=str(packages), LD_LIBRARY_PATH=str(stand_in.folder)).endswith("nvidia-nccl-cu13 2.32.3|")


def test_the_setting_comes_first_and_must_be_a_file(stand_in: StandIn) -> None:
    assert f"{stand_in.nccl}|COLLECTIVES_NCCL|" == python(FIND, COLLECTIVES_NCCL=str(stand_in.nccl))
    for wrong in ("libnccl.so.2", "/no/such/libnccl.so.2"):
        assert "not the absolute path of a file" in python(FIND, COLLECTIVES_NCCL=wrong)


def test_the_loaded_one_is_used_and_no_second_one(stand_in: StandIn, tmp_path: Path) -> None:
    load = f"import ctypes; ctypes.CDLL({str(stand_in.nccl)!r}); "
    library = {"LD_LIBRARY_PATH": str(stand_in.folder)}
    assert python(load + FIND, **library) == f"{stand_in.nccl}|loaded in this process already|"
    other = build_nccl(stand_in.folder, tmp_path / "libnccl.so.2")
    assert "may call each other's functions" in python(load + FIND, COLLECTIVES_NCCL=str(other), **library)
    both = load + f"ctypes.CDLL({str(other)!r}); "
    assert "2 different libnccl" in python(both + FIND, **library)


@pytest.mark.parametrize(
    ("defines", "text"),
    [
        (("STAND_IN_VERSION=21703",), "is NCCL 2.17.3, older than 2.18.0"),
        (("ncclCommSplit=other",), "but lacks ncclCommSplit"),
        (("ncclGetVersion=other",), "is no libnccl"),
    ],
)
def test_what_cannot_be_used_is_refused(defines: tuple[str, ...], text: str, stand_in: StandIn, tmp_path: Path) -> None:
    wrong = build_nccl(stand_in.folder, tmp_path / "libnccl.so.2", *defines)
    program = f"from collectives.native import _engine; _engine.load_nccl({str(wrong)!r})"
    program = f"try:\n  {program}\nexcept Exception as e: print(type(e).__name__, e)"
    said = python(program, LD_LIBRARY_PATH=str(stand_in.folder))
    assert said.startswith("TransportUnavailable") and text in said and "COLLECTIVES_NCCL" in said


def gpus(**environment: str) -> dict[str, Any]:
    program = "import json, os; from collectives.commands import gpus; s = gpus.section(os.environ); "
    program += "print(json.dumps([dict(s.facts), [p.text for p in s.problems]]))"
    facts, problems = json.loads(python(program, **environment))
    return {**facts, "problems": problems}


def test_doctor_reports_what_is_there(stand_in: StandIn, tmp_path: Path) -> None:
    packages = wheel(tmp_path, stand_in.nccl)
    nvrtc = str(stand_in.folder / "libnvrtc.so.12")
    found = gpus(
        FIRST=str(packages), LD_LIBRARY_PATH=str(stand_in.folder), STAND_IN_DEVICES="2", COLLECTIVES_NVRTC=nvrtc
    )
    assert found["driver"] == f"{stand_in.folder / 'libcuda.so.1'}, for CUDA up to 13.0"
    assert found["devices"][1] == "1: stand-in 1, compute capability 9.0, 4 multiprocessors"
    assert found["NCCL"].startswith("2.32.3, ") and "nvidia-nccl-cu12 2.32.3" in found["NCCL"]
    assert found["problems"] == []


def test_doctor_says_what_is_missing(stand_in: StandIn) -> None:
    library = {"LD_LIBRARY_PATH": str(stand_in.folder)}
    found = gpus(**library)
    if "not installed" in found["NCCL"]:
        assert any("NCCL is not installed" in text for text in found["problems"])
    found = gpus(STAND_IN_CUDA="11080", **library)
    assert any("supports CUDA up to 11.8" in text for text in found["problems"])
    found = gpus(COLLECTIVES_NCCL="/no/such", **library)
    assert any("/no/such" in text for text in found["problems"])


def _is_installed(package: str) -> bool:
    try:
        return bool(version(package))
    except PackageNotFoundError:
        return False


def test_doctor_compares_cupy_with_the_driver(stand_in: StandIn, tmp_path: Path) -> None:
    info = tmp_path / "cupy_cuda13x-14.2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: cupy-cuda13x\nVersion: 14.2.0\n")
    library = {"FIRST": str(tmp_path), "LD_LIBRARY_PATH": str(stand_in.folder)}
    wanted = "cupy-cuda13x needs a driver for CUDA 13.0, and this one is for CUDA up to 12.4"
    installed = [name for name in ("cupy-cuda12x", "cupy") if _is_installed(name)]
    if installed:  # then both is what is wrong, whatever the driver
        wanted = f"cupy-cuda13x and {' and '.join(installed)} are installed, and overwrite each other's files"
    assert wanted in gpus(STAND_IN_CUDA="12040", **library)["problems"]
    assert (wanted in gpus(**library)["problems"]) == bool(installed)


@pytest.mark.parametrize(
    ("installed", "driver", "text"),
    [
        ([], 12040, None),
        (["cupy-cuda12x"], 12040, None),
        (["cupy-cuda12x"], 11080, "needs a driver for CUDA 12.0"),
        (["cupy"], 12040, None),
        (["cupy-cuda13x", "cupy-cuda12x"], 13000, "overwrite each other's files"),
    ],
)
def test_packages_of_cupy(installed: list[str], driver: int, text: str | None) -> None:
    problems = cupy_problems(installed, driver)
    assert len(problems) == (text is not None)
    assert all(text is not None and text in one.text for one in problems)


@pytest.mark.parametrize(
    ("broken", "variables", "why"),
    [
        (True, {}, "libcuda.so.1"),
        (False, {"CUDA_VISIBLE_DEVICES": "-1"}, "no CUDA device is visible: CUDA_VISIBLE_DEVICES is '-1'"),
    ],
    ids=["no driver", "no visible device"],
)
def test_a_process_without_a_device_says_why(
    broken: bool, variables: dict[str, str], why: str, stand_in: StandIn, tmp_path: Path
) -> None:
    program = "import collectives\nfor options in ({'transport': 'nccl'}, {}):\n"
    program += "  try:\n    with collectives.init(rank=0, size=1, **options) as comm: comm.prepare()\n"
    program += "  except collectives.TransportUnavailable as e: print(e)"
    (tmp_path / "libcuda.so.1").touch()
    folder = tmp_path if broken else stand_in.folder
    refused, unprepared = python(program, LD_LIBRARY_PATH=str(folder), **variables).splitlines()
    assert "nccl" in refused and why in refused, refused
    assert unprepared.startswith("rank 0: this process uses no CUDA device: ") and why in unprepared, unprepared
