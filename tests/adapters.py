"""Adapters (LoRA) of random numbers, as PEFT keeps them, and models that they are merged into."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from dhlo.model import CompiledModel

__all__ = ["Pairs", "merged", "packed", "random_pairs", "write_folder"]

Pairs = Mapping[str, tuple[torch.Tensor, torch.Tensor]]
"""By module: A [rank, inputs] and B [outputs, rank]."""


def random_pairs(model: Any, targets: Sequence[str], rank: int, seed: int, size: float = 0.1) -> Pairs:
    """Pairs of all modules of these names."""
    g = torch.Generator().manual_seed(seed)
    found = {}
    for name, module in model.named_modules():
        if name.rpartition(".")[2] in targets:
            n, k = module.weight.shape
            found[name] = size * torch.randn(rank, k, generator=g), size * torch.randn(n, rank, generator=g)
    return found


def merged(model: Any, pairs: Pairs, scale: float) -> Any:
    """A copy of a model with B A added to its weights."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for name, (a, b) in pairs.items():
            weight = other.get_submodule(name).weight
            weight += (scale * b @ a).to(weight.dtype)
    return other


def packed(compiled: CompiledModel, adapters: Sequence[tuple[Pairs, float]]) -> torch.Tensor:
    """The argument `adapter_weights` of a compiled step, with these and their scales as its first adapters; the others are NaN."""
    said = json.loads(compiled.metadata)
    known = said["paging"]["adapters"]
    given = said["inputs"][known["weights"]]
    weights = torch.full(given["sizes"], torch.nan, dtype=getattr(torch, given["dtype"]))
    for row, (pairs, scale) in zip(weights, adapters, strict=False):
        row.zero_()
        for p in known["products"]:
            a, b = next((x for name, x in pairs.items() if p["name"].endswith("." + name)), (None, None))
            if a is None or b is None:
                continue
            at, rank = p["offset"], known["rank"]
            first = row[at : at + p["inputs"] * rank].view(p["inputs"], rank)
            second = row[at + p["inputs"] * rank :][: rank * p["outputs"]].view(rank, p["outputs"])
            first[:, : a.shape[0]], second[: a.shape[0]] = a.t(), scale * b.t()
    return weights


def write_folder(folder: Path, pairs: Pairs, **config: Any) -> Path:
    """An adapter as PEFT writes it."""
    folder.mkdir()
    tensors = {
        f"base_model.model.{name}.lora_{x}.weight": m for name, both in pairs.items() for x, m in zip("AB", both, strict=True)
    }
    save_file({name: m.contiguous() for name, m in tensors.items()}, folder / "adapter_model.safetensors")
    rank = next(iter(pairs.values()))[0].shape[0]
    said = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": ["q_proj"], "bias": "none", "lora_dropout": 0.1}
    (folder / "adapter_config.json").write_text(json.dumps(said | config))
    return folder
