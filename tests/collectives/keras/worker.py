"""Shared by the workers of these tests: small models and data, and scenarios whose outcomes are printed as JSON.

Invariant: the outcome of a scenario that raises is its error, and the others run all the same; all ranks run the same
ones.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

import collectives
from collectives.keras import BroadcastGlobalVariablesCallback
from collectives.keras.framework import keras, read
from collectives.keras.hook import hook_of

Scenario = Callable[[collectives.Communicator], Any]


def run(comm: collectives.Communicator, scenarios: Iterable[Scenario]) -> None:
    """Print a line for each: its name, and what it returned."""
    for scenario in scenarios:
        keras.utils.set_random_seed(100 + comm.rank)
        try:
            results = scenario(comm)
        except Exception as error:
            results = failure(error)
        print(json.dumps([scenario.__name__, results]), flush=True)
        sys.stdout.flush()


def failure(error: BaseException) -> dict[str, str]:
    return {"error": type(error).__name__, "says": str(error)}


def raised(function: Callable[[], object]) -> dict[str, str]:
    """What it raised; empty if nothing."""
    try:
        function()
    except Exception as error:
        return failure(error)
    return {}


def digest(variables: Iterable[Any]) -> str:
    """Of the bits of all of them."""
    return hashlib.sha256(b"".join(read(v).tobytes() for v in variables)).hexdigest()[:16]


def state(model: Any) -> list[str]:
    """Digests of weights and of slots."""
    return [digest(model.weights), digest(model.optimizer.variables)]


def apart(model: Any, weights: Iterable[Any]) -> float:
    """The largest difference between the model's weights and these."""
    return max(float(np.abs(read(a) - b).max()) for a, b in zip(model.weights, weights, strict=True))


def of_rank_0(comm: collectives.Communicator, model: Any) -> list[Any]:
    """The weights that the model has on rank 0, which alone has to train it."""
    return [comm.broadcast(read(variable)) for variable in model.weights]


def calls(model: Any) -> int:
    hook = hook_of(model.optimizer)
    return -1 if hook is None else hook.exchange.calls


def dense(*, seed: int | None = None, width: int = 8) -> Any:
    """A small network, the same for the same seed."""
    if seed is not None:
        keras.utils.set_random_seed(seed)
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(width, activation="tanh"), keras.layers.Dense(3)])


def samples(rank: int, batches: int, size: int = 8) -> tuple[Any, Any]:
    """A rank's share."""
    random = np.random.default_rng(rank)
    x = random.normal(size=(batches * size, 6)).astype(np.float32)
    return x, np.tanh(x[:, :3] * 2 + rank).astype(np.float32)


def together(ranks: int, batches: int, size: int = 8) -> tuple[Any, Any]:
    """What one process would train with, batch by batch: the ranks' batches side by side."""
    shares = [samples(rank, batches, size) for rank in range(ranks)]
    return tuple(
        np.concatenate([share[part][i * size : (i + 1) * size] for i in range(batches) for share in shares])
        for part in (0, 1)
    )  # type: ignore[return-value]


def fitted(model: Any, comm: collectives.Communicator, optimizer: Any, **compile_options: Any) -> Any:
    """The model after two epochs with this rank's share."""
    model.compile(optimizer, loss="mse", **compile_options)
    callbacks = [BroadcastGlobalVariablesCallback()]
    model.fit(*samples(comm.rank, 4), batch_size=8, epochs=2, shuffle=False, verbose=0, callbacks=callbacks)
    return model


@functools.cache
def alone(comm: collectives.Communicator, kind: str, rate: float, epochs: int = 2, **options: Any) -> list[Any]:
    """Weights after one process has trained a model with the batches of all ranks, from rank 0's weights."""
    model = dense(seed=100)
    if comm.rank == 0:
        model.compile(getattr(keras.optimizers, kind)(rate, **options), loss="mse")
        model.fit(*together(comm.size, 4), batch_size=8 * comm.size, epochs=epochs, shuffle=False, verbose=0)
    return of_rank_0(comm, model)
