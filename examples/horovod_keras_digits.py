"""Keras's `fit` in a Horovod script, of which only the import of `hvd` was changed for this library.

    collectives run -n 2 examples/horovod_keras_digits.py
    python examples/horovod_keras_digits.py            # a single process

Every rank starts with the weights of rank 0 and trains with its share of scikit-learn's digits. At the end the script
checks that the weights of all ranks are bitwise equal, and that the model recognises digits that were not used for
training.
"""

from __future__ import annotations

import sys

import numpy as np
import tensorflow as tf

import collectives.horovod.tensorflow.keras as hvd  # was: import horovod.tensorflow.keras as hvd

try:
    from sklearn.datasets import load_digits
except ImportError:
    sys.exit("This example needs scikit-learn's data: pip install scikit-learn")

BATCH, EPOCHS, WANTED = 32, 8, 0.93

# Horovod: initialize Horovod.
hvd.init()

# Horovod: pin GPU to be used to process local rank (one GPU per process)
gpus = tf.config.experimental.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
if gpus:
    tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], "GPU")

images, labels = load_digits(return_X_y=True)
order = np.random.default_rng(1).permutation(len(images))
images, labels = (images[order] / 16).astype(np.float32), labels[order].astype(np.int64)
split = len(images) * 4 // 5

# Horovod: every rank has its own samples, in its own order.
tf.random.set_seed(hvd.rank())
dataset = tf.data.Dataset.from_tensor_slices((images[:split], labels[:split]))
dataset = dataset.shard(hvd.size(), hvd.rank()).repeat().shuffle(split).batch(BATCH)

model = tf.keras.Sequential([
    tf.keras.layers.Dense(64, activation="relu"),
    tf.keras.layers.Dense(10, activation="softmax"),
])  # fmt: skip

# Horovod: adjust learning rate based on number of processes.
scaled_lr = 0.004 * hvd.size()
opt = tf.optimizers.Adam(scaled_lr)

# Horovod: add Horovod DistributedOptimizer.
opt = hvd.DistributedOptimizer(opt, backward_passes_per_step=1, average_aggregated_gradients=True)

model.compile(loss=tf.losses.SparseCategoricalCrossentropy(), optimizer=opt, metrics=["accuracy"])

callbacks = [
    # Horovod: broadcast initial variable states from rank 0 to all other processes.
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    # Horovod: average metrics among workers at the end of every epoch, before callbacks that use them.
    hvd.callbacks.MetricAverageCallback(),
    # Horovod: scale the learning rate up to `scaled_lr` during the first epochs.
    hvd.callbacks.LearningRateWarmupCallback(initial_lr=scaled_lr, warmup_epochs=3, verbose=1),
]

# Horovod: write logs on worker 0; adjust number of steps based on number of processes.
verbose = 2 if hvd.rank() == 0 else 0
steps = split // (BATCH * hvd.size())
history = model.fit(dataset, steps_per_epoch=steps, callbacks=callbacks, epochs=EPOCHS, verbose=verbose)

# Not part of a usual Horovod script: checks of the result.
mine = np.concatenate([np.reshape(weights, [1, -1]) for weights in model.get_weights()], axis=1)
everyones = np.asarray(hvd.allgather(mine))
losses = np.asarray(hvd.allgather(np.array([history.history["loss"]])))
if len({weights.tobytes() for weights in everyones}) > 1:
    sys.exit("FAILED: the weights differ between ranks")
if len({reported.tobytes() for reported in losses}) > 1:
    sys.exit("FAILED: the averaged metrics differ between ranks")
right = np.argmax(model(images[split:]), axis=1) == labels[split:]
if not right.mean() >= WANTED:
    sys.exit(f"FAILED: the accuracy must be {WANTED:.0%}, and is {right.mean():.1%}")
if hvd.rank() == 0:
    print(
        f"{everyones.shape[1]} weights with the same bits on {hvd.size()} ranks after {EPOCHS} epochs of {steps} "
        f"steps; digits never seen before: {right.mean():.1%} recognised"
    )
