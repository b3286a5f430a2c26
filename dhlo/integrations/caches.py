"""Caches of transformers, dynamic and static, as memory that compiled steps read and write in place."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any
from unittest.mock import patch

import torch
import transformers
from transformers import masking_utils
from transformers.cache_utils import (
    Cache,
    DummyLayer,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    StaticLayer,
    StaticSlidingWindowLayer,
)
from transformers.modeling_outputs import CausalLMOutputWithPast

from dhlo.errors import CompileError, ContractError
from dhlo.model import CompiledModel

__all__ = [
    "CACHE",
    "GROW",
    "Layer",
    "are_windows",
    "cache_name",
    "cached_layers",
    "exported_cache",
    "exportable_attention",
    "held",
    "keep_all",
    "keep_source",
    "keeping",
    "masked_windows",
    "past_of",
    "shortest_unmasked",
    "taken_cache",
    "with_room",
]

Layer = tuple[int, int, torch.dtype]
"""Heads, depth and dtype of a layer's keys or values."""

GROW = {"keys*": 2, "values*": 2}
"""Which arguments of the steps have room behind what is filled, and along which dim."""

CACHE = next(f.name for f in fields(CausalLMOutputWithPast) if f.name in ("cache", "past_key_values"))
"""What this version of transformers calls caches, as arguments and as results: past_key_values before 5.24."""

_ROOM = 64  # positions that a dynamic cache has room for beyond those that are needed, at least

_ASKED = "_ignore_causal_mask_sdpa"
_OVERLAYS = ("sliding_window_overlay", "chunked_overlay")  # of masks, functions of a window's size
_GROUPED = "TRANSFORMERS_SDPA_FORCE_GQA"

_Tensors = list[torch.Tensor]


def cache_name(model: Any) -> str | None:
    """What a model's forward calls its caches; None where it takes none."""
    names = inspect.signature(model.forward).parameters
    return next((name for name in (CACHE, "cache_params") if name in names), None)


# ------------------------------------------------------------------------------------------------------------ in programs
class _ExportedWindow(DynamicLayer):  # type: ignore[misc]
    """A layer that holds the last `held` of `past` positions. The model's mask hides what lies before its window."""

    is_sliding = True

    def __init__(self, past: Any, held: Any) -> None:
        super().__init__()
        self._past, self._held = past, held

    def get_seq_length(self) -> Any:
        return self._past

    def get_mask_sizes(self, query_length: int) -> tuple[Any, Any]:
        return self._held + query_length, self._past - self._held


def are_windows(cache: DynamicCache) -> list[bool | None]:
    """Of each layer of a new cache, whether it holds the last positions only; None of one that holds nothing, as it reads what
    another does. Raises CompileError where one holds something else than keys and values."""
    kinds: dict[type, bool | None] = {DynamicLayer: False, DynamicSlidingWindowLayer: True, DummyLayer: None}
    for layer in cache.layers:
        if type(layer) not in kinds:
            raise CompileError(f"the model keeps more than keys and values in its cache ({type(layer).__name__})")
    return [kinds[type(layer)] for layer in cache.layers]


def keeping(cache: Cache) -> list[Any]:
    """The layers of a cache that hold something."""
    return [layer for layer in cache.layers if type(layer) is not DummyLayer]


def exported_cache(
    ids: torch.Tensor, mask: torch.Tensor, keys: _Tensors, values: _Tensors, windows: Sequence[bool | None]
) -> DynamicCache:
    """The cache that a program updates, of what those of its layers that hold something did before: keys and values [batch, heads,
    positions, depth]. Layers with windows hold the last of all positions, the others all of them. New are `ids` [batch, new
    positions], `mask` [batch, all positions] is of both."""
    new = ids.shape[1]
    held = [window for window in windows if window is not None]
    past = next((k.shape[2] for k, window in zip(keys, held, strict=True) if not window), mask.shape[1] - new)
    torch._check(mask.shape[1] == past + new)  # type: ignore[no-untyped-call]
    cache = DynamicCache()
    both = zip(keys, values, strict=True)
    for window in windows:
        if window is None:
            cache.layers.append(DummyLayer())
            continue
        k, v = next(both)
        layer = _ExportedWindow(past, k.shape[2]) if window else DynamicLayer()
        layer.lazy_initialization(k, v)
        layer.keys, layer.values = k, v
        cache.layers.append(layer)
    return cache


@contextmanager
def exportable_attention() -> Iterator[None]:
    """Programs that are exported inside make their masks whatever the sizes: transformers asks whether a mask has to be made at
    all, which a program can't know, and compares sizes for it, which would bind them to the example's. And attention says that
    heads share keys, instead of repeating these, which takes a third of an export's time. Raises CompileError for a version of
    transformers that asks elsewhere: the function isn't public."""
    if not hasattr(masking_utils, _ASKED):
        raise CompileError(
            "models that generate can't be exported from transformers "
            f"{transformers.__version__}, which has no masking_utils.{_ASKED}",
            hint="take a version of transformers that has it, such as 5.24",
        )
    with patch.object(masking_utils, _ASKED, lambda *_, **__: False), patch.dict(os.environ, {_GROUPED: "1"}):
        yield


