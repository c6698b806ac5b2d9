"""Only the name `collectives` is taken: a user's own packages of other names stay the user's.

Invariant: the names are those of our folders at the top of the repository. An editable install has that folder in
`sys.path`, so folders without an `__init__.py` are tried with an installed wheel (tools/check_package.py).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

NAMES = ("native", "transports", "rendezvous", "bench")
SCRIPT = """
import importlib, sys
import numpy as np
import collectives, collectives.bench.sizes
with collectives.init() as comm:
    assert comm.allreduce(np.ones(3)).tolist() == [1.0, 1.0, 1.0]
mine = importlib.import_module(sys.argv[1])
assert list(mine.__path__) == [sys.path[0] + "/" + sys.argv[1]], mine
"""


@pytest.mark.parametrize("name", NAMES)
def test_a_users_package_of_that_name_is_left_alone(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("")
    (tmp_path / "script.py").write_text(SCRIPT)
    subprocess.run([sys.executable, str(tmp_path / "script.py"), name], check=True, timeout=60)
