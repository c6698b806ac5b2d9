"""Access to the memory of PyTorch's tensors.

Invariant: elements are those that `tensor.tolist()` shows, with lazy conjugation and negation applied. A tensor without
memory of its own is refused, even if torch exports an address for it. torch's autograd is notified of writes.
"""

from __future__ import annotations

import sys
from functools import lru_cache, partial
from typing import Any, Final

import numpy as np

from collectives.arrays import dtypes
from collectives.arrays.exporters import buffers
from collectives.arrays.exporters.reached import Array, Reached

_INSTEAD: Final = {
    "DTensor": "give its local shard, {name}.to_local()",
    "AsyncCollectiveTensor": "give {name}.wait()",
    "FakeTensor": "it has a shape and no values",
    "FunctionalTensor": "it is being traced",
    "MaskedTensor": "give {name}.to_tensor(value), or its {name}.get_data()",
}


def read(x: Any, name: str, moved: bool) -> Array:
    torch = sys.modules["torch"]
    if not isinstance(x, torch.Tensor):
        return buffers.read(x, name, moved)
    check(x, name)
    check_gradient(x, name)
    return memory(settled(x.detach().contiguous()), dtype_of(x, name, moved), name)


def reach(x: Any, name: str, moved: bool) -> Reached:
    torch = sys.modules["torch"]
    if not isinstance(x, torch.Tensor):
        return buffers.reach(x, name, moved)
    check(x, name)
    check_gradient(x, name)
    if not x.is_contiguous():
        raise ValueError(f"{name} is not contiguous: results are written to C-contiguous arrays only")
    if x.is_conj() or x.is_neg():
        raise ValueError(
            f"{name} is conjugated or negated only when it is read: give {name}.resolve_conj().resolve_neg()"
        )
    return Reached(
        memory(x.detach(), dtype_of(x, name, moved), name), partial(torch.autograd.graph.increment_version, x)
    )


def check(x: Any, name: str) -> None:
    """Raises TypeError, with advice, if the tensor `x` has no dense memory of its own, or is nested or quantized.

    `name`: what the error calls `x`.
    """
    torch = sys.modules["torch"]
    kind = type(x).__name__
    if isinstance(x, torch.nn.parameter.UninitializedTensorMixin):
        raise TypeError(f"{name} is a {kind}: give it a shape first, by a forward pass of its lazy module")
    if type(x).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ and kind in _INSTEAD:
        raise TypeError(f"{name} is a {kind}, which has no memory of its own: {_INSTEAD[kind].format(name=name)}")
    if x.is_nested:
        raise TypeError(f"{name} is a nested tensor: give {name}.values(), or its {name}.unbind() each for itself")
    if x.layout is not torch.strided:
        raise TypeError(
            f"{name} is sparse, of layout {x.layout}: give {name}.to_dense(), or its values and indices each for itself"
        )
    if x.is_meta:
        raise TypeError(f"{name} is on the meta device: it has a shape and no values")
    if x.is_quantized:
        raise TypeError(f"{name} is quantized ({x.dtype}): give {name}.int_repr(), or {name}.dequantize()")


def check_gradient(x: Any, name: str) -> None:
    """Raises TypeError if the tensor `x` requires a gradient, because autograd cannot see what a communicator does.

    `name`: what the error calls `x`.
    """
    if x.requires_grad and sys.modules["torch"].is_grad_enabled():
        raise TypeError(
            f"{name} requires a gradient, which a communicator does not compute: give {name}.detach(), or use "
            "collectives.torch.allreduce and its like"
        )


def settled(x: Any) -> Any:
    """Returns tensor `x` with those operations done that torch has put off: conjugating, negating, filling with zeros.

    Returns `x` itself if there are no such operations, otherwise a copy.
    """
    if sys.modules["torch"]._is_zerotensor(x):
        return x.clone()
    return x.resolve_conj().resolve_neg()


