"""TensorFlow's own collectives: the ring over gRPC that its multi-worker strategies use.

Invariant: the collectives are called through `tf.raw_ops` in a compiled function. The input tensors share memory with
the benchmark's arrays. The measured time includes neither Keras, nor a strategy, nor a copy of the input. Results are
tensors that TensorFlow makes. While the benchmark runs, TensorFlow's servers listen on all interfaces and accept all
clients.
"""

from __future__ import annotations

import importlib
import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from collectives.bench.cases import Case

ENVIRONMENT = "tensorflow"
REQUIREMENTS = ("tensorflow-cpu==2.21.*",)
BARE: tuple[str, ...] = ()

_JOIN = 60.0  # seconds
_ALIGNED = 64  # bytes: TensorFlow aborts the process if memory is aligned to less
_OPS = {"sum": ("Add", "Id"), "prod": ("Mul", "Id"), "min": ("Min", "Id"), "max": ("Max", "Id"), "avg": ("Add", "Div")}
_DTYPES = ("float16", "float32", "float64", "int32", "int64")
_WORKER = "/job:worker/replica:0/task:{}"


def commands(python: Path, worker: Sequence[str], ranks: int) -> list[list[str]]:
    return [[str(python), *worker, str(rank)] for rank in range(ranks)]


def environment(folder: str) -> dict[str, str]:
    return {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "", "GRPC_VERBOSITY": "ERROR"}


def connect(folder: str, ranks: int, rank: int | None) -> Member:
    assert rank is not None
    return Member(join(folder, ranks, rank), ranks, rank)


def join(folder: str, ranks: int, rank: int) -> Any:
    """Start a TensorFlow server for this rank, and join it to a cluster of `ranks` servers.

    `folder` is the directory through which the ranks find each other. Return the imported package tensorflow.
    """
    tf: Any = importlib.import_module("tensorflow")
    servers: Any = importlib.import_module("tensorflow.core.protobuf.tensorflow_server_pb2")
    current: Any = importlib.import_module("tensorflow.python.eager.context").context()
    leader, mine = _WORKER.format(0), f"/job:worker/task:{rank}"
    config = tf.compat.v1.ConfigProto()
    config.experimental.collective_group_leader = leader
    config.device_filters.append(mine)
    with closing(_own_port()) as held:
        ports = _everyones(held.getsockname()[1], Path(folder), ranks, rank)
        cluster = tf.train.ClusterSpec({"worker": [f"127.0.0.1:{port}" for port in ports]})
        server = servers.ServerDef(
            cluster=cluster.as_cluster_def(),
            job_name="worker",
            task_index=rank,
            protocol="grpc",
            default_session_config=config,
            port=ports[rank],
        )
        current.configure_collective_ops(collective_leader=leader, device_filters=(mine,))
        current.enable_collective_ops(server)
        current.ensure_initialized()  # the server listens from here on
    return tf


def _own_port() -> socket.socket:
    """A socket that reserves a port for this process's gRPC server.

    The server can bind its own socket to the same port: both sockets set SO_REUSEADDR (gRPC does so by default), and
    only the server's socket listens.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("", 0))
    return held


def _everyones(port: int, folder: Path, ranks: int, rank: int) -> list[int]:
    """The port of each rank, exchanged through files."""
    new = folder / f"port-{rank}.new"
    new.write_text(str(port))
    os.replace(new, folder / f"port-{rank}")
    files = [folder / f"port-{other}" for other in range(ranks)]
    end = time.monotonic() + _JOIN
    while not all(file.exists() for file in files):
        if time.monotonic() > end:
            raise TimeoutError(f"not all of {ranks} ranks have come within {_JOIN:g} s")
        time.sleep(0.05)
    return [int(file.read_text()) for file in files]


def aligned(elements: int, dtype: Any) -> Any:
    """An array of zeros whose memory a tensor can share."""
    nbytes = elements * dtype.itemsize
    memory = np.zeros(nbytes + _ALIGNED, np.uint8)
    start = -memory.ctypes.data % _ALIGNED
    return memory[start : start + nbytes].view(dtype)


class Member:
    def __init__(self, tf: Any, ranks: int, rank: int) -> None:
        self.rank = rank
        self._tf = tf
        self._ranks = ranks
        self._device = _WORKER.format(rank) + "/device:CPU:0"
        self._instance = 0
        self._one = self._tensor(self.empty(1, np.dtype("float32")))
        self._barrier = self._compiled(lambda x, **keys: tf.raw_ops.CollectiveReduceV2(input=x, **keys), "sum")

    def empty(self, elements: int, dtype: Any) -> Any:
        return aligned(elements, dtype)

    def barrier(self) -> None:
        self._barrier(self._one)

    def bind(self, case: Case, inp: Any, out: Any) -> tuple[Callable[[], Any], Any]:
        raw = self._tf.raw_ops
        if case.collective == "barrier":
            return self.barrier, out
        if case.collective not in ("allreduce", "allgather") or case.dtype not in _DTYPES:
            raise NotImplementedError(f"{case.collective} of {case.dtype} is not measured with TensorFlow")
        if case.op not in (*_OPS, "none"):
            raise NotImplementedError(f"TensorFlow has no {case.op}")
        x = self._tensor(inp)
        if case.collective == "allreduce":
            run = self._compiled(lambda t, **keys: raw.CollectiveReduceV2(input=t, **keys), case.op)
        else:
            run = self._compiled(lambda t, **keys: raw.CollectiveGatherV2(input=t, **keys), "none")
        return lambda: run(x), None

    def close(self) -> None:
        """Does nothing: TensorFlow's servers end with their processes."""

    def _tensor(self, array: Any) -> Any:
        """A tensor in the memory of `array`."""
        with self._tf.device(self._device):
            return self._tf.experimental.dlpack.from_dlpack(array.__dlpack__())

    def _compiled(self, op: Callable[..., Any], name: str) -> Callable[[Any], Any]:
        """A compiled function that runs `op` on a tensor; every call must pass a tensor of the same shape.

        `name`: how tensors are reduced, a key of `_OPS`, or "none".
        """
        tf = self._tf
        self._instance += 1
        instance = self._instance
        reduction = dict(zip(("merge_op", "final_op"), _OPS[name], strict=True)) if name != "none" else {}

        @tf.function(autograph=False)
        def run(x: Any) -> Any:
            return op(
                x,
                group_size=tf.constant(self._ranks),
                group_key=tf.constant(1),
                instance_key=tf.constant(instance),
                ordering_token=[],
                communication_hint="ring",
                timeout_seconds=_JOIN,
                **reduction,
            )

        def call(x: Any) -> Any:
            with tf.device(self._device):
                return run(x)

        return call
