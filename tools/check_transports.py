"""Builds the library without each of its transports in turn, and runs the conformance suite with each build.

    python -m tools.check_transports            # all
    python -m tools.check_transports shm        # without shm

Invariant: each build is installed in an environment of its own, and tested from a folder that holds only the tests and
the plug-ins. The suite skips the groups of a transport that a build lacks, with the reason; a build that skips nothing
is an error, unless it lacks verbs, which the suite does not use.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TRANSPORTS = ("tcp", "inproc", "shm", "verbs")
SUITE = "tests/collectives/conformance"


def build(left_out: str, folder: Path) -> Path:
    """Build the library without that transport; returns the wheel."""
    kept = ";".join(name for name in TRANSPORTS if name != left_out)
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder)),
            *("-C", f"cmake.define.COLLECTIVES_TRANSPORTS={kept}", "-C", f"build-dir={folder / 'build'}", "."),
        ],
        check=True,
        cwd=ROOT,
    )
    (wheel,) = folder.glob("*.whl")
    return wheel


def environment(wheel: Path, folder: Path) -> Path:
    """Create a virtual environment in `folder` with the contents of `wheel`; return the path of its Python interpreter.

    The environment can also import the packages of the Python that runs this tool.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    ask = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = Path(subprocess.run(ask, check=True, capture_output=True, text=True).stdout.strip())
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    # Python searches folders that a .pth file names, but ignores .pth files there, such as those of editable installs.
    outer = [path for path in sys.path if path.endswith("site-packages")] or [sysconfig.get_path("purelib")]
    (packages / "outer.pth").write_text("\n".join(outer))
    return python


def check(left_out: str, arguments: list[str]) -> str:
    """Build the library without the transport `left_out`, and run the conformance tests with it.

    `arguments` are passed to pytest. Return the last line of pytest's output. Raises: SystemExit if a test fails.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        python = environment(build(left_out, folder), folder / "venv")
        where = folder / "checkout"
        for part in ("tests", "examples/plugins"):  # the suite runs over a plug-in, too
            shutil.copytree(ROOT / part, where / part, ignore=shutil.ignore_patterns("__pycache__", "build"))
        shutil.copy(ROOT / "pyproject.toml", where)
        ask = "from collectives.native import _engine; print(*_engine.transports())"
        known = subprocess.run(
            [python, "-c", ask], check=True, capture_output=True, text=True, cwd=where
        ).stdout.split()
        if sorted(known) != sorted(set(TRANSPORTS) - {left_out}):
            raise SystemExit(f"the build without {left_out} has {', '.join(known)}")
        done = subprocess.run(
            [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", SUITE, *arguments],
            check=False,
            capture_output=True,
            text=True,
            cwd=where,
        )
        closing = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else done.stderr
        skips = left_out == "verbs" or re.search(r"\d+ skipped", closing)
        if done.returncode != 0 or not skips:
            raise SystemExit(f"without {left_out}:\n{done.stdout}\n{done.stderr}")
        return closing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("left_out", nargs="*", choices=[*TRANSPORTS, []], metavar="TRANSPORT", help="without that one")
    parser.add_argument("-k", metavar="EXPRESSION", help="as for pytest")
    chosen = parser.parse_args()
    for left_out in chosen.left_out or TRANSPORTS:
        closing = check(left_out, ["-k", chosen.k] if chosen.k else [])
        print(f"without {left_out}: {closing}", flush=True)


if __name__ == "__main__":
    main()
