"""`collectives simulate`: tables, sweeps, training steps, files, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from collectives import Communicator
from collectives.algorithms import algorithms, registry
from collectives.base.version import library_version
from collectives.commands import predictions
from collectives.commands.main import main
from collectives.core import tables
from collectives.core.tables import Machine
from collectives.schedule.defaults import DEFAULTS
from collectives.schedule.table import join, parse
from collectives.simulation.cost import Costs
from collectives.transports.host import usable_cores
from tests.collectives.groups import ranks


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["simulate", *arguments], prog_name="collectives")


def text(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_row_for_every_algorithm() -> None:
    printed = text("allreduce", "--ranks", "16", "--ranks-per-host", "4", "--bytes", "1M")
    names = [line.split()[0] for line in printed.splitlines()[2:] if line.strip() and "fastest" not in line]
    assert names == [a.name for a in algorithms("allreduce")]
    assert printed.startswith("allreduce of 1 MiB, 16 ranks on 4 hosts\n")
    fastest = printed.rpartition("fastest: ")[2].strip()
    assert fastest in names


def test_sweeps_and_files(tmp_path: Path) -> None:
    document, picture = tmp_path / "a.json", tmp_path / "a.svg"
    ways = ("--algorithms", "ring,tree", "--json", str(document), "--plot", str(picture))
    text("--ranks", "2:8:2", "--bytes", "1K:64K:8", *ways)
    found = json.loads(document.read_text())
    cases = [(p["algorithm"], p["ranks"], p["nbytes"]) for p in found["predictions"]]
    sizes = [1024, 8192, 65536]
    assert cases == [(name, ranks, nbytes) for ranks in (2, 4, 8) for nbytes in sizes for name in ("ring", "tree")]
    assert found["costs"]["bandwidth"] == Costs().bandwidth
    assert "<svg" in picture.read_text()


def test_sizes_as_in_the_benchmark() -> None:
    printed = text("-b", "1K", "-e", "16K", "-f", "4", "--algorithms", "ring")
    assert [line.split(",")[0] for line in printed.splitlines() if line.startswith("allreduce")] == [
        f"allreduce of {n} KiB" for n in (1, 4, 16)
    ]


def test_formats_of_fewer_bytes(tmp_path: Path) -> None:
    document = tmp_path / "a.json"
    arguments = ("--ranks", "4", "--bytes", "64M", "--algorithms", "ring", "--json", str(document))
    whole = text(*arguments)
    assert whole.startswith("allreduce of 64 MiB, 4 ranks")
    (plain,) = json.loads(document.read_text())["predictions"]
    assert text(*arguments, "--wire", "int8").startswith("allreduce of 64 MiB, sent as int8 in 16.25 MiB, 4 ranks")
    found = json.loads(document.read_text())
    assert found["wire"] == "int8" and found["predictions"][0]["nbytes"] == 262_144 * 260 // 4
    assert 3.5 < plain["seconds"] / found["predictions"][0]["seconds"] < 4
    for refused in (("broadcast",), ("--gradients", "1M", "--compute-time", "1ms")):
        assert "--wire is for allreduce, reduce_scatter, allgather" in run(*refused, "--wire", "int8").output
    assert "wire is 'int4'" in run("--wire", "int4").output


MEASURED = """
allreduce       tcp  any  any   fp16     hosts=2- wire=auto : between hosts
allreduce       tcp  2    64K   float32  wire=auto          : short
allreduce       tcp  2    1M    bf16     per-host=2 wire=auto : medium
allreduce       tcp  any  any   int8     hosts=1 wire=auto  : long
reduce_scatter  tcp  any  any   bf16     oversubscribed=yes wire=auto : a core each would do
reduce_scatter  tcp  any  any   fp8      oversubscribed=no wire=auto  : enough cores
allreduce       tcp  any  2M    tree                        : an encoded section
allreduce       tcp  any  any   ring                        : an encoded array
"""


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_format_that_a_communicator_would_choose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """For a group of this machine, over the loopback interface."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = tables.costs_path(Machine.here(usable_cores(), library_version()), "tcp")
    assert path is not None
    tables.save_costs(path, Costs(), Machine.here(usable_cores(), library_version()), "by hand")
    file = tmp_path / "own.table"
    file.write_text(MEASURED)
    cases = [("allreduce", n) for n in (4, 64 << 10, (64 << 10) + 4, 1 << 20, 2 << 20, 16 << 20)]
    cases += [("reduce_scatter", 6 << 20), ("allgather", 6 << 20)]

    def body(comm: Communicator) -> list[str]:
        return [comm.explain(collective, nbytes, wire="auto") for collective, nbytes in cases]

    def said(of: str, label: str) -> list[str]:
        return [line.split(None, 1)[1] for line in of.splitlines() if line.split()[:1] == [label]]

    explained = ranks(size, body, transport="tcp", table=file, calibrate="off")[0]
    for (collective, nbytes), wanted in zip(cases, explained, strict=True):
        options = ("-n", str(size), "-b", str(nbytes), "--wire", "auto", "--table", str(file), "--algorithms", "auto")
        printed = text(collective, "--here", "tcp", *options)
        assert said(printed, "wire")[0] == said(wanted, "wire")[0]
        assert said(printed, "row")[0] == said(wanted, "row")[-1]
        assert said(printed, "from")[0] == said(wanted, "from")[-1]
        algorithm = said(wanted, "algorithm")[0].partition(":")[0]
        assert printed.splitlines()[5].split()[0] == algorithm


