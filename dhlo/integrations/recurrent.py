"""transformers: decoders whose layers keep states of fixed size (Mamba), some of them keys and values besides (Qwen3-Next), as
steps of one token of each sequence."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.export import Dim, ExportedProgram
from transformers.cache_utils import (
    DummyLayer,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionLayer,
)

from dhlo.errors import CompileError
from dhlo.integrations.caches import cache_name, exportable_attention, masked_windows, shortest_unmasked
from dhlo.integrations.generation import evaluating
from dhlo.integrations.rotary import first_frequencies

__all__ = ["is_recurrent", "recurrent_pages", "recurrent_step_program"]

_ATTENTION = (DynamicLayer, DynamicSlidingWindowLayer)
_BOTH = (LinearAttentionAndFullAttentionLayer, LinearAttentionAndSlidingWindowAttentionLayer)
_PAST = 5  # positions that the example's sequences have
_KINDS = (LinearAttentionLayer, DummyLayer, *_ATTENTION, *_BOTH)


@dataclass(frozen=True)
class _State:
    """One state of a layer, of its convolution or its recurrence."""

    layer: int
    number: int
    convolves: bool


@dataclass
class _Layers:
    """What a model's layers keep, and an example of each for two sequences."""

    states: list[_State] = field(default_factory=list)
    attention: list[int] = field(default_factory=list)  # layers that keep keys and values
    examples: list[torch.Tensor] = field(default_factory=list)
    keys: list[torch.Tensor] = field(default_factory=list)
    values: list[torch.Tensor] = field(default_factory=list)
    longest: int | None = None  # what `shortest_unmasked` says

    def cache(
        self, config: Any, states: Sequence[torch.Tensor], keys: Sequence[torch.Tensor], values: Sequence[torch.Tensor]
    ) -> DynamicCache:
        """A cache that holds these. Layers with windows hold all positions: the model's mask hides what lies before its window."""
        cache = DynamicCache(config=config)
        for k, layer in enumerate(cache.layers):
            if isinstance(layer, DynamicSlidingWindowLayer):
                recurs = isinstance(layer, LinearAttentionLayer)
                cache.layers[k] = LinearAttentionAndFullAttentionLayer(layer.number_of_states) if recurs else DynamicLayer()
        for state, x in zip(self.states, states, strict=True):
            _hold(cache.layers[state.layer], state, x)
        for k, key, value in zip(self.attention, keys, values, strict=True):
            layer = cache.layers[k]
            DynamicLayer.lazy_initialization(layer, key, value)
            layer.keys, layer.values = key, value
        return cache


def _hold(layer: Any, state: _State, x: torch.Tensor) -> None:
    i = state.number
    layer.has_previous_state[i] = True
    layer.dtype, layer.device = x.dtype, x.device
    if state.convolves:
        layer.conv_states[i], layer.conv_kernel_size[i] = x, x.shape[-1]
        layer.is_conv_states_initialized[i] = True
    else:
        layer.recurrent_states[i], layer.is_recurrent_states_initialized[i] = x, True


class _Token(torch.nn.Module):
    """One token of each sequence, after what states, which are updated in place, and keys and values say of it."""

    def __init__(self, model: Any, cache_name: str, layers: _Layers, longest: int | None) -> None:
        """`longest`: the positions that there are, if they have an end."""
        super().__init__()
        self.model, self.cache_name, self.layers = model, cache_name, layers
        self.known = None if longest is None else torch.nn.Buffer(torch.arange(longest), persistent=False)

    def forward(
        self,
        input_ids: torch.Tensor,
        kept: torch.Tensor,
        states: list[torch.Tensor],
        keys: list[torch.Tensor],
        values: list[torch.Tensor],
    ) -> tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
        return self.run(input_ids, kept, states, keys, values)

    def run(
        self, ids: torch.Tensor, kept: torch.Tensor, states: Any, keys: Any, values: Any, **more: Any
    ) -> tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
        """The logits [1, kept, vocabulary] of the sequences that are kept, and all keys and values."""
        cache = self.layers.cache(self.model.config, states, keys, values)
        with _kept(self.model, kept):
            out = self.model(input_ids=ids, use_cache=True, **{self.cache_name: cache}, **more)
        attention: list[Any] = [cache.layers[k] for k in self.layers.attention]
        return out.logits.transpose(0, 1), [x.keys for x in attention], [x.values for x in attention]