def memory(x: Any, dtype: dtypes.Dtype, name: str = "the tensor") -> Array:
    """Returns a NumPy array over the memory of the tensor `x`; the array keeps `x` alive.

    `x` has to be contiguous, without autograd history, and without operations that torch has put off (see `settled`).
    This function does not call `x.numpy()`, because afterwards FullyShardedDataParallel could not resize the tensor any
    more. `name`: the name of `x` in errors.
    """
    shape = tuple(x.shape)
    if not x.numel():
        return np.empty(shape, dtype)
    try:
        address = x.data_ptr()
    except RuntimeError:  # inside functorch's transformations
        address = 0
    if not address:
        raise TypeError(
            f"{name} is a {type(x).__name__} without memory of its own: one that wraps other tensors, one inside a "
            "transformation such as functionalize or vmap, or one whose storage was freed"
        )
    if dtype.isbuiltin == 1:
        return np.asarray(_Memory(x, address, shape, dtype.str))
    return np.asarray(_Memory(x, address, shape, f"|u{dtype.itemsize}")).view(dtype)


def unowned(array: Array) -> Array:
    """Returns an array over the same memory as `array`, which `memory` has returned, but without a reference to it."""
    address = array.__array_interface__["data"][0]
    kind = array.dtype.str if array.dtype.isbuiltin == 1 else f"|u{array.dtype.itemsize}"
    return np.asarray(_Memory(None, address, array.shape, kind)).view(array.dtype)


class _Memory:
    """A tensor's memory with NumPy's array interface."""

    __slots__ = ("__array_interface__", "tensor")

    def __init__(self, tensor: Any, address: int, shape: tuple[int, ...], kind: str) -> None:
        self.tensor = tensor
        self.__array_interface__ = {"data": (address, False), "shape": shape, "typestr": kind, "version": 3}


def is_shared(base: object) -> bool:
    """Whether an array is in a tensor's memory that several processes share. `base`: the array's attribute `base`.

    The array has to be one that the function `memory` returned; for others the result is False.
    """
    return isinstance(base, _Memory) and base.tensor is not None and bool(base.tensor.untyped_storage().is_shared())


def dtype_of(x: Any, name: str, moved: bool) -> dtypes.Dtype:
    """Returns the NumPy dtype for the elements of the tensor `x`. Raises TypeError if there is none.

    `moved`: the collective only moves elements, so for one-byte types that NumPy lacks, the dtype is uint8. `name`:
    what the error calls `x`.
    """
    found = table().get(x.dtype)
    if found is not None:
        return found
    if moved and x.dtype.itemsize == 1:
        return np.dtype(np.uint8)
    cure = f"torch.view_as_real({name})" if x.dtype.is_complex else f"{name}.view(torch.uint8)"
    done = "sent" if moved else "reduced"
    raise TypeError(f"{name} has dtype {x.dtype}, which cannot be {done}: give {name}.to(another), or {cure}")


@lru_cache(maxsize=1)
def table() -> dict[Any, dtypes.Dtype]:
    """The NumPy dtype for each torch dtype."""
    torch = sys.modules["torch"]
    known = dtypes.dtype_names() | dtypes.moved_names()
    names = {name: dtype for dtype, name in known.items() if hasattr(torch, name)}
    # torch's integers of less than a byte have no layout that torch itself defines.
    return {
        getattr(torch, name): dtype
        for name, dtype in names.items()
        if dtype in dtypes.dtype_names() or "float8" in name
    }


def tensor_of(array: Array) -> Any:
    """A tensor over the memory of `array`."""
    torch = sys.modules["torch"]
    if array.dtype.isbuiltin == 1:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(f"i{array.dtype.itemsize}")).view(kind_of(array.dtype))


def kind_of(dtype: dtypes.Dtype) -> Any:
    """torch's dtype for a NumPy dtype that `table` has."""
    return next(kind for kind, known in table().items() if known == dtype)
