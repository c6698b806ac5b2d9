"""Two more devices of the VM, in a network of their own, and changes of its interfaces.

Invariant: what is changed is changed back, so that the next test finds the VM as it was.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_INFINIBAND = Path("/sys/class/infiniband")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def only_in_the_vm() -> None:
    """Skips the test if this is not the VM, whose interfaces may be changed."""
    if not Path("/sys/class/net/veth1").exists():
        pytest.skip("interfaces are changed in the VM only")


@contextmanager
def second_network() -> Iterator[None]:
    """The devices rxe2 (10.78.0.1) and rxe3 (10.78.0.2), joined like rxe0 and rxe1, while this is open."""
    ip("link", "add", "veth2", "type", "veth", "peer", "name", "veth3")
    try:
        for i in (2, 3):
            own, other = f"10.78.0.{i - 1}", f"10.78.0.{4 - i}"
            ip("rule", "add", "pref", f"1{i}", "iif", f"veth{i}", "lookup", "local")
            ip("addr", "add", f"{own}/24", "dev", f"veth{i}")
            ip("link", "set", f"veth{i}", "mtu", "4200", "up")
            folder = Path("/proc/sys/net/ipv4/conf", f"veth{i}")
            (folder / "rp_filter").write_text("0")
            (folder / "accept_local").write_text("1")
            ip("rule", "add", "pref", f"2{i}", "from", own, "to", other, "lookup", f"10{i}")
            ip("route", "add", other, "dev", f"veth{i}", "table", f"10{i}")
            subprocess.run(["rdma", "link", "add", f"rxe{i}", "type", "rxe", "netdev", f"veth{i}"], check=True)
        wait(lambda: all(has_address(i) for i in (2, 3)))
        yield
    finally:
        for i in (2, 3):
            subprocess.run(["rdma", "link", "delete", f"rxe{i}"], check=False)
            for pref in (f"1{i}", f"2{i}"):
                subprocess.run(["ip", "rule", "del", "pref", pref], check=False)
        ip("link", "del", "veth2")


def has_address(i: int) -> bool:
    gids = (path.read_text() for path in _INFINIBAND.glob(f"rxe{i}/ports/1/gids/1"))
    return any(f"0a4e:000{i - 1}" in gid for gid in gids)


def is_down(device: str) -> bool:
    return "ACTIVE" not in state_of(device)


def state_of(device: str) -> str:
    """The state of its port, such as "4: ACTIVE"."""
    return Path(_INFINIBAND, device, "ports/1/state").read_text()


@contextmanager
def interface_down(name: str) -> Iterator[None]:
    """Sets an interface down, and up again. Its peer has no carrier meanwhile, so that both ports are down."""
    first = int(name[-1]) // 2 * 2
    network = f"10.7{7 + first // 2}.0"
    ip("link", "set", name, "down")
    try:
        yield
    finally:
        ip("link", "set", name, "up")
        for i in (0, 1):  # the kernel has dropped these
            to, own = f"{network}.{2 - i}", str(first + i)
            ip("route", "replace", to, "dev", f"veth{own}", "table", f"10{own}")
        wait(lambda: not any(is_down(f"rxe{first + i}") for i in (0, 1)))


@contextmanager
def cut_path() -> Iterator[None]:
    """What comes to veth1 is lost, and TCP, which takes another way, goes on."""
    rule = ("pref", "1", "iif", "veth1", "blackhole")
    ip("rule", "add", *rule)
    try:
        yield
    finally:
        ip("rule", "del", *rule)


@contextmanager
def no_route() -> Iterator[None]:
    """Nothing leads from one of the two networks to the other."""
    rules = [
        ("pref", str(pref), "from", own, "to", other, "unreachable")
        for pref, own, other in ((1, "10.77.0.0/24", "10.78.0.0/24"), (2, "10.78.0.0/24", "10.77.0.0/24"))
    ]
    for rule in rules:
        ip("rule", "add", *rule)
    try:
        yield
    finally:
        for rule in rules:
            ip("rule", "del", *rule)


@contextmanager
def mtu(name: str, value: int) -> Iterator[None]:
    """Gives one of veth0 and veth1 another MTU than the VM's."""
    ip("link", "set", name, "mtu", str(value))
    try:
        yield
    finally:
        ip("link", "set", name, "mtu", "4200")


@contextmanager
def silent() -> Iterator[None]:
    """Nobody answers who is asked for the hardware address of an IP address."""
    setting = Path("/proc/sys/net/ipv4/conf/all/arp_ignore")
    before = setting.read_text()
    setting.write_text("8")
    ip("neigh", "flush", "all")
    try:
        yield
    finally:
        setting.write_text(before)


def wait(done: Callable[[], bool], seconds: float = 10.0) -> None:
    """Until `done()` is true."""
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, "the devices did not change"
        time.sleep(0.05)
