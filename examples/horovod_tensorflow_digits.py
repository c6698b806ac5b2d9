"""A TensorFlow training loop in a Horovod script, of which only the import of `hvd` was changed for this library.

    collectives run -n 2 examples/horovod_tensorflow_digits.py
    python examples/horovod_tensorflow_digits.py            # a single process

Every rank starts with the weights of rank 0 and trains with its share of scikit-learn's digits. At the end the script
checks that the weights of all ranks are bitwise equal, and that the model recognises digits that were not used for
training.
"""

from __future__ import annotations

import sys

import numpy as np
import tensorflow as tf

import collectives.horovod.tensorflow as hvd  # was: import horovod.tensorflow as hvd

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

# Horovod: every rank has its own samples, in its own order, and all ranks have equally many batches.
tf.random.set_seed(hvd.rank())
dataset = tf.data.Dataset.from_tensor_slices((images[:split], labels[:split]))
dataset = dataset.shard(hvd.size(), hvd.rank()).repeat().shuffle(split).batch(BATCH)
steps = EPOCHS * split // (BATCH * hvd.size())

model = tf.keras.Sequential([
    tf.keras.layers.Dense(64, activation="relu"),
    tf.keras.layers.Dense(10, activation="softmax"),
])  # fmt: skip
loss = tf.losses.SparseCategoricalCrossentropy()

# Horovod: adjust learning rate based on number of processes.
opt = tf.optimizers.Adam(0.004 * hvd.size())


@tf.function
def training_step(images: tf.Tensor, labels: tf.Tensor, first_batch: bool) -> tf.Tensor:
    with tf.GradientTape() as tape:
        probs = model(images, training=True)
        loss_value = loss(labels, probs)

    # Horovod: add Horovod Distributed GradientTape.
    tape = hvd.DistributedGradientTape(tape)

    grads = tape.gradient(loss_value, model.trainable_variables)
    opt.apply_gradients(zip(grads, model.trainable_variables, strict=True))

    # Horovod: broadcast initial variable states from rank 0 to all other processes, after the first step, when the
    # optimizer has its variables.
    if first_batch:
        hvd.broadcast_variables(model.variables, root_rank=0)
        hvd.broadcast_variables(opt.variables, root_rank=0)

    return loss_value


for batch, (some_images, some_labels) in enumerate(dataset.take(steps)):
    loss_value = training_step(some_images, some_labels, batch == 0)
    if batch % 50 == 0 and hvd.rank() == 0:
        print(f"step {batch:4}  loss {float(loss_value):.4f}")

# Not part of a usual Horovod script: checks of the result.
mine = tf.concat([tf.reshape(weights, [1, -1]) for weights in model.variables], axis=1)
everyones = hvd.allgather(mine).numpy()
if len({weights.tobytes() for weights in everyones}) > 1:
    sys.exit("FAILED: the weights differ between ranks")
right = np.argmax(model(images[split:]), axis=1) == labels[split:]
if not right.mean() >= WANTED:
    sys.exit(f"FAILED: the accuracy must be {WANTED:.0%}, and is {right.mean():.1%}")
if hvd.rank() == 0:
    print(
        f"{everyones.shape[1]} weights with the same bits on {hvd.size()} ranks after {steps} steps; "
        f"digits never seen before: {right.mean():.1%} recognised"
    )
