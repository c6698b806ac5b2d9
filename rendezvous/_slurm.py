"""Slurm: the job step of this process, and compressed host lists.

Invariant: a host list is expanded one host at a time, so a short list that names very many hosts takes little memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from ._environment import Environment, get, integer

_HOST = re.compile(r"(?:[^,\[\]\s]|\[[^\[\]]*\])+")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_STEPS: Final = 0xFFFFFF00  # from this number on, a step is a batch script or an interactive shell


def step(env: Environment) -> str | None:
    """Return a name for the Slurm job step that started this process as a task, from the environment variables `env`.

    Return None if the process is no task. SLURM_PROCID alone is no sign of a task: Slurm also sets this variable in
    batch scripts.
    """
    job, number = get(env, "SLURM_JOB_ID") or get(env, "SLURM_JOBID"), _number(env)
    return f"slurm-{job}.{number}" if job and number is not None and number < _STEPS else None


def no_task(env: Environment) -> bool:
    """Return whether this process runs in a Slurm batch script or interactive shell. Such a process is not a rank.

    `env` has the environment variables.
    """
    number = _number(env)
    return number is not None and number >= _STEPS


def _number(env: Environment) -> int | None:
    number = integer(env, "SLURM_STEP_ID")
    return integer(env, "SLURM_STEPID") if number is None else number


def hosts(nodelist: str) -> Iterator[str]:
    """Yield the hosts of the Slurm host list `nodelist`, in order: "n[01-03,7],login" gives n01, n02, n03, n7, login.

    Raises: ValueError when the iteration reaches an invalid part of the list.
    """
    position = 0
    while True:
        match = _HOST.match(nodelist, position)
        if match is None:
            raise ValueError(f"{nodelist[:80]!r} is no Slurm host list")
        yield from _expand(match.group())
        position = match.end()
        if position == len(nodelist):
            return
        if nodelist[position] != ",":
            raise ValueError(f"{nodelist[:80]!r} is no Slurm host list")
        position += 1


def _expand(pattern: str) -> Iterator[str]:
    head, bracket, rest = pattern.partition("[")
    if not bracket:
        yield head
        return
    ranges, _, tail = rest.partition("]")
    for part in ranges.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ValueError(f"{part[:80]!r} is no range of a Slurm host list")
        first = match.group(1)
        last = match.group(2) or first
        for number in range(int(first), int(last) + 1):
            for end in _expand(tail):
                yield f"{head}{number:0{len(first)}d}{end}"
