"""Right sides of products that are kept as small codes: their forms in panels, and packing at compile time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from dhlo.codegen.kernel_ir.builder import BITS, F32

__all__ = ["COLUMNS", "FORMS", "Coding", "Form", "QuantisedMatrix"]

COLUMNS: Final = 32
"""Of a panel, on every target."""

# So that what numbers of few bits add up to can be scaled without overflow.
_LARGEST_PARAMETER: Final = 2.0**80
# A group's bytes of codes for each byte that shorter scales save.
_WORTH_BYTES: Final = 32


@dataclass(frozen=True)
class Form:
    """How codes lie in a panel: units of `depth` steps of k by 32 columns, in `bytes` bytes. What is stored of a code is a number
    near it: code = (stored - bias) / factor.

    kind   "lanes": a column's steps lie together in an i32: a byte each, signed, or a nibble each, two steps that are four apart
           in a byte. "rows": a step's columns lie together
    """

    name: str
    kind: str
    depth: int
    bytes: int
    bias: int = 0
    factor: float = 1.0

    @property
    def nibbles(self) -> bool:
        return self.depth == 8


FORMS: Final[dict[str, Form]] = {
    f.name: f
    for f in (
        Form("i8", "lanes", 4, 128),
        Form("ui8", "lanes", 4, 128, bias=-128),
        Form("i4", "lanes", 8, 128, bias=8),
        Form("ui4", "lanes", 8, 128),
        Form("f4e2m1fn", "lanes", 8, 128, factor=2.0),  # a table of small integers
        Form("f8e4m3fn", "rows", 4, 128, factor=2.0**-8),  # the bits of an f16 of another bias
        Form("f8e5m2", "rows", 4, 128),
        Form("f16", "rows", 4, 256),
        Form("bf16", "rows", 4, 256),
    )
}
"""By the name of the code (see `dhlo.ir.ops.quantised.CODES`) or of the type of weights that are merely converted."""


@dataclass(frozen=True)
class Coding:
    """What kernels must know of a matrix at compile time: the form of its codes, the types of scales and of zero points ("" where
    there are none). Scales may be "e8m0", powers of two by the exponents of f32.

    A panel is a run of groups of k: the scales of its columns, their zero points, then units. All but the last group are of whole
    units, and it too is filled up with zeros.
    """

    form: Form
    scale: str
    zero: str = ""

    @property
    def name(self) -> str:
        return "_".join(filter(None, [self.form.name, self.scale, self.zero]))

    @property
    def scale_bytes(self) -> int:
        """Of a group's scales."""
        return COLUMNS * _BITS[self.scale] // 8

    @property
    def header_bytes(self) -> int:
        """Of a group: scales and zero points."""
        return self.scale_bytes + (COLUMNS * _BITS[self.zero] // 8 if self.zero else 0)

    @property
    def bias(self) -> int:
        return self.form.bias


class QuantisedMatrix:
    """Constant matrices [batch..., k, n] of codes with a scale, and perhaps a zero point, for each `group` steps of k and each
    column (see `dhlo.dequantize`).

    The data is asked for when the constants are written; `scale` and `zero` are [batch..., groups, n or 1].
    """

    def __init__(self, code: str, codes: torch.Tensor, scale: torch.Tensor | None, zero: torch.Tensor | None) -> None:
        self.codes, self.form = codes, FORMS[code]
        *self.batch, self.k, self.n = codes.shape
        ones = torch.ones([1] * codes.dim())
        self.scale = _narrowest(self._scales(ones if scale is None else scale.float()))
        self.zero = None if zero is None else _narrowest(zero.float() * self.form.factor)
        if self._saves_by_exponents():
            self.scale = (self.scale.float().view(torch.int32) >> 23).to(torch.uint8)
        names = [str(t.dtype).removeprefix("torch.") for t in (self.scale, *([] if self.zero is None else [self.zero]))]
        self.coding = Coding(self.form, *(_NAMES[n] for n in names))

    @staticmethod
    def fits(code: str, codes: torch.Tensor, *parameters: torch.Tensor) -> bool:
        """Whether there is a form for such a matrix: it isn't empty, groups are of whole units, and products may be scaled after
        sums, since no scale or zero point is infinite, NaN or out of all proportion."""
        if code not in FORMS or not codes.numel():
            return False
        groups = {p.shape[-2] for p in parameters} - {1}
        if len(groups) > 1 or groups and codes.shape[-2] // groups.pop() % FORMS[code].depth:
            return False
        if not all(bool((p.float().abs() <= _LARGEST_PARAMETER).all()) for p in parameters):
            return False
        return all(p.shape[-1] in (1, codes.shape[-1]) and _whole_batches(p, codes) for p in parameters)

    def _saves_by_exponents(self) -> bool:
        """Whether the exponents of scales are enough, and save a worthwhile part of a group: it no longer begins with a line."""
        bits = self.scale.float().view(torch.int32)
        return bool(((bits & ~_EXPONENT == 0) & (bits != 0) & (bits != _EXPONENT)).all()) and (
            COLUMNS * _WORTH_BYTES >= self.units * self.form.bytes
        )

    def _scales(self, scale: torch.Tensor) -> torch.Tensor:
        """Scales of what is stored. Those of groups and columns that hold a NaN are NaN: so is every sum with it."""
        scale = scale / self.form.factor
        if self.form.name != "f8e4m3fn":
            return scale
        nan = (self.codes & 0x7F) == 0x7F
        if not bool(nan.any()):
            return scale
        groups = scale.shape[-2]
        found = nan.reshape(*self.batch, groups, self.k // groups, self.n).any(-2)
        return torch.where(found, torch.nan, scale.expand(*self.batch, groups, self.n))

    @cached_property
    def groups(self) -> int:
        return max(p.shape[-2] for p in (self.scale, self.zero) if p is not None)

    @cached_property
    def units(self) -> int:
        """Of a group."""
        return -(-(self.k // self.groups) // self.form.depth)

    @property
    def panels(self) -> int:
        return -(-self.n // COLUMNS)

    @property
    def panel_bytes(self) -> int:
        return self.groups * (self.coding.header_bytes + self.units * self.form.bytes)

    @property
    def matrix_bytes(self) -> int:
        return self.panels * self.panel_bytes

    @property
    def bytes(self) -> int:
        """Of all matrices."""
        return int(np.prod(self.batch, dtype=np.int64)) * self.matrix_bytes

    def pack(self) -> npt.NDArray[np.uint8]:
        """[batch, panels, groups, header and units], as bytes."""
        codes = self.codes.detach().reshape(-1, self.k, self.n)
        out = torch.zeros((len(codes), self.panels, self.groups, self.panel_bytes // self.groups), dtype=torch.uint8)
        at = 0
        for p in (self.scale, self.zero):
            if p is not None:
                wide = p.expand(*self.batch, p.shape[-2], p.shape[-1]).reshape(-1, p.shape[-2], p.shape[-1])
                wide = _pad(wide.expand(-1, self.groups, self.n), COLUMNS)
                rows = wide.reshape(len(codes), self.groups, self.panels, COLUMNS).transpose(1, 2).contiguous()
                nbytes = COLUMNS * p.element_size()
                out[..., at : at + nbytes] = rows.view(torch.uint8)
                at += nbytes
        for matrix, to in zip(codes, out, strict=True):
            to[..., at:] = self._units(matrix)
        return out.reshape(-1).numpy()

    def _units(self, codes: torch.Tensor) -> torch.Tensor:
        """The codes [k, n] of a matrix as bytes [panels, groups, units of a group]."""
        form, group = self.form, self.k // self.groups
        whole = self.units * form.depth
        x = _stored(codes, form)
        if whole > group:
            x = torch.cat([x, x.new_zeros((whole - group, self.n))])  # there is one group
        x = _pad(x, COLUMNS).reshape(self.groups, self.units, form.depth, self.panels, COLUMNS)
        if form.nibbles:
            x = x[:, :, :4] | x[:, :, 4:] << 4
        order = (3, 0, 1, 4, 2) if form.kind == "lanes" else (3, 0, 1, 2, 4)
        return x.permute(order).contiguous().view(torch.uint8).reshape(self.panels, self.groups, -1)


def _stored(codes: torch.Tensor, form: Form) -> torch.Tensor:
    """What is stored of codes: bytes, of which nibbles take the low half, or halves of 16 bits."""
    if form.depth == 8:
        return ((codes.to(torch.int16) + form.bias) & 15).to(torch.uint8)
    if form.kind == "lanes":
        return (codes.to(torch.int16) + form.bias).to(torch.int8).view(torch.uint8)
    return codes.view(torch.int16) if form.bytes == 256 else codes


_NAMES = {"float32": F32, "float16": "f16", "bfloat16": "bf16", "uint8": "e8m0"}
_BITS = {**BITS, "e8m0": 8}
_EXPONENT = 0x7F800000


def _narrowest(x: torch.Tensor) -> torch.Tensor:
    """The numbers in half as many bytes, if these hold them."""
    for dtype in (torch.float16, torch.bfloat16):
        if torch.equal(x.to(dtype).float().nan_to_num(1e38), x.nan_to_num(1e38)):
            return x.to(dtype)
    return x


def _pad(x: torch.Tensor, multiple: int) -> torch.Tensor:
    """With zeros in the last dim."""
    rest = -x.shape[-1] % multiple
    return torch.cat([x, x.new_zeros((*x.shape[:-1], rest))], -1) if rest else x


def _whole_batches(p: torch.Tensor, codes: torch.Tensor) -> bool:
    return all(a in (1, b) for a, b in zip(_lead(p), _lead(codes), strict=True))


def _lead(x: torch.Tensor) -> Sequence[Any]:
    return x.shape[:-2]
