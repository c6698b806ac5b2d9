"""What capsules of DLPack say about arrays: no device is needed to read them."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from collectives.arrays import cuda, dlpack
from collectives.arrays.dtypes import Dtype, named
from tests.collectives.arrays.capsules import FLOAT32, Exporter


@pytest.mark.parametrize(
    ("code", "bits", "dtype"),
    [
        (0, 16, np.dtype(np.int16)),
        (2, 32, np.dtype(np.float32)),
        (4, 16, named("bfloat16")),
        (6, 8, np.dtype(np.bool_)),
        (10, 8, named("float8_e4m3fn")),
        (12, 8, named("float8_e5m2")),
    ],
    ids=str,
)
def test_dtypes(code: int, bits: int, dtype: Dtype) -> None:
    found = dlpack.exported(Exporter(0x1000, (3,), (code, bits), 1), 1, "x")
    assert found.dtype == dtype
    assert found[:3] == (0x1000, (3,), None) and found.device == 1


@pytest.mark.parametrize(("code", "bits"), [(3, 64), (0, 4), (12, 16)])
def test_a_dtype_without_a_name_is_refused(code: int, bits: int) -> None:
    with pytest.raises(TypeError, match=f"x has a dtype .* code {code}, {bits} bits"):
        dlpack.exported(Exporter(0x1000, (3,), (code, bits), 1), 1, "x")


def test_work_of_tensorflow_is_waited_for_before_its_tensor_is_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not show the stream in which a tensor is written."""
    steps: list[str] = []

    class Tensor(Exporter):
        def __dlpack__(self, **options: Any) -> Any:
            steps.append("export")
            return super().__dlpack__(**options)

    Tensor.__module__ = "tensorflow.python.framework.ops"
    experimental = SimpleNamespace(sync_devices=lambda: steps.append("sync"))
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(test=SimpleNamespace(experimental=experimental)))
    found = cuda.reading(Tensor(0x1000, (3,), FLOAT32, 1))
    assert steps == ["sync", "export"]
    assert (found.address, found.shape, found.device, found.stream) == (0x1000, (3,), 1, cuda.LEGACY)
    with pytest.raises(TypeError, match="TensorFlow, which must not be written"):
        cuda.writing(Tensor(0x1000, (3,), FLOAT32, 1))