class _TokenAt(_Token):
    """The same of a model that takes positions."""

    def forward(  # type: ignore[override]
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        kept: torch.Tensor,
        states: list[torch.Tensor],
        keys: list[torch.Tensor],
        values: list[torch.Tensor],
    ) -> tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
        torch._check(position_ids.shape[0] == input_ids.shape[0])  # type: ignore[no-untyped-call]  # though nothing may read it
        at = position_ids if self.known is None else self.known[position_ids]  # is checked to be one
        return self.run(input_ids, kept, states, keys, values, position_ids=at)


@contextmanager
def _kept(model: Any, kept: torch.Tensor) -> Iterator[None]:
    """Computes logits of some sequences alone."""
    head = model.get_output_embeddings()
    hook = head.register_forward_pre_hook(lambda _, args: (args[0].index_select(0, kept), *args[1:]))
    try:
        yield
    finally:
        hook.remove()


def is_recurrent(model: Any) -> bool:
    """Whether a decoder's cache holds states of fixed size."""
    return any(isinstance(layer, LinearAttentionLayer) for layer in DynamicCache(config=model.config).layers)


def recurrent_pages(model: Any, block_slots: int) -> dict[str, int]:
    """`Options.pages` for `recurrent_step_program(model)`, with so many slots in a block."""
    attends = any(isinstance(layer, DynamicLayer) for layer in DynamicCache(config=model.config).layers)
    return {"states*": 1} | ({"keys*": block_slots, "values*": block_slots} if attends else {})


def recurrent_step_program(model: Any) -> ExportedProgram:
    """A step of one token of each sequence, for `Options.pages`: states are called states[0], states[1], ..., keys and values as
    those of `step_program`. Raises CompileError where a layer keeps something else, and what torch.export raises."""
    names, kind = inspect.signature(model.forward).parameters, type(model).__name__
    cache = cache_name(model)
    if cache is None or "input_ids" not in names or model.get_output_embeddings() is None:
        what = "isn't a decoder that takes input_ids and a cache, and gives logits"
        raise CompileError(f"{kind} {what}")
    layers, batch, cached = _layers_of(model, cache), {0: Dim.AUTO}, {0: Dim.AUTO, 2: Dim.AUTO}
    args: list[Any] = [torch.zeros(2, 1, dtype=torch.int64), torch.tensor([0, 1]), layers.examples, layers.keys, layers.values]
    sizes: list[Any] = [batch, batch, *([how] * len(x) for how, x in zip((batch, cached, cached), args[2:], strict=True))]
    token: type[_Token] = _Token
    if "position_ids" in names:
        token = _TokenAt
        args.insert(1, torch.full((2, 1), _PAST))
        sizes.insert(1, batch)
    with evaluating(model), exportable_attention(), first_frequencies(model) as first:
        longest = min((n for n in (first, layers.longest) if n is not None), default=None)
        if longest is not None and token is _Token:
            raise CompileError(f"{kind} takes no positions, and computes texts of more than {longest} otherwise")
        step = token(model, cache, layers, longest)
        return torch.export.export(step, tuple(args), dynamic_shapes=tuple(sizes), strict=False)


def _layers_of(model: Any, cache_name: str) -> _Layers:
    """What a run of the model leaves in its cache. Raises CompileError where a layer keeps something else."""
    cache, layers = DynamicCache(config=model.config), _Layers()
    others = {type(layer).__name__ for layer in cache.layers if type(layer) not in _KINDS}
    if others:
        raise CompileError(f"{type(model).__name__} keeps something else than states, keys and values: {', '.join(sorted(others))}")
    try:
        with evaluating(model), masked_windows() as masked:
            model(input_ids=torch.zeros(1, 2, dtype=torch.int64), use_cache=True, **{cache_name: cache})
    except Exception as e:  # whatever the model raises
        raise CompileError(f"{type(model).__name__} takes no DynamicCache: {e}") from None
    layers.longest = shortest_unmasked(cache, masked)
    for k, layer in enumerate(cache.layers):
        for i in range(layer.number_of_states) if isinstance(layer, LinearAttentionLayer) else ():
            for convolves, x in ((True, layer.conv_states[i]), (False, layer.recurrent_states[i])):
                if x is not None:
                    layers.states.append(_State(k, i, convolves))
                    layers.examples.append(torch.zeros(2, *x.shape[1:], dtype=x.dtype))
        if isinstance(layer, DynamicLayer):
            layers.attention.append(k)
            for held, x in ((layers.keys, layer.keys), (layers.values, layer.values)):
                held.append(torch.zeros(2, x.shape[1], _PAST, x.shape[3], dtype=x.dtype))
    if not layers.states:
        raise CompileError(f"{type(model).__name__} keeps its states elsewhere than in the cache that it is given")
    return layers
