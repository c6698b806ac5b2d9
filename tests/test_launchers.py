"""What docs/launchers.md shows, run as it stands there: those launchers that need nothing to be installed.

The others (the MPIs, Slurm) are run by `python -m tools.check_launchers --untested`, as `.ci/run` does.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools import check_launchers


@pytest.mark.parametrize("name", check_launchers.TESTED)
def test_the_page_shows_what_works(name: str, tmp_path: Path) -> None:
    try:
        check_launchers.run(name, tmp_path)
    except check_launchers.NotHereError as error:
        pytest.skip(str(error))


def test_every_section_has_a_check() -> None:
    titles = re.findall(r"^## (.*)$", check_launchers.PAGE.read_text(), re.MULTILINE)
    names = {title.lower().replace(" ", "").replace("intelmpi", "impi") for title in titles}
    assert names | {"mixed"} == {name.replace("_", "") for name in check_launchers.LAUNCHERS}
