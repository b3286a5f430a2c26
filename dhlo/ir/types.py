"""Tensor types: element types and symbolic shapes, and their MLIR form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import sympy
import torch

from dhlo.errors import CompileError
from dhlo.ir.dtypes import DTYPES, DType
from dhlo.ir.mlir import ir
from dhlo.ir.symbols import as_expr, ceil_div, is_static, parse, product, show

__all__ = ["DTYPES", "DType", "TensorType", "from_mlir", "from_torch_dtype"]


_BY_TORCH = {d.torch: d for d in DTYPES.values()}


def from_torch_dtype(dtype: torch.dtype) -> DType:
    """Raises CompileError for dtypes that dhlo has no equivalent of: quantised ones and the like."""
    if dtype not in _BY_TORCH:
        known = ", ".join(str(d).removeprefix("torch.") for d in _BY_TORCH)
        raise CompileError(f"tensors of {str(dtype).removeprefix('torch.')} are not supported", hint=f"convert to one of {known}")
    return _BY_TORCH[dtype]


@dataclass(frozen=True)
class TensorType:
    """An element type and a shape of symbolic or static sizes."""

    dtype: DType
    shape: tuple[sympy.Expr, ...]

    @staticmethod
    def of(dtype: DType | str, shape: Sequence[object]) -> TensorType:
        return TensorType(DTYPES[dtype] if isinstance(dtype, str) else dtype, tuple(as_expr(s) for s in shape))

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> sympy.Expr:
        return product(self.shape)

    @property
    def bytes(self) -> sympy.Expr:
        """Of a dense tensor in memory, rounded up to a whole one."""
        n, bits = self.numel, self.dtype.bits
        return n * (bits // 8) if bits % 8 == 0 else ceil_div(n * bits, 8)

    @cached_property
    def symbols(self) -> frozenset[str]:
        """The names of the symbols in its sizes."""
        return frozenset(s.name for e in self.shape for s in e.free_symbols)

    @property
    def is_static(self) -> bool:
        return all(is_static(s) for s in self.shape)

    def with_shape(self, shape: Sequence[object]) -> TensorType:
        return TensorType.of(self.dtype, shape)

    def with_dtype(self, dtype: DType | str) -> TensorType:
        return TensorType(DTYPES[dtype] if isinstance(dtype, str) else dtype, self.shape)

    def mlir(self) -> Any:
        """`tensor<?x64xf32, #dhlo.shape<["s0", "64"]>>`; the encoding is left out where all sizes are static."""
        return ir.Type.parse(str(self))

    def __str__(self) -> str:
        dims = "".join(f"{s}x" if is_static(s) else "?x" for s in self.shape)
        if self.is_static:
            return f"tensor<{dims}{self.dtype}>"
        names = ", ".join(f'"{show(s)}"' for s in self.shape)
        return f"tensor<{dims}{self.dtype}, #dhlo.shape<[{names}]>>"


_FROM_MLIR: dict[str, TensorType] = {}


def from_mlir(ty: Any) -> TensorType:
    """The tensor type of an MLIR type or value. Raises ValueError for types that no tensor of a program has."""
    if isinstance(ty, ir.Value):
        ty = ty.type
    text = str(ty)
    hit = _FROM_MLIR.get(text)
    if hit is None:
        hit = _FROM_MLIR[text] = _read(ty, text)
    return hit


def _read(ty: Any, text: str) -> TensorType:
    if not isinstance(ty, ir.RankedTensorType) or str(ty.element_type) not in DTYPES:
        raise ValueError(f"{text} is not a tensor of {', '.join(DTYPES)}")
    dtype, encoding = DTYPES[str(ty.element_type)], ty.encoding
    sizes = [None if ty.is_dynamic_dim(d) else ty.get_dim_size(d) for d in range(ty.rank)]
    if encoding is None:
        if None in sizes:
            raise ValueError(f"{text} needs #dhlo.shape for its dynamic dims")
        return TensorType(dtype, tuple(as_expr(s) for s in sizes))
    texts = list(ir.ArrayAttr(encoding.dims)) if str(encoding).startswith("#dhlo.shape<") else []
    if len(texts) != len(sizes) or not all(isinstance(d, ir.StringAttr) for d in texts):
        raise ValueError(f"{text}: the encoding of a tensor is #dhlo.shape with a text for each dim")
    shape = tuple(parse(d.value) for d in texts)
    for e, size in zip(shape, sizes, strict=True):
        if not isinstance(e, sympy.Expr) or e.is_number and not (e.is_Integer and 0 <= e < 1 << 63):
            raise ValueError(f"{text}: {show(e)} is not a size")
        if is_static(e) != (size is not None) or size is not None and e != size:
            raise ValueError(f"{text}: the size {show(e)} contradicts the type")
    return TensorType(dtype, shape)
