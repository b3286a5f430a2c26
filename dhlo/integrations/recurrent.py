"""transformers: decoders whose layers keep states of fixed size (Mamba), as steps of one token of each sequence."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.export import Dim, ExportedProgram
from transformers.cache_utils import DynamicCache, LinearAttentionLayer

from dhlo.errors import CompileError
from dhlo.integrations.generation import evaluating

__all__ = ["is_recurrent", "recurrent_step_program"]


class _Token(torch.nn.Module):
    """One token of each sequence, after what states say of it, which are updated in place."""

    def __init__(self, model: Any, cache_name: str) -> None:
        super().__init__()
        self.model, self.cache_name = model, cache_name

    def forward(self, input_ids: torch.Tensor, kept: torch.Tensor, states: list[torch.Tensor]) -> torch.Tensor:
        """The logits [1, kept, vocabulary] of the sequences that are kept."""
        cache, left = DynamicCache(config=self.model.config), list(states)
        for layer in cache.layers:
            for i in range(layer.number_of_states):
                conv = layer.conv_states[i] = left.pop(0)
                layer.recurrent_states[i] = left.pop(0)
                layer.is_conv_states_initialized[i] = layer.is_recurrent_states_initialized[i] = True
                layer.has_previous_state[i], layer.conv_kernel_size[i] = True, conv.shape[-1]
                layer.dtype, layer.device = conv.dtype, conv.device
        with _kept(self.model, kept):
            out = self.model(input_ids=input_ids, use_cache=True, **{self.cache_name: cache})
        logits: torch.Tensor = out.logits.transpose(0, 1)
        return logits


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


def recurrent_step_program(model: Any) -> ExportedProgram:
    """A step of one token of each sequence, for `Options.pages`: states are called states[0], states[1], ... Raises CompileError
    where a layer keeps something else, and what torch.export raises."""
    names, kind = inspect.signature(model.forward).parameters, type(model).__name__
    cache_name = next((n for n in ("past_key_values", "cache_params") if n in names), "")
    if not cache_name or "input_ids" not in names or model.get_output_embeddings() is None:
        raise CompileError(f"{kind} isn't a decoder that takes input_ids and a cache, and gives logits")
    cache = DynamicCache(config=model.config)
    others = {type(layer).__name__ for layer in cache.layers if type(layer) is not LinearAttentionLayer}
    if others:
        raise CompileError(f"{kind} keeps states of fixed size and something else besides ({', '.join(sorted(others))})")
    with evaluating(model):
        model(input_ids=torch.zeros(1, 2, dtype=torch.int64), use_cache=True, **{cache_name: cache})
    states = list[torch.Tensor]()
    for layer in cache.layers:
        for i in range(layer.number_of_states):
            for x in (layer.conv_states[i], layer.recurrent_states[i]):
                if x is None:
                    raise CompileError(f"{kind} has layers with a convolution or a recurrence alone")
                states.append(torch.zeros(2, *x.shape[1:], dtype=x.dtype))
    batch = {0: Dim.AUTO}
    args = (torch.zeros(2, 1, dtype=torch.int64), torch.tensor([0, 1]), states)
    with evaluating(model):
        return torch.export.export(
            _Token(model, cache_name), args, dynamic_shapes=(batch, batch, [batch] * len(states)), strict=False
        )
