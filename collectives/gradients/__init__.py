"""Exchanges gradients for any framework: plans that ranks compare, buckets, wire formats, and ranks without data left.

Invariant: this package handles NumPy arrays only. The package for each framework converts the framework's tensors, and
knows when gradients are ready.
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
