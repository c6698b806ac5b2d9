"""Gloo through the installed torch.distributed, called like our backend (see `hook_torch`)."""

from __future__ import annotations

from collectives.bench.peers import here
from collectives.bench.peers.hook_torch import BARE, ENVIRONMENT, REQUIREMENTS, Member, commands, environment, member

__all__ = ["BARE", "ENVIRONMENT", "REQUIREMENTS", "commands", "connect", "environment"]


def connect(folder: str, ranks: int, rank: int | None) -> Member:
    here.packages()
    return member("gloo", folder, ranks, rank)
