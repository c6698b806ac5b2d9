"""Compares two results of the benchmark: which figures have become slower, and whether noise explains the difference.

Invariant: two figures are compared only if the case, the number of ranks, the transport and the mode of the machine
(whether its cores share a cache, and how fast they run) are the same. The verdict uses the raw samples, not the two
medians alone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np

from collectives.bench.document import FORMAT, VERSION
from collectives.bench.loop import Samples
from collectives.bench.ping import CORE_FACTOR, FACTOR

SLOWER, FASTER, SAME, MODE = "SLOWER", "faster", "same", "mode"
_RESAMPLES: Final = 2000
_TAILS: Final = (0.5, 99.5)  # percentiles, far out: of many cases, few may be called slower by chance
_BLOCKS: Final = 20  # blocks of a series of samples: neighbours in time are alike, so blocks are drawn, not samples
_MODES: Final = {"flag": FACTOR, "core": CORE_FACTOR}  # the factor by which these readings may differ in one mode

Key = tuple[Any, ...]


class NotComparable(Exception):
    """Raised if a file is no result of the benchmark, or if two files have no measurement in common.

    The message has the reason.
    """


@dataclass(frozen=True, slots=True)
class Change:
    """The change of one median time of this library from an earlier run of the benchmark to a later one.

    `first` and `second` are the medians of the two runs, in seconds. `verdict` says whether the library became slower.
    `low` and `high` bound the 99 % confidence interval of second / first.
    """

    title: str
    nbytes: int
    dtype: str
    op: str
    ranks: int
    name: str
    first: float
    second: float
    low: float
    high: float
    verdict: str

    @property
    def quotient(self) -> float:
        return self.second / self.first


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison of two runs of the benchmark: the change of each time that both runs have measured.

    `missing` is the number of times that only one of the runs has measured. `remarks` are texts about differences
    between the machines and versions.
    """

    changes: tuple[Change, ...]
    missing: int
    remarks: tuple[str, ...]

    def count(self, verdict: str) -> int:
        return sum(change.verdict == verdict for change in self.changes)


def read(path: str) -> list[dict[str, Any]]:
    """Read the file `path`, which `collectives bench --json` has written; return the runs of the benchmark in it.

    Raises: NotComparable if the file has another format; OSError.
    """
    try:
        content = json.loads(Path(path).read_text())
    except ValueError as error:
        raise NotComparable(f"{path} is no JSON: {error}") from error
    if not isinstance(content, dict) or content.get("version") != VERSION:
        raise NotComparable(f"{path} is no result of this benchmark, version {VERSION}")
    match content.get("format"):
        case f if f == FORMAT:
            return [content]
        case f if f == f"{FORMAT} standing":
            return list(content["runs"])
    raise NotComparable(f"{path} is no result of the benchmark (--json)")


def compare(first: list[dict[str, Any]], second: list[dict[str, Any]], threshold: float) -> Comparison:
    """Compare the runs `second` of the benchmark with the earlier runs `first`.

    `threshold` is the fraction by which a time may rise without being reported; 0.1 stands for 10 %. Raises:
    NotComparable if the runs have not measured the same collective and size on the same number of ranks.
    """
    before, after = _figures(first), _figures(second)
    common = [key for key in before if key in after]
    if not common:
        raise NotComparable("no case of ours is in both, on as many ranks and over the same transport")
    random = np.random.default_rng(1)
    changes = tuple(_change(key, before[key], after[key], threshold, random) for key in common)
    return Comparison(changes, len(before.keys() ^ after.keys()), tuple(_remarks(first[0], second[0])))


@dataclass(frozen=True, slots=True)
class _Figure:
    """The measurements of one case: times in seconds by round, and readings (`pings`) that show the machine's mode."""

    rounds: list[Samples]
    pings: list[list[dict[str, Any]]]

    def typical(self, name: str) -> float | None:
        """Return the median of one kind of reading of the machine's speed, in seconds; None without such readings.

        `name` is the kind, such as "flag" for the latency of shared memory.
        """
        known = [reading[name] for pair in self.pings for reading in pair if reading.get(name) is not None]
        return median(known) if known else None


def _figures(documents: list[dict[str, Any]]) -> dict[Key, _Figure]:
    found: dict[Key, _Figure] = {}
    for document in documents:
        group, arguments = document["group"], document["arguments"]
        where = (len(group["ranks"]), tuple(sorted(group["pairs"].items())), arguments["buffers"])
        for result in document["results"]:
            case = tuple(result[k] for k in ("collective", "trace", "bucket", "bytes", "dtype", "op", "root", "asked"))
            for name in ("out-of-place", "in-place"):
                measured = result["measurements"].get(name, {"unsupported": ""})
                if "unsupported" not in measured:
                    figure = found.setdefault((where, case, name), _Figure([], []))
                    figure.rounds.extend(np.array(samples) for samples in measured["rounds"])
                    figure.pings.extend(result["pings"])
    return found


def _differ(a: float | None, b: float | None, factor: float) -> bool:
    return a is not None and b is not None and not 1 / factor <= b / a <= factor


def _change(key: Key, first: _Figure, second: _Figure, threshold: float, random: np.random.Generator) -> Change:
    (ranks, _, _), (collective, trace, bucket, nbytes, dtype, op, _, asked), name = key
    a, b = (float(np.median(np.concatenate(figure.rounds))) for figure in (first, second))
    drawn = _draw(second, random) / _draw(first, random)
    low, high = (float(np.percentile(drawn, tail)) for tail in _TAILS)
    quotient = b / a
    if any(_differ(first.typical(n), second.typical(n), factor) for n, factor in _MODES.items()):
        verdict = MODE
    elif quotient > 1 + threshold and low > 1:
        verdict = SLOWER
    elif quotient < 1 / (1 + threshold) and high < 1:
        verdict = FASTER
    else:
        verdict = SAME
    title = f"{collective}:{trace}:{'fused' if bucket else 'separate'}" if trace else collective
    title += "" if asked == "auto" else f":{asked}"
    return Change(title, nbytes, dtype, op, ranks, name, a, b, low, high, verdict)


def _draw(figure: _Figure, random: np.random.Generator) -> Samples:
    """Bootstrap: medians of the figure, each from randomly drawn blocks of samples; their spread shows the noise."""
    parts = max(1, round(_BLOCKS / len(figure.rounds)))
    blocks = [part for samples in figure.rounds for part in np.array_split(samples, min(parts, len(samples)))]
    medians = np.array([float(np.median(block)) for block in blocks])
    drawn: Samples = np.median(random.choice(medians, (_RESAMPLES, len(medians))), axis=1)
    return drawn


def _remarks(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    one, other = (document["group"]["ranks"][0] for document in (first, second))
    names = ("host", "processor", "cores", "affinity", "kernel", "python", "numpy", "pycollectives")
    return [f"{name}: {one[name]} and {other[name]}" for name in names if one[name] != other[name]]
