"""Measuring between hosts on slow links: what is printed, and what is refused with a reason."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner, Result

from collectives.bench.namespaces import bonded_hosts, hosts, received_bytes, run_ranks, why_not
from collectives.bench.wire import main
from tests.warm.parents import python

_reason = why_not("1gbit")
needs_namespaces = pytest.mark.skipif(_reason is not None, reason=str(_reason))


@pytest.fixture(autouse=True)
def _forked_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", python())


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(main, arguments, env=environment)


@needs_namespaces
def test_prints_a_row_for_each_size_and_algorithm() -> None:
    result = run("--hosts", "2", "-b", "64K,256K", "--algorithms", "ring,two-shot", "--repeats", "2")
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0] == "allreduce, float32 sum, 2 hosts with 1 rank on links of 1gbit each way"
    assert [line.split()[:2] for line in lines[4:]] == [
        ["65536", "ring"],
        ["65536", "two-shot"],
        ["262144", "ring"],
        ["262144", "two-shot"],
    ]
    for line in lines[4:]:
        assert float(line.split()[3]) > 0 and 1.0 <= float(line.split()[5]) < 1.3


@needs_namespaces
def test_formats_of_fewer_bytes() -> None:
    result = run("--hosts", "3", "-b", "1M", "--algorithms", "ring,auto", "--repeats", "1", "--formats", "float32,int8")
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.output.splitlines()[4:]]
    assert [row[1:-4] for row in rows] == [["ring"], ["ring", "int8"], ["auto"], ["auto", "int8"]]
    assert float(rows[1][-1]) < 0.3 * float(rows[0][-1])  # bytes that a host sends
    refused = run("--formats", "int8,int4")
    assert refused.exit_code == 2 and "'int4' is none of float32, bf16, fp16, fp8, int8" in refused.output


@needs_namespaces
def test_keeps_every_time_as_json() -> None:
    arguments = ("--hosts", "2", "--ranks-per-host", "2", "--rate", "500mbit", "-b", "64K", "--json")
    result = run(*arguments, "--algorithms", "hierarchical_ring", "--repeats", "3")
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert (found["hosts"], found["ranks_per_host"], found["rates"]) == (2, 2, ["500mbit"])
    assert [[len(case["seconds"]) for case in rank["cases"]] for rank in found["ranks"]] == [[3]] * 4
    assert [rank["limits"] for rank in found["ranks"]] == [[]] * 4


@needs_namespaces
def test_plain_sockets_beside_it() -> None:
    result = run("--hosts", "3", "-b", "256K,1M", "--algorithms", "ring", "--repeats", "2", "--limits")
    assert result.exit_code == 0, result.output
    *rings, small, large = result.output.splitlines()[4:]
    assert [line.split()[1] for line in rings] == ["ring", "ring"]
    assert small.split()[:3] == ["262144", "(plain", "sockets)"] and large.split()[:3] == [
        "1048576",
        "(plain",
        "sockets)",
    ]
    # The bucket at the beginning of each link lets the first bytes through at once.
    assert 0 < float(large.split()[-1].rstrip("%")) < 150


def test_plain_sockets_use_one_link() -> None:
    result = run("--rate", "100mbit,100mbit", "--limits")
    assert result.exit_code == 2 and "--limits is for one link a host" in result.output


@needs_namespaces
def test_an_unknown_algorithm_is_named() -> None:
    result = run("--hosts", "2", "-b", "64K", "--algorithms", "rong")
    assert result.exit_code == 1
    assert "rank 0 ended with code 1" in result.output and "there is no algorithm 'rong'" in result.output


@needs_namespaces
def test_several_sockets_use_several_links() -> None:
    """Sixteen connections all but never take the same one of two ways, and one always does."""
    arguments = ("--hosts", "2", "--rate", "100mbit,100mbit", "-b", "2M", "--algorithms", "two_shot", "--repeats", "1")
    result = run(*arguments, "--sockets", "1,16")
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[0].endswith(" on links of 100mbit + 100mbit each way")
    rows = [line.split() for line in result.output.splitlines()[4:]]
    assert [row[:3] for row in rows] == [["2097152", "two_shot", "1"], ["2097152", "two_shot", "16"]]
    assert all(1.0 <= float(row[5]) < 1.3 for row in rows)
    with bonded_hosts(2, ["100mbit", "100mbit"]) as made:
        before = [received_bytes(made[1], f"net{net}") for net in (0, 1)]
        ended = run_ranks(made, "-c", _SENDS, secret=bytes(32), environment={"COLLECTIVES_INTERFACE": "bond"})
        assert [end.code for end in ended] == [0, 0], ended[0].err
        after = [received_bytes(made[1], f"net{net}") for net in (0, 1)]
    assert all(more - less > 50_000 for less, more in zip(before, after, strict=True))


_SENDS = """
import collectives, numpy
with collectives.init(sockets=16) as comm:
    x = numpy.arange(500_000.0)
    comm.send(x, 1) if comm.rank == 0 else comm.recv(x, 0)
"""


@pytest.mark.parametrize("sockets", ["0", "17", "many", "1,", ""])
def test_sockets_that_are_none_are_refused(sockets: str) -> None:
    result = run("--sockets", sockets)
    assert result.exit_code == 2 and "is no list of numbers from 1 to 16" in result.output


@needs_namespaces
def test_links_are_as_slow_as_asked_for() -> None:
    with hosts(2, rates=["100mbit"]) as made:
        shown = ["tc", "-n", made[1].namespace, "qdisc", "show", "dev", "net0"]
        assert " rate 100Mbit " in subprocess.run(shown, capture_output=True, text=True, check=True).stdout
    reason = why_not("0gbit")
    assert reason is not None and reason.startswith("links of 0gbit cannot be made here: ")


@needs_namespaces
def test_a_kernel_parameter_that_is_none_is_refused() -> None:
    result = run("--hosts", "2", "--sysctl", "net.ipv4.tcp_wrong=1")
    assert result.exit_code == 2 and "net.ipv4.tcp_wrong=1 cannot be set: " in result.output
    arguments = ("--hosts", "2", "-b", "64K", "--algorithms", "ring", "--repeats", "1")
    assert run(*arguments, "--sysctl", "net.ipv4.tcp_notsent_lowat=131072").exit_code == 0


def test_without_the_programs_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    result = run()
    assert result.exit_code == 1
    assert result.output == "Error: needs the ip program: apt-get install iproute2\n"


@pytest.mark.parametrize("rate", ["1", "fast", "0gbit", "gbit", "-1mbit"])
def test_a_rate_that_is_none_is_refused(rate: str) -> None:
    result = run("--rate", rate)
    assert result.exit_code == 2 and "is no rate, such as 1gbit or 200mbit" in result.output


def test_sizes_that_are_none_are_refused() -> None:
    result = run("-b", "16M,much")
    assert result.exit_code == 2 and "'much'" in result.output
