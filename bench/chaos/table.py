"""The summary of a chaos run: one line for each case and transport.

Invariant: a line counts every run, also those that could not be made, and gives the reason for these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from collectives.bench.chaos.case import Case, Finding

_WIDTHS: Final = (-3, 41, 9, -5, -9, -11, -7, -5, -5)  # negative: aligned to the right


def row(*fields: object, verdict: str) -> str:
    """Format `fields` and `verdict` as one line of text, in columns.

    The lines make up the table that `collectives bench chaos` prints: the results of tests with injected faults.
    """
    texts = [*map(str, fields), *([""] * (len(_WIDTHS) - len(fields)))]
    columns = [f"{text:<{w}}" if w > 0 else f"{text:>{-w}}" for text, w in zip(texts, _WIDTHS, strict=True)]
    return f"{' '.join(columns)}  {verdict}"


HEAD: Final = row(
    "row", "case", "transport", "runs", "detected", "slowest (s)", "blamed", "hangs", "leaks", verdict="verdict"
)


@dataclass(slots=True)
class Line:
    """The results of all runs with one kind of fault over one transport, for one line of the table of results.

    `ranks` ranks had to raise an error; `detected` of them raised the right one in time. `blamed` is the number of
    errors that named a healthy rank.
    """

    row: int
    case: str
    transport: str
    runs: int = 0
    absent: int = 0
    held: int = 0
    ranks: int = 0
    detected: int = 0
    seconds: float | None = None
    blamed: int = 0
    hangs: int = 0
    leaks: int = 0
    reason: str = ""
    failed: list[int] = field(default_factory=list)

    def add(self, finding: Finding) -> None:
        if finding.absent:
            self.absent += 1
            self.reason = finding.absent
            return
        self.runs += 1
        self.held += finding.held
        self.ranks += finding.ranks
        self.detected += finding.detected
        self.blamed += finding.blamed
        self.hangs += finding.hangs
        self.leaks += bool(finding.leaks)
        if finding.seconds is not None:
            self.seconds = max(self.seconds or 0.0, finding.seconds)
        if not finding.held:
            self.failed.append(finding.unit.seed)

    @property
    def verdict(self) -> str:
        if not self.runs:
            return f"not run: {self.reason}"
        return "held" if self.held == self.runs else f"MISSED in {self.runs - self.held} of {self.runs}"

    @property
    def text(self) -> str:
        if not self.runs:
            return row(self.row, self.case, self.transport, 0, verdict=self.verdict)
        seconds = "" if self.seconds is None else f"{self.seconds:.3f}"
        counts = (self.blamed, self.hangs, self.leaks)
        detected = f"{self.detected}/{self.ranks}"
        return row(self.row, self.case, self.transport, self.runs, detected, seconds, *counts, verdict=self.verdict)


def lines(findings: Iterable[Finding], cases: Mapping[str, Case]) -> list[Line]:
    """Summarise `findings`, the results of all runs with injected faults, as a table.

    Return one line for each kind of fault and transport, in the order of `cases`, the kinds of faults.
    """
    found: dict[tuple[str, str], Line] = {}
    for finding in findings:
        case = cases[finding.unit.case]
        key = (case.name, finding.unit.transport)
        found.setdefault(key, Line(case.row, *key)).add(finding)
    order = {name: number for number, name in enumerate(cases)}
    return sorted(found.values(), key=lambda line: order[line.case])


def document(findings: Iterable[Finding], cases: Mapping[str, Case]) -> list[dict[str, Any]]:
    """Return `findings`, the results of all runs with injected faults, as values for JSON.

    Each returned dict is the summary of one kind of fault and transport, with the details of each failed run. `cases`
    are the kinds of faults.
    """
    findings = list(findings)
    return [
        {
            **asdict(line),
            "verdict": line.verdict,
            "missed": [
                {**asdict(f), "command": f.unit.command}
                for f in findings
                if (f.unit.case, f.unit.transport) == (line.case, line.transport) and not (f.held or f.absent)
            ],
        }
        for line in lines(findings, cases)
    ]
