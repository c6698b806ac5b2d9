"""How much of an exchange of gradients overlaps with backpropagation, between hosts on a slow link.

Invariant: the hosts are network namespaces of this machine, and the link between them is the bottleneck. Training steps
that exchange gradients in buckets, in one fused call, or not at all take turns. All steps compute the same gradients,
and the ranks check the exchanged sums.
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
    """The neural network and the link with which training steps are measured on two hosts.

    The network has `layers` dense layers of `width` units. Each rank has `batch` samples. `rate` is the bit rate of the
    link between the hosts, as tc writes it ("1gbit"). `bucket` is the size in bytes of the buckets in which gradients
    are reduced. `steps` is the number of training steps.
    """

    rate: str
    layers: int
    width: int
    batch: int
    bucket: int
    steps: int

    @property
    def nbytes(self) -> int:
        """The number of bytes of all gradients of the network."""
        return self.layers * self.width * self.width * 4


@dataclass(frozen=True, slots=True)
class Bucket:
    """The times at which the allreduce of one bucket of gradients started and finished.

    Both times are in seconds from the start of the training step.
    """

    number: int
    started: float
    finished: float


@dataclass(frozen=True, slots=True)
class Step:
    """One training step on one rank.

    `way` says how the gradients were summed over the ranks: "bucketed", "fused" (one allreduce for all) or "none" (not
    at all). `seconds` is the time of the whole step, `backward` the time until backpropagation ended. `buckets` has the
    times of the allreduces.
    """

    way: str
    seconds: float
    backward: float
    buckets: tuple[Bucket, ...]

    @staticmethod
    def of(reported: dict[str, Any]) -> Step:
        return Step(**{**reported, "buckets": tuple(Bucket(**bucket) for bucket in reported["buckets"])})


@dataclass(frozen=True, slots=True)
class Overlap:
    """All measured training steps. `ranks` has the steps of each rank, in the order in which they ran."""

    setting: Setting
    ranks: tuple[tuple[Step, ...], ...]

    def times(self, way: str) -> list[float]:
        """Return the seconds of each training step whose gradients were summed in the mode `way`.

        The slower of the two ranks counts. The modes are "bucketed", "fused" and "none".
        """
        each = ([step.seconds for step in rank if step.way == way] for rank in self.ranks)
        return [max(pair) for pair in zip(*each, strict=True)]

    @property
    def gain(self) -> float:
        """The fraction of a training step's time that is saved by one allreduce per bucket instead of a single one."""
        pairs = zip(self.times("bucketed"), self.times("fused"), strict=True)
        return 1 - median(bucketed / fused for bucketed, fused in pairs)

    @property
    def leads(self) -> list[float]:
        """How long before the end of backpropagation the first allreduce of a bucket started, in seconds.

        There is one value for every step and rank that used buckets.
        """
        bucketed = (step for rank in self.ranks for step in rank if step.way == "bucketed")
        return [step.backward - step.buckets[0].started for step in bucketed]

    @property
    def passed(self) -> bool:
        return self.gain >= BAR and median(self.leads) > 0

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "gain": self.gain, "leads": self.leads, "bar": BAR, "passed": self.passed}


def measure(setting: Setting, rate: float) -> Overlap:
    """Measure training steps on two hosts, which are network namespaces of this machine with a slow link between them.

    `setting` has the neural network and the link. `rate` is the rate of the link in bytes per second, from which the
    time limit is computed. Raises: RuntimeError if a rank failed; subprocess.SubprocessError or OSError if the
    namespaces could not be created.
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
