"""Runs tests of the suite in this process's environment, and prints a line of JSON for each.

    BACKEND=collectives WORLD_SIZE=2 python -m tests.collectives.torch.distributed_test.one [NAME ...]

Invariant: nothing but these lines goes to standard output.
"""

from __future__ import annotations

import json
import os
import sys
import time
import unittest
from typing import Any, TextIO


class _Lines(unittest.TestResult):
    """Each outcome as a line: test, outcome ("passed", "skipped", "failed"), why, seconds."""

    def __init__(self, out: TextIO) -> None:
        super().__init__()
        self._out = out
        self._start = 0.0

    def startTest(self, test: Any) -> None:
        super().startTest(test)
        self._start = time.monotonic()

    def addSuccess(self, test: Any) -> None:
        self._say(test, "passed")

    def addSkip(self, test: Any, reason: str) -> None:
        self._say(test, "skipped", reason)

    def addFailure(self, test: Any, err: Any) -> None:
        self._say(test, "failed", self._exc_info_to_string(err, test))  # type: ignore[attr-defined]

    addError = addFailure

    def _say(self, test: Any, outcome: str, why: str = "") -> None:
        seconds = round(time.monotonic() - self._start, 1)
        name = test.id().rpartition(".")[2]
        print(json.dumps([name, outcome, why, seconds]), file=self._out, flush=True)


def main(names: list[str]) -> None:
    from tests.collectives.torch.distributed_test.suite import TestBackend

    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    found = unittest.TestLoader().getTestCaseNames(TestBackend)
    unknown = set(names) - set(found)
    if unknown:
        sys.exit(f"this version of torch has no {', '.join(sorted(unknown))}")
    unittest.TestSuite(TestBackend(name) for name in names or found).run(_Lines(out))


if __name__ == "__main__":
    main(sys.argv[1:])
