"""Repeats the set-up of "Distributed TensorFlow with MPI" (Vishnu, Siegel and Daily, 2016; arXiv 1603.02339).

    collectives run -n 2 examples/mnist_dnn_scaling.py
    python examples/mnist_dnn_scaling.py                  # a single process

As in the paper, rank 0 reads all samples and scatters them, and every rank trains a replica of the network on its
share. Weights and biases are averaged over all ranks after every step. The script measures the time of a step with one
process and with all processes of the job; the simulator predicts it for the paper's numbers of processes. Samples are
scikit-learn's digits, scaled to the size of MNIST's images. The convolutional network needs TensorFlow, and is omitted
without it.

The paper's text was not available: the widths of the dense network are from memory, and the convolutional network is
that of TensorFlow's tutorial of that time. See docs/paper.md.

Averaging weights after each step is equivalent to averaging gradients. So the weights have to be the same as if one
process computed all parts of each batch; the script checks this.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

import collectives
from collectives.algorithms.registry import algorithms
from collectives.simulation import training
from collectives.simulation.cost import Costs
from collectives.simulation.simulate import simulate
from collectives.simulation.topology import Topology

SIDE, CLASSES = 28, 10  # those of MNIST
HOST = 16  # processes on a machine, in predictions
SEED = 1
EARLY = 4  # steps after which weights are compared: rounding errors grow later, because ReLU is not smooth
TOLERANCE, WANTED = 1e-3, 0.85

Array = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
Samples = tuple[Array, Labels]


class Network(Protocol):
    """A replica of the model. `weights` returns weights and biases, which are read-only; `step` trains with samples."""

    def weights(self) -> list[Array]: ...
    def assign(self, weights: Sequence[Array]) -> None: ...
    def step(self, images: Array, labels: Labels) -> None: ...
    def accuracy(self, images: Array, labels: Labels) -> float: ...


class Paper(NamedTuple):
    """The paper's result: the network is `speedup` times as fast on `last` cores as on `first`."""

    name: str
    network: str
    first: int
    last: int
    speedup: float


DNN = Paper("MNIST-DNN", "784-200-100-10", 1, 32, 11.64)
CNN = Paper("MNIST-CNN", "5x5 convolutions of 32 and 64, 1024, 10", 16, 64, 1.41)


class Dense:
    """784 pixels, hidden layers of 200 and 100, 10 classes; in NumPy."""

    RATE = np.float32(0.1)

    def __init__(self) -> None:
        random = np.random.default_rng(SEED)
        self._layers: list[tuple[Array, Array]] = []
        for inputs, outputs in pairwise((SIDE * SIDE, 200, 100, CLASSES)):
            scale = np.sqrt(2 / (inputs + outputs))
            weights = random.normal(0, scale, (inputs, outputs)).astype(np.float32)
            self._layers.append((weights, np.zeros(outputs, np.float32)))

    def weights(self) -> list[Array]:
        return [array for layer in self._layers for array in layer]

    def assign(self, weights: Sequence[Array]) -> None:
        for mine, new in zip(self.weights(), weights, strict=True):
            mine[...] = new

    def step(self, images: Array, labels: Labels) -> None:
        outputs = self._forward(images)
        error = outputs[-1]
        error[np.arange(len(labels)), labels] -= 1
        error /= len(labels)
        for layer, below in zip(reversed(self._layers), reversed(outputs[:-1]), strict=True):
            weights, bias = layer
            back = error @ weights.T * (below > 0)
            np.subtract(weights, self.RATE * (below.T @ error), out=weights)
            np.subtract(bias, self.RATE * error.sum(axis=0), out=bias)
            error = back

    def accuracy(self, images: Array, labels: Labels) -> float:
        return float((self._forward(images)[-1].argmax(axis=1) == labels).mean())

    def _forward(self, images: Array) -> list[Array]:
        """The values of all layers: the pixels, each hidden layer, and the probability of each class."""
        found = [images.reshape(len(images), -1)]
        for weights, bias in self._layers[:-1]:
            found.append(np.maximum(found[-1] @ weights + bias, 0))
        weights, bias = self._layers[-1]
        scores = found[-1] @ weights + bias
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        return [*found, scores / scores.sum(axis=1, keepdims=True)]


