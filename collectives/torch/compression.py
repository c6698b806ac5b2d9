"""Compresses gradients to 16 or 8 bits before they are sent, and keeps the rounding error.

Invariant: with error feedback no part of a gradient is lost permanently: its rounding error is added to the next
gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Final

import torch

from collectives.arrays.wire import AUTO, WireName, format_of
from collectives.torch.tensors import reading, tensor_of

_DTYPES: Final = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp8": torch.float32, "int8": torch.float32}
_EIGHT_BITS: Final = ("fp8", "int8")


class Compression:
    """Converts float32 and float64 tensors to a 16-bit dtype before they are sent; other tensors are sent unchanged.

    With "fp8" and "int8", tensors are converted to float32 here, and the communicator sends these in 8 bits.
    """

    def __init__(self, name: str | None, *, error_feedback: bool = False) -> None:
        """`name`: "fp16", "bf16", "fp8", "int8" or None. ValueError for others, and for error feedback with None."""
        if name is not None and name not in _DTYPES:
            raise ValueError(f"compression is {name!r}: there are {', '.join(map(repr, _DTYPES))} and None")
        if error_feedback and name is None:
            raise ValueError(f"error_feedback is for compression {', '.join(map(repr, _DTYPES))}")
        self._format: Final = format_of(name) if name in _EIGHT_BITS else None
        self._dtype: Final = None if name is None else _DTYPES[name]
        self._feedback: Final = error_feedback
        self._residuals: Final[dict[Hashable, Any]] = {}

    @property
    def _rounds(self) -> bool:
        """Whether tensors are converted before they are sent."""
        return self._dtype is not None

    def compress(self, tensor: Any, key: Hashable = None) -> Any:
        """Returns the tensor to send: `tensor` in another dtype, or `tensor` itself if it is not to be converted.

        `key` identifies a gradient from step to step. With error feedback, the rounding error of a gradient is added
        to the gradient with the same `key` in the next step. If `key` is None, the rounding error is lost.
        """
        if self._dtype is None or tensor.dtype not in (torch.float32, torch.float64):
            return tensor
        if not self._feedback or key is None:
            return self._converted(tensor)
        known = self._residuals.get(key)
        wanted = tensor if known is None or known.shape != tensor.shape else tensor + known
        sent = self._converted(wanted)
        seen = sent if self._format is None else tensor_of(self._format.rounded(reading(sent)))
        lost = wanted - seen.to(tensor.dtype)
        # Infinities, from values too large for the dtype, and NaN must not be added to later gradients.
        self._residuals[key] = lost.nan_to_num_(0.0, 0.0, 0.0)
        return sent

    def _keep(self, key: Hashable, lost: Any) -> None:
        """Adds `lost`, a tensor, to the next gradient with this `key`, as if it were a rounding error."""
        self._residuals[key] = lost

    def _release(self) -> dict[Hashable, Any]:
        """Returns all rounding errors by key, and forgets them."""
        released = dict(self._residuals)
        self._residuals.clear()
        return released

    def wire(self, sent: Any) -> WireName | None:
        """The wire format for a tensor that `compress` has returned; None if the communicator sends it as it is."""
        return None if self._format is None or sent.dtype != torch.float32 else self._format.name

    def _converted(self, tensor: Any) -> Any:
        found = tensor.to(self._dtype)
        return found if self._format is None else found.contiguous()

    @staticmethod
    def decompress(received: Any, tensor: Any) -> None:
        """Copies the received data, which may be in a 16-bit dtype, to `tensor`."""
        if received is not tensor:
            tensor.copy_(received)


def compression_of(compression: Any, error_feedback: bool, choose: Callable[[], WireName | None]) -> Any:
    """Returns a `Compression` for "fp16", "bf16", "fp8", "int8", None, or for "auto", which stands for `choose()`.

    An object with the methods of `Compression` is returned unchanged. `error_feedback`: add the rounding error of a
    gradient to the gradient of the next step. Raises ValueError for another name, TypeError for another object.
    """
    if compression == AUTO:
        name = choose()
        return Compression(name, error_feedback=error_feedback and name is not None)
    if compression is None or isinstance(compression, str):
        return Compression(compression, error_feedback=error_feedback)
    if not callable(getattr(compression, "compress", None)) or not callable(getattr(compression, "decompress", None)):
        names = ", ".join(map(repr, (*_DTYPES, AUTO)))
        raise TypeError(f"compression must be {names}, None or have compress() and decompress(), not {compression!r}")
    return compression
