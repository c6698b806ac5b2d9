"""Runs the tests of the TensorFlow and Keras hooks with one wheel, in environments with different TensorFlow releases.

    python -m tools.check_tensorflow                  # the oldest and the newest that are supported
    python -m tools.check_tensorflow 2.18.1 --keep ~/.cache/pycollectives/tensorflow

Invariant: the wheel is built once, without TensorFlow, and the tests import the wheel: they run in a folder without the
library's packages.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.check_package import ROOT, call

RELEASES = ("2.16.2", "2.21.0")
TESTS = ("tests/collectives/gradients", "tests/collectives/tensorflow", "tests/collectives/keras")
TOOLS = ("pytest==9.2.0", "pytest-timeout==2.4.0", "scikit-learn>=1.3")


def check(release: str, wheel: Path, folder: Path) -> bool:
    """Run the tests of `wheel` with the TensorFlow version `release`, and return whether all pass.

    The tests run in a virtual environment in `folder`, which is created if it does not exist.
    """
    venv, work = folder / f"tensorflow-{release}", folder / f"work-{release}"
    if not (venv / "bin" / "python").exists():
        call(sys.executable, "-m", "venv", venv)
    pip = (venv / "bin" / "pip", "install", "-q", "--disable-pip-version-check")
    call(*pip, f"tensorflow-cpu=={release}", *TOOLS)
    call(*pip, "--force-reinstall", "--no-deps", wheel)
    call(*pip, wheel)  # installs its dependencies in versions that fit this TensorFlow
    shutil.rmtree(work, ignore_errors=True)
    for part in ("tests", "examples"):
        shutil.copytree(ROOT / part, work / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", work)
    versions = "import tensorflow, keras, numpy, collectives; print('TensorFlow', tensorflow.__version__, 'Keras', "
    versions += "keras.__version__, 'NumPy', numpy.__version__, 'from', collectives.__file__)"
    call(venv / "bin" / "python", "-c", versions, cwd=work)
    command = [str(venv / "bin" / "python"), "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]
    return subprocess.run(command, check=False, cwd=work).returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("releases", nargs="*", default=RELEASES, help="of tensorflow-cpu")
    parser.add_argument("--keep", type=Path, help="where environments are kept for the next time")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tensorflow-") as name:
        folder = wanted.keep or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        call(sys.executable, "-m", "build", "--outdir", Path(name) / "dist", ROOT)
        (wheel,) = (Path(name) / "dist").glob("*.whl")
        failed = [release for release in wanted.releases if not check(release, wheel, folder)]
    if failed:
        sys.exit(f"{wheel.name} fails with TensorFlow {', '.join(failed)}")
    print(f"{wheel.name} passes with TensorFlow {', '.join(wanted.releases)}")


if __name__ == "__main__":
    main()
