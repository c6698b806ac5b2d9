"""The steps of a schedule as text, one line for each step.

Invariant: the notation is the same in errors, listings, tables and drawings. `IN[2]` is block 2 of the input buffer,
`OUT[0:4]` blocks 0 to 3 of the output buffer, `S1[3]` block 3 of scratch slot 1. `>3` is a message to rank 3, `<3` the
next message from rank 3.
"""

from __future__ import annotations

from collections.abc import Iterable

from collectives.schedule.form import IN, OUT, SCRATCH, Chunk, Copy, Recv, Schedule, Send, Step

_AROUND = 3  # steps shown before and after the marked step
_RUN = 4  # at least this many consecutive ranks are written as a range


def chunk_text(chunk: Chunk) -> str:
    if chunk.count == 0:
        return "nothing"
    buffer = {IN: "IN", OUT: "OUT"}.get(chunk.buffer, f"S{chunk.buffer - SCRATCH}")
    if chunk.count == 1:
        return f"{buffer}[{chunk.first}]"
    return f"{buffer}[{chunk.first}:{chunk.first + chunk.count}]"


def _joined(operands: Iterable[int | Chunk], sign: str, glue: str) -> str:
    """Operands in order; long runs of consecutive ranks shortened."""
    parts: list[str] = []
    run: list[int] = []

    def flush() -> None:
        if len(run) >= _RUN:
            parts.append(f"{sign}{run[0]}..{sign}{run[-1]}")
        else:
            parts.extend(f"{sign}{r}" for r in run)
        run.clear()

    for operand in operands:
        if isinstance(operand, Chunk):
            flush()
            parts.append(chunk_text(operand))
        else:
            if run and operand != run[-1] + 1:
                flush()
            run.append(operand)
    flush()
    return glue.join(parts)


def step_text(step: Step) -> str:
    if isinstance(step, Send):
        return f"send {chunk_text(step.chunk)} {_joined(step.peers, '>', ' ')}"
    if isinstance(step, Recv):
        return f"recv {chunk_text(step.chunk)} = <{step.peer}"
    if isinstance(step, Copy):
        return f"copy {chunk_text(step.dst)} = {chunk_text(step.src)}"
    kind = "total" if step.final else "reduce"
    return f"{kind} {chunk_text(step.dst)} = {_joined(step.operands, '<', ' + ')}"


def excerpt(schedule: Schedule, step: int | None = None) -> str:
    """Returns a few of one rank's steps as text: the step with index `step`, marked, and the steps around it.

    If `step` is None, returns the first steps, without a mark.
    """
    at = 0 if step is None else step
    first, last = max(0, at - _AROUND), min(len(schedule.steps), at + _AROUND + 1)
    lines = [f"    rank {schedule.rank}:"]
    if first:
        lines.append("            ...")
    lines += [f"    {'->' if i == step else '  '} {i:4}  {step_text(schedule.steps[i])}" for i in range(first, last)]
    if last < len(schedule.steps):
        lines.append("            ...")
    return "\n".join(lines)
