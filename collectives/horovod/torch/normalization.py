"""hvd.SyncBatchNorm: batch normalization with statistics over the batches of all ranks.

Invariant: mean and variance, and so the running statistics, have the same bits on every rank. In evaluation mode
PyTorch's own layer is used.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

import collectives.torch as hooks
from collectives.horovod.process_sets import global_process_set


class SyncBatchNorm(_BatchNorm):
    """PyTorch's batch normalization, for tensors of shape (N, C, ...), with statistics over the batches of all ranks.

    Ranks may have batches of different sizes; each sample has the same weight. Each step runs two small allreduces in
    the forward pass and two in the backward pass. So every rank has to call the layer equally often. The layer is for
    tensors in host memory; Horovod's is for GPUs only.
    """

    def _check_input_dim(self, input: Any) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")

    def forward(self, input: Any) -> Any:
        self._check_input_dim(input)
        statistics = self.training or not self.track_running_stats
        comm = global_process_set.group()
        if not statistics or comm.size == 1:
            return super().forward(input)
        axes = [0, *range(2, input.dim())]
        shape = [1, -1, *[1] * (input.dim() - 2)]
        counted = input.new_full((1,), input.numel() / input.shape[1])
        # Two allreduces, mean first: a variance from sums of squares loses digits if the mean is large.
        total = hooks.allreduce(torch.cat([counted, input.sum(axes)]), "sum", comm=comm)
        count = total[0].detach()
        mean = total[1:] / count
        centred = input - mean.view(shape)
        variance = hooks.allreduce((centred * centred).sum(axes), "sum", comm=comm) / count
        if self.training and self.track_running_stats:
            self._remember(mean.detach(), variance.detach(), count)
        found = centred * torch.rsqrt(variance + self.eps).view(shape)
        return found if self.weight is None else found * self.weight.view(shape) + self.bias.view(shape)

    @torch.no_grad()
    def _remember(self, mean: Any, variance: Any, count: Any) -> None:
        self.num_batches_tracked.add_(1)
        share = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        unbiased = variance * (count / (count - 1).clamp(min=1))
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), share)
