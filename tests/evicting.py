"""What a decoder of transformers says where blocks of keys and values are left out of its cache, as an engine with `evict_to`
leaves them out: one sequence, computed eagerly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache

from dhlo.integrations.caches import CACHE
from dhlo.serve.types import EngineOptions

__all__ = ["evicting_greedy"]

_BLOCK = 16


class _Cache:
    """Keys and values of a sequence whose first `prompt` tokens are its prompt."""

    def __init__(self, model: Any, options: EngineOptions, prompt: int) -> None:
        assert options.evict_to is not None
        self.model, self.options, self.prompt = model, options, prompt
        self.blocks = options.evict_to // _BLOCK
        self.cache = DynamicCache()  # whose layers keep all that isn't left out
        self.size = self.kept = 0

    def take(self, tokens: Sequence[int]) -> torch.Tensor:
        """Logits behind the last of them. They go in parts that end where the cache has come to its bound."""
        logits = torch.empty(0)
        while tokens:
            if self.kept == self.blocks * _BLOCK:
                may_go = self.blocks - self.options.evict_sinks - self.options.evict_recent
                at_once = min(max(self.blocks // 8, 1), may_go) if self.size < self.prompt else 1
                for _ in range(at_once):
                    self._evict()
            part, tokens = tokens[: self.blocks * _BLOCK - self.kept], tokens[self.blocks * _BLOCK - self.kept :]
            at = torch.arange(self.size, self.size + len(part))[None]
            with torch.no_grad():
                logits = self.model(input_ids=torch.tensor([part]), position_ids=at, **{CACHE: self.cache}).logits[0, -1]
            self.size, self.kept = self.size + len(part), self.kept + len(part)
        return logits

    def _evict(self) -> None:
        first, end = self.options.evict_sinks, self.kept // _BLOCK - self.options.evict_recent
        if self.options.evict_by == "norms":
            ratios = torch.stack([(x.values.norm(dim=-1) / x.keys.norm(dim=-1))[0].mean(0) for x in self.cache.layers]).mean(0)
            first += int(ratios.view(-1, _BLOCK).mean(1)[first:end].argmin())
        for layer in self.cache.layers:
            for name in ("keys", "values"):
                x = getattr(layer, name)
                setattr(layer, name, torch.cat([x[:, :, : first * _BLOCK], x[:, :, (first + 1) * _BLOCK :]], 2))
        self.kept -= _BLOCK


def evicting_greedy(
    model: Any, options: EngineOptions, prompt: Sequence[int], said: Sequence[int]
) -> tuple[list[int], list[float]]:
    """The most likely token behind the prompt and behind each token of `said` but the last, and how much likelier (in logits) it is
    than that of `said`."""
    cache = _Cache(model, options, len(prompt))
    rows = [cache.take(list(prompt)), *(cache.take([token]) for token in said[:-1])]
    likely = [int(row.argmax()) for row in rows]
    return likely, [float(row.max() - row[token]) for row, token in zip(rows, said, strict=True)]
