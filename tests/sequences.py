"""Sequences of all lengths in one step, as an engine would feed them: blocks of pools, tables, slots."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from dhlo.model import CompiledModel

__all__ = ["PAGE", "Pools", "feed", "of_eager"]

PAGE = 16


_NO_BLOCK = -7  # stands in tables for blocks that no token sees any more


class Pools:
    """Pools of a compiled step, and who has which of their blocks. Groups of pools have blocks of their own; those behind a
    window are given back and overwritten."""

    def __init__(self, compiled: CompiledModel, blocks: int, seed: int = 0) -> None:
        text = str(compiled.signature).partition("outputs:")[0]
        meta = json.loads(compiled.metadata)["paging"]
        self.names = re.findall(r"^  (\S+): \w+\[", text, re.M)
        shapes = {n: x for n, *x in re.findall(r"^  (\S+): (\w+)\[(\d+), slots\w*, (\d+)\]", text, re.M)}
        self.group = {self.names[k]: g for k, g in meta["pools"]}
        self.pools = {
            n: _unwritten(getattr(torch, shapes[n][0]), int(shapes[n][1]), blocks * PAGE, int(shapes[n][2])) for n in self.group
        }
        self.windows, self.named = meta["windows"], [[self.names[k] for k in meta[role]] for role in ("slots", "tables")]
        rng = random.Random(seed)
        self.free = [rng.sample(range(blocks), blocks) for _ in self.windows]
        self.tables: list[dict[int, list[int]]] = [{} for _ in self.windows]
        self.compiled, self.done = compiled, dict[int, int]()

    def inputs(self, tokens: Sequence[tuple[int, torch.Tensor]]) -> dict[str, torch.Tensor]:
        """What a step of these tokens of these sequences takes; blocks are taken as they are needed."""
        ids, positions, starts, lengths = list[int](), list[int](), [0], list[int]()
        slots: list[list[int]] = [[] for _ in self.windows]
        for sequence, new in tokens:
            at = self.done.get(sequence, 0)
            where = range(at, at + len(new))
            for tables, free, to in zip(self.tables, self.free, slots, strict=True):
                table = tables.setdefault(sequence, [])
                while len(table) * PAGE < at + len(new):
                    table.append(free.pop())
                to += [table[i // PAGE] * PAGE + i % PAGE for i in where]
            ids += new.tolist()
            positions += where
            starts.append(len(ids))
            lengths.append(at + len(new))
            self.done[sequence] = at + len(new)
        columns = max((len(self.tables[0][s]) for s, _ in tokens), default=0)
        tables = [[t[s] + [_NO_BLOCK] * (columns - len(t[s])) for s, _ in tokens] for t in self.tables]
        return {
            "input_ids": torch.tensor([ids], dtype=torch.int64),
            "position_ids": torch.tensor([positions], dtype=torch.int64),
            "kept": torch.arange(len(ids)),
            "positions": torch.tensor(positions, dtype=torch.int64),
            **{n: torch.tensor(x, dtype=torch.int64) for n, x in zip(self.named[0], slots, strict=True)},
            **{
                n: torch.tensor(x, dtype=torch.int32).reshape(len(tokens), columns)
                for n, x in zip(self.named[1], tables, strict=True)
            },
            "starts": torch.tensor(starts, dtype=torch.int32),
            "lengths": torch.tensor(lengths, dtype=torch.int32),
            **self.pools,
        }

    def _give_back(self, sequence: int) -> None:
        """Blocks that no later token of a sequence sees."""
        for g, window in enumerate(self.windows):
            table = self.tables[g][sequence]
            for i in range(max(self.done[sequence] - window + 1, 0) // PAGE if window else 0):
                if table[i] != _NO_BLOCK:
                    for n, pool in self.pools.items():
                        if self.group[n] == g:
                            rows = pool[:, table[i] * PAGE : (table[i] + 1) * PAGE]
                            rows.copy_(_unwritten(pool.dtype, *rows.shape))
                    self.free[g].insert(0, table[i])
                    table[i] = _NO_BLOCK

    def step(self, tokens: Sequence[tuple[int, torch.Tensor]], **changed: torch.Tensor) -> list[torch.Tensor]:
        """Logits of each sequence's tokens. `changed` inputs take the place of the right ones."""
        given = self.inputs(tokens) | changed
        out: Any = self.compiled(*[given[n] for n in self.names])
        logits: torch.Tensor = (out if isinstance(out, torch.Tensor) else out[0])[0]
        for sequence, _ in tokens:
            self._give_back(sequence)
        return list(logits.split([len(new) for _, new in tokens]))


def _unwritten(dtype: torch.dtype, *sizes: int) -> torch.Tensor:
    return torch.full(sizes, torch.nan if dtype.is_floating_point else 99, dtype=dtype)


def feed(
    pools: Pools, sequences: Sequence[torch.Tensor], rng: random.Random, chunks: Sequence[int] = (1, 1, 3, 7, 40)
) -> list[torch.Tensor]:
    """Runs sequences to their ends, some of them in each step, by chunks of random lengths; the logits of each."""
    rest, logits = dict(enumerate(sequences)), [list[torch.Tensor]() for _ in sequences]
    while rest:
        chosen = [(k, rest[k][: rng.choice(chunks)]) for k in rest if rng.random() < 0.7]
        if chosen:
            for (k, new), y in zip(chosen, pools.step(chosen), strict=True):
                logits[k].append(y)
                rest[k] = rest[k][len(new) :]
        rest = {k: v for k, v in rest.items() if len(v)}
    return [torch.cat(x) if x else torch.empty(0) for x in logits]


def of_eager(model: Callable[..., Any], sequences: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The same by a model of transformers, each sequence at once."""
    with torch.no_grad():
        return [model(input_ids=x[None]).logits[0] for x in sequences]
