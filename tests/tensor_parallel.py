"""Decoders of transformers as shards of processes: columns and rows of products, the vocabulary in parts. Run as a module, this is
one of the processes that run compiled shards: `python -m tests.tensor_parallel FOLDER RANK SIZE`."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed import _functional_collectives as fc

import dhlo

_C = torch.ops._c10d_functional

__all__ = ["pretended", "shard"]


@contextmanager
def pretended(size: int, rank: int = 0) -> Iterator[None]:
    """Programs can be exported as if this was one of so many processes."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=rank, world_size=size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def _sum(x: torch.Tensor) -> torch.Tensor:
    return fc.all_reduce(x, "sum", dist.group.WORLD)


class _Columns(torch.nn.Module):
    """Some of a product's columns."""

    def __init__(self, whole: torch.nn.Linear, rank: int, size: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(whole.weight.chunk(size)[rank].clone(), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight)


class _Rows(torch.nn.Module):
    """A product's summands of some of its rows, and then the sum of all processes'."""

    def __init__(self, whole: torch.nn.Linear, rank: int, size: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(whole.weight.chunk(size, 1)[rank].clone(), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _sum(F.linear(x, self.weight))


class _Head(_Columns):
    """Logits of some tokens of the vocabulary, and then of all."""

    def __init__(self, whole: torch.nn.Linear, rank: int, size: int) -> None:
        super().__init__(whole, rank, size)
        self.size = size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        part = super().forward(x)
        batch, kept, columns = part.shape
        every = _C.wait_tensor(_C.all_gather_into_tensor(part, self.size, "0")).reshape(self.size, batch, kept, columns)
        return every.permute(1, 2, 0, 3).reshape(batch, kept, self.size * columns)


class _Embedding(torch.nn.Module):
    """Rows of some tokens of the vocabulary, zeros for others, and then the sum of all processes'."""

    def __init__(self, whole: torch.nn.Embedding, rank: int, size: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(whole.weight.chunk(size)[rank].clone(), requires_grad=False)
        self.first, self.rows = rank * self.weight.shape[0], self.weight.shape[0]

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        here = ids - self.first
        known = (here >= 0) & (here < self.rows)
        rows = F.embedding(here.clamp(0, self.rows - 1), self.weight)
        return _sum(torch.where(known[..., None], rows, 0.0))


def shard(model: Any, rank: int, size: int) -> Any:
    """A decoder as process `rank` of `size` has it, as Llama's is written; the model stays as it is."""
    part = copy.deepcopy(model)
    for layer in part.model.layers:
        for inner, kinds in (
            (layer.self_attn, {"q_proj": _Columns, "k_proj": _Columns, "v_proj": _Columns, "o_proj": _Rows}),
            (layer.mlp, {"gate_proj": _Columns, "up_proj": _Columns, "down_proj": _Rows}),
        ):
            for name, kind in kinds.items():
                setattr(inner, name, kind(getattr(inner, name), rank, size))
    part.lm_head = _Head(part.lm_head, rank, size)
    part.model.embed_tokens = _Embedding(part.model.embed_tokens, rank, size)
    return part


def _main(folder: Path, rank: int, size: int) -> None:
    store = dist.FileStore(str(folder / "store"), size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=60))
    model = dhlo.load(folder / f"rank{rank}.so")
    model.bind_process_group(dist.group.WORLD)
    inputs = torch.load(folder / "inputs.pt")
    torch.save([model(*args) for args in inputs], folder / f"outputs{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    _main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
