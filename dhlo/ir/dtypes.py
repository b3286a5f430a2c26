"""Element types of tensors: the one table of their names, bits and codes, from which everything else is made."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import torch

__all__ = ["DTYPES", "REGISTER_BITS", "DType"]


@dataclass(frozen=True)
class DType:
    """An element type. Two are equal if their names are.

    name         as in MLIR
    torch_name   torch's, and that of the C API, in lower case
    bits         of an element in memory, where elements lie without gaps
    register     the MLIR type that values have in kernels; of complex numbers, the element type of their parts
    code         the number of `dhlo_dtype` in the C headers; a test compares them
    """

    name: str
    torch_name: str = field(compare=False)
    bits: int = field(compare=False)
    register: str = field(compare=False)
    code: int = field(compare=False)
    is_float: bool = field(default=False, compare=False)
    is_complex: bool = field(default=False, compare=False)

    @cached_property
    def torch(self) -> torch.dtype:
        import torch  # slow to import, and of no use to who only looks at files

        dtype: torch.dtype = getattr(torch, self.torch_name)
        return dtype

    @cached_property
    def bytes(self) -> int:
        """Of an element in memory. Raises TypeError for a type of which several share a byte."""
        if self.bits % 8:
            raise TypeError(f"an element of {self} has {self.bits} bits, which is no number of bytes")
        return self.bits // 8

    @property
    def is_int(self) -> bool:
        return not self.is_float and not self.is_complex and self.name != "i1"

    @property
    def is_bool(self) -> bool:
        return self.name == "i1"

    def __str__(self) -> str:
        return self.name


_FLOAT: Final[dict[str, Any]] = {"is_float": True}
_COMPLEX: Final[dict[str, Any]] = {"is_complex": True}
DTYPES: Final[dict[str, DType]] = {
    d.name: d
    for d in (
        DType("i1", "bool", 8, "i1", 0),
        DType("ui8", "uint8", 8, "i16", 1),
        DType("i8", "int8", 8, "i8", 2),
        DType("i16", "int16", 16, "i16", 3),
        DType("i32", "int32", 32, "i32", 4),
        DType("i64", "int64", 64, "i64", 5),
        DType("f16", "float16", 16, "f32", 6, **_FLOAT),
        DType("bf16", "bfloat16", 16, "f32", 7, **_FLOAT),
        DType("f32", "float32", 32, "f32", 8, **_FLOAT),
        DType("f64", "float64", 64, "f64", 9, **_FLOAT),
        DType("complex<f32>", "complex64", 64, "f32", 10, **_COMPLEX),
        DType("complex<f64>", "complex128", 128, "f64", 11, **_COMPLEX),
        DType("f8E4M3FN", "float8_e4m3fn", 8, "f32", 12, **_FLOAT),
        DType("f8E5M2", "float8_e5m2", 8, "f32", 13, **_FLOAT),
        DType("complex<f16>", "complex32", 32, "f16", 14, **_COMPLEX),
        DType("ui64", "uint64", 64, "i64", 15),  # bits: no op computes with it (dhlo/ir/dialect.py)
    )
}
"""By name."""

REGISTER_BITS: Final[dict[str, int]] = {
    "i1": 1,
    **{d.name: d.bits for d in DTYPES.values() if d.is_float and d.bits > 8 or d.is_int and d.register == d.name},
}
"""Bits of each MLIR type that a lane of a vector can have."""