@contextmanager
def masked_windows() -> Iterator[set[int] | None]:
    """The sizes of the windows that masks which a model makes inside have; None for a version of transformers that makes them
    otherwise: these functions aren't public."""
    if not all(hasattr(masking_utils, name) for name in _OVERLAYS):
        yield None
        return
    sizes = set[int]()

    def noted(make: Any) -> Any:
        def overlay(size: int, *others: Any) -> Any:
            sizes.add(int(size))
            return make(size, *others)

        return overlay

    with patch.multiple(masking_utils, **{name: noted(getattr(masking_utils, name)) for name in _OVERLAYS}):
        yield sizes


def shortest_unmasked(cache: Cache, masked: set[int] | None) -> int | None:
    """How many positions a text has at most whose tokens see the same, however many come at once; None where there is no end.

    Where a layer forgets what no mask hides (Moshi), tokens of a prompt see all that there is before them, and those that come
    alone the last ones.
    """
    windows = {int(x.sliding_window) for x in cache.layers if isinstance(x, DynamicSlidingWindowLayer)}
    return None if masked is None else min(windows - masked, default=None)


def cached_layers(compiled: CompiledModel) -> list[Layer]:
    """Those of all keys, then those of all values."""
    caches = [v for v in compiled.native.inputs if v["name"].startswith(("keys", "values"))]
    return [(int(v["dims"][1]), int(v["dims"][3]), getattr(torch, v["dtype"])) for v in caches]


# ------------------------------------------------------------------------------------------------------------- at each call
def taken_cache(arguments: dict[str, Any]) -> Any:
    """The cache among a call's arguments, by its name in any version of transformers, taken out of them; None if there is none."""
    return next((arguments.pop(name) for name in ("cache", "past_key_values") if arguments.get(name) is not None), None)


def past_of(cache: Cache, number: int) -> int:
    """How many positions a cache has seen, of a model of so many layers that keep something. Raises ContractError for caches that
    compiled steps can't write."""
    if getattr(cache, "offloading", False):
        raise ContractError("a compiled model takes caches that stay where they are, not offloaded ones")
    while cache.layer_class_to_replicate is DynamicLayer and len(cache.layers) < number:
        cache.layers.append(DynamicLayer())
    if len(keeping(cache)) != number:
        raise ContractError(f"the cache has {len(keeping(cache))} layers, the compiled model {number}")
    return max((_layer(cache, i).past() for i in range(number)), default=0)


def with_room(cache: Cache, layers: Sequence[Layer], batch: int, more: int) -> tuple[_Tensors, _Tensors]:
    """What a cache holds of keys and of values, in buffers with room for `more` positions. Raises ContractError where a static
    cache has no room."""
    number = len(layers) // 2
    held = [_layer(cache, i).filled(layers[i], layers[number + i], batch, more) for i in range(number)]
    return [k for k, _ in held], [v for _, v in held]


def keep_all(cache: Cache, keys: Sequence[torch.Tensor], values: Sequence[torch.Tensor], more: int) -> None:
    """Makes a cache hold what a step returned: `with_room`'s buffers with `more` positions joined."""
    for i, (k, v) in enumerate(zip(keys, values, strict=True)):
        _layer(cache, i).keep(k, v, more)


