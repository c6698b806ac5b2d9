"""Collectives of compiled JAX functions on buffers of a device.

No XLA with CUDA takes part: the case calls the handler as XLA would, with structures made by ctypes. Their form is that
of `native/src/bind/xla_ffi.hpp`, which is compared with jaxlib's header elsewhere.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from tests.collectives.cuda.cases.common import case, engines, start
from tests.collectives.cuda.runs_on import RANK, SIZE, Stream, cupy

_F32, _EXECUTE, _BUFFER, _SCALAR, _S64 = 11, 3, 1, 3, 5
_PTR, _SIZE_T, _I32, _I64 = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int32, ctypes.c_int64


class Version(ctypes.Structure):
    _fields_ = (("struct_size", _SIZE_T), ("extensions", _PTR), ("major", ctypes.c_int), ("minor", ctypes.c_int))


class ErrorArguments(ctypes.Structure):
    _fields_ = (("struct_size", _SIZE_T), ("extensions", _PTR), ("message", ctypes.c_char_p), ("code", _I32))


class StreamArguments(ctypes.Structure):
    _fields_ = (("struct_size", _SIZE_T), ("extensions", _PTR), ("context", _PTR), ("stream", _PTR))


CREATE = ctypes.CFUNCTYPE(_PTR, ctypes.POINTER(ErrorArguments))
STREAM = ctypes.CFUNCTYPE(_PTR, ctypes.POINTER(StreamArguments))


class Api(ctypes.Structure):
    _fields_ = (
        ("struct_size", _SIZE_T),
        ("extensions", _PTR),
        ("version", Version),
        ("internal", _PTR),
        ("error_create", CREATE),
        ("unused", _PTR * 3),
        ("stream_get", STREAM),
    )


class Buffer(ctypes.Structure):
    _fields_ = (
        ("struct_size", _SIZE_T),
        ("extensions", _PTR),
        ("dtype", _I32),
        ("data", _PTR),
        ("rank", _I64),
        ("dims", ctypes.POINTER(_I64)),
    )


class Values(ctypes.Structure):
    _fields_ = (
        ("struct_size", _SIZE_T),
        ("extensions", _PTR),
        ("size", _I64),
        ("kinds", ctypes.POINTER(_I32)),
        ("values", ctypes.POINTER(_PTR)),
    )


class Text(ctypes.Structure):
    _fields_ = (("data", ctypes.c_char_p), ("size", _SIZE_T))


class Scalar(ctypes.Structure):
    _fields_ = (("dtype", _I32), ("value", _PTR))


class Attributes(ctypes.Structure):
    _fields_ = (
        ("struct_size", _SIZE_T),
        ("extensions", _PTR),
        ("size", _I64),
        ("kinds", ctypes.POINTER(_I32)),
        ("names", ctypes.POINTER(ctypes.POINTER(Text))),
        ("values", ctypes.POINTER(_PTR)),
    )


class CallFrame(ctypes.Structure):
    _fields_ = (
        ("struct_size", _SIZE_T),
        ("extensions", _PTR),
        ("api", ctypes.POINTER(Api)),
        ("context", _PTR),
        ("stage", _I32),
        ("operands", Values),
        ("results", Values),
        ("attributes", Attributes),
    )


def call(number: int, operands: list[Any], results: list[Any], stream: Any) -> str:
    """Call the handler with arrays of float32; returns the text of its error, "" if there is none."""
    from collectives.native import _xla

    texts: list[str] = []

    def create(arguments: Any) -> int:
        texts.append(arguments.contents.message.decode())
        return 1

    def stream_of(arguments: Any) -> None:
        assert arguments.contents.context == 77
        arguments.contents.stream = stream.ptr

    made_create, made_stream = CREATE(create), STREAM(stream_of)
    api = Api(ctypes.sizeof(Api), None, Version(), None, made_create, (_PTR * 3)(), made_stream)
    keeps: list[Any] = []

    def values(arrays: list[Any]) -> Values:
        token = Buffer(ctypes.sizeof(Buffer), None, 17, None, 0, None)
        buffers = [token]
        for array in arrays:
            dims = (_I64 * len(array.shape))(*array.shape)
            address = array.__cuda_array_interface__["data"][0]
            buffers.append(Buffer(ctypes.sizeof(Buffer), None, _F32, address, len(array.shape), dims))
            keeps.append(dims)
        kinds = (_I32 * len(buffers))(*[_BUFFER] * len(buffers))
        pointers = (_PTR * len(buffers))(*map(ctypes.addressof, buffers))
        keeps.extend((buffers, kinds, pointers))
        return Values(ctypes.sizeof(Values), None, len(buffers), kinds, pointers)

    name, value = Text(b"number", 6), _I64(number)
    scalar = Scalar(_S64, ctypes.addressof(value))
    attributes = Attributes(
        ctypes.sizeof(Attributes),
        None,
        1,
        (_I32 * 1)(_SCALAR),
        (ctypes.POINTER(Text) * 1)(ctypes.pointer(name)),
        (_PTR * 1)(ctypes.addressof(scalar)),
    )
    frame = CallFrame(
        ctypes.sizeof(CallFrame),
        None,
        ctypes.pointer(api),
        77,
        _EXECUTE,
        values(operands),
        values(results),
        attributes,
    )
    capsule = ctypes.pythonapi.PyCapsule_GetPointer
    capsule.restype, capsule.argtypes = _PTR, (ctypes.py_object, ctypes.c_char_p)
    handler = ctypes.CFUNCTYPE(_PTR, ctypes.POINTER(CallFrame))(capsule(_xla.cuda_handler, None))
    error = handler(ctypes.byref(frame))
    assert bool(error) == bool(texts), (error, texts)
    return texts[0] if texts else ""


@case
def compiled() -> None:
    """All kinds of collectives, by NCCL or through host memory, in XLA's stream."""
    from collectives.jax import _host, _kinds
    from collectives.jax._channel import channel_of
    from collectives.native import _xla

    _xla.install_on_device(_host.run_on_device)
    with start() as comm:
        channel, stream = channel_of(comm), Stream()

        def run(kind: Any, operands: list[Any], results: list[Any]) -> str:
            forms = [tuple((tuple(a.shape), np.dtype(a.dtype)) for a in arrays) for arrays in (operands, results)]
            number = _host.number_of(_host.Call(kind, channel, None, *forms))
            wrong = call(number, operands, results, stream)
            stream.synchronize()
            return wrong

        def array(values: Any) -> Any:
            return cupy.asarray(np.asarray(values, np.float32))

        x = array([1.0 + RANK, 2.0])
        total = [SIZE * (SIZE + 1) / 2, 2.0 * SIZE]
        assert run(_kinds.Allreduce("sum", 1 << 20), [x], [x]) == ""
        np.testing.assert_array_equal(x.get(), total)
        several = [array(np.full(n, RANK + 1.0)) for n in (3, 5)]
        assert run(_kinds.Allreduce("max", 1 << 20), several, several) == ""
        np.testing.assert_array_equal(several[1].get(), np.full(5, SIZE))
        whole = array(np.zeros((SIZE, 2)))
        mine = array([RANK, 7.0])
        assert run(_kinds.Allgather(), [mine], [whole]) == ""
        np.testing.assert_array_equal(whole.get(), [[r, 7.0] for r in range(SIZE)])
        part = array(np.zeros((1, 2)))
        assert run(_kinds.ReduceScatter("sum"), [whole], [part]) == ""
        np.testing.assert_array_equal(part.get(), [[SIZE * RANK, 7.0 * SIZE]])
        sums = array([-1.0, -1.0])
        assert run(_kinds.Reduce(1), [mine], [sums]) == ""
        np.testing.assert_array_equal(sums.get(), [SIZE * (SIZE - 1) / 2, 7.0 * SIZE] if RANK == 1 else [0.0, 0.0])
        assert run(_kinds.Broadcast(1), [mine], [mine]) == ""
        np.testing.assert_array_equal(mine.get(), [1.0, 7.0])
        turned = array(np.zeros((SIZE, 1)))
        assert run(_kinds.Alltoall(), [array(np.full((SIZE, 1), RANK))], [turned]) == ""
        np.testing.assert_array_equal(turned.get(), np.arange(SIZE).reshape(SIZE, 1))
        assert run(_kinds.Barrier(), [mine], [mine]) == ""
        peer = 1 - RANK
        if RANK == 0:
            assert run(_kinds.Send(peer), [x], []) == ""
        else:
            got = array([0.0, 0.0])
            form = ((2,), np.dtype(np.float32))
            assert run(_kinds.Recv(peer, (form,)), [], [got]) == ""
            np.testing.assert_array_equal(got.get(), total)
        found = engines(channel.comm)
        assert ("nccl" in found) == (comm.explain("allreduce", 8).find("on CUDA     nccl") >= 0), found
    # The communicator is closed.
    wrong = run(_kinds.Allreduce("sum", 1 << 20), [x], [x])
    assert "Aborted" in wrong and "closed" in wrong and f"rank {RANK}" in wrong, wrong
