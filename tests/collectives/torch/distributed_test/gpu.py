"""Programs for CUDA GPUs on the CPU: every device "cuda", or a device's number, is the CPU.

Invariant: what a program does with tensors is left as it is; streams and events do nothing, as all calls are in order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.testing._internal import common_distributed

GPUS: Final = 8
_CPU: Final = torch.device("cpu")


class _OnCpu(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.cuda:
            return args[0]
        if "device" in kwargs:
            kwargs["device"] = _here(kwargs["device"])
        if func is torch.Tensor.to:
            args = (args[0], *(_here(a) if _is_device(a) else a for a in args[1:]))
        return func(*args, **kwargs)


def _is_device(value: Any) -> bool:
    return isinstance(value, str | torch.device) or (isinstance(value, int) and not isinstance(value, bool))


def _here(device: Any) -> Any:
    """The CPU in place of a GPU."""
    if isinstance(device, int) or str(device).startswith("cuda"):
        return _CPU
    return device


class _Stream:
    def __init__(self, *_: Any, **__: Any) -> None: ...
    def synchronize(self) -> None: ...
    def wait_stream(self, _: Any) -> None: ...
    def wait_event(self, _: Any) -> None: ...
    def record_event(self, _: Any = None) -> None: ...
    def query(self) -> bool:
        return True


def _module_to(of_torch: Any) -> Any:
    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        args = tuple(_here(a) if _is_device(a) else a for a in args)
        if "device" in kwargs:
            kwargs["device"] = _here(kwargs["device"])
        return of_torch(self, *args, **kwargs)

    return to


def _ddp(of_torch: Any) -> Any:
    def init(self: Any, module: Any, device_ids: Any = None, output_device: Any = None, *args: Any, **kw: Any) -> None:
        of_torch(self, module, None, None, *args, **kw)

    return init


@contextlib.contextmanager
def on_cpu() -> Iterator[None]:
    """Within it this thread's tensors for GPUs are on the CPU."""
    current = [0]

    def set_device(device: Any) -> None:
        current[0] = device.index or 0 if isinstance(device, torch.device) else int(device)

    cuda: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: GPUS,
        "current_device": lambda: current[0],
        "set_device": set_device,
        "synchronize": lambda device=None: None,
        "manual_seed": lambda seed: None,
        "Stream": _Stream,
        "stream": lambda stream: contextlib.nullcontext(),
        "current_stream": lambda device=None: _Stream(),
        "device": lambda device: contextlib.nullcontext(),
    }
    parallel = torch.nn.parallel.DistributedDataParallel
    with contextlib.ExitStack() as stack:
        for name, replacement in cuda.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, replacement))
        stack.enter_context(mock.patch.object(common_distributed, "TEST_CUDA", True))
        stack.enter_context(mock.patch.object(torch.nn.Module, "cuda", lambda self, device=None: self))
        stack.enter_context(mock.patch.object(torch.nn.Module, "to", _module_to(torch.nn.Module.to)))
        stack.enter_context(mock.patch.object(parallel, "__init__", _ddp(parallel.__init__)))
        stack.enter_context(_OnCpu())
        yield
