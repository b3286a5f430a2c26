"""Weights whose checkpoint holds codes: the model computes them from these, so that the compiler finds the codes and keeps them.

transformers turns such a checkpoint's codes to floats as it loads them where no kernels take them. What it made is compared with
what the codes say, and given up for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import safe_open
from torch import nn
from torch.nn.utils import parametrize

from dhlo.errors import CompileError

__all__ = ["FORMATS", "coded_names", "keep_codes"]

_E2M1: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def _mxfp4(dtype: torch.dtype, blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """MXFP4 of experts (gpt-oss): [experts, columns, groups, 16] bytes of two 4-bit floats each, the lower half first, and the
    powers of two [experts, columns, groups] that they are times, plus 127. Gives [experts, rows, columns]."""
    if blocks.dtype != torch.uint8 or scales.dtype != torch.uint8 or blocks.shape != (*scales.shape, 16) or scales.dim() != 3:
        raise ValueError(f"{blocks.dtype} {list(blocks.shape)} with scales of {scales.dtype} {list(scales.shape)}")
    codes = torch.stack([blocks & 15, blocks >> 4], -1).flatten(-2)
    values = torch.tensor([*_E2M1, *(-x for x in _E2M1)])[codes.long()] * torch.exp2(scales.float() - 127)[..., None]
    return values.flatten(-2).transpose(1, 2).to(dtype)


FORMATS: Final[dict[str, tuple[tuple[str, ...], Callable[..., torch.Tensor]]]] = {"mxfp4": (("_blocks", "_scales"), _mxfp4)}
"""By `quant_method` of a config: what is added to a parameter's name in the checkpoint for each tensor that it is stored as, and
what makes the parameter of a dtype of these tensors."""


class _Decoded(nn.Module):
    """A parametrization of what tensors of a checkpoint stand for."""

    def __init__(self, decode: Callable[..., torch.Tensor], dtype: torch.dtype, stored: tuple[torch.Tensor, ...]) -> None:
        super().__init__()
        self._decode, self._dtype, self._stored = decode, dtype, stored

    def forward(self, *stored: torch.Tensor) -> torch.Tensor:
        return self._decode(self._dtype, *stored)

    def right_inverse(self, _: torch.Tensor) -> tuple[torch.Tensor, ...]:
        stored, self._stored = self._stored, ()  # which are the module's from now on
        return stored


def coded_names(files: Iterable[Path], method: str) -> dict[str, tuple[Path, ...]]:
    """The parameters that `files` (safetensors) hold coded by `method`, and the file of each tensor that makes one. Raises
    CompileError where there are none, and for one that lacks a tensor."""
    suffixes, _ = FORMATS[method]
    where = dict[str, Path]()
    for path in files:
        with safe_open(str(path), "pt") as file:
            where |= dict.fromkeys(file.keys(), path)
    names = sorted({n.removesuffix(s) for n in where for s in suffixes if n.endswith(s)})
    if not names:
        raise CompileError(f"the checkpoint says that it is {method}, and has no tensors *{' and *'.join(suffixes)}")
    lacking = next((name + s for name in names for s in suffixes if name + s not in where), None)
    if lacking is not None:
        raise CompileError(f"the checkpoint is {method}, and lacks the tensor '{lacking}'")
    return {name: tuple(where[name + s] for s in suffixes) for name in names}


def keep_codes(model: Any, names: Mapping[str, tuple[Path, ...]], method: str) -> None:
    """Puts what computes parameters from their codes in the place of those parameters; `names` as `coded_names` gives them.

    Raises CompileError where a parameter of the model isn't what they say.
    """
    suffixes, decode = FORMATS[method]
    for name, paths in names.items():
        stored = tuple(_tensor(path, name + s) for path, s in zip(paths, suffixes, strict=True))
        path, _, own = name.rpartition(".")
        try:
            loaded = model.get_parameter(name)
            same = torch.equal(decode(loaded.dtype, *stored), loaded)
        except (AttributeError, ValueError) as e:
            raise CompileError(f"the checkpoint's '{name}' can't be decoded as {method}: {e}") from None
        if not same:
            raise CompileError(f"transformers has loaded '{name}' as something else than the checkpoint's {method} stands for")
        loaded.requires_grad_(False)  # as integers are
        decoded = _Decoded(decode, loaded.dtype, stored)
        parametrize.register_parametrization(model.get_submodule(path), own, decoded, unsafe=True)


def _tensor(path: Path, name: str) -> torch.Tensor:
    with safe_open(str(path), "pt") as file:
        found: torch.Tensor = file.get_tensor(name)
    return found
