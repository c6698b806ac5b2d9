"""How far tests go: as far as every change needs, or, by `make test-long`, through all that their parameters allow.

Invariant: the long form runs the same tests with more parameters. What is guaranteed is tested in the short one.
"""

from __future__ import annotations

import os
from typing import Final

LONG: Final = os.environ.get("COLLECTIVES_TESTS") == "long"
