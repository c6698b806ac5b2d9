"""What `collectives doctor` reports about CUDA devices: driver, devices, CuPy, NCCL and NVRTC.

Invariant: a machine without a device has no problem. What is missing on one that has a device is a hint, since arrays
then go through host memory. The driver is initialised, but no memory of a device is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from collectives.commands.checks import Problem, Section
from collectives.native import _engine
from collectives.native.errors import CollectiveError
from collectives.transports import leader, nccl

# Packages of CuPy, and the version of CUDA that the driver has to support; 0: the package does not tell.
_CUPY: Final = {"cupy-cuda13x": 13000, "cupy-cuda12x": 12000, "cupy": 0}


def section(env: Mapping[str, str]) -> Section:
    facts: dict[str, Any] = {}
    problems: list[Problem] = []
    devices = _devices(facts, problems)
    cupy = {name: found for name in _CUPY if (found := _version(name))}
    facts["CuPy"] = ", ".join(f"{name} {found}" for name, found in cupy.items()) or (
        "not installed; arrays of PyTorch, Numba and JAX work without it"
    )
    if devices:
        problems += cupy_problems(list(cupy), _engine.cuda_driver()[1])
    _nccl(env, devices, facts, problems)
    compiler = leader.find_compiler(env)
    facts["NVRTC"] = compiler.problem or compiler.path
    if compiler.problem and devices:
        problems.append(
            Problem("hint", compiler.problem, "until then ranks that share a device go through host memory")
        )
    if devices:
        facts["MPS"] = leader.mps(env)
    return Section("GPUs", facts, problems)


def cupy_problems(installed: Sequence[str], driver: int) -> list[Problem]:
    """What is wrong with the installed packages of CuPy; `driver`: the newest CUDA that it supports, 12040 for 12.4."""
    if len(installed) > 1:
        text = f"{' and '.join(installed)} are installed, and overwrite each other's files"
        return [Problem("hint", text, "uninstall all of them, and install the one for your driver")]
    return [
        Problem(
            "hint",
            f"{name} needs a driver for CUDA {_text(needs)}, and this one is for CUDA up to {_text(driver)}",
            f'install a newer driver, or "pycollectives[cuda{driver // 1000}]"; until then CuPy\'s arrays do not work',
        )
        for name in installed
        if (needs := _CUPY[name]) > driver
    ]


def _text(code: int) -> str:
    return f"{code // 1000}.{code % 1000 // 10}"


def _devices(facts: dict[str, Any], problems: list[Problem]) -> int:
    """The number of devices that this process can use."""
    reason = _engine.why_no_cuda()
    if reason is not None:
        facts["driver"] = reason
        if _engine.cuda_driver()[1]:  # there is one, which cannot be used
            problems.append(Problem("hint", reason, "until then arrays on devices go through host memory"))
        return 0
    file, code = _engine.cuda_driver()
    facts["driver"] = f"{file}, for CUDA up to {_text(code)}"
    try:
        found = _engine.cuda_devices()
    except CollectiveError as error:
        facts["devices"] = str(error)
        problems.append(Problem("hint", str(error), "see nvidia-smi, and CUDA_VISIBLE_DEVICES"))
        return 0
    facts["devices"] = [
        f"{d.number}: {d.name}, compute capability {d.capability // 10}.{d.capability % 10}, "
        f"{d.multiprocessors} multiprocessors"
        for d in found
    ] or "none is visible"
    return len(found)


def _nccl(env: Mapping[str, str], devices: int, facts: dict[str, Any], problems: list[Problem]) -> None:
    found = nccl.find(env)
    problem = found.problem
    if not problem:
        try:
            library = _engine.load_nccl(found.path)
            facts["NCCL"] = f"{nccl.version_text(library.version)}, {library.path} ({found.origin})"
            facts["NCCL has"] = ", ".join(library.features) or "what all versions have"
            return
        except CollectiveError as error:
            problem = str(error)
    facts["NCCL"] = problem
    if devices or env.get(nccl.VARIABLE):
        problems.append(Problem("hint", problem, "until then arrays on devices go through host memory"))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
