"""Ops on quantised weights: small codes in memory, and what they stand for."""

# ruff: noqa: E704
from collections.abc import Callable, Sequence
from typing import Any, Final

import sympy
import torch

from dhlo.ir.dialect import Kind, Op, Out, Tensor, TypeError_, Variadic, attr
from dhlo.ir.mlir import ir
from dhlo.ir.types import DTYPES, TensorType, from_mlir

Args = list[torch.Tensor]

E2M1: Final = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def _float8(dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda q: q.view(dtype).float()


CODES: Final[dict[str, tuple[str, int, Callable[[torch.Tensor], torch.Tensor]]]] = {
    "i8": ("i8", 8, lambda q: q.float()),
    "ui8": ("ui8", 8, lambda q: q.float()),
    "i4": ("i8", 4, lambda q: q.float()),
    "ui4": ("ui8", 4, lambda q: q.float()),
    "f8e4m3fn": ("ui8", 8, _float8(torch.float8_e4m3fn)),
    "f8e5m2": ("ui8", 8, _float8(torch.float8_e5m2)),
    "f4e2m1fn": ("ui8", 4, lambda q: torch.where(q >= 8, -1.0, 1.0) * E2M1[(q & 7).long()]),
}
"""How elements of weights are coded: the dtype that holds a code in the IR (one a byte), bits of a code where it's stored, and
the values (f32, exact) that codes stand for. `i4` is -8..7, `ui4` 0..15; floats of 8 and 4 bits are their bit patterns (OCP's
formats for machine learning; f4e2m1fn is that of MXFP4)."""


class Dequantize(Op, name="dequantize"):
    """What quantised elements stand for: (value(q) - zero) * scale, computed in f32 and rounded to the result's dtype.

    `q` holds codes of the form `code` (one of `CODES`). Operand 1, if there is one, is `scale`, operand 2 `zero`; both of floats
    and of q's rank. Each of their dims has q's size, or 1 for all, or an entry for each block of equal length along q's.
    Passes leave this op only where a family decodes it; elsewhere `expand-dequantize` writes it out.
    """

    kind = Kind.ELEMENTWISE
    work = 3
    q: Tensor
    parameters: Variadic
    code: ir.StringAttr
    dtype: ir.StringAttr
    y: Out

    @classmethod
    def infer(cls, operands: list[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
        q, *parameters = operands
        if attrs["code"] not in CODES or q.dtype.name != CODES[attrs["code"]][0]:
            raise TypeError_(f"{q} holds no codes of the form {attrs['code']!r}")
        if len(parameters) > 2:
            raise TypeError_("dequantize takes a scale and a zero point, not more")
        for p in parameters:
            if p.rank != q.rank or not p.dtype.is_float:
                raise TypeError_(f"{p} doesn't scale {q}")
            for blocks, size in zip(p.shape, q.shape, strict=True):
                if blocks not in (1, size) and not _divides(blocks, size):
                    raise TypeError_(f"the blocks of {p} don't divide {q}")
        if attrs["dtype"] not in DTYPES or not DTYPES[attrs["dtype"]].is_float:
            raise TypeError_(f"{attrs['dtype']} is no dtype of floats")
        return [q.with_dtype(attrs["dtype"])]

    def reference(self, args: Args, sizes: Any) -> Args:
        q, *parameters = args
        return [dequantize(q, attr(self, "code"), *parameters).to(from_mlir(self.results[0]).dtype.torch)]

    def flops(self) -> sympy.Expr:
        return 2 * from_mlir(self.operands[0]).numel


def dequantize(q: torch.Tensor, code: str, scale: torch.Tensor | None = None, zero: torch.Tensor | None = None) -> torch.Tensor:
    """The values (f32) that codes stand for, by the parameters of a `Dequantize`."""
    value = CODES[code][2](q)
    if zero is not None:
        value = value - along(zero.float(), q.shape)
    return value if scale is None else value * along(scale.float(), q.shape)


ROUNDED: Final = 256
"""Steps of k that share a scale of rows rounded to int8, at most: their sums of products of bytes are exact in f32."""

_LEAST_LARGEST: Final = 2.0**-100


def round_rows(x: torch.Tensor, group: int) -> torch.Tensor:
    """x [..., K] as f32, rounded to the multiples that int8 has, to nearest and ties to even: in each group of `group` steps of K,
    `ROUNDED` after `ROUNDED` of them by a scale of their own, the largest over 127. NaN where one of these isn't finite."""
    k, x = x.shape[-1], x.float()
    out = []
    for start, end in (
        (s, min(s + ROUNDED, g + group, k)) for g in range(0, k, group) for s in range(g, min(g + group, k), ROUNDED)
    ):
        b = x[..., start:end]
        largest = b.abs().amax(-1, keepdim=True)
        finite = largest < torch.inf
        known = torch.where(finite, largest, 0.0).clamp(min=_LEAST_LARGEST)
        most = torch.full_like(known, 127)  # a number over a tensor is its reciprocal times the number: two roundings
        q = (torch.where(b.abs() < torch.inf, b, 0.0) * (most / known)).round()
        out.append(q * torch.where(finite, known / most, torch.nan))
    return torch.cat(out, -1) if out else x


def _divides(blocks: sympy.Expr, size: sympy.Expr) -> bool:
    return bool(size.is_Integer and blocks.is_Integer and blocks > 0 and size % blocks == 0)


def along(p: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """A parameter for each element: its blocks repeated along every dim."""
    for d, size in enumerate(shape):
        if p.shape[d] != size:
            p = p.expand(*p.shape[:d], size, *p.shape[d + 1 :]) if p.shape[d] == 1 else p.repeat_interleave(size // p.shape[d], d)
    return p


__all__ = ["CODES", "E2M1", "ROUNDED", "Dequantize", "along", "dequantize", "round_rows"]
