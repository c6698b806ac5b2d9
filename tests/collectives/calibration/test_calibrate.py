"""Calibration: from times to rows, and the command that measures."""

from __future__ import annotations

from math import log
from pathlib import Path

import numpy as np
import pytest

import collectives
from collectives.algorithms import algorithms, get
from collectives.calibration import FULL, QUICK, calibrate, formats, protocol
from collectives.calibration.calls import Arrays
from collectives.calibration.links import Link, facts, from_facts
from collectives.calibration.model import Model
from collectives.calibration.run import _losses
from collectives.calibration.settle import first_within, rows, settle
from collectives.calibration.timing import Stopwatch
from collectives.schedule.conditions import COLLECTIVES
from collectives.schedule.defaults import DEFAULTS
from collectives.schedule.table import ANY_SIZE, Row, Situation, parse
from tests.bench.running import command, environment
from tests.collectives.groups import ranks

SITUATION = Situation(4, "shm", per_host=4, hosts=1)
LINK = Link(1e-6, 1e-10, 1e-10)


# --- from times to rows


def test_the_fastest_is_chosen_at_every_size() -> None:
    losses = [{"a": 0.0, "b": 1.0}, {"a": 0.0, "b": 0.5}, {"a": 0.5, "b": 0.0}, {"a": 1.0, "b": 0.0}]
    assert settle(losses, ["a"] * 4) == ["a", "a", "b", "b"]


def test_noise_does_not_flip_the_choice() -> None:
    losses = [{"a": 0.0, "b": 0.02}, {"a": 0.03, "b": 0.0}, {"a": 0.0, "b": 0.01}, {"a": 0.02, "b": 0.0}]
    assert settle(losses, ["a"] * 4) == ["a"] * 4


def test_what_is_not_there_is_not_taken() -> None:
    assert settle([{"a": 0.0}, {"b": 0.0}, {"a": 0.0}], ["a", "a", "a"]) == ["a", "b", "a"]
    assert settle([], []) == []


def test_no_choice_costs_more_than_the_switches_that_it_saves() -> None:
    """For any times: what is lost at a size is at most two switches and what a stranger has to gain."""
    random = np.random.default_rng(5)
    for _ in range(200):
        losses = []
        for _size in range(12):
            times = random.lognormal(0, 0.3, 3)
            losses.append(dict(zip("abc", np.log(times / times.min()).tolist(), strict=True)))
        chosen = settle(losses, ["a"] * 12, log(1.04), log(1.02))
        worst = max(here[name] for here, name in zip(losses, chosen, strict=True))
        assert worst <= 2 * log(1.04) + log(1.02) + 1e-9


def test_a_challenger_loses_what_is_uncertain_about_it() -> None:
    steady = np.array([[1.0, 0.9], [1.0, 0.9], [1.0, 0.9]])
    assert _losses(steady, 0, 2.0) == pytest.approx([log(1 / 0.9), 0.0])
    shaky = np.array([[1.0, 0.9], [1.0, 3.0], [1.0, 0.3]])
    lost = _losses(shaky, 0, 2.0)
    assert lost[0] < lost[1]


def test_rows_end_between_sizes() -> None:
    sizes = [64 << 10, 128 << 10, 256 << 10]
    times = [{"a": 1e-5, "b": 2e-5}, {"a": 3e-5, "b": 2.5e-5}, {"b": 4e-5}]
    found = rows("allreduce", SITUATION, sizes, ["a", "b", "b"], times, True)
    assert [str(row) for row in found] == [
        "allreduce shm 4 96K a hosts=1 per-host=4 oversubscribed=no : measured 10 us at 64K, b 20",
        "allreduce shm 4 any b hosts=1 per-host=4 oversubscribed=no : measured 40 us at 256K",
    ]
    assert parse("\n".join(map(str, found))).rows == tuple(found)
    (row,) = rows("allreduce", SITUATION, sizes, ["a"] * 3, [times[0]] * 3, False)
    assert row.bytes == 384 << 10
    (row,) = rows("barrier", SITUATION, [0], ["a"], [{"a": 1e-3}], True)
    assert (row.bytes, row.reason) == (ANY_SIZE, "measured 1000 us at 0")


