"""The leader's kernels, compiled by NVIDIA's compiler for several generations of devices. No device is needed."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from collectives.arrays.dtypes import dtype_names
from collectives.native import _engine
from collectives.transports.leader import find_compiler

SOURCE: Final = Path(__file__).parents[3] / "native" / "src"
HEADER: Final = "cuda/kernel_arguments.hpp"
CAPABILITIES: Final = (75, 80, 90)  # NVRTC of CUDA 13 has none below 75


@pytest.fixture(scope="module")
def nvrtc() -> Any:
    found = find_compiler()
    if found.problem:
        pytest.skip(f"needs NVRTC (pip install nvidia-cuda-nvrtc-cu12): {found.problem}")
    return ctypes.CDLL(found.path)


def compiled(nvrtc: Any, architecture: str, options: list[str]) -> tuple[bytes, str]:
    """The PTX of the kernels, and what the compiler has to say."""
    program = ctypes.c_void_p()
    texts = (ctypes.c_char_p * 1)((SOURCE / HEADER).read_bytes())
    names = (ctypes.c_char_p * 1)(HEADER.encode())
    kernels = (SOURCE / "cuda/kernels.cu").read_bytes()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), kernels, b"kernels.cu", 1, texts, names) == 0
    flags = ["--std=c++17", "--fmad=false", f"--gpu-architecture=compute_{architecture}", *options]
    code = nvrtc.nvrtcCompileProgram(program, len(flags), (ctypes.c_char_p * len(flags))(*map(str.encode, flags)))
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    assert code == 0, log.value.decode()
    nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size))
    ptx = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetPTX(program, ptx)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return ptx.value, log.value.decode()


@pytest.mark.parametrize("dtype", [*dtype_names().values()])
def test_reductions_are_compiled_without_a_warning(dtype: str, nvrtc: Any) -> None:
    element = "boolean" if dtype == "bool" else dtype
    for op in ("prod" if dtype.startswith("complex") else "max", *(() if dtype == "bool" else ("avg",))):
        options = [f"-DCOLLECTIVES_ELEMENT={element}", f"-DCOLLECTIVES_OP={_engine.OPS[op]}"]
        ptx, log = compiled(nvrtc, "80", options)
        assert log == "" and b".entry collectives_reduce" in ptx
        assert b"fma.rn" not in ptx  # which would round otherwise than the CPU


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_the_assembler_accepts_them(capability: int, nvrtc: Any, tmp_path: Path) -> None:
    assembler = shutil.which("ptxas")
    if assembler is None:
        pytest.skip("needs ptxas (nvidia-cuda-nvcc-cu12) in PATH")
    for options in ([], ["-DCOLLECTIVES_ELEMENT=float16", "-DCOLLECTIVES_OP=0"]):
        ptx, _ = compiled(nvrtc, str(capability), options)
        (tmp_path / "kernels.ptx").write_bytes(ptx)
        command = [assembler, "-v", f"-arch=sm_{capability}", str(tmp_path / "kernels.ptx"), "-o", "/dev/null"]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "0 bytes spill stores, 0 bytes spill loads" in done.stderr, done.stderr
