"""Images that lie in memory as bf16 or f16: kernels widen their elements as they load them, or bring two channels to a pair."""

from __future__ import annotations

from typing import Protocol

from dhlo.codegen.kernel_ir.builder import BITS, F32, I32, I64, Fn, V, vec

__all__ = ["Bounds", "Stored", "load_column_pairs", "load_elements", "load_pairs"]

Bounds = tuple[V, V] | None
"""Where an image's memory begins and ends, for targets on which masked loads of 16-bit elements are loads of each."""
_I16 = "i16"


class Stored(Protocol):
    """Parameters that say how an image lies in memory."""

    @property
    def elem(self) -> str:
        """What is computed in."""
        ...

    @property
    def image(self) -> str:
        """The type in memory, bf16 or f16; "" if it is `elem`."""
        ...


def load_elements(
    f: Fn, p: Stored, at: V, lanes: int, *, step: int = 1, mask: V | None = None, fill: float | V = 0, bounds: Bounds = None
) -> V:
    """Every step-th element from `at` on as a vector of `p.elem`, `fill` where `mask` doesn't hold: that is per lane, for step 2
    per element of the double vector. What is stored narrow has no other fill than 0."""
    if p.image:
        return _widened(f, p.image, _halves(f, at, lanes, step, mask, bounds))
    ty = vec(p.elem, lanes)
    if mask is None:
        return f.load(at, ty)
    zero = fill if isinstance(fill, V) else f.const(fill, ty)
    if step == 1:
        return f.masked_load(at, mask, zero)
    if step == 2:
        low = f.masked_load(at, f.shuffle(mask, mask, range(lanes)), zero)
        high = f.masked_load(f.gep(at, lanes, p.elem), f.shuffle(mask, mask, range(lanes, 2 * lanes)), zero)
        return f.shuffle(low, high, range(0, 2 * lanes, 2))
    return f.gather(f.gep(at, f.dense([i * step for i in range(lanes)], I32), p.elem), mask, zero)


def load_pairs(
    f: Fn,
    at: V,
    other: V,
    lanes: int,
    *,
    step: int = 1,
    mask: V | None = None,
    other_mask: V | None = None,
    both: V | None = None,
    bounds: Bounds = None,
) -> V:
    """Elements of two channels side by side, the first in the low half of an i32, as a vector: as `load_elements`, of `at` and of
    `other`, whose mask is that of `at` unless it has one, and which is 0 where `both` doesn't hold."""
    masks = (mask, mask if other_mask is None else other_mask)
    low, high = (_halves(f, x, lanes, step, m, bounds) for x, m in zip((at, other), masks, strict=True))
    high = f.shl(high, 16)
    return f.or_(low, high if both is None else f.select(f.splat(both, lanes), high, f.const(0, high.type)))


def load_column_pairs(
    f: Fn, at: V, lanes: int, *, step: int, mask: V, other_mask: V, both: V | None = None, bounds: Bounds = None
) -> V:
    """Every step-th 16-bit element from `at` on in the low half of an i32, the one behind it in the high one: 0 where `mask` and
    `other_mask` don't hold. For step 2 `mask` is of both, per element of the double vector. High halves are 0 where `both` doesn't
    hold."""
    if step != 2:
        other = f.gep(at, 1, _I16)
        return load_pairs(f, at, other, lanes, step=step, mask=mask, other_mask=other_mask, both=both, bounds=bounds)
    words = _words(f, at, lanes, mask, bounds)
    return words if both is None else f.and_(words, f.splat(f.select(both, f.const(-1, I32), f.const(0xFFFF, I32)), lanes))


def _widened(f: Fn, image: str, halves: V) -> V:
    if image == "bf16":
        return f.bitcast(f.shl(halves, 16), F32)
    return f.cast(f.bitcast(f.cast(halves, _I16), "f16"), F32)


def _halves(f: Fn, at: V, lanes: int, step: int, mask: V | None, bounds: Bounds) -> V:
    """Every step-th of 16-bit elements as the low halves of i32."""
    if step == 1:
        return f.cast(_loaded(f, at, lanes, mask, bounds), I32, signed=False)
    if step == 2:
        return f.and_(_words(f, at, lanes, mask, bounds), 0xFFFF)
    assert mask is not None
    # The words that hold them, which lie in the same pages.
    odd = f.and_(f.ptr_to_int(at), 2)
    base = f.int_to_ptr(f.sub(f.ptr_to_int(at), odd))
    byte = f.add(f.dense([2 * i * step for i in range(lanes)], I32), f.splat(f.cast(odd, I32), lanes))
    words = f.gather(f.gep(base, f.and_(byte, -4), "i8"), mask, f.const(0, vec(I32, lanes)), BITS[I32] // 8)
    return f.and_(f.shr(words, f.shl(f.and_(byte, 2), 3)), 0xFFFF)


def _words(f: Fn, at: V, lanes: int, mask: V | None, bounds: Bounds) -> V:
    """16-bit elements, two to an i32; the mask is of elements."""
    x, ty = _loaded(f, at, 2 * lanes, mask, bounds), vec(I32, lanes)
    return f.op(ty, f"vector.bitcast {x.name} : {x.type} to {ty}")


def _loaded(f: Fn, at: V, lanes: int, mask: V | None, bounds: Bounds) -> V:
    """16-bit elements, 0 where the mask doesn't hold."""
    ty = vec(_I16, lanes)
    if mask is None:
        return f.load(at, ty)
    zero = f.const(0, ty)
    if bounds is None:
        return f.masked_load(at, mask, zero)
    begin, end = (f.ptr_to_int(x) if x.type != I64 else x for x in bounds)
    first = f.ptr_to_int(at)
    inside = f.and_(f.cmp("ge", first, begin), f.cmp("le", f.add(first, lanes * BITS[_I16] // 8), end))
    return f.if_else(inside, lambda: [f.select(mask, f.load(at, ty), zero)], lambda: [f.masked_load(at, mask, zero)], [ty])[0]
