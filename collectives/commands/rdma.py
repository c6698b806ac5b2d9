"""The section of `collectives doctor` about RDMA devices, their ports and addresses.

Invariant: a machine without RDMA has no problem, unless the job asks for verbs.
"""

from __future__ import annotations

from typing import Any

from collectives.commands.checks import Problem, Section
from collectives.native.errors import TransportUnavailable
from collectives.transports import pyverbs, verbs


def devices(wanted: str) -> Section:
    """The part of the report of `collectives doctor` about RDMA: the ports of this machine's devices, and problems.

    `wanted`: the transport that the job is to use.
    """
    try:
        ports = verbs.ports()
    except TransportUnavailable as error:
        return Section("rdma", {"devices": f"none known: {error}"})  # a problem of the transport, if it is wanted
    if not ports:
        return Section("rdma", {"devices": "none"})
    facts, problems = dict[str, Any](), []
    usable = any(not port["problem"] and not port["left_out"] for port in ports)
    for port in ports:
        name = f"{port['device']} port {port['port']}"
        facts[name] = _text(port)
        if port["problem"] and not port["left_out"]:
            advice = "until then ranks use other ports" if usable else "until then ranks cannot use verbs"
            fatal = wanted == "verbs" and not usable
            problems.append(Problem("broken" if fatal else "hint", f"RDMA {name}: {port['problem']}", advice))
    for device in dict.fromkeys(port["device"] for port in ports):
        try:
            facts[device] = pyverbs.describe(device)
        except ImportError as error:
            facts["pyverbs"] = f"cannot be used, and is not needed: {error}"
        except RuntimeError as error:
            facts[device] = str(error)
    return Section("rdma", facts, problems)


def _text(port: dict[str, Any]) -> str:
    """What is known of one port."""
    parts = [port["state"], port["layer"], *(["left out by COLLECTIVES_VERBS_DEVICE"] if port["left_out"] else [])]
    if port["address"]:
        parts.append(f"{port['address']} ({port['address_kind']}, GID index {port['address_index']})")
    if port["mtu"]:
        parts.append(f"MTU {port['mtu']}")
    if port["numa_node"] >= 0:
        parts.append(f"NUMA node {port['numa_node']}")
    return ", ".join(parts)
