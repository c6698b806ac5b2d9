"""Tunables of the C library in ranks that take turns on a core."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

VARIABLE: Final = "GLIBC_TUNABLES"
_SEQUENCES: Final = "glibc.pthread.rseq"
_NONE: Final = f"{_SEQUENCES}=0"


def quick_switches(environment: Mapping[str, str]) -> dict[str, str]:
    """What to add to the environment of ranks that share cores: no restartable sequences.

    glibc registers them for every thread, and the kernel brings what it tells them up to date at each switch. Nothing
    where the user has decided on them.
    """
    given = environment.get(VARIABLE, "")
    if _SEQUENCES in given:
        return {}
    return {VARIABLE: f"{given}:{_NONE}" if given else _NONE}


def usual(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment without what `quick_switches` has added to it."""
    given = environment.get(VARIABLE, "")
    before = given.removesuffix(_NONE).removesuffix(":")
    others = {name: value for name, value in environment.items() if name != VARIABLE}
    return {**others, VARIABLE: before} if before else others
