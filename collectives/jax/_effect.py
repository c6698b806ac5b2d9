"""The JAX effect that keeps collectives in order: within a function, and from one compiled call to the next.

Invariant: a process has one such effect for all communicators, so no two collectives of a process ever run at once.
Only this module uses JAX's internals, because JAX has no public interface for ordered effects.
"""

from __future__ import annotations

from typing import Any, Final

from jax._src import core as _core
from jax._src import dispatch as _dispatch
from jax._src import effects as _effects


class CollectiveEffect(_effects.Effect):
    """The JAX effect of communicating with other ranks; because of it, JAX keeps collectives in the program's order."""

    def __repr__(self) -> str:  # part of JAX's messages, e.g. if a function runs on several devices
        return "collectives.jax: one device per process"


COLLECTIVE: Final = CollectiveEffect()
TOKEN: Final[Any] = _core.abstract_token

for _set in (
    _effects.ordered_effects,
    _effects.lowerable_effects,
    _effects.control_flow_allowed_effects,
    _effects.custom_derivatives_allowed_effects,
    _effects.remat_allowed_effects,
):
    _set.add_type(CollectiveEffect)


def wait() -> None:
    """Blocks until the collectives that this thread has dispatched are done; raises JaxRuntimeError if one failed."""
    token = _dispatch.runtime_tokens.current_tokens.get(COLLECTIVE)
    if token is not None:
        token.block_until_ready()


def forget() -> None:
    """Discards the tokens by which JAX orders collectives. A failed collective's token makes later collectives fail."""
    _dispatch.runtime_tokens.current_tokens.pop(COLLECTIVE, None)
    _dispatch.runtime_tokens.output_runtime_tokens.clear()
