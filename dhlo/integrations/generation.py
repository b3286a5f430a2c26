"""What compiled models of transformers that generate have in common: caches in buffers with room, and their call as `forward`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicLayer

from dhlo.errors import ContractError
from dhlo.model import CompiledModel

__all__ = [
    "GROW",
    "Layer",
    "cached_layers",
    "evaluating",
    "keep_all",
    "refuse_others",
    "replace_forward",
    "unbounded",
    "with_room",
]

Layer = tuple[int, int, torch.dtype]
"""Heads, depth and dtype of a layer's keys or values."""

GROW = {"keys*": 2, "values*": 2}
"""Which arguments of the steps have room behind what is filled, and along which dim."""

_ROOM = 64  # positions that a cache has room for beyond those that are needed, at least


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """The model in evaluation mode, without gradients."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)


def replace_forward(module: Any, run: Callable[..., Any]) -> None:
    """Makes `run`, which takes keyword arguments, the `forward` of a module, with the signature of the module's own."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        return run(**dict(zip(signature.parameters, args, strict=False)), **kwargs)

    signature = inspect.signature(type(module).forward.__get__(module))
    forward.__signature__ = signature  # type: ignore[attr-defined]
    module.forward = forward


def refuse_others(others: Mapping[str, Any]) -> None:
    """Raises ContractError if there are arguments that ask for something."""
    strange = [n for n, x in others.items() if x is not None and x is not False and n not in ("cache_position", "return_dict")]
    if strange:
        raise ContractError(f"a compiled model that generates has no place for {', '.join(strange)}")


def cached_layers(compiled: CompiledModel) -> list[Layer]:
    """Those of all keys, then those of all values."""
    caches = [v for v in compiled.native.inputs if v["name"].startswith(("keys", "values"))]
    return [(int(v["dims"][1]), int(v["dims"][3]), getattr(torch, v["dtype"])) for v in caches]


def unbounded(cache: Cache) -> int:
    """The number of positions that a cache holds. Layers that would forget what lies before a window keep it from here on: the
    model's mask applies the window. Raises ContractError where that is too late, and for other kinds of caches."""
    for i, layer in enumerate(cache.layers):
        if type(layer) is not DynamicLayer:
            if not isinstance(layer, DynamicLayer) or layer.get_seq_length():
                raise ContractError(f"a compiled decoder takes dynamic caches: layer {i} is a {type(layer).__name__}")
            cache.layers[i] = DynamicLayer()
    return int(cache.get_seq_length())


def with_room(
    cache: Cache, layers: Sequence[Layer], past: int, batch: int, more: int
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The filled parts of the keys and of the values of a cache, in buffers with room for `more` positions."""
    number = len(layers) // 2
    held = [_filled(cache, i % number, "keys" if i < number else "values", past) for i in range(2 * number)]
    filled = [
        _with_room(torch.empty(batch, heads, 0, depth, dtype=dtype) if x is None else x, more)
        for x, (heads, depth, dtype) in zip(held, layers, strict=True)
    ]
    return filled[:number], filled[number:]


def _filled(cache: Cache, i: int, name: str, past: int) -> torch.Tensor | None:
    """The filled part of a layer's keys or values, None where the layer has no memory yet."""
    layer: Any = cache.layers[i] if i < len(cache.layers) else None
    if layer is None or not layer.is_initialized:
        return None
    x: torch.Tensor = getattr(layer, name)
    return x[:, :, :past]


def _with_room(x: torch.Tensor, more: int) -> torch.Tensor:
    """`x` [batch, heads, positions, depth] as the first part of a buffer with room for more positions; a copy if it is none."""
    batch, heads, length, depth = x.shape
    room = x.stride(1) // max(depth, 1)
    last = (batch - 1) * x.stride(0) + (heads - 1) * x.stride(1) + room * depth
    if (
        x.stride()[2:] == (depth, 1)
        and x.stride(0) == heads * x.stride(1)
        and room >= length + more
        and (x.storage_offset() + last) * x.element_size() <= x.untyped_storage().nbytes()
    ):
        return x
    buffer = torch.empty(batch, heads, max(2 * length, length + more + _ROOM), depth, dtype=x.dtype)
    buffer[:, :, :length] = x
    return buffer[:, :, :length]


def keep_all(cache: Cache, keys: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    """Makes a cache hold the keys and the values of all layers."""
    for i, (k, v) in enumerate(zip(keys, values, strict=True)):
        _keep(cache, i, k, v)


def _keep(cache: Cache, i: int, keys: torch.Tensor, values: torch.Tensor) -> None:
    """Makes a layer hold these keys and values."""
    while len(cache.layers) <= i:
        cache.layers.append(DynamicLayer())
    layer: Any = cache.layers[i]
    if not layer.is_initialized:
        layer.lazy_initialization(keys, values)
    layer.keys, layer.values = keys, values
