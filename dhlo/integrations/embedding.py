"""Models of transformers as programs that turn texts into vectors: the model, pooling over its tokens, and what stands behind."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch.export import Dim, ExportedProgram

from dhlo.errors import CompileError
from dhlo.integrations.caches import exportable_attention
from dhlo.integrations.generation import evaluating

__all__ = ["ACTIVATIONS", "Normalize", "dense", "embedding_program"]

ACTIVATIONS: Final = {"Identity": torch.nn.Identity, "Tanh": torch.nn.Tanh, "ReLU": torch.nn.ReLU, "GELU": torch.nn.GELU}
"""Of dense layers, by the names of PyTorch's modules."""

_LEAST: Final = 1e-9  # as sentence-transformers has it


class Normalize(torch.nn.Module):
    """Vectors of length 1."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.normalize(x, dim=-1)


def dense(file: Path, inputs: int, outputs: int, bias: bool, activation: str) -> torch.nn.Module:
    """A layer from a file of safetensors. Raises CompileError where that isn't so."""
    layer = torch.nn.Linear(inputs, outputs, bias)
    try:
        tensors = {name.removeprefix("linear."): x.float() for name, x in load_file(file).items()}
        layer.load_state_dict(tensors)
    except (OSError, SafetensorError, RuntimeError) as e:
        raise CompileError(f"'{file}' can't be read as a dense layer of {inputs} and {outputs} features: {e}") from None
    return torch.nn.Sequential(layer, ACTIVATIONS[activation]())


class _Embedding(torch.nn.Module):
    """Vectors [batch, features] in f32 of texts [batch, positions], which have so many tokens; any tokens behind them."""

    def __init__(self, model: Any, pooling: Sequence[str], behind: Iterable[torch.nn.Module]) -> None:
        super().__init__()
        self.model, self.pooling, self.behind = model, tuple(pooling), torch.nn.Sequential(*behind)
        names = inspect.signature(model.forward).parameters
        self.more = {"use_cache": False} if "use_cache" in names else {}

    def forward(self, input_ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        mask = (torch.arange(input_ids.shape[1]) < lengths[:, None]).long()
        out = self.model(input_ids=input_ids, attention_mask=mask, **self.more)
        states = out.last_hidden_state.float()
        pooled = torch.cat([_pool(kind, states, mask[..., None].float(), lengths) for kind in self.pooling], -1)
        vectors: torch.Tensor = self.behind(pooled)
        return vectors


def _pool(kind: str, states: torch.Tensor, mask: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """As sentence-transformers does it, by the names of `POOLING`."""
    match kind:
        case "cls":
            return states[:, 0]
        case "lasttoken":
            last = (lengths - 1)[:, None, None].expand(-1, 1, states.shape[2])
            return states.gather(1, last)[:, 0]
        case "max":
            return states.masked_fill(mask == 0, -1e9).amax(1)
        case "weightedmean":
            mask = mask * torch.arange(1, states.shape[1] + 1)[:, None].float()
    count = mask.sum(1).clamp(min=_LEAST)
    return (states * mask).sum(1) / (count.sqrt() if kind == "mean_sqrt_len_tokens" else count)


def embedding_program(model: Any, pooling: Sequence[str], behind: Iterable[torch.nn.Module]) -> ExportedProgram:
    """The program of a model without a head: `input_ids` [batch, positions] and `lengths` [batch], int64, to vectors [batch,
    features] in f32. `pooling`: cls, max, mean_tokens, mean_sqrt_len_tokens, weightedmean or lasttoken; if there are several, one
    behind the other. Modules `behind` change the vectors. Raises CompileError, and what torch.export raises."""
    names = inspect.signature(model.forward).parameters
    if not {"input_ids", "attention_mask"} <= set(names) or model.config.is_encoder_decoder:
        raise CompileError(f"{type(model).__name__} isn't an encoder or a decoder that takes input_ids and attention_mask")
    module = _Embedding(model, pooling, behind).eval()
    batch, positions = {0: Dim.AUTO}, {0: Dim.AUTO, 1: Dim.AUTO}
    args = (torch.ones(3, 7, dtype=torch.int64), torch.tensor([7, 3, 1]))
    with evaluating(model), torch.no_grad(), exportable_attention():
        return torch.export.export(module, args, dynamic_shapes=(positions, batch), strict=False)
