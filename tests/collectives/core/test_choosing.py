"""The table that a group chooses by: rank 0's, the same on all ranks, whatever each of them was given."""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import collectives
from collectives.algorithms import registry
from collectives.calibration import QUICK, noise
from collectives.calls.moves import Deadline
from collectives.commands.explain import command
from collectives.core import choosing, tables
from collectives.core.choosing import Wish, agree, in_force, wish, worth_it
from collectives.core.tables import Machine
from collectives.schedule.defaults import DEFAULTS
from collectives.schedule.form import Builder, Schedule
from collectives.schedule.select import select_wire
from collectives.schedule.table import Situation, Table, parse
from tests.collectives.groups import outcomes, ranks

MACHINE = Machine("some processor", "Linux 1.0", 8, "9.9")
SHM = Situation(4, "shm", per_host=4, hosts=1)
HERE = "allreduce any any any tree : ours"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def chosen(comm: collectives.Communicator, collective: str = "allreduce", nbytes: int = 8) -> list[str]:
    """The algorithm, and where the row is from that chose it."""
    reported = dict(line.split(None, 1) for line in comm.explain(collective, nbytes).split("\n\n")[0].splitlines()[1:])
    return [reported["algorithm"].partition(":")[0], reported["from"]]


def calibrated(situation: Situation, algorithm: str, machine: Machine = MACHINE) -> Table:
    line = (
        f"allreduce {situation.kind} {situation.size} any {algorithm} per-host={situation.per_host} oversubscribed=no"
    )
    return tables.described(parse(line), machine, situation, "by hand", {})


def store(machine: Machine, situation: Situation, table: Table) -> Path:
    path = tables.path_for(machine, situation)
    assert path is not None
    tables.save(path, table)
    return path


# --- what is asked for


def test_who_asks_later_asks_in_vain(tmp_path: Path) -> None:
    file = tmp_path / "my.table"
    file.write_text("\nallreduce any any any circulant\n")
    env = {"COLLECTIVES_TABLE": str(file), "COLLECTIVES_ALGORITHM": "allreduce:ring, alltoall:bruck"}
    found = wish(0, parse(HERE), None, env)
    assert [(row.algorithm, row.source) for row in found.table.rows] == [
        ("tree", "argument table="),
        ("ring", "COLLECTIVES_ALGORITHM"),
        ("bruck", "COLLECTIVES_ALGORITHM"),
        ("circulant", f"COLLECTIVES_TABLE: {file}, line 2"),
    ]
    assert wish(0, file, None, {}).table.rows[0].source == f"argument: {file}, line 2"


def test_only_rank_0_reads() -> None:
    env = {"COLLECTIVES_TABLE": "/nowhere", "COLLECTIVES_ALGORITHM": "x"}
    assert wish(1, "/nowhere either", None, env).table.rows == ()


@pytest.mark.parametrize(
    ("env", "problem"),
    [
        ({"COLLECTIVES_TABLE": "/nowhere/at.all"}, "COLLECTIVES_TABLE: cannot read the table /nowhere/at.all: No such"),
        ({"COLLECTIVES_ALGORITHM": "ring"}, "COLLECTIVES_ALGORITHM: 'ring' is not COLLECTIVE:ALGORITHM"),
        ({"COLLECTIVES_ALGORITHM": "sum:ring"}, "'sum:ring' is not COLLECTIVE:ALGORITHM; collectives are allreduce"),
        ({"COLLECTIVES_ALGORITHM": "allreduce:rign"}, "COLLECTIVES_ALGORITHM: there is no algorithm 'rign'"),
        ({"COLLECTIVES_CALIBRATE": "yes"}, "COLLECTIVES_CALIBRATE='yes' is none of auto, cached, off"),
    ],
)
def test_what_cannot_be_asked_for(env: dict[str, str], problem: str) -> None:
    with pytest.raises(ValueError) as raised:
        wish(0, None, None, env)
    assert problem in str(raised.value)


def test_tables_are_checked_before_anything_is_opened(tmp_path: Path) -> None:
    file = tmp_path / "my.table"
    file.write_text("allreduce any any any ring\nbroadcast any any any rign\n")
    with pytest.raises(ValueError, match=r"my.table, line 2: there is no algorithm 'rign' for broadcast.*import what"):
        collectives.init(table=file)
    with pytest.raises(TypeError, match="table must be a Table or the path of a file, not int"):
        collectives.init(table=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="calibrate='now' is none of"):
        collectives.init(calibrate="now")
    with pytest.raises(TypeError, match="calibrate must be a str"):
        collectives.init(calibrate=True)  # type: ignore[arg-type]


# --- the same on every rank


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_rank_0s_table_is_everybodys(size: int) -> None:
    def body(comm: collectives.Communicator) -> list[str]:
        assert comm.allreduce(np.arange(100.0)).tolist() == [size * i for i in range(100)]
        return chosen(comm)

    assert ranks(size, body, table=parse(HERE)) == [["tree", "argument table="]] * size