class Convolutional:
    """Two convolutions, each with pooling by 2, then dense layers of 1024 and 10; in TensorFlow, on one core."""

    RATE = 0.02

    def __init__(self) -> None:
        tf: Any = importlib.import_module("tensorflow")
        if tf.config.threading.get_intra_op_parallelism_threads() == 0:
            tf.config.threading.set_intra_op_parallelism_threads(1)
            tf.config.threading.set_inter_op_parallelism_threads(1)
        random = np.random.default_rng(SEED)
        shapes = [
            (5, 5, 1, 32),
            (32,),
            (5, 5, 32, 64),
            (64,),
            (SIDE * SIDE * 4, 1024),
            (1024,),
            (1024, CLASSES),
            (CLASSES,),
        ]
        self._variables = [
            tf.Variable((random.normal(0, 1, s) * np.sqrt(2 / np.prod(s[:-1]) if s[1:] else 0)).astype(np.float32))
            for s in shapes
        ]
        kernel, bias, kernel2, bias2, wide, wide_bias, last, last_bias = self._variables

        def scores(images: Any) -> Any:
            x = tf.nn.max_pool2d(tf.nn.relu(tf.nn.conv2d(images[..., None], kernel, 1, "SAME") + bias), 2, 2, "SAME")
            x = tf.nn.max_pool2d(tf.nn.relu(tf.nn.conv2d(x, kernel2, 1, "SAME") + bias2), 2, 2, "SAME")
            x = tf.nn.relu(tf.reshape(x, [tf.shape(x)[0], -1]) @ wide + wide_bias)
            return x @ last + last_bias

        images, labels = tf.TensorSpec([None, SIDE, SIDE]), tf.TensorSpec([None], tf.int64)

        @tf.function(input_signature=[images, labels], autograph=False)
        def step(images: Any, labels: Any) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores(images)))
            for variable, gradient in zip(self._variables, tape.gradient(loss, self._variables), strict=True):
                variable.assign_sub(self.RATE * gradient)

        self._step, self._scores = step, scores

    def weights(self) -> list[Array]:
        return [variable.numpy() for variable in self._variables]

    def assign(self, weights: Sequence[Array]) -> None:
        for variable, new in zip(self._variables, weights, strict=True):
            variable.assign(new)

    def step(self, images: Array, labels: Labels) -> None:
        self._step(images, labels)

    def accuracy(self, images: Array, labels: Labels) -> float:
        return float((self._scores(images).numpy().argmax(axis=1) == labels).mean())


# --- samples


def load() -> Samples:
    """Digits in random order, interpolated from 8x8 to 28x28 pixels."""
    from sklearn.datasets import load_digits

    pixels, digits = load_digits(return_X_y=True)
    order = np.random.default_rng(SEED).permutation(len(digits))
    between = np.stack([np.interp(np.linspace(0, 7, SIDE), np.arange(8), row) for row in np.eye(8)], axis=1)
    images = between @ (pixels[order] / 16).reshape(-1, 8, 8) @ between.T
    return np.ascontiguousarray(images, np.float32), digits[order].astype(np.int64)


