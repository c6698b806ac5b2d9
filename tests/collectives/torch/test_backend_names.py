"""Names of backends that name devices, and groups of another backend beside one of this library, with tensors on the
CPU.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from typing import Final

import pytest

from tests.launched import _HOME

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")

PROGRAM: Final = """
import sys
import torch
import torch.distributed as dist
import collectives.torch

dist.init_process_group(sys.argv[1], store=dist.HashStore(), rank=0, world_size=1)
x = torch.ones(3)
dist.all_reduce(x)
assert torch.equal(x, torch.ones(3))
ours = dist.group.WORLD._get_backend(torch.device("cpu"))
other = dist.new_group(backend="gloo")
dist.all_reduce(x, group=other)
theirs = other._get_backend(torch.device("cpu"))
print(type(dist.group.WORLD).__name__, ours.name(), theirs.name())
dist.destroy_process_group()
"""


@pytest.mark.parametrize("name", ["collectives", "cpu:collectives", "cpu:collectives,cuda:collectives"])
def test_names_with_devices(name: str) -> None:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("COLLECTIVES_")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, name],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        env={**kept, "PYTHONPATH": os.pathsep.join([str(_HOME), *sys.path]), "COLLECTIVES_CALIBRATE": "off"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-2:] == ["collectives", "gloo"], done.stdout
