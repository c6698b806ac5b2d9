"""Makes the source archive, from it the wheel, installs that where nothing else is, and runs a job with it.

Invariant: what is checked is what a user's `pip install` gets: no file of the checkout is used after the build.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("native", "transports", "rendezvous", "collectives", "bench")
USE = """
import numpy as np, collectives, native._xla
with collectives.init() as comm:
    total = comm.allreduce(np.full(1000, comm.rank + 1.0))
    assert total.tolist() == [comm.size * (comm.size + 1) / 2] * 1000
    print(f"rank {comm.rank} of {comm.size} is right")
"""


def call(*command: str | Path, cwd: Path = ROOT) -> None:
    subprocess.run([str(part) for part in command], check=True, cwd=cwd)


def check_contents(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = {f"{package}/{file}" for package in PACKAGES for file in ("__init__.py", "py.typed")}
    lacking = sorted((wanted | {"native/_engine.pyi", "native/_xla.pyi"}) - names)
    built = sorted(name.split(".")[0] for name in names if name.endswith(".so"))
    known = (*(f"{package}/" for package in PACKAGES), "pycollectives-")
    extra = sorted(n for n in names if not n.startswith(known) or n.endswith((".cpp", ".hpp", ".txt", ".sh")))
    if lacking or built != ["native/_engine", "native/_xla"] or [n for n in extra if ".dist-info/" not in n]:
        raise SystemExit(f"{wheel.name}: lacking {lacking}, extensions {built}, not wanted {extra}")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="package-") as name:
        folder = Path(name)
        call(sys.executable, "-m", "build", "--outdir", folder / "dist", ROOT)
        (wheel,) = (folder / "dist").glob("*.whl")
        check_contents(wheel)
        call(sys.executable, "-m", "venv", folder / "venv")
        programs = folder / "venv" / "bin"
        call(programs / "pip", "install", "-q", "--disable-pip-version-check", wheel)
        (folder / "use.py").write_text(USE)
        call(programs / "collectives", "--version", cwd=folder)
        call(programs / "collectives", "run", "-n", "2", "use.py", cwd=folder)
        call(programs / "allreduce-bench", "--help", cwd=folder)
        (ROOT / "dist").mkdir(exist_ok=True)
        for made in (folder / "dist").iterdir():
            shutil.copy(made, ROOT / "dist")
    print(f"The package is right: {wheel.name}")


if __name__ == "__main__":
    main()
