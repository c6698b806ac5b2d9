"""Tests the library together with other packages, each in an environment of its own, by the programs in the docs.

    python -m tools.check_integrations                    # all; fetches a gigabyte
    python -m tools.check_integrations ray dask --keep ~/.cache/pycollectives/integrations

Invariant: the wheel is tested, in a folder without the library's packages, and a test that skips is a failure.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.check_package import ROOT, call

TOOLS: Final = ("pytest==9.2.0", "pytest-timeout==2.4.0")
TORCH: Final = "torch==2.13.0"


@dataclass(frozen=True, slots=True)
class Bench:
    """The folder for the virtual environments of the tests, and the wheel to install in each environment."""

    folder: Path
    wheel: Path

    def passes(self, name: str, packages: tuple[str, ...], *tests: str) -> bool:
        """Run `tests` with pytest in a virtual environment in which `packages` are installed.

        Return whether all pass and none is skipped. `name` is the name of the environment. It is created if it does not
        exist.
        """
        venv, work = self.folder / name, self.folder / f"work-{name}"
        if not (venv / "bin" / "python").exists():
            call(sys.executable, "-m", "venv", venv)
        pip = (venv / "bin" / "pip", "install", "-q", "--disable-pip-version-check")
        call(*pip, *packages, *TOOLS, self.wheel)
        call(*pip, "--force-reinstall", "--no-deps", self.wheel)
        shutil.rmtree(work, ignore_errors=True)
        for part in ("tests", "examples", "docs"):
            shutil.copytree(ROOT / part, work / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", work)
        command = [str(venv / "bin" / "python"), "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
        settings = {**os.environ, "COLLECTIVES_TESTS": "long"}
        done = subprocess.run(command, check=False, cwd=work, env=settings, stdout=subprocess.PIPE, text=True)
        print(f"== {name}: {', '.join(packages)}\n{done.stdout}", flush=True)
        return done.returncode == 0 and re.search(r"\d+ skipped", done.stdout) is None


PROGRAMS: Final = "tests/integrations/test_integrations.py"


def ray(bench: Bench) -> bool:
    return bench.passes("ray", ("ray==2.60.0",), f"{PROGRAMS}::test_ray")


def dask(bench: Bench) -> bool:
    return bench.passes("dask", ("distributed==2026.8.0",), f"{PROGRAMS}::test_dask")


def notebook(bench: Bench) -> bool:
    return bench.passes("notebook", ("nbclient==0.11.0", "ipykernel==7.4.0"), f"{PROGRAMS}::test_a_notebook")


def lightning(bench: Bench) -> bool:
    return bench.passes("lightning", (TORCH, "lightning==2.6.6"), f"{PROGRAMS}::test_lightning")


def accelerate(bench: Bench) -> bool:
    return bench.passes("accelerate", (TORCH, "accelerate==1.15.0"), f"{PROGRAMS}::test_accelerate")


def kubernetes(bench: Bench) -> bool:
    return bench.passes("kubernetes", ("kubernetes-validate==1.37.0",), "tests/test_kubernetes.py")


INTEGRATIONS: Final[Mapping[str, Callable[[Bench], bool]]] = {
    check.__name__: check for check in (ray, dask, notebook, lightning, accelerate, kubernetes)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(INTEGRATIONS)}; all by default")
    parser.add_argument("--keep", type=Path, help="where environments are kept for the next time")
    parser.add_argument("--wheel", type=Path, help="the wheel to try, instead of one that is built for it")
    wanted = parser.parse_args()
    unknown = sorted(set(wanted.names) - set(INTEGRATIONS))
    if unknown:
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(INTEGRATIONS)}")
    with tempfile.TemporaryDirectory(prefix="integrations-") as name:
        folder = wanted.keep or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        wheel = wanted.wheel
        if wheel is None:
            call(sys.executable, "-m", "build", "--outdir", Path(name) / "dist", ROOT)
            (wheel,) = (Path(name) / "dist").glob("*.whl")
        bench = Bench(folder.resolve(), wheel.resolve())
        names = wanted.names or list(INTEGRATIONS)
        failed = [name for name in names if not INTEGRATIONS[name](bench)]
    if failed:
        sys.exit(f"fails, or skips what it should try: {', '.join(failed)}")
    print(f"passes: {', '.join(names)}")


if __name__ == "__main__":
    main()
