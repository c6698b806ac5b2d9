"""Trains word embeddings on the names of Unicode's characters with PyTorch, and sends gradients in fewer bytes.

    collectives run -n 2 examples/embedding_torch.py                        # int8
    collectives run -n 4 examples/embedding_torch.py --compression bf16

The data comes with Python. The module `unicodedata` has the name of each character, such as "LATIN SMALL LETTER A WITH
GRAVE", and its category, such as Ll for a small letter. The network has a vector for each word. It averages the vectors
of the words of a name, and predicts the category from the average. All ranks have the same samples, and each trains
with its part of each batch. With error feedback, what rounding takes from a gradient is added to the next one. At the
end the script checks that the weights of all ranks are bitwise equal, and that the network recognises the categories of
names that it has not seen.
"""

from __future__ import annotations

import argparse
import collections
import sys
import unicodedata
from typing import Any, NamedTuple

import numpy as np
import torch

import collectives
import collectives.torch

FORMATS = ("none", "bf16", "fp16", "fp8", "int8", "auto")
LAST = 0x20000  # characters above have names that are made by rule
BY_RULE = ("CJK ", "HANGUL SYLLABLE ", "TANGUT ", "KHITAN ", "NUSHU ")
LONGEST, RAREST = 8, 3  # words of a name that count; how often a word has to occur
WIDTH, EPOCHS, BATCH, WANTED = 16, 5, 512, 0.9


class Samples(NamedTuple):
    """Names as rows of numbers of words, padded with 0, and categories as numbers; some of both to test with."""

    words: int
    categories: int
    training: tuple[Any, Any]
    test: tuple[Any, Any]


def load() -> Samples:
    names = [(unicodedata.name(chr(c), ""), unicodedata.category(chr(c))) for c in range(LAST)]
    named = [(name.split(), category) for name, category in names if name and not name.startswith(BY_RULE)]
    named = [named[i] for i in np.random.default_rng(0).permutation(len(named))]
    split = len(named) * 4 // 5
    counts = collections.Counter(word for name, _ in named[:split] for word in name)
    numbers = {word: i for i, word in enumerate((w for w, count in counts.items() if count >= RAREST), 1)}
    kinds = {category: i for i, category in enumerate(sorted({category for _, category in named}))}
    x = np.zeros((len(named), LONGEST), np.int64)
    for row, (name, _) in zip(x, named, strict=True):
        known = [numbers[word] for word in name if word in numbers][:LONGEST]
        row[: len(known)] = known
    xs = torch.from_numpy(x)
    ys = torch.tensor([kinds[category] for _, category in named])
    return Samples(len(numbers) + 1, len(kinds), (xs[:split], ys[:split]), (xs[split:], ys[split:]))


def network(samples: Samples, seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(samples.words, WIDTH, generator=generator)
    last = torch.nn.Linear(WIDTH, samples.categories)
    with torch.no_grad():
        last.weight.copy_(torch.randn(last.weight.shape, generator=generator) / WIDTH**0.5)
        last.bias.zero_()
    bag = torch.nn.EmbeddingBag.from_pretrained(vectors, freeze=False, mode="mean", padding_idx=0)
    return torch.nn.Sequential(bag, last)


def train(comm: collectives.Communicator, samples: Samples, seed: int, compression: str | None) -> Any:
    """The trained network. All ranks begin with the same weights, which `seed` determines."""
    model = network(samples, seed)
    optimizer = collectives.torch.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 4.0, momentum=0.9),
        model.named_parameters(),
        compression,
        comm=comm,
        error_feedback=compression is not None,
    )
    x, y = samples.training
    order = np.random.default_rng(seed)
    for _ in range(EPOCHS):
        for batch in np.array_split(order.permutation(len(y)), len(y) // BATCH):
            mine = torch.from_numpy(batch[comm.rank :: comm.size])
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x[mine]), y[mine]).backward()
            optimizer.step()
    optimizer.close()
    return model


def accuracy(model: Any, samples: Samples) -> float:
    x, y = samples.test
    with torch.no_grad():
        return float((model(x).argmax(1) == y).float().mean())


def weights(model: Any) -> Any:
    return np.concatenate([parameter.detach().numpy().reshape(-1) for parameter in model.parameters()])


def main() -> None:
    parser = argparse.ArgumentParser(description="word embeddings of the names of characters")
    parser.add_argument("--compression", choices=FORMATS, default="int8", help="the format in which gradients are sent")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with collectives.init() as comm:
        samples = load()
        model = train(comm, samples, asked.seed, None if asked.compression == "none" else asked.compression)
        mine = weights(model)
        if not all(np.array_equal(mine, theirs) for theirs in comm.allgather(mine)):
            sys.exit("FAILED: the ranks' weights differ")
        right = accuracy(model, samples)
        if comm.rank == 0:
            print(f"{samples.words} words, {samples.categories} categories, {mine.size} weights")
            print(f"weights: the same bits on {comm.size} ranks")
            print(f"names never seen before: {right:.1%} recognised, gradients sent as {asked.compression}")
        if not right >= WANTED:  # written so that NaN fails, too
            sys.exit(f"FAILED: the accuracy must be {WANTED:.0%}")


if __name__ == "__main__":
    main()