# --- the model


def test_the_model_knows_rounds_bytes_and_reductions() -> None:
    def seconds(name: str, nbytes: int, size: int = 8) -> float:
        known = get("allreduce", name)
        return Model([known(rank, size) for rank in range(size)], LINK).seconds(nbytes)

    assert seconds("ring", 0) == pytest.approx(14 * LINK.alpha)
    n = 8 << 20
    expected = 14 * LINK.alpha + 2 * 7 / 8 * n * LINK.beta + 7 / 8 * n * LINK.gamma
    assert seconds("ring", n) == pytest.approx(expected)
    assert seconds("recursive_doubling", 8) < seconds("ring", 8)
    assert seconds("recursive_doubling", n) > seconds("ring", n)


def test_what_was_measured_corrects_the_model() -> None:
    known = get("allreduce", "ring")
    model = Model([known(rank, 4) for rank in range(4)], LINK)
    model.correct({1 << 10: 1e-3, 1 << 20: 2e-3})
    assert model.seconds(1 << 10) == pytest.approx(1e-3)
    assert model.seconds(1 << 20) == pytest.approx(2e-3)
    plain = Model([known(rank, 4) for rank in range(4)], LINK)
    first, middle, last = (model.seconds(1 << n) / plain.seconds(1 << n) for n in (10, 15, 20))
    assert middle == pytest.approx((first * last) ** 0.5)
    unknown = Model([], LINK)
    unknown.correct({1 << 10: 1e-3})
    assert unknown.seconds(1 << 20) == pytest.approx(1e-3)


def test_costs_survive_being_kept() -> None:
    costs = {"shm": Link(1.5e-6, 8e-11, 1e-10), "tcp": Link(2e-5, 4e-10, 1e-10)}
    assert from_facts({"made": "today", **facts(costs), "half.alpha": "1"}) == costs


@pytest.mark.parametrize("first", range(len(protocol.SIZES) + 1))
def test_from_which_size_on_messages_use_the_rendezvous_protocol(first: int) -> None:
    froms = [*protocol.SIZES, 2 * protocol.SIZES[-1]]
    seconds = np.ones((5, len(protocol.SIZES), 3))
    seconds[:, :, 2] += np.where(np.arange(len(protocol.SIZES)) < first, 1, -0.5)  # at first slower, then faster
    assert protocol.fastest(seconds) == (froms[first] if first < len(protocol.SIZES) else None)
    seconds[:, :, 0] = seconds[:, :, 1:].min(axis=2)  # the usual choice is as good
    assert protocol.fastest(seconds) is None


def test_noise_does_not_change_the_protocol() -> None:
    seconds = np.random.default_rng(3).uniform(1, 1.02, (5, len(protocol.SIZES), 3))
    assert protocol.fastest(seconds) is None


# --- measuring


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_collective_can_be_called(collective: str, size: int) -> None:
    def body(comm: collectives.Communicator) -> None:
        arrays = Arrays(4096, size)
        for algorithm in algorithms(collective, size):
            for nbytes in (8, 1000, 4096):
                arrays.call(comm, collective, algorithm.name, nbytes)()

    ranks(size, body)


@pytest.mark.parametrize("size", [2, 3])
def test_a_group_measures_itself_and_agrees(size: int) -> None:
    effort = QUICK.with_(20.0, 512, ("allreduce", "broadcast"))
    assert effort.sizes == (8, 64, 512) and effort.looks == (8, 512)

    def body(comm: collectives.Communicator) -> tuple[str, list[float], list[str]]:
        found = calibrate(comm, DEFAULTS, effort, tolerant=True)  # whatever else runs here
        link = next(iter(found.links.values()))
        return str(found.table.rows), [link.alpha, link.beta, link.gamma], [r.collective for r in found.table.rows]

    first, *others = ranks(size, body, timeout=60.0)
    assert all(other == first for other in others)
    assert set(first[2]) == {"allreduce", "broadcast"}
    assert all(value > 0 for value in first[1])


