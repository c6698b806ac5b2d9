"""What the other tests of this folder take for granted of the devices."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.verbs.conftest import devices


def test_two_devices_have_addresses_of_different_interfaces() -> None:
    tables = [Path("/sys/class/infiniband", name, "ports/1/gids") for name in devices()[:2]]
    routable = [{gid.read_text().strip() for gid in table.glob("*")} for table in tables]
    assert routable[0] != routable[1]


def test_programs_that_are_not_ours_find_the_same_devices() -> None:
    listed = subprocess.run(["ibv_devices"], check=True, capture_output=True, text=True).stdout
    assert set(devices()) <= set(listed.split())
