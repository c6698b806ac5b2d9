"""How much of an exchange of gradients overlaps with backpropagation, between hosts on a slow link.

Invariant: the hosts are network namespaces of this machine, and the link between them is the bottleneck; steps with
buckets, with one fused call and with no exchange take turns. All compute the same gradients, which the ranks check.
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
BAR: Final = 0.15  # the part of a fused step's time that buckets have to save
_STARTING: Final = 120.0  # seconds: frameworks are slow to import
_COMPUTING: Final = 2.0  # seconds of computation in a step, at most


@dataclass(frozen=True, slots=True)
class Setting:
    """The neural network: `layers` dense layers of `width` units, with `batch` samples on each rank.

    `rate`: that of the link between the hosts, in tc's notation.
    """

    rate: str
    layers: int
    width: int
    batch: int
    bucket: int
    steps: int

    @property
    def nbytes(self) -> int:
        """Bytes of all gradients."""
        return self.layers * self.width * self.width * 4


@dataclass(frozen=True, slots=True)
class Bucket:
    """When a bucket's exchange started and finished, in seconds from the beginning of the step."""

    number: int
    started: float
    finished: float


@dataclass(frozen=True, slots=True)
class Step:
    """One rank's step in one mode. `backward`: seconds from the beginning of the step to backpropagation's end."""

    way: str
    seconds: float
    backward: float
    buckets: tuple[Bucket, ...]

    @staticmethod
    def of(reported: dict[str, Any]) -> Step:
        return Step(**{**reported, "buckets": tuple(Bucket(**bucket) for bucket in reported["buckets"])})


@dataclass(frozen=True, slots=True)
class Overlap:
    """All steps that were measured. `ranks`: the steps of each rank, in order."""

    setting: Setting
    ranks: tuple[tuple[Step, ...], ...]

    def times(self, way: str) -> list[float]:
        """The seconds of each step in mode `way`, on the rank where it took longer."""
        each = ([step.seconds for step in rank if step.way == way] for rank in self.ranks)
        return [max(pair) for pair in zip(*each, strict=True)]

    @property
    def gain(self) -> float:
        """The part of a fused step's time that buckets save: the median over pairs of a fused and a bucketed step."""
        pairs = zip(self.times("bucketed"), self.times("fused"), strict=True)
        return 1 - median(bucketed / fused for bucketed, fused in pairs)

    @property
    def leads(self) -> list[float]:
        """For every bucketed step of every rank, the seconds from the first bucket's start to backpropagation's end."""
        bucketed = (step for rank in self.ranks for step in rank if step.way == "bucketed")
        return [step.backward - step.buckets[0].started for step in bucketed]

    @property
    def passed(self) -> bool:
        return self.gain >= BAR and median(self.leads) > 0

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "gain": self.gain, "leads": self.leads, "bar": BAR, "passed": self.passed}


def measure(setting: Setting, rate: float) -> Overlap:
    """Measure on two hosts. `rate`: bytes a second.

    Raises RuntimeError if a rank failed; subprocess.SubprocessError, OSError.
    """
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
