"""DiLoCo in Keras: local SGD whose averages are steps of a second optimizer.

Invariant: weights are bitwise equal on all ranks after each outer step, and after training.
"""

from __future__ import annotations

from typing import Any

from collectives.arrays.array import Array
from collectives.arrays.wire import AUTO, WireChoice, format_of
from collectives.core.communicator import Communicator
from collectives.keras.averaging import ModelAveragingCallback
from collectives.keras.framework import keras, read
from collectives.keras.state import broadcast_variables


class DiLoCoCallback(ModelAveragingCallback):
    """A Keras callback for DiLoCo: each rank trains alone, and every few steps all ranks make one step together.

    After `every` steps the ranks average how far their trainable weights have moved since the last outer step. `outer`,
    a second optimizer, takes the negative of this average as a gradient and makes one step from the weights at the last
    outer step. All ranks go on from its result. See Douillard et al., "DiLoCo: Distributed Low-Communication Training
    of Language Models", 2023.

    - `outer`: a Keras optimizer that has not been used; by default SGD with a learning rate of 0.7 and Nesterov's
      momentum of 0.9, as in the paper. SGD with a learning rate of 1 averages the weights
    - `wire`: the format in which the moves are sent, as in `Communicator.allreduce_many`; for float32 weights

    The model has to be built before `fit`; the weights of rank 0 are broadcast when training begins. Other
    floating-point weights, such as moving statistics, are averaged. The last outer step is at the end of training. The
    errors are those of ModelAveragingCallback; ValueError also for a model that is not built, and for a wire format
    that does not exist; TypeError for weights that are not float32 with a `wire` other than "auto".
    """

    def __init__(
        self, every: int, outer: Any = None, *, wire: WireChoice | None = None, comm: Communicator | None = None
    ) -> None:
        super().__init__(every, comm=comm)
        if wire not in (None, AUTO):
            format_of(wire)  # raises if there is no such format
        self._wire = wire
        self._outer = outer or keras.optimizers.SGD(0.7, momentum=0.9, nesterov=True)
        self._anchors: list[Any] = []  # the trainable weights at the last outer step

    def on_train_begin(self, logs: Any = None) -> None:
        if not self.model.built:
            raise ValueError("DiLoCoCallback needs a model that is built: give it a keras.Input, or call model.build")
        for variable in self.model.trainable_variables:
            if self._wire not in (None, AUTO) and keras.backend.standardize_dtype(variable.dtype) != "float32":
                raise TypeError(f"{variable.path} is {variable.dtype}, not float32, as wire={self._wire!r} needs")
        super().on_train_begin(logs)
        broadcast_variables(self.model.weights, 0, self._comm)
        trainable = self.model.trainable_variables
        if not self._anchors:
            self._anchors = [
                keras.Variable(read(v), dtype=v.dtype, name=f"anchor_{i}") for i, v in enumerate(trainable)
            ]
            self._outer.build(self._anchors)
        for anchor, variable in zip(self._anchors, trainable, strict=True):
            anchor.assign(read(variable))

    def _combine(self, comm: Communicator, variables: list[Any]) -> None:
        trainable = self.model.trainable_variables
        moves: list[Array] = [read(a) - read(v) for a, v in zip(self._anchors, trainable, strict=True)]
        averages = comm.allreduce_many(moves, "avg", wire=self._wire)
        self._outer.apply([keras.ops.convert_to_tensor(average) for average in averages], self._anchors)
        for anchor, variable in zip(self._anchors, trainable, strict=True):
            variable.assign(read(anchor))  # a copy: Keras's JAX trainer gives the memory of weights away in each step
        mine = {id(variable) for variable in trainable}
        super()._combine(comm, [variable for variable in variables if id(variable) not in mine])