def keep_source(cache: Cache, keys: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    """Makes a cache that is empty hold the keys and the values of a source, which all layers see whole."""
    for i, (k, v) in enumerate(zip(keys, values, strict=True)):
        layer: Any = cache.layers[i]
        if isinstance(layer, StaticLayer):
            if k.shape[2] > layer.max_cache_len:
                raise ContractError(f"a static cache of {layer.max_cache_len} positions has no room for a source of {k.shape[2]}")
            layer.update(k, v)
            continue
        if type(layer) is not DynamicLayer:
            cache.layers[i] = DynamicLayer()
        _layer(cache, i).keep(k, v, k.shape[2])


def held(cache: Cache) -> tuple[_Tensors, _Tensors]:
    """The keys and the values that a cache holds."""
    layers = keeping(cache)
    filled = [int(x.get_seq_length()) for x in layers]
    return [x.keys[:, :, :n] for x, n in zip(layers, filled, strict=True)], [
        x.values[:, :, :n] for x, n in zip(layers, filled, strict=True)
    ]


class _Growing:
    """A dynamic layer that keeps all positions: in a buffer with room, which a longer one replaces when it is full."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer

    def past(self) -> int:
        """The number of positions that the layer has seen."""
        return int(self.layer.get_seq_length())

    def filled(self, keys: Layer, values: Layer, batch: int, more: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The keys and the values that the layer holds, with room behind."""
        if not self.layer.is_initialized or self.layer.keys.dim() < 4:  # initialised early, by transformers: without sizes
            return self._part(_empty(keys, batch), more), self._part(_empty(values, batch), more)
        return self._part(self.layer.keys, more), self._part(self.layer.values, more)

    def _part(self, x: torch.Tensor, more: int) -> torch.Tensor:
        return x if _room(x) >= more else _moved(x, max(x.shape[2], more + _ROOM))

    def keep(self, keys: torch.Tensor, values: torch.Tensor, more: int) -> None:
        """Holds what `filled` gave, with `more` positions joined."""
        if not self.layer.is_initialized:
            self.layer.lazy_initialization(keys, values)
        self.layer.keys, self.layer.values = keys, values


class _GrowingWindow(_Growing):
    """A dynamic layer that keeps what its window will see of the past: a part of its buffer that moves towards the end."""

    def _part(self, x: torch.Tensor, more: int) -> torch.Tensor:
        room = max(x.shape[2], more + _ROOM)
        return x if _room(x) >= more else _moved(x, room, behind=room)

    def keep(self, keys: torch.Tensor, values: torch.Tensor, more: int) -> None:
        first = None if self.layer.record_past else 1 - self.layer.sliding_window
        super().keep(keys[:, :, first:], values[:, :, first:], more)
        self.layer.cumulative_length += more


class _Fixed(_Growing):
    """A static layer: buffers of as many positions as there may be, the first of which are filled."""

    def filled(self, keys: Layer, values: Layer, batch: int, more: int) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.layer.is_initialized:
            self.layer.lazy_initialization(_empty(keys, batch), _empty(values, batch))
        return self._part(self.layer.keys, more), self._part(self.layer.values, more)

    def _part(self, x: torch.Tensor, more: int) -> torch.Tensor:
        past, most = self.past(), self.layer.max_cache_len
        if past + more > most:
            raise ContractError(f"a static cache of {most} positions holds {past} and has no room for {more} more")
        return x[:, :, :past]

    def keep(self, keys: torch.Tensor, values: torch.Tensor, more: int) -> None:
        self.layer.cumulative_length.add_(more)  # the rest lies there already


class _FixedWindow(_Fixed):
    """A static layer whose buffers hold the last positions. Once they would overflow, a step gets a copy of those that its first
    token sees, as eager's does."""

    def _part(self, x: torch.Tensor, more: int) -> torch.Tensor:
        past, most = self.past(), self.layer.max_cache_len
        if past + more <= most:
            return x[:, :, :past]
        return _moved(x[:, :, :past] if past < most else x[:, :, 1:], more)

    def keep(self, keys: torch.Tensor, values: torch.Tensor, more: int) -> None:
        layer = self.layer
        if self.past() + more <= layer.max_cache_len:
            super().keep(keys, values, more)
        else:
            layer.keys.copy_(keys[:, :, -layer.max_cache_len :])
            layer.values.copy_(values[:, :, -layer.max_cache_len :])
        layer.cumulative_length_int += more


_KINDS: dict[type, type[_Growing]] = {
    DynamicLayer: _Growing,
    DynamicSlidingWindowLayer: _GrowingWindow,
    StaticLayer: _Fixed,
    StaticSlidingWindowLayer: _FixedWindow,
}


def _layer(cache: Cache, i: int) -> _Growing:
    """The i-th layer that holds something, as its kind. Raises ContractError for kinds that compiled steps can't write."""
    layer = keeping(cache)[i]
    if type(layer) not in _KINDS:
        raise ContractError(f"a compiled model takes dynamic and static caches: layer {i} is a {type(layer).__name__}")
    return _KINDS[type(layer)](layer)


def _empty(layer: Layer, batch: int) -> torch.Tensor:
    heads, depth, dtype = layer
    return torch.empty(batch, heads, 0, depth, dtype=dtype)


def _room(x: torch.Tensor) -> int:
    """How many positions there are behind `x` [batch, heads, positions, depth], a part of a buffer that begins where its memory
    does; -1 if it is none. Steps take the memory for one of as many positions from where `x` begins."""
    batch, heads, length, depth = x.shape
    capacity, first = x.stride(1) // max(depth, 1), x.storage_offset() // max(depth, 1)
    end = x.storage_offset() + (batch * heads - 1) * x.stride(1) + capacity * depth
    whole = x.stride()[2:] == (depth, 1) and x.stride(0) == heads * x.stride(1)
    return capacity - first - length if whole and end * x.element_size() <= x.untyped_storage().nbytes() else -1


def _moved(x: torch.Tensor, room: int, behind: int = 0) -> torch.Tensor:
    """A copy of `x` [batch, heads, positions, depth] as the first part of a buffer with room for more positions, and with memory
    for some behind the buffer."""
    batch, heads, length, depth = x.shape
    rows = batch * heads * (length + room)
    memory = torch.empty(rows + behind, depth, dtype=x.dtype)
    buffer = memory[:rows].view(batch, heads, length + room, depth)
    buffer[:, :, :length] = x
    return buffer[:, :, :length]
