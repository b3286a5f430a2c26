"""What tests of `generate()` over compiled models share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache, EncoderDecoderCache

from dhlo.integrations.caches import CACHE

Calls = Sequence[dict[str, Any]]


def generated(model: Any, calls: Calls) -> list[torch.Tensor]:
    """The tokens of each call, with the same random numbers for all."""
    out = []
    for call in calls:
        torch.manual_seed(2)
        out.append(model.generate(**call))
    return out


def generated_with_caches(model: Any, calls: Calls) -> list[tuple[torch.Tensor, Cache]]:
    """The same, with the caches that calls leave. Static ones are made as long as each call needs, whatever was called before."""
    out = []
    for call in calls:
        torch.manual_seed(2)
        vars(model).pop("_previous_max_cache_length", None)
        result = model.generate(**call, return_dict_in_generate=True)
        out.append((result.sequences, getattr(result, CACHE)))
    return out


def assert_same_caches(got: Cache, want: Cache) -> None:
    """Layers of the same kinds with the same content, lengths among it."""
    if isinstance(want, EncoderDecoderCache):
        assert isinstance(got, EncoderDecoderCache) and got.is_updated == want.is_updated
        assert_same_caches(got.self_attention_cache, want.self_attention_cache)
        assert_same_caches(got.cross_attention_cache, want.cross_attention_cache)
        return
    for ours, theirs in zip(got.layers, want.layers, strict=True):
        assert type(ours) is type(theirs)
        for name, value in vars(theirs).items():
            if isinstance(value, torch.Tensor):
                torch.testing.assert_close(getattr(ours, name), value, rtol=1e-3, atol=1e-3)
            else:
                assert getattr(ours, name) == value, name
