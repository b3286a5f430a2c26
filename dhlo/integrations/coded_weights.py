"""Weights whose checkpoint holds codes: the model computes them from these, so that the compiler finds the codes and keeps them.

transformers loads such a checkpoint's codes as floats where no kernels take them. What it made is compared with what the codes say,
and given up for them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
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
_SCALES: Final = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.float8_e8m0fnu, torch.uint8)
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


def _factors(codes: torch.Tensor, scales: torch.Tensor, blocks: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The codes [rows, columns] of a layer of float8, and what is times each row's blocks of columns, [rows, blocks]: of a scale
    (a float, or e8m0 in bytes) of each of `blocks` rows and columns, or of all."""
    if codes.dtype not in _FLOAT8 or codes.dim() != 2 or scales.dtype not in _SCALES:
        raise ValueError(f"{codes.dtype} {list(codes.shape)} with scales of {scales.dtype} {list(scales.shape)}")
    rows, columns = codes.shape
    if blocks is None or scales.numel() == 1:
        blocks, scales = (max(rows, 1), max(columns, 1)), scales.reshape(1, 1)
    if not isinstance(blocks, list | tuple) or len(blocks) != 2 or any(type(x) is not int or x < 1 for x in blocks):
        raise ValueError(f"{list(codes.shape)} in blocks of {blocks}")
    high, wide = min(blocks[0], max(rows, 1)), min(blocks[1], max(columns, 1))
    if scales.shape != (-(-rows // high), -(-columns // wide)) or columns % wide:
        of = f"blocks of {high} x {wide}"
        raise ValueError(f"{codes.dtype} {list(codes.shape)} with scales of {scales.dtype} {list(scales.shape)} in {of}")
    exponents = scales.view(torch.float8_e8m0fnu) if scales.dtype == torch.uint8 else scales
    return codes, exponents.float().repeat_interleave(high, 0)[:rows]


def _fp8(dtype: torch.dtype, codes: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """What `_factors` gives of a layer, or of several [experts, rows, columns], multiplied."""
    groups = codes.float().reshape(*factors.shape, codes.shape[-1] // max(factors.shape[-1], 1))
    return (groups * factors[..., None]).flatten(-2).to(dtype)


def _codes(dtype: torch.dtype, codes: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """The codes of `_fp8` alone."""
    return codes.to(dtype)


def _as_stored(*stored: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return stored


@dataclass(frozen=True)
class CodedFormat:
    """How a checkpoint holds a parameter.

    suffixes   what is added to the parameter's name for each tensor that it is stored as
    decode     makes the parameter of a dtype of what `prepare` makes of these tensors
    loaded     what transformers makes of them as it loads them, likewise
    prepare    checks a layer's tensors (and a config's `setting`)
    setting    a field of the quantisation's config that this needs, and its default
    decodes    transformers itself decodes them, asked to
    coded      types in safetensors that nothing but codes has
    """

    suffixes: tuple[str, ...]
    decode: Callable[..., torch.Tensor]
    loaded: Callable[..., torch.Tensor]
    prepare: Callable[..., tuple[torch.Tensor, ...]] = _as_stored
    setting: tuple[str, Any] | None = None
    decodes: bool = False
    coded: tuple[str, ...] = ()


FORMATS: Final = {
    "mxfp4": CodedFormat(("_blocks", "_scales"), _mxfp4, _mxfp4, decodes=True),
    "fp8": CodedFormat(
        ("", "_scale_inv"), _fp8, _codes, _factors, setting=("weight_block_size", (128, 128)), coded=("F8_E4M3", "F8_E5M2")
    ),
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
    given = FORMATS[method]
    where, codes = dict[str, Path](), set[str]()
    for path in files:
        with safe_open(str(path), "pt") as file:
            where |= dict.fromkeys(file.keys(), path)
            codes |= {name for name in file.keys() if given.coded and file.get_slice(name).get_dtype() in given.coded}
    names = {n.removesuffix(s) for n in where for s in given.suffixes if s and n.endswith(s)}
    if not names:
        raise CompileError(f"the checkpoint says that it is {method}, and has no tensors *{' and *'.join(given.suffixes)}")
    every = sorted(names | codes)
    lacking = next((name + s for name in every for s in given.suffixes if name + s not in where), None)
    if lacking is not None:
        raise CompileError(f"the checkpoint is {method}, and lacks the tensor '{lacking}'")
    return {name: tuple(where[name + s] for s in given.suffixes) for name in every}


def keep_codes(
    model: Any, names: Mapping[str, tuple[Path, ...]], method: str, config: Mapping[str, Any], unused: Collection[str]
) -> None:
    """Puts what computes parameters from their codes in the place of those parameters; `names` as `coded_names` gives them,
    `config` the quantisation's, `unused` the names of tensors that transformers has no use for.

    Raises CompileError where a parameter of the model isn't what they say.
    """
    given = FORMATS[method]
    settings = [] if given.setting is None else [config.get(*given.setting)]

    def stored_as(name: str) -> tuple[torch.Tensor, ...]:
        stored = (_tensor(path, name + s) for path, s in zip(names[name], given.suffixes, strict=True))
        return given.prepare(*stored, *settings)

    parameters = _parameters(model, names, unused)
    for name, experts in parameters.items():
        try:
            loaded = model.get_parameter(name)
            if isinstance(experts, str):
                stored = stored_as(experts)
            else:
                each = [[stored_as(layer) for layer in layers] for layers in experts]
                below = [[torch.cat(tensors) for tensors in zip(*layers, strict=True)] for layers in each]
                stored = tuple(torch.stack(tensors) for tensors in zip(*below, strict=True))
            same = _same(given.loaded(loaded.dtype, *stored), loaded)
        except (AttributeError, ValueError, TypeError, RuntimeError) as e:
            raise CompileError(f"the checkpoint's '{name}' can't be decoded as {method}: {e}") from None
        if not same:
            raise CompileError(f"transformers has loaded '{name}' as something else than the checkpoint's {method} stands for")
        loaded.requires_grad_(False)  # as integers are
        for path, own in _places(model, loaded):
            if (place := f"{path}.{own}") == name or place not in parameters:  # tied weights may be codes of their own
                decoded = _Decoded(partial(given.decode, loaded.dtype), stored)
                parametrize.register_parametrization(model.get_submodule(path), own, decoded, unsafe=True)


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal, or both no numbers."""
    return a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())


def _places(model: Any, parameter: torch.Tensor) -> list[tuple[str, str]]:
    """The modules and their attributes that are this parameter: of tied weights several."""
    return [
        (path, own) for path, module in model.named_modules() for own, p in module.named_parameters(recurse=False) if p is parameter
    ]


def _parameters(model: Any, names: Iterable[str], unused: Collection[str]) -> dict[str, str | list[list[str]]]:
    """The model's parameters and the names that the checkpoint has for each: one, or of experts that transformers keeps together
    those of each expert, of both layers where they make one."""
    there, prefix = {name for name, _ in model.named_parameters(remove_duplicate=False)}, f"{model.base_model_prefix}."
    ignored = [*(getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ())]
    out, experts = dict[str, str | list[list[str]]](), dict[str, dict[int, dict[int, str]]]()

    def own(name: str) -> str:
        """The model's name: that of a base has a prefix in a model with a head."""
        other = name.removeprefix(prefix) if name.startswith(prefix) else prefix + name
        return other if other in there and name not in there else name

    for name in names:
        found, target = _EXPERT.fullmatch(name), own(name)
        if found is not None and target not in there:
            together, place = _LAYERS[found[3]]
            target = own(f"{found[1]}.{together}")
        if target not in there and (name in unused or any(re.search(pattern, name) for pattern in ignored)):
            continue
        if found is not None and own(name) not in there:
            experts.setdefault(target, {}).setdefault(int(found[2]), {})[place] = name
        else:
            out[target] = name
    for target, of in experts.items():
        out[target] = [[layer for _, layer in sorted(of[number].items())] for number in sorted(of)]
    return out


def _tensor(path: Path, name: str) -> torch.Tensor:
    with safe_open(str(path), "pt") as file:
        found: torch.Tensor = file.get_tensor(name)
    return found
