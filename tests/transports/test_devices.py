"""Whether a process has a CUDA device, as far as is known before the driver is initialised."""

from __future__ import annotations

from pathlib import Path

import pytest

from collectives.native import _engine
from collectives.transports.devices import why_no_device


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_engine, "why_no_cuda", lambda: "")


@pytest.mark.parametrize("value", ["", "-1", " "])
def test_none_is_visible(value: str, driver: None, tmp_path: Path) -> None:
    (tmp_path / "nvidia0").touch()
    reason = why_no_device({"CUDA_VISIBLE_DEVICES": value}, tmp_path)
    assert reason is not None and f"CUDA_VISIBLE_DEVICES is {value!r}" in reason


@pytest.mark.parametrize("name", ["nvidia0", "nvidia15", "dxg", "nvhost-gpu", "nvgpu"])
def test_a_file_of_a_device(name: str, driver: None, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    assert why_no_device({}, tmp_path) is None


def test_a_driver_without_a_device(driver: None, tmp_path: Path) -> None:
    for name in ("nvidiactl", "nvidia-uvm", "nvidia-caps"):
        (tmp_path / name).touch()
    reason = why_no_device({}, tmp_path)
    assert reason is not None and reason.startswith("there is an NVIDIA driver, but no device: see nvidia-smi")
    assert why_no_device({"CUDA_VISIBLE_DEVICES": "0"}, tmp_path) is None  # the driver judges


def test_no_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(_engine, "why_no_cuda", lambda: "there is no NVIDIA driver here")
    (tmp_path / "nvidia0").touch()
    assert why_no_device({}, tmp_path) == "there is no NVIDIA driver here"