def test_ranks_that_were_given_different_tables_agree() -> None:
    """As groups of ranks that were started by different people, on different machines, would be."""

    def body(comm: collectives.Communicator) -> list[list[str]]:
        wanted = Wish(parse(f"allreduce any any any {'star' if comm.rank == 0 else 'ring'}", source="mine"), "off")
        comm._choose_by(agree(comm, wanted, lambda: MACHINE, Deadline(10)))
        assert comm.allreduce(np.ones(5)).tolist() == [3.0] * 5
        half = comm.split(comm.rank % 2)
        with comm.dup() as twin:
            assert half is not None
            found = [chosen(comm), chosen(twin), chosen(half), chosen(comm, "broadcast")]
            half.close()
        return found

    (first, *others) = ranks(3, body)
    assert first == [["star", "mine"]] * 3 + [["direct", "built in"]]
    assert others == [first, first]


def test_an_algorithm_that_a_rank_lacks_is_said_there() -> None:
    def body(comm: collectives.Communicator) -> None:
        agree(comm, Wish(parse("allreduce any any any secret", source="mine"), "off"), lambda: MACHINE, Deadline(10))

    for rank, outcome in enumerate(outcomes(2, body)):
        assert isinstance(outcome.error, collectives.ConfigMismatch)
        assert f"mine names allreduce secret, which rank {rank} does not have" in str(outcome.error)


def test_what_does_not_work_for_the_group_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(comm: collectives.Communicator) -> list[str]:
        return chosen(comm)

    with_powers_only = "allreduce any any any powers : of two"
    monkeypatch.setitem(registry._registry, "allreduce", dict(registry._registry["allreduce"]))
    collectives.algorithm("allreduce", name="powers", sizes=lambda size: size & (size - 1) == 0)(_powers)
    assert ranks(3, body, table=parse(with_powers_only))[0][0] == "one_shot"
    assert ranks(2, body, table=parse(with_powers_only))[0][0] == "powers"


def _powers(rank: int, size: int) -> Schedule:
    b = Builder("allreduce", "powers", rank, size, grid=(1, 1))
    peers = [r for r in range(size) if r != rank]
    if peers:
        b.send(peers, b.inp())
        b.reduce(b.out(), *(b.inp() if r == rank else r for r in range(size)), final=True)
    else:
        b.copy(b.out(), b.inp())
    return b.build()


# --- what was measured


def test_a_calibrated_table_is_used_for_its_machine_and_shape_only(cache: Path) -> None:
    path = store(MACHINE, SHM, calibrated(SHM, "ring"))
    assert oct(path.stat().st_mode)[-3:] == "644"
    (found,) = tables.load(MACHINE, SHM)
    assert found.rows[0].source.startswith("calibrated on 20") and str(path) in found.rows[0].source
    assert tables.covers([found], SHM)
    cached = Wish(Table(()), "cached")
    assert in_force(cached, MACHINE, SHM).rows[0].algorithm == "ring"
    assert in_force(Wish(Table(()), "off"), MACHINE, SHM) == DEFAULTS
    for other in (Machine("x", *_rest()), Machine("some processor", "Linux 1.1", 8, "9.9")):
        assert tables.load(other, SHM) == []
    assert tables.load(MACHINE, Situation(2, "shm", per_host=2, hosts=1)) == []
    (larger,) = tables.load(MACHINE, Situation(8, "shm", per_host=8, hosts=1))  # which may be split into fours
    assert not tables.covers([larger], Situation(8, "shm", per_host=8, hosts=1))
    assert not tables.covers([found], Situation(4, "shm", True, 4, 1))


def _rest() -> tuple[str, int, str]:
    return MACHINE.kernel, MACHINE.cores, MACHINE.version


def test_rows_of_algorithms_that_are_not_there_any_more_are_left_out(cache: Path) -> None:
    store(MACHINE, SHM, calibrated(SHM, "forgotten"))
    assert in_force(Wish(Table(()), "cached"), MACHINE, SHM) == DEFAULTS


def test_formats_that_were_measured_are_used_but_are_no_calibration_of_algorithms(cache: Path) -> None:
    made = calibrated(SHM, "ring")
    formats = parse("allreduce shm 4 any int8 per-host=4 wire=auto").rows
    store(MACHINE, SHM, replace(made, rows=(*made.rows, *formats)))
    found = in_force(Wish(Table(()), "cached"), MACHINE, SHM)
    assert select_wire("allreduce", 1 << 20, SHM, found).algorithm == "int8"
    assert tables.covers(tables.load(MACHINE, SHM), SHM) and not tables.covers([Table(formats)], SHM)


def test_a_damaged_table_is_left_out_with_a_warning(cache: Path) -> None:
    path = store(MACHINE, SHM, calibrated(SHM, "ring"))
    path.write_text("nonsense")
    with pytest.warns(RuntimeWarning, match=r"ignoring calibrated tables: .*shm-4x4.table, line 1: .*delete the file"):
        assert choosing.cached(MACHINE, SHM) == []


