"""What Horovod adds to an exchange of gradients: local variables, the user's compressors, a factor for the results.

Invariant: `HorovodExchange` has the attributes of the exchange that it wraps (`calls`, `error`, ...). Gradients of
local variables stay on their rank; all other gradients take part in the same exchange on every rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from collectives.horovod.compression import NoneCompressor


class LocalVariables:
    """A set of variables that each rank trains by itself, so that their gradients are not exchanged.

    Variables are compared by identity, not by name.
    """

    def __init__(self) -> None:
        self._known: Final[dict[int, Any]] = {}  # kept alive, so that no other object gets the same id()

    def add(self, *variables: Any) -> None:
        self._known.update((id(variable), variable) for variable in variables)

    def add_layers(self, layers: Any) -> None:
        """Adds the weights of one or several Keras layers to the set of variables whose gradients are not exchanged.

        Raises ValueError for layers that are not built, and for objects that are not layers.
        """
        if layers is None:
            return
        for layer in layers if isinstance(layers, Iterable) else [layers]:
            if not hasattr(layer, "trainable_weights"):
                raise ValueError("All local layers must be of tf.keras.layers.Layer type.")
            if not getattr(layer, "built", True):
                raise ValueError(f"layer {layer.name!r} has no weights yet: build the model before it is made local")
            self.add(*layer.trainable_weights)

    def __bool__(self) -> bool:
        return bool(self._known)

    def __contains__(self, variable: object) -> bool:
        return id(variable) in self._known


class HorovodExchange:
    """A function object that reduces gradients over all ranks, with Horovod's options.

    It compresses gradients, and passes them to `inner`, this library's own function, which reduces them. Then it
    decompresses the results, and multiplies them by `factor`. The gradients of variables in `local` are not exchanged:
    they are only multiplied by `factor`, and divided by `size` if `scale_local`.
    """

    def __init__(
        self,
        inner: Any,
        local: LocalVariables,
        *,
        size: int,
        scale_local: bool = True,
        compressor: Any = NoneCompressor,
        factor: float = 1.0,
    ) -> None:
        self._inner: Final = inner
        self._local: Final = local
        self._of_local: Final = factor / size if scale_local else factor
        self._compressor: Final = compressor
        self._factor: Final = factor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __call__(self, gradients: Sequence[Any], variables: Sequence[Any] | None = None) -> list[Any]:
        owners = [None] * len(gradients) if variables is None else list(variables)
        shared = [i for i, owner in enumerate(owners) if owner not in self._local]
        sent, contexts = _each(self._compressed(gradients[i]) for i in shared)
        reduced = self._inner(sent, None if variables is None else [owners[i] for i in shared])
        results = [times(gradient, self._of_local) for gradient in gradients]
        for i, gradient, context in zip(shared, reduced, contexts, strict=True):
            results[i] = times(self._decompressed(gradient, context), self._factor)
        return results

    def _compressed(self, gradient: Any) -> tuple[Any, Any]:
        return (gradient, None) if _is_apart(gradient) else self._compressor.compress(gradient)

    def _decompressed(self, gradient: Any, context: Any) -> Any:
        return gradient if _is_apart(gradient) else self._compressor.decompress(gradient, context)


def times(gradient: Any, factor: float) -> Any:
    """Returns `gradient * factor`, for dense and sparse tensors; None stays None."""
    if gradient is None or factor == 1.0:
        return gradient
    if hasattr(gradient, "dense_shape"):
        return type(gradient)(gradient.values * factor, gradient.indices, gradient.dense_shape)
    return gradient * factor


def _is_apart(gradient: Any) -> bool:
    """Whether no compressor is applied to `gradient`: as in Horovod, this is so for None and sparse gradients."""
    return gradient is None or hasattr(gradient, "dense_shape")


def _each(pairs: Iterable[tuple[Any, Any]]) -> tuple[list[Any], list[Any]]:
    found = list(pairs)
    return [first for first, _ in found], [second for _, second in found]
