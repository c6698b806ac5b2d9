"""Which ranks share a host, where the kernel's own word for it does not do.

A boot id is hidden by an empty /proc and by some sandboxes, is another one in each container of systemd-nspawn, and the
same in machines that were cloned from one snapshot. So ranks whose identities leave a doubt look for each other's
proofs, which are names of abstract sockets, and exchange what they have found.

Invariant: all ranks of a group settle on the same identities, since they reckon with the same answers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

from collectives.transports import abstract
from collectives.transports.host import HostIdentity


def doubtful(everyone: Sequence[HostIdentity]) -> bool:
    """Whether anything but one namespace of one machine is possible; the same on every rank."""
    first = everyone[0]
    alike = all((i.boot, i.netns, i.host) == (first.boot, first.netns, first.host) for i in everyone)
    return len(everyone) > 1 and not (alike and first.boot)


def seen(rank: int, everyone: Sequence[HostIdentity]) -> int:
    """The lowest rank whose proof `rank`, which is this one, sees; -1 where it cannot look."""
    if everyone[rank].proof:
        with contextlib.suppress(OSError):
            for other, identity in enumerate(everyone[: rank + 1]):
                if identity.proof and abstract.is_bound(identity.proof):
                    return other
    return -1


def settled(everyone: Sequence[HostIdentity], answers: Sequence[int]) -> list[HostIdentity]:
    """The identities with boot ids and namespaces that tell the same as the answers of `seen`, by rank.

    Ranks that see the same proof share a namespace, and so a machine; ranks without an answer are where their boot id
    and namespace say, alone if there is no boot id. Boot ids go on saying which namespaces are of one machine.
    Raises ValueError for answers that cannot be.
    """
    namespaces: list[int] = []  # by rank: the first rank of its namespace
    unseen: dict[tuple[str, int], int] = {}
    for rank, (identity, answer) in enumerate(zip(everyone, answers, strict=True)):
        if not -1 <= answer <= rank:
            raise ValueError(f"rank {rank} says that it sees rank {answer}")
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
    """For each of them the first that shares a key with it, directly or by way of others."""
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
