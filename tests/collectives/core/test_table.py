"""Decision tables as text: what is written is what is read, and what is wrong is said with file and line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.schedule.conditions import COLLECTIVES
from collectives.schedule.defaults import DEFAULTS
from collectives.schedule.table import ANY_RANKS, ANY_SIZE, LONGEST, Row, Situation, Table, join, parse, text

TEXT = """
# a comment
made = 2026-01-01 12:00 UTC   # another
allreduce  shm,tcp  3-16  64K  halving-doubling  per-host=2- oversubscribed=no  : few rounds: and few bytes

barrier    any      any   any  dissemination
alltoall   tcp      7     1000 pairwise          oversubscribed=yes
scatter    any      17-   2MiB linear
"""
ROWS = (
    Row(
        "allreduce",
        ("shm", "tcp"),
        (3, 16),
        65536,
        "halving_doubling",
        "few rounds: and few bytes",
        (2, 1 << 62),
        False,
    ),
    Row("barrier", (), ANY_RANKS, ANY_SIZE, "dissemination"),
    Row("alltoall", ("tcp",), (7, 7), 1000, "pairwise", oversubscribed=True),
    Row("scatter", (), (17, ANY_SIZE), 2 << 20, "linear"),
)


def test_rows_and_facts_are_read() -> None:
    table = parse(TEXT, "x.table")
    assert table == Table(ROWS, {"made": "2026-01-01 12:00 UTC"})
    assert [row.source for row in table.rows] == [f"x.table, line {n}" for n in (4, 6, 7, 8)]


def test_what_is_printed_is_in_columns_and_is_read_again() -> None:
    table = parse(TEXT)
    assert text(table) == (
        "made = 2026-01-01 12:00 UTC\n"
        "allreduce  shm,tcp  3-16  64K   halving_doubling  per-host=2- oversubscribed=no  : few rounds: and few bytes\n"
        "barrier    any      any   any   dissemination\n"
        "alltoall   tcp      7     1000  pairwise          oversubscribed=yes\n"
        "scatter    any      17-   2M    linear\n"
    )
    assert parse(text(table)) == table
    assert parse(text(DEFAULTS)) == DEFAULTS
    assert text(Table(())) == ""


def test_a_row_as_text_is_a_line_of_a_table() -> None:
    assert str(ROWS[2]) == "alltoall tcp 7 1000 pairwise oversubscribed=yes"
    for row in (*ROWS, *DEFAULTS.rows):
        assert parse(str(row)).rows == (row,)


_RANGES = st.tuples(st.integers(1, 1000), st.integers(0, 1000)).map(lambda p: (p[0], p[0] + p[1])) | st.just(ANY_RANKS)
_WORDS = st.text(st.characters(codec="utf-8", exclude_characters="#"), max_size=40).map(lambda t: " ".join(t.split()))


@given(
    st.lists(
        st.builds(
            Row,
            collective=st.sampled_from(list(COLLECTIVES)),
            kinds=st.lists(st.sampled_from(["self", "shm", "tcp", "my+own"]), max_size=3).map(tuple),
            ranks=_RANGES,
            bytes=st.integers(0, 1 << 45) | st.integers(0, 100).map(lambda n: n << 20) | st.just(ANY_SIZE),
            algorithm=st.from_regex(r"[a-z][a-z0-9_]*", fullmatch=True),
            reason=_WORDS,
            per_host=st.none() | _RANGES,
            oversubscribed=st.none() | st.booleans(),
            hosts=st.none() | _RANGES,
        ),
        max_size=5,
    )
)
def test_any_table_survives_being_written_and_read(rows: list[Row]) -> None:
    assert parse(text(Table(tuple(rows)))).rows == tuple(rows)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("allreduce tcp 3 64K", "is no row: COLLECTIVE KINDS RANKS BYTES ALGORITHM"),
        ("allred tcp 3 64K ring", "there is no collective 'allred' (did you mean 'allreduce'?); there are allreduce, "),
        ("allreduce t/cp 3 64K ring", "'t/cp' is no name of a transport"),
        ("allreduce tcp, 3 64K ring", "'' is no name of a transport"),
        ("allreduce tcp three 64K ring", "'three' is no number of ranks"),
        ("allreduce tcp 0 64K ring", "0-0 is no range of ranks"),
        ("allreduce tcp 9-3 64K ring", "9-3 is no range of ranks"),
        ("allreduce tcp 3 64X ring", "'64X' is no number of bytes"),
        ("allreduce tcp 3 -1 ring", "'-1' is no number of bytes"),
        ("allreduce tcp 3 64K Ring", "'Ring' is no name of an algorithm"),
        ("allreduce tcp 3 64K ring fast", "'fast' is no condition"),
        (
            "allreduce tcp 3 64K ring oversubscribed=maybe",
            "oversubscribed=maybe is neither oversubscribed=yes nor oversubscribed=no",
        ),
        ("allreduce tcp 3 64K ring oversubscribed=no oversubscribed=no", "'oversubscribed=no' is no condition"),
        ("allreduce tcp 3 64K ring per-host=x", "'x' is no number of ranks"),
        ("allreduce tcp 3 64K ring hosts=2 hosts=3", "'hosts=3' is no condition"),
        ("allreduce tcp 3 64K ring hosts=0", "0-0 is no range of hosts"),
        ("allreduce tcp 3 64K ring wire=auto", "'ring' is none of float32, bf16, fp16, fp8, int8"),
        ("allreduce tcp 3 64K int8 wire=int8", "wire=int8 is not wire=auto"),
        ("broadcast tcp 3 64K int8 wire=auto", "wire=auto is a condition of rows for allreduce, reduce_scatter"),
        ("allreduce tcp 3 64K int8 wire=auto memory=cuda", "does not go with memory="),
    ],
)
def test_what_is_wrong_is_said_with_file_and_line(line: str, problem: str) -> None:
    with pytest.raises(ValueError) as raised:
        parse(f"# one\n\n{line}  # comment\nbarrier any any any dissemination\n", "/etc/my.table")
    assert str(raised.value).startswith("/etc/my.table, line 3: ")
    assert problem in str(raised.value)


def test_a_table_has_a_limit() -> None:
    with pytest.raises(ValueError, match=r"long: .* characters, more than the"):
        parse("#" * (LONGEST + 1), "long")


@pytest.mark.parametrize("reason", ["two\nlines", "a # mark", " space "])
def test_reasons_that_could_not_be_read_again_are_refused(reason: str) -> None:
    with pytest.raises(ValueError, match="a reason is one line without '#'"):
        Row("allreduce", (), ANY_RANKS, ANY_SIZE, "ring", reason)


def test_the_part_for_one_group() -> None:
    table = join([parse(TEXT, source="a"), DEFAULTS])
    part = table.for_group(Situation(7, "tcp", oversubscribed=True, per_host=7))
    assert [row.algorithm for row in part.rows[:3]] == ["dissemination", "pairwise", "one_shot"]
    assert [row.source for row in part.rows[:3]] == ["a", "a", "built in, by the simulator"]
    assert {row.source for row in table.from_source("b").rows} == {"b"}


def test_tables_of_earlier_versions_call_it_crowded() -> None:
    (row,) = parse("allreduce tcp 3 64K ring crowded=no", "old").rows
    assert row.oversubscribed is False and str(row) == "allreduce tcp 3 64K ring oversubscribed=no"
