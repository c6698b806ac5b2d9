"""The first cause of a job's failure.

Invariant: a rank that failed after it had lost a peer is a consequence, and is blamed only if no other rank of this
host failed without that. Among ranks of equal standing, the first to end, or the first to lose a peer, is blamed.
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
        """The first cause as far as it is known; None if it has not ended yet. `final`: do not wait for it."""
        if self.own:
            return self.own[0]
        if not final or not self.after_a_loss:
            return None
        return min(self.after_a_loss, key=lambda child: loss.at if (loss := child.loss) else 0.0)
