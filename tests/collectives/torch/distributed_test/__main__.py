"""Torch's own DistributedTest on this backend, in one command.

    python -m tests.collectives.torch.distributed_test [-n 2 3 4] [--no-gpu] [--only NAME ...]

For each number of ranks: all its tests, which then may fail only where `expected.py` says why; and its tests for GPUs,
on the CPU, which may fail only where Gloo fails, too. A failure counts when it comes twice. Exits with 1 where there is
another one. Takes about ten minutes on two cores, and needs `expecttest`, as torch's file does.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from typing import Final

from tests.collectives.torch.distributed_test.expected import ON_CPU, ON_GPU, Expected
from tests.collectives.torch.distributed_test.running import Outcome, outcomes

OURS: Final = "collectives"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}", description=__doc__.splitlines()[0])
    parser.add_argument("-n", type=int, nargs="+", default=[2, 3, 4], metavar="RANKS")
    parser.add_argument("--no-gpu", action="store_true", help="leave out tests for GPUs")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these tests")
    given = parser.parse_args(arguments)
    bad = sum(_size(size, given.only, gpu=not given.no_gpu) for size in given.n)
    print(f"{bad} failures that are not expected" if bad else "no failure that is not expected")
    return 1 if bad else 0


def _size(size: int, names: list[str], gpu: bool) -> int:
    """How many tests fail with that many ranks that should not."""
    print(f"== {size} ranks", flush=True)
    found = _twice(size, outcomes(OURS, size, names, tell=_dot), ON_CPU)
    bad = _report("tests", found, ON_CPU)
    skipped = [name for name, outcome in found.items() if outcome.what == "skipped"]
    if not gpu or not skipped:
        return bad
    theirs = outcomes("gloo", size, skipped, gpu=True, tell=_dot)
    also = {
        name: Expected(f"Gloo: {outcome.error}") for name, outcome in theirs.items() if outcome.what == "failed"
    } | ON_GPU
    found = _twice(size, outcomes(OURS, size, skipped, gpu=True, tell=_dot), also, gpu=True)
    return bad + _report("tests for GPUs", found, also)


def _twice(
    size: int, found: dict[str, Outcome], expected: dict[str, Expected], *, gpu: bool = False
) -> dict[str, Outcome]:
    """With another chance for those that fail without being expected to."""
    again = _unexpected(found, expected)
    return found | outcomes(OURS, size, again, gpu=gpu, tell=_dot) if again else found


def _unexpected(found: dict[str, Outcome], expected: dict[str, Expected]) -> list[str]:
    return [
        name
        for name, outcome in found.items()
        if outcome.what == "failed" and not (name in expected and expected[name].covers(outcome.why))
    ]


def _report(title: str, found: dict[str, Outcome], expected: dict[str, Expected]) -> int:
    def count(what: str) -> int:
        return sum(outcome.what == what for outcome in found.values())

    print(f"\n{title}: {count('passed')} passed, {count('failed')} failed, {count('skipped')} skipped")
    bad = _unexpected(found, expected)
    for name in _failed(found):
        if name not in bad:
            print(f"  expected    {name}: {expected[name].reason}")
    for name in bad:
        print(f"  UNEXPECTED  {name}: {found[name].error}\n{found[name].why}")
    return len(bad)


def _failed(found: dict[str, Outcome]) -> Iterable[str]:
    return (name for name, outcome in found.items() if outcome.what == "failed")


def _dot(name: str, outcome: Outcome) -> None:
    print({"passed": ".", "skipped": "s", "failed": "F"}[outcome.what], end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
