"""Weights whose checkpoint holds codes: the model computes them from these, so that the compiler finds the codes and keeps them.

transformers loads such a checkpoint's codes as floats where no kernels take them. What it made is compared with what the codes say,
and given up for them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import safe_open
from torch import nn
from torch.nn.utils import parametrize

from dhlo.errors import CompileError

__all__ = ["FORMATS", "CodedFormat", "coded_names", "keep_codes"]

_E2M1: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_FLOAT8: Final = (torch.float8_e4m3fn, torch.float8_e5m2)
# An expert's layer by itself, and where transformers keeps it: a parameter of all experts, and its place there.
_EXPERT: Final = re.compile(r"(.+\.experts)\.(\d+)\.(gate_proj|up_proj|down_proj)\.weight")
_LAYERS: Final = {"gate_proj": ("gate_up_proj", 0), "up_proj": ("gate_up_proj", 1), "down_proj": ("down_proj", 0)}


def _mxfp4(dtype: torch.dtype, blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """MXFP4 of experts (gpt-oss): [experts, columns, groups, 16] bytes of two 4-bit floats each, the lower half first, and the
    powers of two [experts, columns, groups] that they are times, plus 127. Gives [experts, rows, columns]."""
    if blocks.dtype != torch.uint8 or scales.dtype != torch.uint8 or blocks.shape != (*scales.shape, 16) or scales.dim() != 3:
        raise ValueError(f"{blocks.dtype} {list(blocks.shape)} with scales of {scales.dtype} {list(scales.shape)}")
    codes = torch.stack([blocks & 15, blocks >> 4], -1).flatten(-2)
    values = torch.tensor([*_E2M1, *(-x for x in _E2M1)])[codes.long()] * torch.exp2(scales.float() - 127)[..., None]
    return values.flatten(-2).transpose(1, 2).to(dtype)


def _fp8(dtype: torch.dtype, codes: torch.Tensor, scales: torch.Tensor, blocks: Sequence[int] | None) -> torch.Tensor:
    """Float8 of [..., rows, columns] times a scale (f32, or e8m0 in bytes) of each of `blocks` rows and columns, or of them all."""
    rows, columns = codes.shape[-2:]
    if blocks is None or scales.numel() == 1:
        blocks = max(rows, 1), max(columns, 1)
    if not isinstance(blocks, list | tuple) or len(blocks) != 2 or any(type(x) is not int or x < 1 for x in blocks):
        raise ValueError(f"{list(codes.shape)} in blocks of {blocks}")
    high, wide = min(blocks[0], max(rows, 1)), min(blocks[1], max(columns, 1))
    grid = (*codes.shape[:-2], -(-rows // high), -(-columns // wide))
    if codes.dtype not in _FLOAT8 or scales.numel() != math.prod(grid) or columns % wide:
        of = f"blocks of {high} x {wide}"
        raise ValueError(f"{codes.dtype} {list(codes.shape)} with scales of {scales.dtype} {list(scales.shape)} in {of}")
    factors = torch.exp2(scales.float() - 127) if scales.dtype == torch.uint8 else scales.float()
    of_rows = factors.reshape(grid).repeat_interleave(high, -2)[..., :rows, :, None]
    groups = codes.float().reshape(*codes.shape[:-1], columns // wide, wide)
    return (groups * of_rows).flatten(-2).to(dtype)


def _codes(dtype: torch.dtype, codes: torch.Tensor, scales: torch.Tensor, blocks: Sequence[int] | None) -> torch.Tensor:
    """The codes of `_fp8` alone."""
    return codes.to(dtype)


@dataclass(frozen=True)
class CodedFormat:
    """How a checkpoint holds a parameter.

    suffixes   what is added to the parameter's name for each tensor that it is stored as
    decode     makes the parameter of a dtype of these tensors (and of a config's `setting`)
    loaded     what transformers makes of them as it loads them
    setting    a field of the quantisation's config that decoding needs, and its default
    decodes    transformers itself decodes them, asked to
    """

    suffixes: tuple[str, ...]
    decode: Callable[..., torch.Tensor]
    loaded: Callable[..., torch.Tensor]
    setting: tuple[str, Any] | None = None
    decodes: bool = False


FORMATS: Final = {
    "mxfp4": CodedFormat(("_blocks", "_scales"), _mxfp4, _mxfp4, decodes=True),
    "fp8": CodedFormat(("", "_scale_inv"), _fp8, _codes, setting=("weight_block_size", (128, 128))),
}
"""By `quant_method` of a config."""


class _Decoded(nn.Module):
    """A parametrization of what tensors of a checkpoint stand for."""

    def __init__(self, decode: Callable[..., torch.Tensor], stored: tuple[torch.Tensor, ...]) -> None:
        super().__init__()
        self._decode, self._stored = decode, stored

    def forward(self, *stored: torch.Tensor) -> torch.Tensor:
        return self._decode(*stored)

    def right_inverse(self, _: torch.Tensor) -> tuple[torch.Tensor, ...]:
        stored, self._stored = self._stored, ()  # which are the module's from now on
        return stored


def coded_names(files: Iterable[Path], method: str) -> dict[str, tuple[Path, ...]]:
    """The parameters that `files` (safetensors) hold coded by `method`, and the file of each tensor that makes one. Raises
    CompileError where there are none, and for one that lacks a tensor."""
    suffixes = FORMATS[method].suffixes
    where = dict[str, Path]()
    for path in files:
        with safe_open(str(path), "pt") as file:
            where |= dict.fromkeys(file.keys(), path)
    names = sorted({n.removesuffix(s) for n in where for s in suffixes if s and n.endswith(s)})
    if not names:
        raise CompileError(f"the checkpoint says that it is {method}, and has no tensors *{' and *'.join(suffixes)}")
    lacking = next((name + s for name in names for s in suffixes if name + s not in where), None)
    if lacking is not None:
        raise CompileError(f"the checkpoint is {method}, and lacks the tensor '{lacking}'")
    return {name: tuple(where[name + s] for s in suffixes) for name in names}


def keep_codes(model: Any, names: Mapping[str, tuple[Path, ...]], method: str, config: Mapping[str, Any]) -> None:
    """Puts what computes parameters from their codes in the place of those parameters; `names` as `coded_names` gives them,
    `config` the quantisation's.

    Raises CompileError where a parameter of the model isn't what they say.
    """
    given = FORMATS[method]
    settings = {} if given.setting is None else {"blocks": config.get(*given.setting)}
    for name, sources in _parameters(model, names).items():
        path, _, own = name.rpartition(".")
        try:
            loaded = model.get_parameter(name)
            stored = tuple(_merged(names, sources, i, suffix) for i, suffix in enumerate(given.suffixes))
            same = torch.equal(given.loaded(loaded.dtype, *stored, **settings), loaded)
            decode = partial(given.decode, loaded.dtype, **settings)
            if given.loaded is not given.decode:
                decode(*stored)
        except (AttributeError, ValueError, TypeError, RuntimeError) as e:
            raise CompileError(f"the checkpoint's '{name}' can't be decoded as {method}: {e}") from None
        if not same:
            raise CompileError(f"transformers has loaded '{name}' as something else than the checkpoint's {method} stands for")
        loaded.requires_grad_(False)  # as integers are
        parametrize.register_parametrization(model.get_submodule(path), own, _Decoded(decode, stored), unsafe=True)


def _parameters(model: Any, names: Iterable[str]) -> dict[str, list[list[str]]]:
    """The model's parameters and the names that the checkpoint has for each: one, or of experts that transformers keeps together
    those of each expert, of both layers where they make one."""
    there = {name for name, _ in model.named_parameters()}
    out, experts = dict[str, list[list[str]]](), dict[str, dict[int, dict[int, str]]]()
    for name in names:
        found = _EXPERT.fullmatch(name)
        if name in there or found is None:
            out[name] = [[name]]
            continue
        folder, number, layer = found.groups()
        together, place = _LAYERS[layer]
        experts.setdefault(f"{folder}.{together}", {}).setdefault(int(number), {})[place] = name
    for name, of in experts.items():
        out[name] = [[layer for _, layer in sorted(of[number].items())] for number in sorted(of)]
    return out


def _merged(names: Mapping[str, tuple[Path, ...]], sources: Sequence[Sequence[str]], i: int, suffix: str) -> torch.Tensor:
    """The tensors with a suffix of a parameter: one as it is, or those of experts stacked, layers one below the other."""
    each = [[_tensor(names[name][i], name + suffix) for name in layers] for layers in sources]
    if len(each) == len(each[0]) == 1:
        return each[0][0]
    return torch.stack([torch.cat(layers) for layers in each])


def _tensor(path: Path, name: str) -> torch.Tensor:
    with safe_open(str(path), "pt") as file:
        found: torch.Tensor = file.get_tensor(name)
    return found
