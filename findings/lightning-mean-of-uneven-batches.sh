#!/usr/bin/env bash
# What one would guess: the mean over ranks of a constant metric, self.log(..., on_epoch=True, sync_dist=True), is that
# constant, whatever the batches' sizes are.
# What happens: Lightning averages the sum of values, a float, and the number of samples, an int64, over the ranks, and
# then divides. The mean of the counts is cut to an integer. With 4 samples on rank 0 and 3 on rank 1 a metric that is
# 1.0 everywhere is reported as 3.5 / 3 = 1.1667, on both ranks. Gloo and CPU; no error, no warning.
# Versions: lightning 2.6.6, torch 2.13.0.
# Why it matters to users of collectives: where the last batches differ, as they do with drop_last=False, epoch metrics
# depend on the number of ranks. A backend has to average integers as Gloo's detour does (the sum, then a division that
# truncates), or Lightning raises; and a metric that moves with the number of ranks is no fault of the backend.
# Exits with 0 if that is still so.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check "torch==2.13.0" "lightning==2.6.6"
cat > "$work/train.py" <<'PROGRAM'
import os
import lightning as L
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader, TensorDataset


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, _):
        self.log("one", 1.0, on_step=False, on_epoch=True, sync_dist=True, batch_size=len(batch[0]))
        return self.layer(batch[0]).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


samples = 4 - int(os.environ["RANK"])  # one batch: 4 samples on rank 0, 3 on rank 1
trainer = L.Trainer(
    accelerator="cpu", devices=2, strategy=DDPStrategy(process_group_backend="gloo"), max_epochs=1, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
)
trainer.fit(Net(), DataLoader(TensorDataset(torch.ones(samples, 1)), batch_size=4))
print(f"rank {trainer.global_rank}: {samples} samples, mean of 1.0 is {float(trainer.callback_metrics['one']):.4f}", flush=True)
PROGRAM
"$work/venv/bin/python" -c 'import lightning, torch; print("lightning", lightning.__version__, "torch", torch.__version__)'
said=$("$work/venv/bin/python" -m torch.distributed.run --standalone --nproc-per-node 2 "$work/train.py" 2> "$work/errors") || {
    cat "$work/errors" >&2
    exit 2
}
grep 'mean of' <<< "$said"
[ "$(grep -c 'mean of 1.0 is 1.1667' <<< "$said")" = 2 ] || { echo "no longer so" >&2; exit 1; }
