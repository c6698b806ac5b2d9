"""Several hosts on one machine: network namespaces joined by a bridge, for measuring and for tests.

Invariant: every namespace and device made here is removed again, and no traffic leaves them. Needs root.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_serial = itertools.count()


@dataclass(frozen=True, slots=True)
class Host:
    """A network namespace that stands for a host in tests and benchmarks.

    `namespace` is the name of the namespace, for `ip netns exec`. `addresses` maps the name of each network interface
    in it to an IP address.
    """

    namespace: str
    addresses: Mapping[str, str]

    @property
    def enter(self) -> tuple[str, ...]:
        """The words to put before a command line to run the command in this network namespace."""
        return ("ip", "netns", "exec", self.namespace)


def why_not(rate: str | None = None) -> str | None:
    """Return the reason why network namespaces cannot be created on this machine, as text, or None if they can.

    If `rate` is given, a bit rate such as "1gbit", test also whether links can be limited to it.
    """
    for program in ("ip", "tc") if rate else ("ip",):
        if shutil.which(program) is None:
            return f"needs the {program} program: apt-get install iproute2"
    name = f"pc{os.getpid()}try"
    commands = [["ip", "netns", "add", name]]
    if rate:
        commands.append(_limit(name, "lo", rate))
    with contextlib.ExitStack() as undo:
        for command in commands:
            made = subprocess.run(command, capture_output=True, text=True, check=False)
            if made.returncode != 0:
                what = "network namespaces" if command[0] == "ip" else f"links of {rate}"
                return f"{what} cannot be made here: {made.stderr.strip()}"
            if command[0] == "ip":
                undo.callback(_run, "ip", "netns", "delete", name)
    return None


@contextlib.contextmanager
def hosts(count: int, networks: Sequence[str] = ("10.99.0.{}/24",), rates: Sequence[str] = ()) -> Iterator[list[Host]]:
    """A context manager that creates `count` network namespaces, which stand for hosts.

    Each host has one interface (net0, net1, …) in each of `networks`, which are bridges. A network is given as the
    address of its hosts, with {} in place of the host's number. `rates` has a bit rate for each network, in the
    notation of tc ("1gbit"); it limits each interface in both directions. Without `rates` there is no limit.
    """
    prefix = f"pc{os.getpid()}n{next(_serial)}"
    switch = f"{prefix}sw"
    names = [f"{prefix}h{number}" for number in range(count)]
    with contextlib.ExitStack() as undo:
        for name in (switch, *names):
            _ip("netns", "add", name)
            undo.callback(_ip, "netns", "delete", name)
            _ip("-n", name, "link", "set", "lo", "up")
        for net, pattern in enumerate(networks):
            _ip("-n", switch, "link", "add", f"br{net}", "type", "bridge")
            _ip("-n", switch, "link", "set", f"br{net}", "up")
            for number, name in enumerate(names):
                port = f"v{net}x{number}"
                _ip("-n", switch, "link", "add", port, "type", "veth", "peer", "name", f"net{net}", "netns", name)
                _ip("-n", switch, "link", "set", port, "master", f"br{net}", "up")
                # "nodad": an IPv6 address is usable at once.
                extra = ["nodad"] if ":" in pattern else []
                _ip("-n", name, "addr", "add", pattern.format(number + 1), "dev", f"net{net}", *extra)
                _ip("-n", name, "link", "set", f"net{net}", "up")
                if rates:
                    _run(*_limit(switch, port, rates[net]))
                    _run(*_limit(name, f"net{net}", rates[net]))
        yield [
            Host(name, {f"net{net}": p.format(number + 1).partition("/")[0] for net, p in enumerate(networks)})
            for number, name in enumerate(names)
        ]


@contextlib.contextmanager
def bonded_hosts(count: int, rates: Sequence[str]) -> Iterator[list[Host]]:
    """A context manager that creates `count` network namespaces, which stand for hosts with several parallel links.

    There is one link for each of `rates`, limited to that bit rate. Each host has a single address, which belongs to
    its interface `bond`. A hash of a connection's ports selects the link that the connection uses. Bonded network
    cards, and equal-cost routes in a switched network, behave in the same way.
    """
    networks = [f"10.99.{net}.{{}}/24" for net in range(len(rates))]
    with hosts(count, networks, rates) as made:
        for number, host in enumerate(made, 1):
            name, address = host.namespace, f"10.98.0.{number}"
            set_kernel(host, "net.ipv4.fib_multipath_hash_policy=1")
            _ip("-n", name, "link", "add", "bond", "type", "veth", "peer", "name", "bond_end")
            _ip("-n", name, "link", "set", "bond_end", "up")
            _ip("-n", name, "link", "set", "bond", "up")
            _ip("-n", name, "addr", "add", f"{address}/32", "dev", "bond")
            for other in range(1, count + 1):
                ways = [word for net in range(len(rates)) for word in ("nexthop", "via", f"10.99.{net}.{other}")]
                if other != number:
                    _ip("-n", name, "route", "add", f"10.98.0.{other}", "src", address, *ways)
        yield [Host(host.namespace, {**host.addresses, "bond": f"10.98.0.{n}"}) for n, host in enumerate(made, 1)]


@dataclass(frozen=True, slots=True)
class Ended:
    code: int
    out: str
    err: str


def run_ranks(
    placement: Sequence[Host],
    *arguments: str,
    secret: bytes | None,
    timeout: float = 60.0,
    environment: Mapping[str, str] | None = None,
) -> list[Ended]:
    """Run Python with the command-line arguments `arguments` as every rank of one job.

    Rank r runs in the network namespace `placement[r]`. The ranks find each other through a directory that all can
    access. Return the exit code and the output of each rank. Raises: subprocess.TimeoutExpired if a rank has not ended
    after `timeout` seconds; then all processes are killed.
    """
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as files:
        settings = {**os.environ, "COLLECTIVES_SIZE": str(len(placement)), "COLLECTIVES_STORE": f"file://{folder}"}
        settings.update(environment or {})
        if secret is not None:
            key = Path(folder, "secret")
            key.touch(0o600)
            key.write_text(secret.hex())
            settings["COLLECTIVES_SECRET_FILE"] = str(key)
        processes = []
        for rank, host in enumerate(placement):
            out, err = files.enter_context(tempfile.TemporaryFile()), files.enter_context(tempfile.TemporaryFile())
            command = [*host.enter, sys.executable, *arguments]
            mine = {**settings, "COLLECTIVES_RANK": str(rank)}
            processes.append((subprocess.Popen(command, env=mine, stdout=out, stderr=err), out, err))
        ended = []
        end = time.monotonic() + timeout
        try:
            for process, out, err in processes:
                code = process.wait(timeout=max(0.0, end - time.monotonic()))
                out.seek(0)
                err.seek(0)
                ended.append(Ended(code, out.read().decode(), err.read().decode()))
        finally:
            for process, _, _ in processes:
                process.kill()
                process.wait()
        return ended


def set_kernel(host: Host, setting: str) -> None:
    """Set a kernel parameter in the network namespace `host`, such as "net.ipv4.tcp_notsent_lowat=131072".

    Raises: ValueError if it cannot be set.
    """
    command = [*host.enter, "sysctl", "-qw", setting]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0 or done.stderr:
        raise ValueError(f"{setting} cannot be set: {done.stderr.strip()}")


def received_bytes(host: Host, interface: str) -> int:
    """The number of bytes received over an interface so far."""
    path = f"/sys/class/net/{interface}/statistics/rx_bytes"
    shown = subprocess.run([*host.enter, "cat", path], capture_output=True, text=True, check=True)
    return int(shown.stdout)


def _limit(namespace: str, interface: str, rate: str) -> list[str]:
    """The tc command that limits `interface`: a token bucket of four segments of 64 KiB, and a queue of 20 ms."""
    shape = ["tbf", "rate", rate, "burst", "256kb", "latency", "20ms"]
    return ["tc", "-n", namespace, "qdisc", "add", "dev", interface, "root", *shape]


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
