"""hvd.Compression, for TensorFlow's tensors.

Invariant: only floating-point tensors are cast.
"""

from __future__ import annotations

from typing import Any, ClassVar

import tensorflow as tf

from collectives.horovod.compression import Compressor, NoneCompressor

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class _Cast(Compressor):
    dtype: ClassVar[Any]

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        return (tf.cast(tensor, cls.dtype) if tensor.dtype.is_floating else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tf.cast(tensor, ctx) if ctx.is_floating else tensor


class FP16Compressor(_Cast):
    wire = "fp16"
    dtype = tf.float16


class BF16Compressor(_Cast):
    """Casts floating-point tensors to bfloat16 before they are sent. Horovod has no such compressor.

    bfloat16 has the range of float32.
    """

    wire = "bf16"
    dtype = tf.bfloat16


class Compression:
    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
