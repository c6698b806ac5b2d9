"""The tests of this folder need two RDMA devices; `make test-verbs` runs them in a VM that has two.

Invariant: where there are none, each test is skipped, and counted, with the reason.
"""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDER = f"{Path(__file__).parent}/"


def devices() -> list[str]:
    """The RDMA devices of this machine that have an active port."""
    ports = Path("/sys/class/infiniband").glob("*/ports/*/state")
    return sorted({port.parents[2].name for port in ports if "ACTIVE" in port.read_text()})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    found = devices()
    if len(found) >= 2:
        return
    reason = f"needs two active RDMA devices, and there are {len(found)}; `make test-verbs` has a VM with two"
    for item in items:
        if str(item.path).startswith(FOLDER):  # of all tests, thousands
            item.add_marker(pytest.mark.skip(reason=reason))
