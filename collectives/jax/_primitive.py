"""The one JAX primitive for all collectives, and its rules for compiling, types, derivatives and vmap.

Invariant: ranks that trace the same program bind this primitive for the same collectives, in the same order. The rules
depend on shapes and dtypes alone, never on values, which differ between ranks.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from collectives.jax import _effect, _host
from collectives.jax._channel import Channel
from collectives.jax._failures import typed_errors
from collectives.jax._host import Call
from collectives.jax._kinds import Barrier, Form, Kind, check_linear

_TARGET: Final = "pycollectives_run"
_SETTING: Final = "COLLECTIVES_JAX"
_REBUILD: Final = "install pycollectives again, in a version for this JAX"

collective_p: Final = Primitive("collective")
collective_p.multiple_results = True


def bind(kind: Kind, channel: Channel, names: tuple[str, ...] | None, operands: Sequence[Any]) -> list[Any]:
    """Runs the collective `kind` on `operands`; while JAX traces a function, adds the collective to this function.

    `channel`: the communicator to use. `names`: the paths of the operands in their pytree (tree of arrays); None for a
    single array.
    """
    return list(collective_p.bind(*operands, kind=kind, channel=channel, names=names))


# --- how XLA calls the library


@functools.cache
def how() -> Literal["ffi", "io_callback"]:
    """Returns how compiled functions call this library: "ffi" or "io_callback". A process makes this choice once.

    "ffi": through the extension `collectives.native._xla`, which reads and writes XLA's buffers in place. It uses
    buffers on a GPU in the order of XLA's stream.
    "io_callback": through JAX's own callbacks, which copy the arrays. "io_callback" is used, with a warning, if the
    extension is missing or does not work with this jaxlib. The environment variable COLLECTIVES_JAX=ffi or io_callback
    overrides the choice; ImportError if the variable is "ffi" and the extension does not work.
    """
    wanted = os.environ.get(_SETTING, "auto")
    if wanted not in ("auto", "ffi", "io_callback"):
        raise ValueError(f"{_SETTING}={wanted}: it has to be auto, ffi or io_callback")
    if wanted == "io_callback":
        return "io_callback"
    try:
        _xla = importlib.import_module("collectives.native._xla")
    except ImportError as error:
        return _slowly(wanted, f"native/_xla cannot be imported ({error})", error)
    with suppress(RuntimeError):  # JAX is told to use GPUs only
        jax.local_devices(backend="cpu")  # without a device, an unusable handler is not refused at registration
    _xla.declare(_interface())
    try:
        jax.ffi.register_ffi_target(_TARGET, _xla.handler, platform="cpu")
    except Exception as error:
        return _slowly(wanted, f"native/_xla does not work with jaxlib {jax.lib.__version__} ({error})", error)
    _xla.install(_host.run_views)
    return "ffi"


@functools.cache
def _runs_on_cuda() -> bool:
    """Whether XLA calls this library for buffers on CUDA devices; registers that once. RuntimeWarning if not."""
    _xla = importlib.import_module("collectives.native._xla")
    try:
        jax.ffi.register_ffi_target(_TARGET, _xla.cuda_handler, platform="CUDA")
    except Exception as error:
        _slowly("auto", f"native/_xla does not work with jaxlib {jax.lib.__version__} on GPUs ({error})", error)
        return False
    _xla.install_on_device(_host.run_on_device)
    return True


def _interface() -> int:
    """The minor version of XLA's FFI, from jaxlib's header; 1, the oldest, if jaxlib has no such header."""
    try:
        header = Path(jax.ffi.include_dir(), "xla", "ffi", "api", "c_api.h").read_text()
    except OSError:
        return 1
    found = re.search(r"#define XLA_FFI_API_MINOR (\d+)", header)
    return int(found[1]) if found else 1


def _slowly(wanted: str, why: str, error: Exception) -> Literal["io_callback"]:
    if wanted == "ffi":
        raise ImportError(f"{_SETTING}=ffi, but {why}: {_REBUILD}") from error
    warnings.warn(
        f"{why}, so compiled functions reach collectives by callbacks, which copy: {_REBUILD}, or set "
        f"{_SETTING}=io_callback",
        RuntimeWarning,
        stacklevel=3,
    )
    return "io_callback"


def _lowering(ctx: Any, *operands: Any, kind: Kind, channel: Channel, names: tuple[str, ...] | None) -> Sequence[Any]:
    call = Call(kind, channel, names, _forms(ctx.avals_in), _forms(ctx.avals_out))
    token = ctx.tokens_in.get(_effect.COLLECTIVE)
    platforms = tuple(ctx.module_context.platforms)
    if how() == "ffi" and (platforms == ("cpu",) or (platforms == ("cuda",) and _runs_on_cuda())):
        with_token = ctx.replace(
            avals_in=[_effect.TOKEN, *ctx.avals_in], avals_out=[_effect.TOKEN, *ctx.avals_out], tokens_in=None
        )
        same = {i + 1: i + 1 for i in range(len(operands))} if kind.in_place else {}
        rule = jax.ffi.ffi_lowering(_TARGET, has_side_effect=True, operand_output_aliases=same)
        token, *results = rule(with_token, token, *operands, number=np.int64(_host.number_of(call)))
    else:
        results, token, _ = mlir.emit_python_callback(
            ctx,
            functools.partial(_host.run_arrays, call),
            token,
            list(operands),
            ctx.avals_in,
            ctx.avals_out,
            has_side_effect=True,
        )
    ctx.set_tokens_out(ctx.tokens_in.update_tokens(mlir.TokenSet({_effect.COLLECTIVE: token})))
    return results


mlir.register_lowering(collective_p, _lowering)


# --- called outside of compiled functions


@functools.lru_cache(maxsize=1024)
def _compiled(kind: Kind, channel: Channel, names: tuple[str, ...] | None) -> Any:
    return jax.jit(functools.partial(bind, kind, channel, names))


@collective_p.def_impl
def _run(*operands: Any, kind: Kind, channel: Channel, names: tuple[str, ...] | None) -> Sequence[Any]:
    with jax.disable_jit(False), typed_errors():
        return _compiled(kind, channel, names)(operands)


# --- types


@collective_p.def_effectful_abstract_eval
def _types(*avals: Any, kind: Kind, channel: Channel, names: tuple[str, ...] | None) -> tuple[list[Any], set[Any]]:
    results = kind.results(_forms(avals), channel.size)
    return [jax.core.ShapedArray(shape, dtype) for shape, dtype in results], {_effect.COLLECTIVE}


def _forms(avals: Sequence[Any]) -> tuple[Form, ...]:
    return tuple((tuple(aval.shape), np.dtype(aval.dtype)) for aval in avals)


# --- derivatives


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, kind: Kind, channel: Channel, names: Any) -> Any:
    moving = [i for i, tangent in enumerate(tangents) if type(tangent) is not ad.Zero]
    if moving:
        check_linear(kind)
    results = bind(kind, channel, names, primals)
    if isinstance(kind, Barrier):
        return results, list(tangents)
    flows = [ad.Zero(jax.typeof(result).to_tangent_aval()) for result in results]
    if moving:
        for i, flow in zip(moving, bind(kind, channel, None, [tangents[i] for i in moving]), strict=True):
            flows[i] = flow
    return results, flows


def _transpose(cotangents: Sequence[Any], *operands: Any, kind: Kind, channel: Channel, names: Any) -> list[Any]:
    moving = [i for i, cotangent in enumerate(cotangents) if type(cotangent) is not ad.Zero]
    flows: list[Any] = [ad.Zero(x.aval) if ad.is_undefined_primal(x) else None for x in operands]
    if moving:

        def run(kind: Kind, xs: Sequence[Any]) -> list[Any]:
            return bind(kind, channel, None, xs)

        for i, flow in zip(moving, kind.transposed(run, [cotangents[i] for i in moving]), strict=True):
            flows[i] = flow
    return flows


ad.primitive_jvps[collective_p] = _jvp
ad.primitive_transposes[collective_p] = _transpose


# --- vmap: one call on the whole batch


def _batched(operands: Sequence[Any], axes: Sequence[Any], **params: Any) -> tuple[Any, list[int | None]]:
    kind: Kind = params["kind"]
    moved: list[Any] = []
    results: list[int | None] = []
    for x, axis in zip(operands, axes, strict=True):
        if axis is None:  # not mapped
            moved.append(x)
            results.append(None)
            continue
        operand_axis, result_axis = kind.batch_axes(axis)
        moved.append(jax.numpy.moveaxis(x, axis, operand_axis))
        results.append(result_axis)
    outputs = collective_p.bind(*moved, **params)
    return outputs, results[: len(outputs)]


batching.primitive_batchers[collective_p] = _batched
