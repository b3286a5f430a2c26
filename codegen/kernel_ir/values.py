"""Values of kernel functions, and their types as MLIR spells them."""

from __future__ import annotations

import struct
from dataclasses import dataclass

__all__ = ["F32", "F64", "FLOATS", "I1", "I8", "I32", "I64", "PTR", "Num", "V", "elem_of", "float_text", "lanes_of", "vec"]

I1, I8, I32, I64, F32, F64, PTR = "i1", "i8", "i32", "i64", "f32", "f64", "!llvm.ptr"
_VEC = "vector<"
FLOATS = ("f16", "bf16", "f32", "f64")


def vec(elem: str, lanes: int) -> str:
    """The MLIR type of a vector of `lanes` elements."""
    return f"vector<{lanes}x{elem}>"


def elem_of(ty: str) -> str:
    """The element type of a vector type; a scalar type is its own."""
    return ty.partition("x")[2][:-1] if ty.startswith(_VEC) else ty


def lanes_of(ty: str) -> int:
    """Lanes of a vector type, 0 for a scalar."""
    return int(ty[len(_VEC) :].partition("x")[0]) if ty.startswith(_VEC) else 0


@dataclass(frozen=True, slots=True)
class V:
    """An SSA value: its name in the text and its MLIR type."""

    name: str
    type: str

    @property
    def elem(self) -> str:
        return elem_of(self.type)

    @property
    def lanes(self) -> int:
        return lanes_of(self.type)

    @property
    def is_float(self) -> bool:
        return self.elem in FLOATS


Num = V | int | float


def float_text(x: float, elem: str) -> str:
    """MLIR takes decimal literals only for finite values; the others are written as bits."""
    if elem in ("f16", "bf16") and (x != x or x in (float("inf"), float("-inf"))):
        table = {"f16": ("0x7E00", "0x7C00", "0xFC00"), "bf16": ("0x7FC0", "0x7F80", "0xFF80")}[elem]
        return table[0] if x != x else table[1] if x > 0 else table[2]
    if elem == "f32":
        if x == x and abs(x) > 3.4028235677973366e38 and abs(x) != float("inf"):
            x = float("inf") if x > 0 else float("-inf")
        return f"0x{struct.unpack('<I', struct.pack('<f', x))[0]:08X}"
    if elem == "f64":
        return f"0x{struct.unpack('<Q', struct.pack('<d', x))[0]:016X}"
    mantissa, e, exponent = repr(float(x)).partition("e")
    return (mantissa if "." in mantissa else mantissa + ".0") + e + exponent
