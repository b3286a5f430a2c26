"""Rotary embeddings whose frequencies depend on how long a text is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["first_frequencies"]

_CHANGING = ("longrope", "dynamic")


@contextmanager
def first_frequencies(model: Any) -> Iterator[int | None]:
    """Rotary frequencies stay what they are for short texts; gives how many positions those have at most, None where frequencies
    never change.

    transformers takes those of the longest text in a batch for all, so that a text's keys would follow from its neighbours.
    """
    changed = list[tuple[Any, Any]]()
    longest = list[int]()
    try:
        for module in model.modules():
            kinds = getattr(module, "rope_type", None)
            by_layer = kinds if isinstance(kinds, Mapping) else {None: kinds}
            changing = [layer for layer, kind in by_layer.items() if kind in _CHANGING]
            if not changing:
                continue
            changed.append((module, kinds))
            for layer in changing:
                prefix = "" if layer is None else f"{layer}_"
                with torch.no_grad():  # what a long text before has left
                    getattr(module, f"{prefix}inv_freq").copy_(getattr(module, f"{prefix}original_inv_freq"))
                longest.append(_first_length(module, layer))
            fixed = {layer: "default" if layer in changing else kind for layer, kind in by_layer.items()}
            module.rope_type = fixed if isinstance(kinds, Mapping) else "default"
        yield min(longest, default=None)
    finally:
        for module, kinds in changed:
            module.rope_type = kinds


def _first_length(module: Any, layer: Any) -> int:
    """The positions of the longest text whose frequencies are the first ones."""
    parameters = module.config.rope_parameters if layer is None else module.config.rope_parameters[layer]
    return int(parameters.get("original_max_position_embeddings") or module.original_max_seq_len)
