"""Messages of tensors on a device, shown with tensors in host memory that are taken for others.

Nothing here has to do with a device: the real ones are in tests/gpu.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

import torch

from collectives.torch import through_host
from collectives.torch.tensors import filling


@pytest.fixture(autouse=True)
def taken_for_a_device(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which streams were asked for."""
    asked: list[str] = []

    def current(device: Any) -> str:
        asked.append(str(device))
        return "the caller's stream"

    def inside(stream: str) -> contextlib.AbstractContextManager[None]:
        asked.append(stream)
        return contextlib.nullcontext()

    monkeypatch.setattr(through_host, "_is_on_device", lambda tensor: True)
    monkeypatch.setattr(torch.cuda, "current_stream", current)
    monkeypatch.setattr(torch.cuda, "stream", inside)
    return asked


@pytest.mark.parametrize("tensor", [torch.zeros(3), torch.zeros(2, 3).T, torch.zeros(2, dtype=torch.bfloat16)])
def test_a_message_is_copied_to_the_tensor_at_its_end(tensor: Any, taken_for_a_device: list[str]) -> None:
    tensor = tensor.clone()
    host, copy = through_host.arriving(tensor)
    array, finish = filling(host, moved=True)
    assert finish is None and copy is not None and array.shape == tuple(tensor.shape)
    host.fill_(7)
    assert not tensor.any() and taken_for_a_device == ["cpu"]
    copy()
    assert (tensor == 7).all() and taken_for_a_device == ["cpu", "the caller's stream"]


def test_what_cannot_be_received_into_is_refused() -> None:
    host, copy = through_host.arriving(torch.eye(2).to_sparse())
    assert copy is None
    with pytest.raises(TypeError, match="sparse"):
        filling(host, moved=True)


def test_a_message_leaves_without_its_gradient() -> None:
    x = torch.ones(2, requires_grad=True)
    assert not through_host.leaving(x).requires_grad


def test_tensors_in_host_memory_are_used_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    x = torch.ones(2)
    assert through_host.leaving(x) is x and through_host.arriving(x) == (x, None)
    assert through_host.leaving("text") == "text"  # whoever reads it refuses it
