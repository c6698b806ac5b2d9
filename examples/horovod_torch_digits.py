"""PyTorch in a Horovod script, of which only the import of `hvd` was changed for this library.

    collectives run -n 2 examples/horovod_torch_digits.py
    python examples/horovod_torch_digits.py --fp16-allreduce            # a single process

Every rank starts with the weights of rank 0 and trains with its share of scikit-learn's digits. At the end the script
checks that the weights of all ranks are bitwise equal, and that the model recognises digits that were not used for
training.
"""

from __future__ import annotations

import argparse
import sys

import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import collectives.horovod.torch as hvd  # was: import horovod.torch as hvd

try:
    from sklearn.datasets import load_digits
except ImportError:
    sys.exit("This example needs scikit-learn's data: pip install scikit-learn")

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--epochs", type=int, default=8)
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--momentum", type=float, default=0.9)
parser.add_argument("--seed", type=int, default=42)
parser.add_argument("--fp16-allreduce", action="store_true", help="use fp16 compression during allreduce")
parser.add_argument("--gradient-predivide-factor", type=float, default=1.0)
args = parser.parse_args()

WANTED = 0.93

# Horovod: initialize library.
hvd.init()
torch.manual_seed(args.seed + hvd.rank())

# Horovod: limit # of CPU threads to be used per worker.
torch.set_num_threads(1)

pixels, digits = load_digits(return_X_y=True)
order = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(1))
images = torch.tensor(pixels, dtype=torch.float32)[order].view(-1, 1, 8, 8) / 16
labels = torch.tensor(digits)[order]
split = len(images) * 4 // 5

# Horovod: use DistributedSampler to partition the data.
train_dataset = TensorDataset(images[:split], labels[:split])
train_sampler = DistributedSampler(train_dataset, num_replicas=hvd.size(), rank=hvd.rank())
train_loader = DataLoader(train_dataset, batch_size=args.batch_size, sampler=train_sampler)
test_dataset = TensorDataset(images[split:], labels[split:])
test_sampler = DistributedSampler(test_dataset, num_replicas=hvd.size(), rank=hvd.rank(), shuffle=False)
test_loader = DataLoader(test_dataset, batch_size=1000, sampler=test_sampler)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 16, kernel_size=3)
        self.norm = nn.BatchNorm2d(16)
        self.fc1 = nn.Linear(16 * 3 * 3, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(F.max_pool2d(self.norm(self.conv(x)), 2))
        return F.log_softmax(self.fc2(F.relu(self.fc1(x.flatten(1)))), dim=1)


model = Net()

# Horovod: scale learning rate by the number of processes.
optimizer = optim.SGD(model.parameters(), lr=args.lr * hvd.size(), momentum=args.momentum)

# Horovod: broadcast parameters & optimizer state.
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)

# Horovod: (optional) compression algorithm.
compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none

# Horovod: wrap optimizer with DistributedOptimizer.
optimizer = hvd.DistributedOptimizer(
    optimizer,
    named_parameters=model.named_parameters(),
    compression=compression,
    op=hvd.Average,
    gradient_predivide_factor=args.gradient_predivide_factor,
)


def metric_average(value: float, name: str) -> float:
    return float(hvd.allreduce(torch.tensor(value), name=name).item())


for epoch in range(1, args.epochs + 1):
    model.train()
    # Horovod: set epoch to sampler for shuffling.
    train_sampler.set_epoch(epoch)
    for data, target in train_loader:
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
    if hvd.rank() == 0:
        print(f"epoch {epoch}  loss {loss.item():.4f}")

# Horovod: running statistics differ between ranks; evaluate with those of rank 0.
hvd.broadcast_parameters(list(model.named_buffers()), root_rank=0)
model.eval()
right = 0.0
with torch.no_grad():
    for data, target in test_loader:
        right += (model(data).argmax(1) == target).float().sum().item()
# Horovod: average metric values across workers.
accuracy = metric_average(right / len(test_sampler), "avg_accuracy")

# Not part of a usual Horovod script: checks of the result.
mine = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
everyones = hvd.allgather(mine[None])
if not torch.equal(everyones, everyones[:1].expand_as(everyones)):
    sys.exit("FAILED: the weights differ between ranks")
if not accuracy >= WANTED:
    sys.exit(f"FAILED: the accuracy must be {WANTED:.0%}, and is {accuracy:.1%}")
if hvd.rank() == 0:
    print(
        f"{mine.numel()} weights with the same bits on {hvd.size()} ranks after {args.epochs} epochs; "
        f"digits never seen before: {accuracy:.1%} recognised"
    )
