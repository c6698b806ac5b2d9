"""Finds the rank that was the first cause of a job's failure.

A rank may fail because it lost its connection to a peer that failed before.

Invariant: if ranks of this host failed without losing a peer, the cause is the first of these ranks to end. If all
failed ranks had lost a peer, the cause is the rank that lost its peer first.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from collectives.commands.child import Child


@dataclass(slots=True)
class Failures:
    """The ranks of a job that failed: `own` because of an error of their own, `after_a_loss` because they lost a peer.

    Both lists are in the order in which the ranks' processes ended.
    """

    own: list[Child] = field(default_factory=list)
    after_a_loss: list[Child] = field(default_factory=list)

    @property
    def any(self) -> bool:
        return bool(self.own or self.after_a_loss)

    def add(self, child: Child) -> None:
        (self.own if child.loss is None else self.after_a_loss).append(child)

    def cause(self, final: bool) -> Child | None:
        """Returns the rank that failed first; None if no rank failed, or if the first is not known yet.

        `final`: decide now, even if the rank that failed first may not have ended yet.
        """
        if self.own:
            return self.own[0]
        if not final or not self.after_a_loss:
            return None
        return min(self.after_a_loss, key=lambda child: loss.at if (loss := child.loss) else 0.0)
