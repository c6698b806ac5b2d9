"""Collectives for JAX: in compiled functions and outside of them, differentiable, and run in the order of the program.

    import collectives, collectives.jax as cj
    comm = collectives.init()
    gradients = cj.allreduce_gradients(jax.grad(loss)(parameters, batch))     # in jax.jit, or not

Invariant: this is the public interface of the package; the names in `__all__` are stable. Outside this package, only
the JAX backend of collectives.keras imports JAX.
"""

try:
    import jax as _jax  # noqa: F401
except ImportError as error:
    raise ImportError("collectives.jax needs JAX: pip install jax", name="jax") from error

from collectives.jax._failures import last_error as last_error
from collectives.jax._failures import typed_errors as typed_errors
from collectives.jax._ops import allgather as allgather
from collectives.jax._ops import allreduce as allreduce
from collectives.jax._ops import alltoall as alltoall
from collectives.jax._ops import barrier as barrier
from collectives.jax._ops import broadcast as broadcast
from collectives.jax._ops import recv as recv
from collectives.jax._ops import reduce_scatter as reduce_scatter
from collectives.jax._ops import send as send
from collectives.jax._primitive import how as how
from collectives.jax._training import allreduce_gradients as allreduce_gradients
from collectives.jax._training import average_metrics as average_metrics
from collectives.jax._training import average_parameters as average_parameters
from collectives.jax._training import broadcast_parameters as broadcast_parameters

__all__ = [
    "allgather",
    "allreduce",
    "allreduce_gradients",
    "alltoall",
    "average_metrics",
    "average_parameters",
    "barrier",
    "broadcast",
    "broadcast_parameters",
    "how",
    "last_error",
    "recv",
    "reduce_scatter",
    "send",
    "typed_errors",
]
