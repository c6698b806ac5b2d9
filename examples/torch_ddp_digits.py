"""Trains a network on scikit-learn's handwritten digits by PyTorch's DistributedDataParallel, over this library.

    collectives run -n 2 examples/torch_ddp_digits.py
    torchrun --nproc-per-node 2 examples/torch_ddp_digits.py

This is an ordinary PyTorch script, except for the name of the backend and the `init_method`, by which ranks find each
other under any launcher. At the end the script checks that the weights of all ranks are bitwise equal, and that the
network recognises digits.
"""

from __future__ import annotations

import hashlib
import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import collectives.torch

EPOCHS, BATCH = int(os.environ.get("EPOCHS", "10")), 64  # samples in a batch, over all ranks
SEED = 1
WANTED = 0.95


def load() -> tuple[TensorDataset, TensorDataset]:
    """Samples for training, and samples for testing."""
    pixels, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(SEED))
    x = torch.tensor(pixels / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)[order]
    y = torch.tensor(digits)[order]
    split = len(y) * 4 // 5
    return TensorDataset(x[:split], y[:split]), TensorDataset(x[split:], y[split:])


def network() -> Any:
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 32, 3, padding=1, stride=2),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(32 * 16, 10),
    )


def fingerprint(model: Any) -> str:
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()


def accuracy(model: Any, samples: TensorDataset) -> float:
    x, y = samples.tensors
    with torch.no_grad():
        return float((model(x).argmax(1) == y).float().mean())


def main() -> None:
    dist.init_process_group("collectives", init_method="collectives://")
    rank, size = dist.get_rank(), dist.get_world_size()
    training, test = load()
    torch.manual_seed(SEED + rank)  # ranks begin with different weights; DDP broadcasts those of rank 0
    model = DistributedDataParallel(network())
    model.register_comm_hook(None, collectives.torch.bf16_hook)  # sends half the bytes; without it, float32
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    sampler = DistributedSampler(training, seed=SEED)
    batches = DataLoader(training, BATCH // size, sampler=sampler)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        total = torch.zeros(2)
        for x, y in batches:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            total += torch.tensor([loss.item() * len(y), len(y)])
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch + 1:3}  loss {total[0] / total[1]:.4f}", flush=True)
    found: list[str] = [""] * size
    dist.all_gather_object(found, fingerprint(model.module))
    right = accuracy(model.module, test)
    dist.destroy_process_group()
    if len(set(found)) != 1:
        sys.exit("FAILED: the ranks' weights differ")
    if rank == 0:
        print(f"weights: the same bits on {size} ranks")
        print(f"digits never seen before: {right:.1%} recognised")
    if not right >= WANTED:
        sys.exit(f"FAILED: the accuracy must be {WANTED:.0%}")


if __name__ == "__main__":
    main()
