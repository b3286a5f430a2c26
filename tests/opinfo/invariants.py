"""What is unique in the results of operators that leave signs, phases or orders open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["alike", "invariants"]


def invariants(name: str, inputs: Sequence[torch.Tensor], results: Sequence[Any], same: torch.Tensor | None = None) -> list[Any]:
    """What is to be compared in place of an operator's results: the results themselves, or products of them. PyTorch's own tests
    compare absolute values of vectors; products hold for equal eigenvalues too. `same` is what `alike` says of the results."""
    f = _KNOWN.get(name)
    if f is None or not results or not all(isinstance(x, torch.Tensor) for x in results):
        return list(results)
    made = f(inputs, list(results))
    return made if same is None else [*made, torch.where(same[..., None, None], results[0], 0)]


def alike(name: str, ours: Sequence[Any], theirs: Sequence[Any]) -> torch.Tensor | None:
    """Of LU factors: for which matrices of the batch the factors themselves are to be compared, as the same pivots were chosen and
    none is small enough for rounding to choose."""
    if name != "lu" or len(ours) < 2 or not isinstance(theirs[0], torch.Tensor):
        return None
    factors = theirs[0].abs()
    diagonal = factors.diagonal(dim1=-2, dim2=-1)
    if not diagonal.shape[-1]:
        return None
    large = diagonal.amin(-1) > 1e-3 * factors.amax((-2, -1))
    return (ours[1] == theirs[1]).all(-1) & large


def _eigh(_: Sequence[torch.Tensor], results: list[torch.Tensor]) -> list[torch.Tensor]:
    values, v = results
    return [values, (v * values.unsqueeze(-2)) @ v.mH, v.mH @ v]


def _svd(_: Sequence[torch.Tensor], results: list[torch.Tensor]) -> list[torch.Tensor]:
    return _triple(*results)


def _old_svd(_: Sequence[torch.Tensor], results: list[torch.Tensor]) -> list[torch.Tensor]:
    u, s, v = results
    return _triple(u, s, v.mH)


def _triple(u: torch.Tensor, s: torch.Tensor, vh: torch.Tensor) -> list[torch.Tensor]:
    k = s.shape[-1]
    return [s, (u[..., :k] * s.unsqueeze(-2)) @ vh[..., :k, :], u.mH @ u, vh @ vh.mH]


def _lu(_: Sequence[torch.Tensor], results: list[torch.Tensor]) -> list[torch.Tensor]:
    """What the factors multiply to, and whether L's elements are at most 1: where pivots are alike, or 0, but for rounding, any may
    be chosen, and named as 0 or not."""
    p, lower, upper = torch.lu_unpack(results[0], results[1])
    return [p @ lower @ upper, (lower.abs() < 1.001).all()]


def _eig(inputs: Sequence[torch.Tensor], results: list[torch.Tensor]) -> list[torch.Tensor]:
    values, v = results
    gap = inputs[0].to(v.dtype) @ v - v * values.unsqueeze(-2)
    return [_sorted(values), gap, v.abs().square().sum(-2)]


def _eigvals(_: Sequence[torch.Tensor], results: list[torch.Tensor]) -> list[torch.Tensor]:
    return [_sorted(results[0])]


def _sorted(values: torch.Tensor) -> torch.Tensor:
    """By imaginary, then by real part, as far as rounding leaves them apart."""
    if not values.numel():
        return values
    unit = values.abs().amax(-1, keepdim=True).clamp(min=1e-30) / 1000
    for part in (torch.imag, torch.real):
        values = values.gather(-1, (part(values) / unit).round().argsort(stable=True, dim=-1))
    return values


_KNOWN = {
    "lu": _lu,
    "linalg.eigh": _eigh,
    "linalg.svd": _svd,
    "svd": _old_svd,
    "linalg.eig": _eig,
    "linalg.eigvals": _eigvals,
}
