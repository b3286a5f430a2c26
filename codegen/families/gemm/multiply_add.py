"""Products of a register tile's units: by a multiply-add, a dot product, or bytes taken apart."""

from __future__ import annotations

from dhlo.codegen.families.gemm.register_tile import TileSpec, depth
from dhlo.codegen.kernel_ir.builder import BITS, F32, I8, I32, Fn, V, vec

__all__ = ["add_pair_products", "as_vector_of", "multiply_add", "widened_pair"]


def multiply_add(fn: Fn, elem: str, spec: TileSpec, x: V, y: V, sum_: V) -> V:
    """sum_ + x * y for vectors of units, or of elements of such that lie apart (`left_parts`); units of several elements add all
    their products."""
    if depth(elem) == 1 or spec.left_parts(elem) > 1:
        return fn.fma(x, y, sum_)
    dot = spec.dot(elem)
    if dot is not None:
        if spec.target.lane_factors and not (elem == I8 and spec.left == "ui8"):
            x, y = y, x  # which is what LLVM takes a lane for; of bytes of two kinds it knows both forms
        return fn.intrinsic(dot.intrinsic, sum_.type, sum_, as_vector_of(fn, elem, x), as_vector_of(fn, elem, y))
    pairs = spec.target.pair_products
    wide = "i16" if pairs else I32
    for x_byte, y_byte in zip(_bytes(fn, x, wide, unsigned=spec.unsigned), _bytes(fn, y, wide), strict=True):
        sum_ = add_pair_products(fn, x_byte, y_byte, sum_) if pairs else fn.add(sum_, fn.mul(x_byte, y_byte))
    return sum_


def add_pair_products(fn: Fn, x: V, y: V, sum_: V) -> V:
    """sum_ (i32) + x * y for vectors of the same size that hold pairs of i16, both products of which are added. Where there is an
    instruction for that LLVM takes it."""
    x, y = as_vector_of(fn, "i16", x), as_vector_of(fn, "i16", y)
    return fn.add(sum_, fn.intrinsic(fn.target.pair_products, sum_.type, x, y))


def widened_pair(fn: Fn, pairs: V) -> tuple[V, V]:
    """The first and the second of vectors of pairs of bf16, as f32."""
    return fn.bitcast(fn.shl(pairs, 16), F32), fn.bitcast(fn.and_(pairs, -65536), F32)


def as_vector_of(fn: Fn, elem: str, x: V) -> V:
    """The same bits."""
    ty = vec(elem, x.lanes * BITS[x.elem] // BITS[elem])
    return x if ty == x.type else fn.op(ty, f"vector.bitcast {x.name} : {x.type} to {ty}")


def _bytes(fn: Fn, units: V, wide: str, *, unsigned: bool = False) -> list[V]:
    """The first, second, ... byte of every `wide` integer in a vector of units, as such integers."""
    x, last = as_vector_of(fn, wide, units), BITS[wide] - 8
    if unsigned:
        return [fn.and_(fn.shr(x, at) if at else x, 255) for at in range(0, last + 1, 8)]
    return [fn.shr(fn.shl(x, last - at) if at < last else x, last) for at in range(0, last + 1, 8)]
