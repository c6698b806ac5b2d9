"""The sizes of the gradients that data-parallel training of well-known models sends.

Invariant: the code here computes parameters' shapes from the published architectures, in the order of declaration; the
total number of parameters of each model is the published one. Imports nothing but the standard library.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final

Shape = tuple[int, ...]


def gradients(name: str) -> tuple[int, ...]:
    """Return the number of elements of each gradient of the model `name`, in the order of backpropagation."""
    return tuple(math.prod(shape) for shape in reversed(shapes(name)))


def shapes(name: str) -> list[Shape]:
    """Return the shapes of all parameters of the model `name`.

    Raises: ValueError, with a list of the known models, if the name is unknown.
    """
    if name not in TRACES:
        raise ValueError(f"there is no trace {name!r}; there are {', '.join(TRACES)}")
    return list(TRACES[name]())


def buckets(parts: tuple[int, ...], most: int) -> list[tuple[int, int]]:
    """Join consecutive gradients in buckets of at most `most` elements. A larger gradient has a bucket to itself.

    `parts` has the number of elements of each gradient. Return a list with a pair for each bucket: the index of its
    first gradient, and the index of its last gradient plus 1.
    """
    found: list[tuple[int, int]] = []
    first = held = 0
    for i, part in enumerate(parts):
        if i > first and held + part > most:
            found.append((first, i))
            first, held = i, 0
        held += part
    return [*found, (first, len(parts))]


def _resnet50() -> Iterator[Shape]:
    """The parameters' shapes of ResNet-50 for ImageNet, with batch normalisation.

    He et al., Deep Residual Learning for Image Recognition, 2015.
    """

    def normalised(to: int, of: int, kernel: int) -> Iterator[Shape]:
        yield (to, of, kernel, kernel)
        yield (to,)
        yield (to,)

    yield from normalised(64, 3, 7)
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            yield from normalised(width, inputs, 1)
            yield from normalised(width, width, 3)
            yield from normalised(4 * width, width, 1)
            if block == 0:
                yield from normalised(4 * width, inputs, 1)  # the shortcut
            inputs = 4 * width
    yield from _dense(1000, 2048)


def _vgg16() -> Iterator[Shape]:
    """The parameters' shapes of VGG-16 for ImageNet.

    Simonyan and Zisserman, Very Deep Convolutional Networks, 2014, configuration D.
    """
    inputs = 3
    for width, layers in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(layers):
            yield from _convolution(width, inputs, 3)
            inputs = width
    yield from _dense(4096, 512 * 7 * 7)
    yield from _dense(4096, 4096)
    yield from _dense(1000, 4096)


def _bert_large() -> Iterator[Shape]:
    """The parameters' shapes of BERT-large: 24 layers of width 1024, 30 522 word pieces, and the pooler.

    Devlin et al., BERT, 2018.
    """
    width, inner = 1024, 4096
    for rows in (30522, 512, 2):  # embeddings of words, positions and segments
        yield (rows, width)
    yield from _norm(width)
    for _ in range(24):
        for _ in range(4):  # query, key, value, output
            yield from _dense(width, width)
        yield from _norm(width)
        yield from _dense(inner, width)
        yield from _dense(width, inner)
        yield from _norm(width)
    yield from _dense(width, width)


def _mnist_cnn() -> Iterator[Shape]:
    """The parameters' shapes of a small network for MNIST: two 5x5 convolutions, two dense layers.

    From TensorFlow's first tutorial on convolutions, after LeCun et al., 1998.
    """
    yield from _convolution(32, 1, 5)
    yield from _convolution(64, 32, 5)
    yield from _dense(1024, 64 * 7 * 7)
    yield from _dense(10, 1024)


def _convolution(to: int, of: int, kernel: int) -> Iterator[Shape]:
    yield (to, of, kernel, kernel)
    yield (to,)


def _dense(to: int, of: int) -> Iterator[Shape]:
    yield (to, of)
    yield (to,)


def _norm(width: int) -> Iterator[Shape]:
    yield (width,)
    yield (width,)


TRACES: Final[dict[str, Callable[[], Iterator[Shape]]]] = {
    "resnet50": _resnet50,
    "bert-large": _bert_large,
    "vgg16": _vgg16,
    "mnist-cnn": _mnist_cnn,
}
