"""Interpolation of images of bytes, in whole numbers, as ATen computes it (aten/src/ATen/native/cpu/UpSampleKernel.cpp)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dhlo.frontend.builder import OpBuilder, Value
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.ops import vision
from dhlo.ir.symbols import ceil_div
from dhlo.ir.types import DTYPES

__all__ = ["byte_taps", "resized_bytes"]

_F64 = DTYPES["f64"]
_WEIGHT_BITS, _MOST_PLACES = 15, 22  # of whole weights, and binary places that these have at most


def byte_taps(find: Callable[..., Any]) -> Callable[..., tuple[Value, Value, Value]]:
    """Of what finds taps one by one: their places [taps, out], each place once with the sum of its weights, as those beyond an edge
    are on it, and the greatest weight that a sum comes by."""

    def table(b: OpBuilder, own: Any, out: Any, factor: Any, corners: bool, dtype: Any) -> tuple[Value, Value, Value]:
        taps = find(b, own, out, factor, corners, dtype)
        places, first = [], taps[0][0]
        most = b.full([1], 0.0, dtype)
        for k in range(len(taps)):
            place, total = b.add(first, k), b.full([out], 0.0, dtype)
            for at, w in taps:
                total = b.add(total, b.select(b.ew(ew.Eq, at, place), w, 0.0))
                most = b.maximum(most, b.reduce(total, "max", [0], keepdim=True))
            places.append((b.minimum(place, own - 1), total))
        at, weights = (b.concat([b.unsqueeze(x, 0) for x in column], 0) for column in zip(*places, strict=True))
        return at, weights, most

    return table


def resized_bytes(b: OpBuilder, x: Value, sizes: Sequence[tuple[Any, Any]], corners: bool, find: Callable[..., Any]) -> Value:
    """x ui8 [.., H, W] -> ui8 [.., *sizes], rounded after each dim, the last one first. `find(b, size, result's size, factor,
    corners, dtype)` gives places [taps, out], their weights, and a third value: the greatest weight [1], or which places count."""
    for d, (out, factor) in reversed(list(zip(range(b.rank(x) - len(sizes), b.rank(x)), sizes, strict=True))):
        at, w, third = find(b, b.shape(x)[d], out, factor, corners, _F64)
        most = b.reduce(b.reduce(w, "max", [0]), "max", [0], keepdim=True) if b.dtype(third).is_bool else third
        powers = b.unary(ew.Exp2, b.iota([_MOST_PLACES], 0, _F64, start=1))
        fits = b.ew(ew.Lt, b.add(b.mul(powers, most), 0.5), float(1 << _WEIGHT_BITS))
        bits = b.convert(b.reduce(b.convert(fits, "i32"), "sum", [0]), "i32")  # binary places of the weights
        w = b.mul(w, b.convert(b.op(ew.ShiftLeft, [b.full([], 1, "i32"), bits]), _F64))
        w = b.convert(b.add(w, b.select(b.ew(ew.Lt, w, 0.0), -0.5, 0.5, dtype=_F64)), "i32")
        taps = b.shape(w)[0]
        weights = b.convert(b.pad(b.transpose(w, [1, 0]), [0, 0], [0, 2 * ceil_div(taps, 2) - taps], 0), "i16")
        x = b.op(vision.ResampledBytes, [x, b.pick(at, 0, 0), weights, b.reshape(bits, [1])], {"dim": d})
    return x
