"""Which ranks share a host, if the kernel's boot id is not sufficient.

A boot id is hidden by an empty /proc and by some sandboxes, differs in each container of systemd-nspawn, and is the
same in machines that were cloned from one snapshot. If identities leave a doubt, each rank looks for the proofs of the
others: abstract sockets that are visible in one network namespace only. All ranks exchange what they have seen.

Invariant: all ranks of a group compute the same corrected identities, since all use the same exchanged results.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

from collectives.transports import abstract
from collectives.transports.host import HostIdentity


def doubtful(everyone: Sequence[HostIdentity]) -> bool:
    """Return whether it is uncertain that all ranks share one network namespace.

    `everyone` has the host and the network namespace of each rank, as published. All ranks get the same result, since
    all have the same data.
    """
    first = everyone[0]
    alike = all((i.boot, i.netns, i.host) == (first.boot, first.netns, first.host) for i in everyone)
    return len(everyone) > 1 and not (alike and first.boot)


def seen(rank: int, everyone: Sequence[HostIdentity]) -> int:
    """Return the lowest rank whose abstract Unix socket the calling rank, `rank`, can see; -1 if it cannot check.

    Each rank binds such a socket. Only ranks in the same network namespace can see the socket. `everyone` has each
    rank's host, including the name of the socket, by rank.
    """
    if everyone[rank].proof:
        with contextlib.suppress(OSError):
            for other, identity in enumerate(everyone[: rank + 1]):
                if identity.proof and abstract.is_bound(identity.proof):
                    return other
    return -1


def settled(everyone: Sequence[HostIdentity], answers: Sequence[int]) -> list[HostIdentity]:
    """Correct the published hosts of all ranks: ranks share a host and network namespace only if they really do.

    `everyone` has the boot id and network namespace that each rank published. `answers` has the result of `seen` on
    each rank. Ranks that see the same socket share a network namespace, and so a machine. For a rank that could not
    check (-1), the published values are used. If such a rank has no boot id, it is alone in its namespace. Namespaces
    whose ranks have the same boot id belong to one machine.

    Return the corrected entries, by rank. Raises: ValueError if the answer of a rank is greater than its own number.
    """
    namespaces: list[int] = []  # for each rank, the first rank of its namespace
    unseen: dict[tuple[str, int], int] = {}
    for rank, (identity, answer) in enumerate(zip(everyone, answers, strict=True)):
        if not -1 <= answer <= rank:
            raise ValueError(f"rank {rank} claims to see rank {answer}")
        if answer >= 0:
            namespaces.append(answer)
        else:
            namespaces.append(unseen.setdefault((identity.boot, identity.netns), rank) if identity.boot else rank)
    boots = [(f"boot {identity.boot}",) if identity.boot else () for identity in everyone]
    machines = _joined([(f"namespace {own}", *boot) for own, boot in zip(namespaces, boots, strict=True)])
    return [
        replace(identity, boot=everyone[machine].boot or f"host of rank {machine}", netns=namespace)
        for identity, machine, namespace in zip(everyone, machines, namespaces, strict=True)
    ]


def _joined(keys: Sequence[Sequence[str]]) -> list[int]:
    """For each entry of `keys`, the index of the first entry that shares a key with it, directly or by others."""
    first: dict[str, int] = {}
    found = list(range(len(keys)))
    changed = True
    while changed:
        changed = False
        for number, own in enumerate(keys):
            least = min(found[number], *(first.get(key, number) for key in own))
            changed |= any(first.get(key) != least for key in own) or found[number] != least
            found[number] = least
            first.update(dict.fromkeys(own, least))
    return found
