"""Measures two ranks that share device 0, and prints each figure beside its bar: those of docs/gpu.md.

Run it alone, on a device that nothing else uses: `python tests/gpu/sharing.py`, or with `--mps` where MPS runs. It
starts its ranks itself. NCCL with its switch is measured by another pair of ranks, under MPS by one for each bound of
its thread blocks, and by one that calls NCCL itself on memory in its symmetric windows; the floors (copy rate, switch
between processes, bus) by the first pair.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

HOME: Final = Path(__file__).parents[2]
SIZES: Final = (8, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20)
STAGED: Final = "allreduce any any any staging memory=cuda"
LIMIT: Final = 200.0  # seconds for one pair of ranks


SWITCH: Final = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}
BOUNDS: Final = ("", "16", "32")  # of NCCL's thread blocks, under MPS; "": its own choice
# Bare calls of NCCL on memory in windows; both ranks on the first device.
WINDOWS: Final = {
    **SWITCH,
    "NCCL_MAX_CTAS": "32",
    "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0],
}


def under_mps() -> int:
    led = pair("leader", {})
    if "problem" in led:
        print(led["problem"])
        return 1
    found = {bound or "default": pair("nccl", {**SWITCH, "COLLECTIVES_NCCL_MAX_CTAS": bound}) for bound in BOUNDS}
    found["windows"] = pair("windows", WINDOWS)
    print(led.get("machine", "no machine was described"), "under MPS")
    print(f"{'figure':58} {'measured':>12} {'bar':>8}")
    for size in SIZES:
        times = {bound: one[f"allreduce {size}"] for bound, one in found.items() if f"allreduce {size}" in one}
        line(f"allreduce of {size} bytes, leader, us", led[f"allreduce {size}"])
        if times:
            best = min(times, key=lambda bound: times[bound])
            line(
                f"allreduce of {size} bytes, best NCCL ({best}) / leader",
                times[best] / led[f"allreduce {size}"],
                2.0 if size >= 16 << 20 else 1.3,
            )
    line("allreduce between kernels, us", led["with kernels"])
    line("two switches between processes, us", led["two switches"])
    if "problem" in found["windows"]:
        print(f"NCCL with windows: {found['windows']['problem']}")
    return 0


def main() -> int:
    led = pair("leader", {})
    if "problem" in led:
        print(led["problem"])
        return 1
    nccl = pair("nccl", SWITCH)
    print(led.get("machine", "no machine was described"))
    if "problem" in nccl:
        print(nccl["problem"])
    print(f"{'figure':58} {'measured':>12} {'bar':>8}")
    for size in SIZES:
        ours, theirs = led[f"allreduce {size}"], nccl.get(f"allreduce {size}")
        line(f"allreduce of {size} bytes, leader, us", ours, 25.0 if size == 4 << 10 else None, below=True)
        if theirs is not None:
            line(f"allreduce of {size} bytes, NCCL / leader", theirs / ours, 50.0 if size <= 16 << 20 else None)
        if size >= 64 << 20:
            line(f"bytes moved at {size}, % of the copy rate", 100 * 2 * 2 * size / ours / 1e6 / led["copy rate"], 85.0)
    ratio = led["with kernels"] / led["two switches"]
    line("allreduce between kernels, against two switches", ratio, 1.15, below=True)
    line("staging of 64 MiB, % of the bus both ways", 100 * led["staging"] / led["bus"], 70.0)
    line("two switches between processes, us", led["two switches"])
    line("copy rate within the device, TB/s", led["copy rate"])
    line("bus both ways at once, GB/s", 1000 * led["bus"])
    return 0


def line(what: str, value: float, bar: float | None = None, below: bool = False) -> None:
    reached = "" if bar is None else " yes" if (value <= bar if below else value >= bar) else " MISSED"
    print(f"{what:58} {value:12.2f} {'' if bar is None else bar:>8}{reached}")


def pair(transport: str, variables: dict[str, str]) -> dict[str, Any]:
    """What rank 0 of two ranks has measured; "problem" if that is nothing."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = []
        for rank in range(2):
            env = {
                **os.environ,
                **variables,
                "PYTHONPATH": os.pathsep.join([str(HOME), *sys.path]),
                "COLLECTIVES_STORE": f"file://{folder}/store",
                "COLLECTIVES_SIZE": "2",
                "COLLECTIVES_RANK": str(rank),
                "COLLECTIVES_CALIBRATE": "off",
            }
            if not env.get("COLLECTIVES_NCCL_MAX_CTAS"):
                env.pop("COLLECTIVES_NCCL_MAX_CTAS", None)
            command = [sys.executable, __file__, transport, f"{folder}/found"]
            ranks.append(subprocess.Popen(command, env=env))
        try:
            for one in ranks:
                one.wait(LIMIT)
            why = f"ended with {[one.returncode for one in ranks]}; what they printed is above, or in stderr"
        except subprocess.TimeoutExpired:
            why = f"were not over after {LIMIT} s"
        finally:
            for one in ranks:
                one.kill()
                one.wait()
        found = Path(folder, "found")
        if found.exists():
            return dict(json.loads(found.read_text()))
        return {"problem": f"{transport}: its two ranks have measured nothing: they {why}"}


