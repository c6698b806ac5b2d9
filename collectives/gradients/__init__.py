"""Exchanging gradients, for any framework: plans that ranks agree on, buckets, wires, and ranks that have joined.

Invariant: NumPy only. What a framework's tensors are, and when they are ready, its own package knows.
"""

from collectives.gradients.channel import Channel as Channel
from collectives.gradients.channel import channel as channel
from collectives.gradients.channel import located as located
from collectives.gradients.plan import BUCKET as BUCKET
from collectives.gradients.plan import Bucket as Bucket
from collectives.gradients.plan import Entry as Entry
from collectives.gradients.plan import Plan as Plan
from collectives.gradients.wire import Rules as Rules
from collectives.gradients.wire import Wire as Wire
