"""Registers this library as the backend "collectives" of torch.distributed.

Invariant: `register` imports no other module of the library. Torch itself calls `register` whenever torch is imported,
if the library's entry point is installed. The package around this module may be only partly imported at that time.
"""

from __future__ import annotations

from typing import Any, Final

DEVICES: Final = ("cpu", "cuda")  # whose tensors the backend takes


def register() -> None:
    """Registers this library as the backend "collectives" of torch.distributed. May be called again."""
    import torch.distributed as dist

    if dist.is_available() and "collectives" not in dist.Backend.backend_list:
        dist.Backend.register_backend("collectives", _create, extended_api=True, devices=list(DEVICES))
        dist.register_rendezvous_handler("collectives", _meet)


def _meet(url: str, **given: Any) -> Any:
    from collectives.torch.rendezvous import meet

    return meet(url, **given)


def _create(given: Any, options: Any) -> Any:
    from collectives.torch.meeting import Options
    from collectives.torch.process_group import CollectivesProcessGroup

    if options is not None and not isinstance(options, Options):
        raise TypeError(f"pg_options must be collectives.torch.Options, not {type(options).__name__}")
    return CollectivesProcessGroup(
        given.store,
        given.group_rank,
        given.group_size,
        given.timeout.total_seconds(),
        options or Options(),
        given.group_id,
    )