def test_formats_are_measured_and_all_ranks_choose_the_same() -> None:
    names = ("broadcast", "allreduce", "allgather")

    def body(comm: collectives.Communicator) -> list[str]:
        watch = Stopwatch(comm)

        def measured(most: int, until: float) -> list[Row]:
            return formats.measure(comm, names, most, DEFAULTS, watch, until, lambda *_: None)

        assert measured(1000, 60.0) == [] and measured(1 << 20, -1.0) == []
        return [str(row) for row in measured(1 << 20, 60.0)]

    first, *others = ranks(2, body, transport="tcp", timeout=60.0)
    assert others == [first]
    found = parse("\n".join(first)).rows
    assert [str(row) for row in found] == first
    assert all(row.wire and row.kinds == ("tcp",) and row.ranks == (2, 2) for row in found)
    assert {row.algorithm for row in found} <= {"float32", "bf16", "int8"}
    for name in names[1:]:
        assert [row.bytes for row in found if row.collective == name] in ([ANY_SIZE], [256 << 10, ANY_SIZE])
    assert {row.collective for row in found} == set(names[1:])


def test_a_format_that_rounds_more_has_to_gain_a_tenth() -> None:
    def chosen(*times: float) -> int:
        return first_within(np.array([times, times, times]), formats.GAIN)

    assert chosen(1.0, 0.95, 0.91) == 0
    assert chosen(1.0, 0.6, 0.55) == 1
    assert chosen(1.0, 0.6, 0.5) == 2
    assert chosen(1.0, 1.1, 0.85) == 2


def test_a_budget_that_is_too_small_leaves_rows_out() -> None:
    effort = FULL.with_(0.05, 1 << 20, ())

    def body(comm: collectives.Communicator) -> bool:
        found = calibrate(comm, DEFAULTS, effort, tolerant=True)  # whatever else runs here
        return all(row.bytes < ANY_SIZE or row.collective == "barrier" for row in found.table.rows)

    assert all(ranks(2, body))


def test_the_command_writes_a_table_that_init_reads(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    env = environment(XDG_CACHE_HOME=str(cache))
    quick = ("--budget", "60", "-e", "64", "--despite-noise")  # with small sizes it ends long before
    reported = command("calibrate", "allreduce", "alltoall", "-n", "2", "--transport", "tcp", *quick, env=env).stdout
    (file,) = cache.rglob("*.table")
    assert f": {file}\n" in reported and "# tcp: a message takes " in reported
    assert file.name.startswith("tcp-2x2")
    table = parse(file.read_text(), "kept")
    assert parse(reported).rows == table.rows
    assert {row.collective for row in table.rows} == {"allreduce", "alltoall"}
    assert from_facts(table.facts).keys() == {"tcp"}
    shown = command(
        *("explain", "allreduce", "-n", "2", "-b", "8", "--transport", "tcp", "--ranks-per-host", "2"),
        env={**env, "COLLECTIVES_CALIBRATE": "cached"},
    ).stdout
    assert f"  from       calibrated on {table.facts['made']}: {file}\n" in shown
    own = tmp_path / "own.table"
    command("calibrate", "allreduce", *quick, "--output", str(own), env=env)
    assert parse(own.read_text()).rows
    assert list(cache.rglob("*.table")) == [file]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("-n", "1"), "1 is not in the range x>=2"),
        (("sums",), "'sums' is not one of 'allreduce'"),
        (("--budget", "0"), "0 is not a positive"),
        (("--transport", "pigeon"), "pigeon"),
        (("--output", "/nowhere/at/all"), "/nowhere/at/all cannot be written"),
        (("-n", "1000000", "-e", "1G"), "GiB for their arrays"),
    ],
)
def test_what_cannot_be_measured_is_refused(arguments: tuple[str, ...], problem: str) -> None:
    assert problem in command("calibrate", *arguments, code=2).stderr