def scattered(comm: collectives.Communicator, samples: Samples | None) -> Samples:
    """This rank's share of the samples of rank 0. All shares have the same size; a few samples may be left over."""
    if samples is None:
        return comm.scatterv(), comm.scatterv()
    counts = [len(samples[1]) // comm.size] * comm.size
    images, labels = (array[: sum(counts)] for array in samples)
    return comm.scatterv(images, counts), comm.scatterv(labels, counts)


# --- training


def train(network: Network, shares: Sequence[Samples], part: int, steps: range, after: Callable[[], None]) -> None:
    """Run the steps with these numbers. Each uses the next `part` samples of every share, and begins again at its end.

    `after` is called after each step, to average the weights.
    """
    turns = len(shares[0][1]) // part
    for number in steps:
        chosen = slice(number % turns * part, (number % turns + 1) * part)
        images = np.concatenate([images[chosen] for images, _ in shares])
        network.step(images, np.concatenate([labels[chosen] for _, labels in shares]))
        after()


def average(comm: collectives.Communicator, network: Network) -> None:
    network.assign(comm.allreduce_many(network.weights(), "avg"))


def step_time(comm: collectives.Communicator, timed: int, step: Callable[[], None], together: bool) -> float:
    """Median seconds of a step: of the slowest of all ranks, or of rank 0 alone while the others wait."""
    times = np.zeros(timed)
    if together or comm.rank == 0:
        step()
        for i in range(timed):
            if together:
                comm.barrier()
            start = time.perf_counter()
            step()
            times[i] = time.perf_counter() - start
    return median(comm.allreduce(times, "max").tolist())


# --- predictions


def predicted(compute: float, processes: int, nbytes: int) -> float:
    """Predicted seconds of a step, with the simulator's default costs and `HOST` processes on each machine."""

    def allreduce(size: int) -> float:
        topology, costs = Topology(HOST, HOST), Costs()
        return min(
            simulate(known, processes, size, topology, costs).seconds for known in algorithms("allreduce", processes)
        )

    return training.step([training.Gradient(nbytes)], compute, processes, allreduce).alone


class Found(NamedTuple):
    """Seconds of a step: `divided` if all processes share one batch, `each` if every process has a batch."""

    processes: int
    how: str
    divided: float
    each: float

    def speedups(self, alone: float) -> tuple[float, float]:
        return alone / self.divided, self.processes * alone / self.each


def measure(
    comm: collectives.Communicator, paper: Paper, network: Network, samples: Samples, options: Any
) -> list[Found]:
    """The time of a step: measured with one process and with all, predicted for those of the paper. Collective."""
    batch, timed = options.batch, options.timed
    images, labels = np.resize(samples[0], (batch, SIDE, SIDE)), np.resize(samples[1], batch)
    nbytes = sum(weights.nbytes for weights in network.weights())

    def alone(part: int) -> float:
        return step_time(comm, timed, lambda: network.step(images[:part], labels[:part]), together=False)

    def together(part: int) -> float:
        def step() -> None:
            network.step(images[:part], labels[:part])
            average(comm, network)

        return step_time(comm, timed, step, together=True)

    one = alone(batch)
    found = [Found(1, "measured", one, one)]
    if comm.size > 1:
        found.append(Found(comm.size, "measured", together(batch // comm.size), together(batch)))
    for count in (paper.first, paper.last):
        if count > 1:
            part = alone(max(1, batch // count))  # measured, since a small part takes more than its share of the time
            found.append(Found(count, "predicted", predicted(part, count, nbytes), predicted(one, count, nbytes)))
    return found


def show(paper: Paper, network: Network, found: Sequence[Found], batch: int) -> str:
    """Print a table. Returns a description of implausible results, or ""."""
    numbers = sum(weights.size for weights in network.weights())
    print(f"\n{paper.name}: {paper.network}; {numbers} weights and biases, {numbers * 4 / 1e6:.2f} MB to average")
    print(f"{'':21}{f'batch of {batch} divided':>26}{f'batch of {batch} each':>26}")
    print(f"{'processes':>10} {'':<10}" + f"{'step (ms)':>14}{'speed-up':>12}" * 2)
    alone = found[0].divided
    speedups: dict[int, tuple[float, float]] = {}
    for one in found:
        divided, each = speedups[one.processes] = one.speedups(alone)
        times = f"{1e3 * one.divided:>14.3f}{divided:>12.2f}{1e3 * one.each:>14.3f}{each:>12.2f}"
        print(f"{one.processes:>10} {one.how:<10}{times}")
    divided, each = (last / first for first, last in zip(speedups[paper.first], speedups[paper.last], strict=True))
    between = f"from {paper.first} to {paper.last}"
    print(f"{between}: predicted {divided:.2f} and {each:.2f} times as fast; in the paper {paper.speedup} times")
    most = paper.last / paper.first
    if not 0 < divided <= 1.5 * most or not 0 < each <= 1.01 * most:
        return f"{paper.name}: {divided:.2f} and {each:.2f} times as fast with {most:g} times the processes"
    return ""


def check(
    comm: collectives.Communicator,
    paper: Paper,
    make: Callable[[], Network],
    everything: Any,
    mine: Samples,
    options: Any,
) -> tuple[Network, str]:
    """Train with all ranks. Returns the network, and a description of what is wrong, or "". Collective."""
    part, epochs = options.batch // comm.size, options.epochs if paper is DNN else min(1, options.epochs)
    steps = range(max(EARLY, epochs * (len(mine[1]) // part)))
    network = make()
    start = [comm.broadcast(weights.copy()) for weights in network.weights()]
    network.assign(start)
    train(network, [mine], part, steps[:EARLY], lambda: average(comm, network))
    early = [weights.copy() for weights in network.weights()]
    train(network, [mine], part, steps[EARLY:], lambda: average(comm, network))
    digest = hashlib.sha256(b"".join(weights.tobytes() for weights in network.weights())).digest()
    if len({row.tobytes() for row in comm.allgather(np.frombuffer(digest, np.uint8))}) != 1:
        return network, f"{paper.name}: the ranks' weights differ"
    if everything is None:
        return network, ""
    (images, labels), test = everything
    each = len(mine[1])
    shares = [(images[at : at + each], labels[at : at + each]) for at in range(0, comm.size * each, each)]
    alone = make()
    train(alone, shares, part, steps[:EARLY], lambda: None)
    apart = distance(early, alone.weights()) / distance(start, alone.weights())
    accuracy = network.accuracy(*test)
    print(f"{paper.name}, trained by {comm.size} for {len(steps)} steps: {accuracy:.1%} of new digits recognised")
    print(f"weights: the same bits on all ranks; after {EARLY} steps {apart:.1e} of their change from one process's")
    if not apart <= TOLERANCE:
        return network, f"{paper.name}: weights are {apart:.1e} from those of one process, which may be {TOLERANCE:g}"
    if paper is DNN and not accuracy >= WANTED:
        return network, f"{paper.name}: recognised {accuracy:.1%}, but {WANTED:.0%} are to be"
    return network, ""


def distance(some: Sequence[Array], others: Sequence[Array]) -> float:
    return float(np.sqrt(sum(((a - b) ** 2).sum(dtype=np.float64) for a, b in zip(some, others, strict=True))))


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Measures the paper's networks here, and predicts them for its numbers of processes."
    )
    parser.add_argument("--network", choices=["dnn", "cnn", "both"], default="both")
    parser.add_argument("--batch", type=int, default=128, help="samples in a step of a single process")
    parser.add_argument(
        "--epochs",
        type=int,
        default=20,
        help="epochs of the dense network; the convolutional network trains for at most one",
    )
    parser.add_argument("--timed", type=int, default=9, help="number of steps that each measurement times")
    options = parser.parse_args()
    if importlib.util.find_spec("sklearn") is None:
        sys.exit("This example needs scikit-learn's data: pip install scikit-learn")
    limits: Any = importlib.import_module("threadpoolctl")
    with limits.threadpool_limits(1), collectives.init() as comm:  # a process has one core, as in the paper
        if options.batch % comm.size:
            sys.exit(f"--batch {options.batch} cannot be divided evenly among {comm.size} processes")
        everything = None
        if comm.rank == 0:
            images, labels = load()
            split = len(labels) * 4 // 5
            everything = (images[:split], labels[:split]), (images[split:], labels[split:])
        mine = scattered(comm, None if everything is None else everything[0])
        todo: list[tuple[Paper, Callable[[], Network]]] = []
        if options.network != "cnn":
            todo.append((DNN, Dense))
        if options.network != "dnn":
            if importlib.util.find_spec("tensorflow") is not None:
                todo.append((CNN, Convolutional))
            elif comm.rank == 0:
                print("The convolutional network is left out: pip install tensorflow")
        problems = []
        for paper, make in todo:
            network, problem = check(comm, paper, make, everything, mine, options)
            problems.append(problem)
            found = measure(comm, paper, network, mine, options)
            if comm.rank == 0:
                problems.append(show(paper, network, found, options.batch))
        if any(problems):
            sys.exit(f"FAILED: {'; '.join(filter(None, problems))}")


if __name__ == "__main__":
    main()
