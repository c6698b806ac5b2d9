"""Collectives on TensorFlow tensors, and the exchange of gradients during training.

Invariant: importing this package imports TensorFlow. Other parts of the library import TensorFlow only if they use this
package.
"""

try:
    import tensorflow as _tensorflow  # noqa: F401
except ImportError as error:
    raise ImportError("collectives.tensorflow needs TensorFlow: pip install tensorflow") from error

from collectives.tensorflow.bridge import typed_errors as typed_errors
from collectives.tensorflow.exchange import GradientExchange as GradientExchange
from collectives.tensorflow.ops import allgather as allgather
from collectives.tensorflow.ops import allreduce as allreduce
from collectives.tensorflow.ops import alltoall as alltoall
from collectives.tensorflow.ops import barrier as barrier
from collectives.tensorflow.ops import broadcast as broadcast
from collectives.tensorflow.ops import grouped_allreduce as grouped_allreduce
from collectives.tensorflow.ops import join as join
from collectives.tensorflow.ops import reducescatter as reducescatter
from collectives.tensorflow.tape import DistributedGradientTape as DistributedGradientTape
from collectives.tensorflow.tape import allreduce_gradients as allreduce_gradients
from collectives.tensorflow.variables import allgather_object as allgather_object
from collectives.tensorflow.variables import broadcast_object as broadcast_object
from collectives.tensorflow.variables import broadcast_variables as broadcast_variables

__all__ = [
    "DistributedGradientTape",
    "GradientExchange",
    "allgather",
    "allgather_object",
    "allreduce",
    "allreduce_gradients",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_object",
    "broadcast_variables",
    "grouped_allreduce",
    "join",
    "reducescatter",
    "typed_errors",
]
