"""From schedules to the engine's records."""

from __future__ import annotations

import subprocess
import sys

import pytest

from collectives.algorithms import get, schedule
from collectives.schedule import IN, OUT, SCRATCH, Builder, VerificationError
from collectives.schedule.compile import COPY, RECV, REDUCE, SEND, Compiled, CompiledStep, compiled, program


def test_every_kind_of_step() -> None:
    b = Builder("allreduce", "made_up", 1, 4, grid=(2, 2))
    slot = b.like(b.inp(1))
    b.recv(0, slot)
    b.reduce(b.out(0, 2), 2, b.inp(0, 2), 3, final=True)
    b.copy(b.out(1), slot)
    b.send([0, 3], b.out(0, 2))
    assert compiled(b.build()) == Compiled(
        rank=1,
        size=4,
        grid=(2, 2),
        scratch=(((IN, 1),),),
        steps=(
            CompiledStep(RECV, (0,), (SCRATCH, 0, 1), (), False, ()),
            CompiledStep(REDUCE, (), (OUT, 0, 2), (2, (IN, 0, 2), 3), True, ()),
            CompiledStep(COPY, (), (OUT, 1, 1), ((SCRATCH, 0, 1),), False, ((0, SCRATCH, 0, 0), (1, OUT, 0, 1))),
            CompiledStep(SEND, (0, 3), (OUT, 0, 2), (), False, ((1, OUT, 0, 0), (2, OUT, 1, 0))),
        ),
    )


def test_records_are_made_of_plain_tuples() -> None:
    """The extension reads them; it must not meet a type that it does not know."""
    for step in compiled(schedule("allreduce", "ring", 1, 4)).steps:
        assert type(step.dst) is tuple
        assert all(type(s) in (tuple, int) for s in step.sources)
        assert all(type(d) is tuple for d in step.dependencies)


def test_dependencies_differ_in_place() -> None:
    plan = schedule("allreduce", "ring", 0, 3)
    assert compiled(plan) != compiled(plan, in_place=True)


def test_a_schedule_that_makes_no_sense_is_refused() -> None:
    b = Builder("allreduce", "made_up", 0, 2, grid=(1, 1))
    b.send(2, b.inp())
    with pytest.raises(VerificationError, match="not one of the others"):
        compiled(b.build())


def test_a_program_is_made_once() -> None:
    pytest.importorskip("collectives.native._engine", reason="the extension is not built")
    ring = get("allreduce", "ring")
    first = program(ring, 1, 4)
    assert first.peers == [0, 2]
    assert program(ring, 1, 4) is first
    assert program(ring, 1, 4, in_place=True) is not first


def test_a_program_in_place_is_refused_where_the_algorithm_cannot() -> None:
    pytest.importorskip("collectives.native._engine", reason="the extension is not built")
    with pytest.raises(ValueError, match="one_shot does not work in place"):
        program(get("allreduce", "one_shot"), 0, 2, in_place=True)


def test_schedules_need_no_extension() -> None:
    code = (
        "import sys; sys.modules['collectives.native._engine'] = None\n"
        "import types; sys.modules['collectives'] = package = types.ModuleType('collectives')\n"
        "package.__path__ = ['collectives']\n"
        "import collectives.algorithms as a, collectives.schedule as s, collectives.schedule.compile as c\n"
        "s.verify(a.get('allreduce', 'ring'), range(1, 5)); c.compiled(a.schedule('allreduce', 'ring', 0, 4))\n"
        "assert 'matplotlib' not in sys.modules\n"
    )
    root = __file__.rsplit("/tests/", 1)[0]
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True, timeout=60)
