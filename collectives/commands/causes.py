"""Finds the rank that was the first cause of a job's failure.

Invariant: a rank that lost a peer before it failed is blamed only if no rank of this host failed without such a loss.
Of several ranks without a loss, the first to end is blamed; if all had a loss, the first to lose a peer.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from collectives.commands.child import Child


@dataclass(slots=True)
class Failures:
    """The ranks that failed, in the order in which they ended."""

    own: list[Child] = field(default_factory=list)
    after_a_loss: list[Child] = field(default_factory=list)

    @property
    def any(self) -> bool:
        return bool(self.own or self.after_a_loss)

    def add(self, child: Child) -> None:
        (self.own if child.loss is None else self.after_a_loss).append(child)

    def cause(self, final: bool) -> Child | None:
        """The rank that failed first; None if that rank may not have ended yet. `final`: wait for no rank any more."""
        if self.own:
            return self.own[0]
        if not final or not self.after_a_loss:
            return None
        return min(self.after_a_loss, key=lambda child: loss.at if (loss := child.loss) else 0.0)
