"""Sequences of all lengths in one step, as an engine would feed them: blocks of pools, tables, slots."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from dhlo.model import CompiledModel

__all__ = ["PAGE", "Pools", "feed", "of_eager"]

PAGE = 16
_CELLS = 8


class Pools:
    """Pools of a compiled step, and who has which of their blocks."""

    def __init__(self, compiled: CompiledModel, blocks: int, seed: int = 0) -> None:
        text = str(compiled.signature).partition("outputs:")[0]
        shapes = re.findall(r"^  (\S+): (\w+)\[(\d+), slots, (\d+)\]", text, re.M)
        self.names = re.findall(r"^  (\S+): \w+\[", text, re.M)
        self.pools = {n: _unwritten(getattr(torch, t), int(h), blocks * PAGE, int(d)) for n, t, h, d in shapes}
        states = re.findall(r"^  (\S+): (\w+)\[cells, ([\d, ]+)\]", text, re.M)
        self.cells = random.Random(seed).sample(range(_CELLS), _CELLS)  # of each sequence
        self.pools |= {n: _unwritten(getattr(torch, t), _CELLS, *map(int, sizes.split(","))) for n, t, sizes in states}
        self.free = random.Random(seed).sample(range(blocks), blocks)
        self.compiled, self.tables, self.done = compiled, dict[int, list[int]](), dict[int, int]()

    def inputs(self, tokens: Sequence[tuple[int, torch.Tensor]]) -> dict[str, torch.Tensor]:
        """What a step of these tokens of these sequences takes; blocks are taken as they are needed."""
        ids, positions, slots, starts, lengths = list[int](), list[int](), list[int](), [0], list[int]()
        for sequence, new in tokens:
            table, at = self.tables.setdefault(sequence, []), self.done.get(sequence, 0)
            while len(table) * PAGE < at + len(new):
                table.append(self.free.pop())
            where = range(at, at + len(new))
            ids += new.tolist()
            positions += where
            slots += [table[i // PAGE] * PAGE + i % PAGE for i in where]
            starts.append(len(ids))
            lengths.append(at + len(new))
            self.done[sequence] = at + len(new)
        columns = max((len(self.tables[s]) for s, _ in tokens), default=0)
        tables = [self.tables[s] + [0] * (columns - len(self.tables[s])) for s, _ in tokens]
        return {
            "input_ids": torch.tensor([ids], dtype=torch.int64),
            "position_ids": torch.tensor([positions], dtype=torch.int64),
            "kept": torch.arange(len(ids)),
            "positions": torch.tensor(positions, dtype=torch.int64),
            "slots": torch.tensor(slots, dtype=torch.int64),
            "tables": torch.tensor(tables, dtype=torch.int32).reshape(len(tokens), columns),
            "cells": torch.tensor([self.cells[s] for s, _ in tokens], dtype=torch.int32),
            "starts": torch.tensor(starts, dtype=torch.int32),
            "lengths": torch.tensor(lengths, dtype=torch.int32),
            "hidden": torch.zeros(len(ids), dtype=torch.int32),
            **self.pools,
        }

    def step(self, tokens: Sequence[tuple[int, torch.Tensor]], **changed: torch.Tensor) -> list[torch.Tensor]:
        """Logits of each sequence's tokens. `changed` inputs take the place of the right ones."""
        given = self.inputs(tokens) | changed
        out: Any = self.compiled(*[given[n] for n in self.names])
        logits: torch.Tensor = (out if isinstance(out, torch.Tensor) else out[0])[0]
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
