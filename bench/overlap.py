"""How much of an exchange of gradients overlaps with backpropagation, between hosts on a slow link.

Invariant: the hosts are network namespaces of this machine, whose link is the bottleneck; steps with buckets, with one
fused call and with no exchange take turns. All of them compute the same gradients, which the ranks check.
"""

from __future__ import annotations

import json
import secrets
import subprocess
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Final

from collectives.bench.namespaces import hosts, run_ranks

RANKS: Final = 2
WAYS: Final = ("none", "fused", "bucketed")
BAR: Final = 0.15  # of the fused step, that buckets are to save
_STARTING: Final = 120.0  # seconds: frameworks are slow to import
_COMPUTING: Final = 2.0  # seconds that a step computes, at most


@dataclass(frozen=True, slots=True)
class Setting:
    """The network: `layers` dense ones, `width` wide, on `batch` samples a rank. `rate` in tc's notation."""

    rate: str
    layers: int
    width: int
    batch: int
    bucket: int
    steps: int

    @property
    def nbytes(self) -> int:
        """Of all gradients."""
        return self.layers * self.width * self.width * 4


@dataclass(frozen=True, slots=True)
class Bucket:
    """When it was on the wire: seconds from the step's beginning."""

    number: int
    started: float
    finished: float


@dataclass(frozen=True, slots=True)
class Step:
    """One rank's step in one mode. `backward`: when backpropagation ended; seconds from the step's beginning."""

    way: str
    seconds: float
    backward: float
    buckets: tuple[Bucket, ...]

    @staticmethod
    def of(reported: dict[str, Any]) -> Step:
        return Step(**{**reported, "buckets": tuple(Bucket(**bucket) for bucket in reported["buckets"])})


@dataclass(frozen=True, slots=True)
class Overlap:
    """`ranks`: the steps of each rank, in order."""

    setting: Setting
    ranks: tuple[tuple[Step, ...], ...]

    def times(self, way: str) -> list[float]:
        """Seconds of each step, of the slower rank."""
        each = ([step.seconds for step in rank if step.way == way] for rank in self.ranks)
        return [max(pair) for pair in zip(*each, strict=True)]

    @property
    def gain(self) -> float:
        """Part of the fused step that buckets save: the median over pairs that ran one after the other."""
        pairs = zip(self.times("bucketed"), self.times("fused"), strict=True)
        return 1 - median(bucketed / fused for bucketed, fused in pairs)

    @property
    def leads(self) -> list[float]:
        """Seconds from the first bucket's start to the end of backpropagation, of every rank's bucketed steps."""
        bucketed = (step for rank in self.ranks for step in rank if step.way == "bucketed")
        return [step.backward - step.buckets[0].started for step in bucketed]

    @property
    def passed(self) -> bool:
        return self.gain >= BAR and median(self.leads) > 0

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "gain": self.gain, "leads": self.leads, "bar": BAR, "passed": self.passed}


def measure(setting: Setting, rate: float) -> Overlap:
    """`rate`: bytes a second. Raises RuntimeError if a rank failed, subprocess.SubprocessError, OSError."""
    longest = setting.steps * (len(WAYS) * _COMPUTING + 4 * setting.nbytes / rate)
    with hosts(RANKS, rates=[setting.rate]) as made:
        arguments = ("-m", "collectives.bench.overlap_rank", json.dumps(asdict(setting)))
        try:
            ended = run_ranks(made, *arguments, secret=secrets.token_bytes(32), timeout=_STARTING + longest)
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"the ranks have not ended after {error.timeout:.0f} s") from None
    for rank, end in enumerate(ended):
        if end.code != 0:
            raise RuntimeError(f"rank {rank} ended with code {end.code}\n{end.err.strip()[-2000:]}")
    reported = [json.loads(end.out.splitlines()[-1]) for end in ended]
    return Overlap(setting, tuple(tuple(map(Step.of, steps)) for steps in reported))