def test_each_size_in_the_format_of_its_row(tmp_path: Path) -> None:
    file, document, picture = tmp_path / "own.table", tmp_path / "a.json", tmp_path / "a.svg"
    file.write_text(
        "allreduce tcp 4 256K float32 hosts=4 wire=auto : short\nallreduce tcp 4 any int8 hosts=4 wire=auto : long\n"
    )
    options = ("-n", "4", "-b", "64K:1M:4", "--algorithms", "ring", "--json", str(document), "--plot", str(picture))
    printed = text("--wire", "auto", "--table", str(file), *options)
    assert "allreduce of 256 KiB, 4 ranks on 4 hosts\n  wire  auto chooses float32: short\n" in printed
    assert "allreduce of 1 MiB, sent as int8 in 260 KiB, 4 ranks on 4 hosts\n  wire  auto chooses int8: long" in printed
    assert f"  from  argument: {file}, line 2\n" in printed
    found = json.loads(document.read_text())
    assert found["wire"] == "auto"
    assert [(p["size"], p["wire"], p["nbytes"]) for p in found["predictions"]] == [
        (64 << 10, None, 64 << 10),
        (256 << 10, None, 256 << 10),
        (1 << 20, "int8", 260 << 10),
    ]
    by_name = text("--wire", "int8", "-n", "4", "-b", "1M", "--algorithms", "ring")
    assert by_name.splitlines()[-2] in printed.splitlines()  # the same prediction
    assert "nobody has measured" in text("-n", "4", "--wire", "auto", "--algorithms", "ring")


def test_tables_that_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "own.table"
    file.write_text("allreduce any any any int4 wire=auto\n")
    wrong = run("--wire", "auto", "--table", str(file))
    assert wrong.exit_code == 2 and "'int4' is none of" in wrong.output and "line 1" in wrong.output
    file.write_text("allreduce any any any ring\n")
    unused = run("--wire", "int8", "--table", str(file))
    assert unused.exit_code == 2 and "--table is for --algorithms auto and --wire auto" in unused.output
    assert "did you mean 'auto'" in run("--wire", "atuo").output
    for refused in (("broadcast",), ("--gradients", "1M", "--compute-time", "1ms")):
        assert "--wire is for allreduce, reduce_scatter, allgather" in run(*refused, "--wire", "auto").output


def test_costs_from_everywhere(tmp_path: Path) -> None:
    file = tmp_path / "costs"
    file.write_text("latency = 9us\nhop = 1us\n")
    printed = text("--costs", str(file), "--latency", "3us", "--cost", "overhead=1us", "--show-costs")
    assert Costs.from_text(printed) == Costs(latency=3e-6, hop=1e-6, overhead=1e-6)


def test_the_algorithm_that_would_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(*arguments: str) -> list[str]:
        text("--algorithms", "auto", "--json", str(tmp_path / "a.json"), *arguments)
        return [p["algorithm"] for p in json.loads((tmp_path / "a.json").read_text())["predictions"]]

    assert chosen("-n", "4", "--ranks-per-host", "4", "-b", "1K:1M:1024") == ["one_shot", "two_shot"]
    assert chosen("-n", "4", "-b", "1K:1M:1024") == ["one_shot", "two_shot"]
    assert chosen("-n", "4:16:4", "--ranks-per-host", "4") == ["two_shot", "hierarchical_ring"]
    monkeypatch.setattr(predictions, "DEFAULTS", join([parse("allreduce verbs any any tree"), DEFAULTS]))
    assert chosen("-n", "4", "--transport", "verbs", "-b", "1M") == ["tree"]
    assert chosen("-n", "4", "-b", "1M") == ["two_shot"]
    assert "120 ms" in text("--gradients", "4M", "--compute-time", "120ms", "-n", "4", "--algorithms", "auto")


