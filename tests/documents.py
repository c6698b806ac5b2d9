"""Programs that stand in a document, taken out of it to be run as they are."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def block(document: str, heading: str) -> str:
    """The first Python program below that heading."""
    below = (DOCS / document).read_text().partition(f"\n{heading}\n")[2]
    found = re.search(r"```python\n(.*?)```", below, re.DOTALL)
    assert found is not None, f"{document}: {heading}"
    return found[1]
