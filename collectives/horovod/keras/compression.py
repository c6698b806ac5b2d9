"""hvd.Compression, for tensors of Keras's backend.

Invariant: only floating-point tensors are cast.
"""

from __future__ import annotations

from typing import Any, ClassVar

from collectives.horovod.compression import Compressor, NoneCompressor
from collectives.keras.framework import keras

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class _Cast(Compressor):
    dtype: ClassVar[str]

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        dtype = keras.backend.standardize_dtype(tensor.dtype)
        return (keras.ops.cast(tensor, cls.dtype) if "float" in dtype else tensor), dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return keras.ops.cast(tensor, ctx)


class FP16Compressor(_Cast):
    wire = "fp16"
    dtype = "float16"


class BF16Compressor(_Cast):
    """Casts floating-point tensors to bfloat16 before they are sent. Horovod has no such compressor.

    bfloat16 has the range of float32.
    """

    wire = "bf16"
    dtype = "bfloat16"


class Compression:
    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
