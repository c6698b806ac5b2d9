"""Makes the source archive, and the wheel from it, installs the wheel in an empty environment, and runs a job there.

    python -m tools.check_package              # leaves both files in dist/
    python -m tools.check_package --publish    # also checks whether a package index would accept them

Invariant: the check uses what a user's `pip install` gets: no file of the checkout is used after the build.
"""

from __future__ import annotations

import argparse
import email
import functools
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
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


def make(folder: Path) -> Path:
    """Make the source archive, and from it alone the wheel, both in `folder`/dist; returns the wheel's path."""
    made, build = folder / "dist", (sys.executable, "-m", "build", "--outdir", folder / "dist")
    call(*build, "--sdist", "--no-isolation", ROOT)
    (archive,) = made.glob("*.tar.gz")
    # Where ccache is used, it finds what `make dev` has compiled: it compares paths relative to the sources, and a
    # checkout's environment, too, is in .venv.
    sources = folder / archive.name.removesuffix(".tar.gz")
    call(*build, "--wheel", "--sdist-extract-dir", folder, "--env-dir", sources / ".venv", archive)
    (wheel,) = made.glob("*.whl")
    return wheel


def environment(folder: Path) -> Callable[..., None]:
    """An empty environment in `folder`; returns what installs packages in it, given pip's arguments."""
    call(sys.executable, "-m", "venv", "--without-pip", folder)
    pip = (sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "-q", "--no-compile")
    return functools.partial(call, *pip, "--disable-pip-version-check")


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
    environment(folder / "twine")(TWINE)
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
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="package-", dir=ROOT / "build") as name:
        folder = Path(name)
        wheel = make(folder)
        check_contents(wheel)
        environment(folder / "venv")(wheel)
        programs = folder / "venv" / "bin"
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
