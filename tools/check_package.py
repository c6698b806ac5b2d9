"""Makes the source archive, and the wheel from it, installs the wheel in an empty environment, and runs a job there.

    python -m tools.check_package              # leaves both files in dist/
    python -m tools.check_package --publish    # also checks whether a package index would accept them

Invariant: the check uses what a user's `pip install` gets: no file of the checkout is used after the build.
"""

from __future__ import annotations

import argparse
import email
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TWINE = "twine==7.0.0"
PLACEHOLDER = ".example/"  # a top-level domain that is reserved for examples
PACKAGES = ("collectives", *(f"collectives/{name}" for name in ("native", "transports", "rendezvous", "bench")))
HEADERS = "collectives/native/include/collectives"  # for links and engines of other packages
USE = """
import numpy as np, collectives, collectives.native._xla
with collectives.init() as comm:
    total = comm.allreduce(np.full(1000, comm.rank + 1.0))
    assert total.tolist() == [comm.size * (comm.size + 1) / 2] * 1000
    print(f"rank {comm.rank} of {comm.size} is right")
"""

# The check makes a user's folders with the names of the library's folders, without an __init__.py. Python may import
# such a folder only if no installed package has its name.
THEIRS = ("native", "transports", "rendezvous", "bench")
FIND_THEIRS = """
import importlib, sys
import collectives, collectives.bench.sizes
for name in sys.argv[1:]:
    assert list(importlib.import_module(name).__path__) == [f"{sys.path[0]}/{name}"], name
"""


def call(*command: str | Path, cwd: Path = ROOT) -> None:
    subprocess.run([str(part) for part in command], check=True, cwd=cwd)


def check_contents(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = {f"{package}/{file}" for package in PACKAGES for file in ("__init__.py", "py.typed")}
    headers = {n for n in names if n.startswith(f"{HEADERS}/") and n.endswith(".hpp")}
    wanted |= {"collectives/native/_engine.pyi", "collectives/native/_xla.pyi", f"{HEADERS}/link/link.hpp"}
    lacking = sorted(wanted - names)
    built = sorted(name.split(".")[0] for name in names if name.endswith(".so"))
    known = ("collectives/", "pycollectives-")
    sources = (".cpp", ".hpp", ".txt", ".sh", ".map")
    extra = sorted(n for n in names - headers if not n.startswith(known) or n.endswith(sources))
    if (
        lacking
        or built != ["collectives/native/_engine", "collectives/native/_xla"]
        or [n for n in extra if ".dist-info/" not in n]
    ):
        raise SystemExit(f"{wheel.name}: lacking {lacking}, extensions {built}, not wanted {extra}")


def check_metadata(folder: Path, made: Path) -> None:
    """Check the metadata of the package with twine, as a package index does.

    Also check that its URLs are not placeholders. `made` is the folder with the wheel and the source archive. Raises:
    SystemExit.
    """
    call(sys.executable, "-m", "venv", folder / "twine")
    call(folder / "twine" / "bin" / "pip", "install", "-q", "--disable-pip-version-check", TWINE)
    archives = sorted(made.iterdir())
    call(folder / "twine" / "bin" / "twine", "check", "--strict", *archives)
    (wheel,) = made.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = email.message_from_bytes(archive.read(name))
    urls = metadata.get_all("Project-URL") or []
    unset = [url for url in urls if PLACEHOLDER in url]
    if unset or not urls:
        raise SystemExit(f"pyproject.toml, [project.urls]: these are placeholders: {'; '.join(unset) or 'none given'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--publish", action="store_true", help="check also what an index wants; fetches twine")
    publish = parser.parse_args().publish
    with tempfile.TemporaryDirectory(prefix="package-") as name:
        folder = Path(name)
        call(sys.executable, "-m", "build", "--outdir", folder / "dist", ROOT)
        (wheel,) = (folder / "dist").glob("*.whl")
        check_contents(wheel)
        call(sys.executable, "-m", "venv", folder / "venv")
        programs = folder / "venv" / "bin"
        call(programs / "pip", "install", "-q", "--disable-pip-version-check", wheel)
        (folder / "use.py").write_text(USE)
        for theirs in THEIRS:
            (folder / theirs).mkdir()
        (folder / "theirs.py").write_text(FIND_THEIRS)
        call(programs / "python", "theirs.py", *THEIRS, cwd=folder)
        call(programs / "collectives", "--version", cwd=folder)
        call(programs / "collectives", "run", "-n", "2", "use.py", cwd=folder)
        call(programs / "allreduce-bench", "--help", cwd=folder)
        if publish:
            check_metadata(folder, folder / "dist")
        (ROOT / "dist").mkdir(exist_ok=True)
        for made in (folder / "dist").iterdir():
            shutil.copy(made, ROOT / "dist")
    print(f"The package is right: {wheel.name}")


if __name__ == "__main__":
    main()