def test_without_a_home_there_is_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/cache")
    assert tables.load(MACHINE, SHM) == []
    path = tables.path_for(MACHINE, SHM)
    assert path is not None
    with tables.reserved(path) as mine:
        assert not mine
    monkeypatch.delenv("XDG_CACHE_HOME")

    def nobody() -> Path:
        raise RuntimeError("no home")

    monkeypatch.setattr(Path, "home", nobody)
    assert tables.path_for(MACHINE, SHM) is None and tables.load(MACHINE, SHM) == []


def test_one_process_at_a_time_measures(cache: Path) -> None:
    path = tables.path_for(MACHINE, SHM)
    assert path is not None
    with tables.reserved(path) as first:
        with tables.reserved(path) as second:
            assert first and not second
        with tables.reserved(path) as third:
            assert not third
        (mark,) = path.parent.iterdir()
        os.utime(mark, (0, 0))  # of a process that was killed long ago
        with tables.reserved(path) as fourth:
            assert fourth
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize(
    ("situation", "expected"),
    [
        (Situation(2, "shm", per_host=2, hosts=1), True),
        (Situation(2, "tcp", per_host=2, hosts=1), True),
        (Situation(2, "verbs", per_host=2, hosts=1), True),
        (Situation(6, "verbs", per_host=6, hosts=1), False),
        (Situation(64, "shm", per_host=64, hosts=1), True),
        (Situation(65, "shm", per_host=65, hosts=1), False),
        (Situation(1, "self", per_host=1, hosts=1), False),
        (Situation(2, "inproc", per_host=2, hosts=1), False),
        (Situation(2, "shm", True, 2, 1), False),
        (Situation(2, "tcp", per_host=1, hosts=2), False),
        (Situation(2, "somebody's own", per_host=2, hosts=1), False),
    ],
)
def test_who_calibrates_without_being_asked(situation: Situation, expected: bool) -> None:
    assert worth_it(situation) is expected


def test_first_use_measures_once_and_keeps_it(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over TCP between threads, which counts as ranks of one host; whatever the load is."""
    monkeypatch.setattr(choosing, "worth_it", lambda situation: situation.size > 1)
    monkeypatch.setattr(choosing, "_busy", lambda machine: False)
    monkeypatch.setattr("collectives.calibration.run.QUICK", replace(QUICK, seconds=20.0, sizes=(8, 64), looks=(8, 64)))
    monkeypatch.setattr(noise, "judge", lambda *_: ())

    def body(comm: collectives.Communicator) -> list[str]:
        assert comm.allreduce(np.ones(2)).tolist() == [2.0, 2.0]
        return chosen(comm)

    first = ranks(2, body, transport="tcp", calibrate="auto")
    assert first[0] == first[1] and first[0][1].startswith("calibrated on ")
    (file,) = cache.rglob("*.table")
    table = parse(file.read_text(), "kept")
    assert {row.collective for row in table.rows} >= {"allreduce"}
    assert table.facts["how"].startswith("quick, in ") and {"tcp.alpha", "tcp.beta", "tcp.gamma"} <= table.facts.keys()
    changed = file.stat().st_mtime_ns
    assert ranks(2, body, transport="tcp", calibrate="auto") == first
    assert file.stat().st_mtime_ns == changed
    assert [c[1] for c in ranks(2, body, transport="tcp", calibrate="off")] == ["built in"] * 2
    assert list(cache.rglob(".*")) == []  # no reservation, no half of a file


def test_where_nothing_can_be_kept_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/cache")
    monkeypatch.setattr(choosing, "worth_it", lambda situation: True)
    monkeypatch.setattr(choosing, "_busy", lambda machine: False)
    monkeypatch.setattr(choosing, "_measure", None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ranks(2, chosen, transport="tcp", calibrate="auto")[0][1] == "built in"


def test_a_busy_machine_is_not_measured(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (1000.0, 0.0, 0.0))
    monkeypatch.setattr(choosing, "worth_it", lambda situation: True)
    monkeypatch.setattr(choosing, "_measure", None)
    assert ranks(2, chosen, transport="tcp", calibrate="auto")[0][1] == "built in"


# --- shown


def test_the_command_prints_the_table_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    from click.testing import CliRunner

    monkeypatch.setenv("COLLECTIVES_ALGORITHM", "broadcast:binomial")
    reported = CliRunner().invoke(command, ["--table", "-n", "4"]).output
    assert reported.startswith(
        "# COLLECTIVES_ALGORITHM\nbroadcast  any  any  any  binomial  : asked for\n\n# built in, by the simulator\n"
    )
    assert "\n\n# built in\n" in reported
    assert parse(reported).rows[1:] == DEFAULTS.rows
    one = CliRunner().invoke(command, ["broadcast", "--table"]).output
    assert {row.collective for row in parse(one).rows} == {"broadcast"}
    shown = CliRunner().invoke(command, ["broadcast", "-n", "4"]).output
    assert "algorithm  binomial: asked for\n  row        broadcast any any any binomial\n" in shown
    assert "  from       COLLECTIVES_ALGORITHM\n" in shown
    monkeypatch.setenv("COLLECTIVES_ALGORITHM", "broadcast")
    wrong = CliRunner().invoke(command, ["broadcast", "-n", "4"])
    assert wrong.exit_code == 1 and "is not COLLECTIVE:ALGORITHM" in wrong.output
