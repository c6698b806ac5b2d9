"""The common part of Horovod's compressors, for all kinds of tensors.

Invariant: a compressor that defines `wire` uses this library's wire format, in which averages don't overflow. Any other
compressor is called before and after the exchange, as in Horovod.
"""

from __future__ import annotations

from typing import Any, ClassVar, cast

from collectives.gradients.wire import Compression


class Compressor:
    """The base class of compressors, as in Horovod: `compress(tensor)` returns the tensor to send, and a context.

    The context is any object; `decompress(tensor, context)` needs it to convert a received tensor back.
    """

    wire: ClassVar[str | None]

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Sends tensors unchanged."""

    wire = None

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor


def is_custom(compression: Any) -> bool:
    """Whether `compression` is a compressor that the user wrote, and not one of Horovod's.

    Raises TypeError if it is no compressor.
    """
    if isinstance(compression, type) and "wire" in vars(compression):  # `wire` is not inherited
        return False
    if callable(getattr(compression, "compress", None)) and callable(getattr(compression, "decompress", None)):
        return True
    raise TypeError(
        f"compression must be hvd.Compression.none, .fp16 or .bf16, or have compress() and decompress(), not "
        f"{compression!r}"
    )


def wire(compression: Any) -> Compression | None:
    """Returns the format in which the compressor sends tensors: "fp16" or "bf16".

    Returns None if the user wrote the compressor, or if it does not compress.
    """
    return None if is_custom(compression) else cast("Compression | None", compression.wire)
