"""`collectives explain`: what it says is what a communicator does, and what cannot be is refused with a reason."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from collectives.algorithms import algorithms, registry, schedule
from collectives.commands.main import main
from collectives.schedule import explain as one_rank
from collectives.schedule.conditions import COLLECTIVES
from collectives.schedule.layout import even
from collectives.schedule.select import ladder, select
from collectives.schedule.table import ANY_SIZE, Situation
from tests.collectives.groups import ranks

OWN = """
from collectives.algorithms import algorithm
from collectives.schedule.form import Builder

@algorithm("broadcast")
def {name}(rank, size, root=0):
    \"\"\"The root sends to one after the other.\"\"\"
    b = Builder("broadcast", "{name}", rank, size, grid=(0, 1), root=root)
    for peer in range(size):
        if peer != root and rank == root:
            b.send(peer, b.out())
    if rank != root:
        b.recv(root, b.out())
    return b.build()
"""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["explain", *arguments], prog_name="collectives")


def text(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_says_what_a_communicator_would_do(collective: str, size: int) -> None:
    reported = ranks(size, lambda comm: comm.explain(collective, 1 << 16, "float64"))[0]
    chosen = next(line.split(None, 1)[1] for line in reported.splitlines() if line.strip().startswith("algorithm"))
    printed = text(collective, "-n", str(size), "-b", "64K", "-d", "float64", "--transport", "inproc")
    assert f"  algorithm  {chosen}\n" in printed


def test_says_which_format_auto_stands_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own.table").write_text("allreduce tcp 4 any int8 wire=auto : measured here\n")
    monkeypatch.setenv("COLLECTIVES_TABLE", str(tmp_path / "own.table"))
    printed = text("allreduce", "-n", "4", "--transport", "tcp", "--wire", "auto")
    assert (
        "\n  wire       auto chooses int8: measured here\n  row        allreduce tcp 4 any int8 wire=auto\n" in printed
    )
    assert f"from       COLLECTIVES_TABLE: {tmp_path / 'own.table'}, line 1\n" in printed
    assert "auto chooses float32: nobody has measured" in text("allgather", "-n", "4", "--wire", "auto")
    assert "auto: float64 is sent as it is" in text("allreduce", "-d", "float64", "--wire", "auto")
    assert "wire" not in text("allreduce", "-n", "4", "--transport", "tcp").replace("no wire", "")
    wrong = run("broadcast", "--wire", "auto")
    assert wrong.exit_code == 2 and "broadcast has no wire formats" in wrong.output


@pytest.mark.parametrize("kind", ["shm", "tcp"])
@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("size", [2, 5, 40, 500])
def test_the_ladder_is_what_select_climbs(collective: str, size: int, kind: str) -> None:
    situation = Situation(size, kind)
    usable = {a.name for a in algorithms(collective, size)}
    rows = ladder(collective, situation, usable.__contains__)
    assert rows[-1].bytes == ANY_SIZE
    for previous, row in zip([None, *rows], rows, strict=False):
        first = 0 if previous is None else previous.bytes + 1
        for nbytes in (first, min(row.bytes, first + (1 << 40))):
            choice = select(collective, nbytes, situation, usable.__contains__)
            assert (choice.algorithm, choice.reason) == (row.algorithm, row.reason)


def test_ranks_that_share_hosts() -> None:
    printed = text("allreduce", "-n", "6", "--ranks-per-host", "2", "--transport", "tcp", "-b", "64M")
    assert "algorithm  hierarchical_ring: " in printed and "hosts=2-" in printed and "per-host=2" in printed
    assert "allreduce hierarchical_ring, 6 ranks on 3 hosts: 6 rounds" in printed
    alone = text("allreduce", "-n", "6", "--transport", "tcp", "-b", "64M")
    assert "algorithm  ring: " in alone
    layout = even(5, 2)
    printed = text(
        "broadcast",
        "-n",
        "5",
        "--ranks-per-host",
        "2",
        "--transport",
        "tcp",
        "--algorithm",
        "hierarchical-chain",
        "--rank",
        "3",
    )
    assert one_rank(schedule("broadcast", "hierarchical_chain", 3, 5, layout=layout)) in printed


def test_rdma_links_hosts_too() -> None:
    printed = text("allreduce", "-n", "6", "--ranks-per-host", "2", "--transport", "verbs", "-b", "64M")
    assert "6 ranks, over verbs" in printed and "6 ranks on 3 hosts" in printed
    assert "algorithm  hierarchical_ring: " in printed
    assert "algorithm  ring: " in text("allreduce", "-n", "6", "--transport", "verbs", "-b", "64M")


def test_several_hosts_are_not_linked_by_memory() -> None:
    result = run("allreduce", "-n", "4", "--ranks-per-host", "2", "--transport", "shm")
    assert result.exit_code == 2 and "several hosts are not linked by shm" in result.output
    assert "two_shot" in text("allreduce", "-n", "4", "--ranks-per-host", "4", "--transport", "shm")


def test_all_ranks_of_a_small_group_are_shown_with_their_cost() -> None:
    printed = text("allreduce", "-n", "3", "--algorithm", "ring", "-b", "3M")
    assert printed.startswith("allreduce of 3 MiB (786432 float32), 3 ranks, over shm\n")
    assert "algorithm  ring: asked for" in printed
    assert "cost       4 rounds; a rank sends at most 4 messages, 4 MiB\n" in printed
    assert "each block goes around the ring of ranks twice" in printed  # the algorithm's own words
    assert "allreduce ring, 3 ranks: 4 rounds" in printed
    assert "send IN[2] >0" in printed


def test_one_rank_is_shown_with_what_its_steps_wait_for() -> None:
    printed = text("allreduce", "-n", "6", "--algorithm", "recursive-doubling", "--rank", "5")
    assert one_rank(schedule("allreduce", "recursive_doubling", 5, 6)) in printed


def test_one_rank_stands_for_a_large_group() -> None:
    printed = text("allreduce", "-n", "3000", "--transport", "tcp", "-b", "8")
    assert one_rank(schedule("allreduce", "recursive_doubling", 0, 3000)) in printed
    assert "\ncost " not in printed  # 3000 schedules are not made for that


def test_roots_scratch_and_whole_elements() -> None:
    printed = text("gather", "-n", "6", "--root", "2", "--algorithm", "binomial", "-b", "1000", "-d", "float64")
    assert printed.startswith("gather of 1000 bytes (125 float64), 6 ranks, over shm\n")
    assert "scratch" in printed and "gather binomial, 6 ranks, root 2: " in printed
    assert text("allreduce", "-b", "7", "-d", "float32").startswith("allreduce of 4 bytes (1 float32)")


def test_alone() -> None:
    printed = text("broadcast", "-n", "1")
    assert "1 rank, alone" in printed and "nothing to do" in printed


def test_a_barrier_has_no_size() -> None:
    assert text("barrier", "-n", "2").startswith("barrier, 2 ranks, over shm\n")


def test_the_list_names_every_algorithm_and_its_claims() -> None:
    lines = text("--list").splitlines()
    at = {name: lines.index(name) for name in COLLECTIVES}
    for name, start in at.items():
        shown = [line for line in lines[start + 1 :] if line][: len(algorithms(name))]
        assert [line.split()[0] for line in shown] == [a.name for a in algorithms(name)]
        for line, known in zip(shown, algorithms(name), strict=True):
            claims = line[25:45].strip().split(", ")
            reported = tuple(claim in claims for claim in ("in place", "v", "ordered"))
            assert reported == (known.in_place, known.uneven, known.in_order)
    assert text("gather", "--list").splitlines()[0] == "gather"
    assert "allreduce" not in text("gather", "--list")


def test_draws_on_demand(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="drawing is optional: pip install matplotlib")
    printed = text("alltoall", "-n", "3", "--draw", str(tmp_path / "plan.png"))
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
    assert f"drawn into {tmp_path / 'plan.png'}" in printed


def test_hosts_are_marked(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="drawing is optional: pip install matplotlib")
    import matplotlib as mpl

    hosts = ("-n", "16", "--ranks-per-host", "4", "--transport", "tcp", "-b", "1M")
    with mpl.rc_context({"svg.fonttype": "none"}):
        text("allreduce", *hosts, "--draw", str(tmp_path / "hosts.svg"))
        text("allreduce", "-n", "16", "--draw", str(tmp_path / "one.svg"))
    several, one = ((tmp_path / name).read_text() for name in ("hosts.svg", "one.svg"))
    assert all(f">host {host}<" in several for host in range(4)) and "host 4" not in several
    assert "16 ranks on 4 hosts" in several and "between hosts" in several
    assert "host" not in one.partition("<g ")[2]
    # Short labels, which say what they are: sixteen lanes have no room for OUT[12].
    assert "OUT[" not in several and "numbers are blocks" in several
    printed = text("allreduce", *hosts[2:], "-n", "8")
    columns = [line for line in printed.splitlines() if line.startswith("round  ")]
    assert all(f"rank {rank}, host {rank // 4}" in "\n".join(columns) for rank in range(8))
    assert not any("host 0" in line and "host 1" in line for line in columns)


def test_drawing_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run("allreduce", "--draw", str(tmp_path / "nowhere" / "plan.svg"))
    assert result.exit_code == 2 and "plan.svg cannot be written" in result.output
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = run("allreduce", "--draw", str(tmp_path / "plan.svg"))
    assert result.exit_code == 2 and "drawing needs matplotlib: pip install matplotlib" in result.output


def test_algorithms_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "one_by_one_for_explain"
    (tmp_path / "mine_to_explain.py").write_text(OWN.format(name=name))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    # The registry belongs to the process: other tests list what is in it.
    monkeypatch.setitem(registry._registry, "broadcast", dict(registry._registry["broadcast"]))
    printed = text("broadcast", "-n", "3", "--import", "mine_to_explain", "--algorithm", name)
    assert f"broadcast {name}, 3 ranks: 1 round\n" in printed
    (tmp_path / "broken_to_explain.py").write_text("raise OSError('the disk is full')")
    result = run("--list", "--import", "broken_to_explain")
    assert result.exit_code == 1 and "cannot import broken_to_explain: OSError: the disk is full" in result.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["allgrab"], "'allgrab' is not one of 'allreduce'"),
        (["allreduce", "--algorithm", "bruck"], "there is no algorithm 'bruck' for allreduce; there are: "),
        (["allreduce", "-n", "0"], "0 is not in the range"),
        (["allreduce", "--rank", "4"], "4 is not one of 4 ranks, counted from 0"),
        (["allreduce", "--root", "1"], "allreduce has no root"),
        (["reduce", "--root", "4"], "root 4 is not within 0 to 3"),
        (["allreduce", "-b", "4 apples"], "no number of bytes"),
        (["allreduce", "-b", "-4"], "no number of bytes"),
        (["allreduce", "-d", "float8"], "'float8' is not one of"),
        (["allreduce", "--draw", "plan.bmp"], "must end in .svg, .png, .pdf"),
        (["allreduce", "-n", "400", "--draw", "plan.svg"], "a picture has room for 128 ranks"),
        (["allreduce", "--transport", "pigeons"], "'pigeons' is not one of"),
    ],
)
def test_what_cannot_be_is_refused(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert says in " ".join(result.output.split())
    assert not list(tmp_path.iterdir())
