"""Several hosts on one machine: network namespaces joined by a bridge.

Invariant: every namespace and device made here is removed again, and all traffic stays among them.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_serial = itertools.count()


@dataclass(frozen=True, slots=True)
class Host:
    """`addresses` by interface; `namespace` is its name for `ip netns exec`."""

    namespace: str
    addresses: Mapping[str, str]


def why_not() -> str | None:
    """Why namespaces can't be made here, or None."""
    if shutil.which("ip") is None:
        return "needs the ip program: apt-get install iproute2"
    name = f"pc{os.getpid()}try"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        return f"network namespaces cannot be made here: {made.stderr.strip()}"
    _ip("netns", "delete", name)
    return None


@contextlib.contextmanager
def hosts(count: int, networks: Sequence[str] = ("10.99.0.{}/24",)) -> Iterator[list[Host]]:
    """`count` hosts, each with one interface (net0, net1, …) on each of `networks`, patterns of addresses."""
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
        yield [
            Host(name, {f"net{net}": p.format(number + 1).partition("/")[0] for net, p in enumerate(networks)})
            for number, name in enumerate(names)
        ]


@dataclass(frozen=True, slots=True)
class Ended:
    code: int
    out: str
    err: str


def run_ranks(
    placement: Sequence[Host], program: Path, *arguments: str, secret: bytes | None, **environment: str
) -> list[Ended]:
    """Run `program` as one job, rank r on placement[r]; they meet through a directory that all can see."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as files:
        settings = {**os.environ, "COLLECTIVES_SIZE": str(len(placement)), "COLLECTIVES_STORE": f"file://{folder}"}
        settings.update(environment)
        if secret is not None:
            key = Path(folder, "secret")
            key.touch(0o600)
            key.write_text(secret.hex())
            settings["COLLECTIVES_SECRET_FILE"] = str(key)
        processes = []
        for rank, host in enumerate(placement):
            out, err = files.enter_context(tempfile.TemporaryFile()), files.enter_context(tempfile.TemporaryFile())
            command = ["ip", "netns", "exec", host.namespace, sys.executable, str(program), *arguments]
            mine = {**settings, "COLLECTIVES_RANK": str(rank)}
            processes.append((subprocess.Popen(command, env=mine, stdout=out, stderr=err), out, err))
        ended = []
        try:
            for process, out, err in processes:
                code = process.wait(timeout=60)
                out.seek(0)
                err.seek(0)
                ended.append(Ended(code, out.read().decode(), err.read().decode()))
        finally:
            for process, _, _ in processes:
                process.kill()
                process.wait()
        return ended


def received_bytes(host: Host, interface: str) -> int:
    """What has come in over an interface so far."""
    path = f"/sys/class/net/{interface}/statistics/rx_bytes"
    shown = subprocess.run(
        ["ip", "netns", "exec", host.namespace, "cat", path], capture_output=True, text=True, check=True
    )
    return int(shown.stdout)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
