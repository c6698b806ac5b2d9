"""The programs in README.md and CONTRIBUTING.md do what the text says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import collectives

HOME = Path(collectives.__file__).parents[1]
ROOT = Path(__file__).parents[3]


def program(document: str) -> str:
    """The first Python program in a document."""
    found = re.search(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def run(folder: Path, *command: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(HOME)}
    done = subprocess.run(
        [sys.executable, *command], check=False, capture_output=True, text=True, cwd=folder, env=env, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example_in_the_readme(tmp_path: Path) -> None:
    (tmp_path / "mean.py").write_text(program("README.md"))
    output = run(tmp_path, "-m", "collectives.commands.main", "run", "-n", "4", "mean.py")
    assert output == "[0] 4 ranks: mean 1.5, weights [0. 1. 2. 3. 4. 5. 6. 7. 8. 9.]\n"


def test_the_algorithm_in_contributing(tmp_path: Path) -> None:
    (tmp_path / "added.py").write_text(program("CONTRIBUTING.md"))
    output = run(tmp_path, "-c", "import added, collectives; print(collectives.verify(added.to_everyone, range(1, 9)))")
    assert "to_everyone: verified" in output
