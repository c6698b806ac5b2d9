"""The programs of docs/integrations.md and docs/lightning.md, run as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.depth import LONG
from tests.documents import block
from tests.lazily import needs
from tests.rendezvous.processes import environment
from tests.warm.parents import TORCH, interpreter

WARM = ("lightning", "lightning.pytorch", "accelerate", *TORCH)
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def run(folder: Path, program: str, *before: str, warm: tuple[str, ...] = (), **variables: str) -> str:
    """What it prints. Nothing of a job around these tests reaches it. `warm`: as in `launched`."""
    (folder / "program.py").write_text(program)
    kept = {k: v for k, v in environment().items() if not k.startswith(("COLLECTIVES_", "OMP_"))}
    settings = {**kept, "COLLECTIVES_CALIBRATE": "off", "OMP_NUM_THREADS": "1", **variables}
    command = [interpreter(warm, settings) if warm else sys.executable, *before, str(folder / "program.py")]
    with subprocess.Popen(
        command, cwd=folder, env=settings, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as started:
        try:
            output, errors = started.communicate(timeout=110)
        finally:
            started.kill()
    assert started.returncode == 0, f"{output}\n{errors}"
    return output


def test_ray(tmp_path: Path) -> None:
    needs("ray", "pip install ray, or python -m tools.check_integrations ray")
    local = block("integrations.md", "## Ray").replace("ray.init()", "ray.init(num_cpus=2, include_dashboard=False)")
    # Ray's sockets have paths in its folder, and those of sockets are short
    output = run(tmp_path, local, RAY_ENABLE_UV_RUN_RUNTIME_ENV="0", RAY_USAGE_STATS_ENABLED="0")
    assert "[[3.0, 3.0, 3.0], [3.0, 3.0, 3.0]]" in output


def test_dask(tmp_path: Path) -> None:
    needs("distributed", "pip install distributed, or python -m tools.check_integrations dask")
    output = run(tmp_path, block("integrations.md", "## Dask"))
    assert "[[3.0, 3.0, 3.0], [3.0, 3.0, 3.0]]" in output


# Under torchrun, too, in the long form, which `tools.check_integrations` runs: accelerate is started so in any case.
@pytest.mark.parametrize("before", [(), TORCHRUN] if LONG else [()])
def test_lightning(before: tuple[str, ...], tmp_path: Path) -> None:
    needs("lightning", "pip install lightning, or python -m tools.check_integrations lightning")
    output = run(tmp_path, block("lightning.md", "## Lightning"), *before, warm=WARM)
    assert sorted(re.findall(r"rank . of 2, collectives", output)) == [
        f"rank {rank} of 2, collectives" for rank in (0, 1)
    ]


def test_accelerate(tmp_path: Path) -> None:
    needs("accelerate", "pip install accelerate, or python -m tools.check_integrations accelerate")
    output = run(tmp_path, block("lightning.md", "## accelerate"), *TORCHRUN, warm=WARM)
    for rank in (0, 1):
        assert f"rank {rank} of 2, collectives, 2 losses" in output


def test_a_notebook() -> None:
    """The cell twice, then with a rank that raises, which ends it, then as before."""
    needs("ipykernel", "pip install ipykernel, or python -m tools.check_integrations notebook")
    nbformat = pytest.importorskip("nbformat", reason="pip install nbclient")
    nbclient = pytest.importorskip("nbclient", reason="pip install nbclient")
    cell = block("integrations.md", "## Notebooks")
    broken = cell.replace("        return", "        assert rank != 2, 'rank 2 gives up'\n        return")
    assert broken != cell
    setup = f"import sys; sys.path[:0] = {[entry for entry in sys.path if entry]!r}"
    cells = [nbformat.v4.new_code_cell(source) for source in (setup, cell, cell, broken, cell)]
    cells[3].metadata["tags"] = ["raises-exception"]
    notebook = nbformat.v4.new_notebook(cells=cells)
    before = os.environ.get("COLLECTIVES_CALIBRATE")
    assert before == "off"  # which the kernel inherits
    nbclient.NotebookClient(notebook, timeout=100, kernel_name="python3").execute()
    shown = ["".join(output.get("text", "") for output in done.outputs) for done in cells]
    for index in (1, 2, 4):
        assert shown[index] == f"{[[10.0] * 3] * 4}\n", cells[index].outputs
    (error,) = [output for output in cells[3].outputs if output.output_type == "error"]
    assert error.ename in ("PeerLost", "AssertionError"), error
