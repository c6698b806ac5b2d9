"""Torch's `DistributedTest`, with the backend of this library treated as torch's file treats Gloo.

Invariant: the tests run as they stand in torch's wheel. Changed is which of them are for the backend: wherever the file
lists Gloo, or asks whether the backend is Gloo, the backend under test counts as Gloo does. It also counts as MPI where
that alone has a collective for the CPU, and three ranks are no small world. With DEVICE=cuda, tests for GPUs run
as well, on the CPU (see `gpu.py`), and the backend counts as NCCL, too.

Read at import: BACKEND and WORLD_SIZE, as torch's file does, and DEVICE.
"""

from __future__ import annotations

import ast
import importlib.util
import multiprocessing
import os
import sys
from types import ModuleType
from typing import Any, Final

from torch.testing._internal import common_distributed

from collectives.torch.autoload import register
from tests.collectives.torch.distributed_test import gpu

NAME: Final = "torch.testing._internal.distributed.distributed_test"
BACKEND: Final = os.environ["BACKEND"]
ON_GPU: Final = os.environ.get("DEVICE") == "cuda"
_LIKE: Final = ("gloo", "nccl") if ON_GPU else ("gloo", "mpi")


class _Treated(ast.NodeTransformer):
    """`BACKEND == "gloo"` becomes `BACKEND in ("gloo", ours)`; sets that have "gloo" get ours too."""

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        match node:
            case ast.Compare(ast.Name("BACKEND"), [(ast.Eq() | ast.NotEq()) as op], [ast.Constant(name)]) if (
                name in _LIKE
            ):
                both = ast.Tuple([ast.Constant(name), ast.Constant(BACKEND)], ast.Load())
                there = ast.In() if isinstance(op, ast.Eq) else ast.NotIn()
                return ast.copy_location(ast.Compare(node.left, [there], [both]), node)
        return node

    def visit_Set(self, node: ast.Set) -> ast.AST:
        if any(isinstance(item, ast.Constant) and item.value in _LIKE for item in node.elts):
            node.elts.append(ast.Constant(BACKEND))
        return node

    def visit_keyword(self, node: ast.keyword) -> ast.AST:
        """`new_group(backend="nccl")`, of tests for GPUs."""
        if node.arg == "backend" and isinstance(node.value, ast.Constant) and node.value.value in _LIKE:
            node.value = ast.Constant(BACKEND)
        return node


def _load() -> ModuleType:
    common_distributed.TIMEOUT_OVERRIDE.clear()  # all have the same time
    features = common_distributed.DistTestCases
    if BACKEND != "gloo":
        features.backend_feature["plugin"].add(BACKEND)
    if int(os.environ["WORLD_SIZE"]) > 2:
        common_distributed.skip_if_small_worldsize = lambda test: test  # they use ranks 1 and 2
    for lists in (features.skip_collective, features.backend_feature):
        for backends in lists.values():
            if "gloo" in backends:
                backends.add(BACKEND)
    os.environ.setdefault("INIT_METHOD", "file://")  # of which kind; each test is given a file
    spec = importlib.util.find_spec(NAME)
    assert spec is not None and spec.origin is not None and spec.loader is not None
    with open(spec.origin, encoding="utf-8") as file:
        tree = ast.fix_missing_locations(_Treated().visit(ast.parse(file.read(), spec.origin)))
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    exec(compile(tree, spec.origin, "exec", dont_inherit=True), module.__dict__)
    for name in (
        "PROFILING_SUPPORTED_BACKENDS",
        "CUDA_PROFILING_SUPPORTED_BACKENDS",
        "SEND_RECV_PROFILING_SUPPORTED_BACKENDS",
    ):
        getattr(module, name).append(BACKEND)
    return module


register()
_torchs: Final[Any] = _load()
_context: Final = multiprocessing.get_context("forkserver")
# Processes are forked from one that has read torch already, which saves seconds for each.
_context.set_forkserver_preload([__name__])


class TestBackend(_torchs.TestDistBackend, _torchs.DistributedTest._DistTestBase):
    """As torch's test_distributed_spawn.py has it."""

    def setUp(self) -> None:
        super().setUp()
        self._start_processes(_process)

    def tearDown(self) -> None:
        processes = self.processes
        super().tearDown()  # ends those that still run
        for process in processes:
            process.join()


def _process(target: Any, name: str, args: Any, kwargs: Any) -> Any:
    return _context.Process(target=_rank, name=name, args=(dict(os.environ), target, args, kwargs))


def _rank(environment: dict[str, str], target: Any, args: Any, kwargs: Any) -> None:
    os.environ.update(environment)
    _torchs.INIT_METHOD = environment["INIT_METHOD"]  # another one for each test, as TEMP_DIR
    if ON_GPU:
        with gpu.on_cpu():
            target(*args, **kwargs)
    else:
        target(*args, **kwargs)