def rank_with_windows(target: str) -> None:
    """Measures bare calls of NCCL whose arrays are in symmetric windows."""
    import cupy as cp

    from collectives.bench.peers.nccl import Member
    from collectives.transports import nccl

    rank = int(os.environ["COLLECTIVES_RANK"])
    member = Member(nccl.find().path, Path(target).parent, 2, rank)
    found: dict[str, Any] = {}

    def in_window(size: int) -> Any:
        memory = cp.cuda.UnownedMemory(member.window(max(size, 4)), max(size, 4), member)
        return cp.ndarray((max(size // 4, 1),), cp.float32, cp.cuda.MemoryPointer(memory, 0))

    try:
        whole, result = in_window(SIZES[-1]), in_window(SIZES[-1])
    except NotImplementedError as error:
        save({"problem": str(error)}, target)
        return
    whole.fill(1)
    for size in SIZES:
        count = max(size // 4, 1)
        call = member.allreduce(whole[:count], result[:count])
        times = []
        for _ in range(50 if size < 64 << 20 else 10):
            at = time.perf_counter()
            call()
            member.settle()
            times.append(time.perf_counter() - at)
        found[f"allreduce {size}"] = 1e6 * statistics.median(times[1:])
        assert float(result[0]) == 2.0 and float(result[count - 1]) == 2.0, "a wrong result"
    save(found, target)
    member.barrier()


def rank_of_pair(transport: str, target: str) -> None:
    if transport == "windows":
        rank_with_windows(target)
        return
    import cupy as cp

    import collectives

    found: dict[str, Any] = {}
    stream = cp.cuda.Stream(non_blocking=True)

    def micros(call: Callable[[], Any], count: int = 50) -> float:
        """The median time of a call with synchronisation, in microseconds. Both ranks make as many calls."""
        times = []
        for _ in range(count):
            at = time.perf_counter()
            call()
            stream.synchronize()
            times.append(time.perf_counter() - at)
        return 1e6 * statistics.median(times[1:])

    with cp.cuda.Device(0), stream, collectives.init(transport=transport, timeout=60.0) as comm:
        for size in SIZES:
            x = cp.ones(max(size // 4, 1), cp.float32)
            y = cp.empty_like(x)
            found[f"allreduce {size}"] = micros(comm.allreduce_plan(x, out=y), 50 if size < 64 << 20 else 10)
            assert float(y[0]) == 2.0 and float(y[-1]) == 2.0, "a wrong result"
        if transport != "leader":
            save(found, target)
            return
        small = cp.ones(1024, cp.float32)
        result = cp.empty_like(small)

        def between() -> None:
            cp.multiply(small, 1.0, out=small)
            comm.allreduce(small, out=result)
            cp.multiply(result, 1.0, out=result)

        def switched() -> None:  # from rank 0's kernel to rank 1's, and back for the next call
            cp.multiply(small, 1.0, out=small)
            stream.synchronize()
            host.barrier()

        found["with kernels"] = micros(between)
        with collectives.init(name="host", transport="shm") as host:
            found["two switches"] = micros(switched)
            found["staging"] = staging(cp, host, stream)
            if host.rank == 0:
                found |= floors(cp)
                found["machine"] = machine(cp)
            host.barrier()
    save(found, target)


def staging(cp: Any, host: Any, stream: Any) -> float:
    """The rate at which both ranks' arrays of 64 MiB pass the bus both ways in an allreduce, in TB/s."""
    import collectives
    from collectives.schedule.table import parse

    x = cp.ones(16 << 20, cp.float32)
    y = cp.empty_like(x)
    times = []
    with collectives.init(name="staging", table=parse(STAGED)) as comm:
        for _ in range(6):
            host.barrier()
            at = time.perf_counter()
            comm.allreduce(x, out=y)
            stream.synchronize()
            times.append(time.perf_counter() - at)
        assert float(y[0]) == 2.0, "a wrong result"
    return 2 * 2 * int(x.nbytes) / min(times) / 1e12


def save(found: dict[str, Any], target: str) -> None:
    if os.environ["COLLECTIVES_RANK"] == "0":
        Path(target).write_text(json.dumps(found))


def floors(cp: Any) -> dict[str, float]:
    """The rate at which this device copies within its memory, and over the bus both ways at once, in TB/s."""
    source, target = cp.ones(256 << 20, cp.uint8), cp.empty(256 << 20, cp.uint8)

    def best(call: Callable[[], Any]) -> float:
        times = []
        for _ in range(8):
            cp.cuda.runtime.deviceSynchronize()
            at = time.perf_counter()
            call()
            cp.cuda.runtime.deviceSynchronize()
            times.append(time.perf_counter() - at)
        return min(times)

    copied = best(lambda: cp.copyto(target, source))
    up, down = cp.cuda.Stream(non_blocking=True), cp.cuda.Stream(non_blocking=True)
    pinned = [cp.cuda.alloc_pinned_memory(64 << 20) for _ in range(2)]

    def both() -> None:
        source.data.copy_from_host_async(pinned[0].ptr, 64 << 20, up)
        target.data.copy_to_host_async(pinned[1].ptr, 64 << 20, down)

    return {"copy rate": 2 * source.nbytes / copied / 1e12, "bus": 2 * (64 << 20) / best(both) / 1e12}


def machine(cp: Any) -> str:
    properties = cp.cuda.runtime.getDeviceProperties(0)
    return (
        f"{properties['name'].decode()}, driver for CUDA {cp.cuda.runtime.driverGetVersion()}, CuPy {cp.__version__}, "
        f"Python {sys.version.split()[0]}"
    )


if __name__ == "__main__":
    if len(sys.argv) == 3:
        rank_of_pair(*sys.argv[1:])
    else:
        sys.exit(under_mps() if sys.argv[1:] == ["--mps"] else main())
