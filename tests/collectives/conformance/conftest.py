"""The transport of another package, for the modules that ask for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.collectives.conformance import plugins


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where it is installed; threads of the tests see it, too."""
    found = plugins.installed(tmp_path_factory)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(found))
        yield found