def test_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    machine = Machine.here(usable_cores(), library_version())
    path = tables.costs_path(machine, "shm")
    assert path is not None
    tables.save_costs(path, Costs(call=1.0), machine, "by hand")
    text("--here", "shm", "-n", "2:8", "-b", "8", "--algorithms", "one_shot", "--json", str(tmp_path / "a.json"))
    found = json.loads((tmp_path / "a.json").read_text())
    assert all(1 < p["seconds"] < 1.1 for p in found["predictions"])
    assert (found["topology"]["ranks_per_host"], found["topology"]["cores"]) == (8, usable_cores())
    assert "--transport tcp" in run("--here", "tcp").output
    assert "goes with none of those" in run("--here", "shm", "--cores", "4").output


def test_a_narrow_network_is_slower() -> None:
    arguments = ("alltoall", "-n", "16", "--algorithms", "direct", "--radix", "4", "--bytes", "64M")
    assert "network card" in text(*arguments, "--oversubscription", "1")
    assert "switch level 1" in text(*arguments, "--oversubscription", "8")


def test_an_algorithm_that_is_not_for_so_many_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "evenonly.py").write_text(
        "from collectives.algorithms import algorithm, get\n"
        "even = algorithm('barrier', name='evenonly', sizes=lambda n: n % 2 == 0)(\n"
        "    get('barrier', 'dissemination').function)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(registry._registry, "barrier", dict(registry._registry["barrier"]))  # as it was, afterwards
    printed = text("barrier", "-n", "3", "--import", "evenonly", "--algorithms", "dissemination,evenonly")
    assert "not for 3 ranks" in printed and "fastest: dissemination" in printed


@pytest.mark.parametrize("scaling", ["weak", "strong"])
def test_a_training_step(tmp_path: Path, scaling: str) -> None:
    gradients, document, picture = (tmp_path / name for name in ("gradients", "b.json", "b.png"))
    gradients.write_text("# the last layer first\n97M\n16M, 4M\n")
    ways = ("--scaling", scaling, "--json", str(document), "--plot", str(picture), "--algorithms", "ring,tree")
    printed = text("--gradients", str(gradients), "--compute-time", "120ms", "--ranks", "1:8", *ways)
    assert printed.startswith("3 gradients of 117 MiB, 120 ms of computing on one rank")
    steps = json.loads(document.read_text())["steps"]
    assert [step["ranks"] for step in steps] == [1, 2, 4, 8]
    assert steps[0]["speedup"] == pytest.approx(1)
    for step in steps:
        assert step["alone"] >= step["overlapped"] >= step["compute"]
        assert step["speedup"] <= step["ranks"] + 1e-9
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_many_gradients_are_interpolated() -> None:
    sizes = ",".join(f"{n}K" for n in range(1, 40))
    printed = text(
        "--gradients", sizes, "--compute-time", "1ms", "--bucket", "0", "--ranks", "4", "--algorithms", "ring"
    )
    assert "39 gradients" in printed


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--algorithms", "rong"), "there is no algorithm 'rong' for allreduce (did you mean 'ring'?); there are"),
        (("--ranks", "0"), "1 to"),
        (("--ranks", "8:2"), "below the smallest"),
        (("--bytes", "many"), "is not a size"),
        (("--bytes", "1K:2K:3:4"), "FIRST:LAST:FACTOR"),
        (("-f", "2"), "up to -e"),
        (("--latency", "fast"), "is not a time"),
        (("--cost", "speed=3"), "there is no cost 'speed'"),
        (("--radix", "4.5"), "whole numbers"),
        (("--radix", "1"), "at least 2"),
        (("--oversubscription", "2"), "--radix"),
        (("--root", "2"), "has none"),
        (("broadcast", "--root", "8"), "not in all these groups"),
        (("--plot", "x.txt"), "must end in"),
        (("--json", "/nowhere/x"), "cannot be written"),
        (("--gradients", "4M"), "needs --compute-time"),
        (("--compute-time", "1s"), "is for --gradients"),
        (("--gradients", "x", "--compute-time", "1s"), "is not a size"),
        (("broadcast", "--gradients", "4M", "--compute-time", "1s"), "sizes for allreduce"),
    ],
)
def test_what_is_refused(arguments: tuple[str, ...], problem: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert problem in " ".join(result.output.split())
