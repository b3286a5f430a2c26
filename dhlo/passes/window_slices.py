"""Pools and small depthwise convolutions of images whose channels lie last are arithmetic on slices of these: pool of transpose ->
transpose of max or sum of slices, conv of transpose -> transpose of sum of products.

Kernels of both have neighbours in a row in their lanes, and would have such an image transposed before; loops take its channels as
they lie, which fill vectors of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import product
from typing import Any

import sympy
import torch

from dhlo.ir.dialect import Kind, attr, build, defining
from dhlo.ir.handles import Module, Value
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.ops.compute import Conv, Pool
from dhlo.ir.ops.movement import Broadcast, Full, Pad, Reshape, Slice, Transpose, Weight
from dhlo.ir.symbols import FloorDiv, show
from dhlo.ir.symbols import product as product_of
from dhlo.ir.types import DTYPES, from_mlir
from dhlo.passes.late_transposes import across
from dhlo.passes.replace import replace_each

__all__ = ["window_slices"]

# Elements of a window, at most: each is read anew, and of a convolution beside a weight. Channels, at least.
_MOST_TAPS, _MOST_WEIGHED, _LEAST_CHANNELS = 25, 9, 8


def window_slices(module: Module, weights: dict[str, torch.Tensor]) -> None:
    """pool of transpose -> transpose of max or avg of slices; conv -> sum of products, where it is transposed back, too."""
    replace_each(module, Pool, _pooled)
    replace_each(module, Conv, partial(_depthwise, weights=weights))


@dataclass(frozen=True)
class _Windows:
    """Windows over the dims `places` of an image, one for each of `outs`: their elements are so far `apart`, and they themselves
    `strides`; `pads` before and after the image is room for all of them."""

    places: Sequence[int]
    sizes: Sequence[int]
    apart: Sequence[int]
    strides: Sequence[int]
    pads: Sequence[tuple[int, int]]
    outs: Sequence[sympy.Expr]

    def slices(self, x: Value, outside: float) -> list[Value]:
        """The windows' elements, one place in all windows after the other; `outside` the image there is that."""
        t = from_mlir(x)
        if any(map(any, self.pads)):
            low, shape = [0] * t.rank, list(t.shape)
            for d, (before, after) in zip(self.places, self.pads, strict=True):
                low[d], shape[d] = before, shape[d] + before + after
            x = build(Pad, [x], {"low": [str(n) for n in low], "value": outside}, results=[t.with_shape(shape)]).results[0]
        steps, shape = [1] * t.rank, list(t.shape)
        for d, s, o in zip(self.places, self.strides, self.outs, strict=True):
            steps[d], shape[d] = s, o
        out = []
        for place in product(*(range(n) for n in self.sizes)):
            starts = ["0"] * t.rank
            for d, k, a in zip(self.places, place, self.apart, strict=True):
                starts[d] = str(k * a)
            out.append(build(Slice, [x], {"starts": starts, "steps": steps}, results=[t.with_shape(shape)]).results[0])
        return out


def _pooled(op: Pool) -> Value | None:
    window, stride, padding, dilation = (attr(op, name) for name in ("window", "stride", "padding", "dilation"))
    found = _channels_last(op.operands[0], len(window))
    if found is None or sympy.prod(window) > _MOST_TAPS:
        return None
    (x, perm), n = found, len(window)
    sizes, outs = from_mlir(op.operands[0]).shape[-n:], from_mlir(op.results[0]).shape[-n:]
    places = zip(outs, sizes, window, stride, padding, dilation, strict=True)
    beyond = not all((o - FloorDiv(s + 2 * p - d * (k - 1) - 1, step) - 1) == 0 for o, s, k, step, p, d in places)
    same_count = attr(op, "divisor") or not beyond and (attr(op, "count_pad") or not any(padding))
    if attr(op, "how") == "avg" and not same_count:
        return None
    pads = [(p, p + (s - 1 if beyond else 0)) for p, s in zip(padding, stride, strict=True)]
    windows = _Windows(perm[-n:], window, dilation, stride, pads, outs)
    y = _largest(x(), windows) if attr(op, "how") == "max" else _mean(x(), windows, attr(op, "divisor"))
    turned: Value = build(Transpose, [y], {"perm": perm}).results[0]
    return turned


def _channels_last(v: Value, spatial: int) -> tuple[Callable[[], Value], list[int]] | None:
    """What makes the value that v is a transposed view of, and how it is transposed, where another dim than the trailing `spatial`
    ones lies last, and fills vectors."""
    found, t = across(v), from_mlir(v)
    if found is None:
        return None
    channels = found[1].index(t.rank - 1)
    few = t.shape[channels].is_Integer and t.shape[channels] < _LEAST_CHANNELS
    return None if channels >= t.rank - spatial or few else found


def _largest(x: Value, windows: _Windows) -> Value:
    dtype = from_mlir(x).dtype
    least = float("-inf") if dtype.is_float else 0.0 if dtype.name == "ui8" else -(2.0 ** (8 * dtype.bytes - 1))
    return reduce(lambda a, b: build(ew.Maximum, [a, b]).results[0], windows.slices(x, least))


def _mean(x: Value, windows: _Windows, divisor: int) -> Value:
    """Rounded once, from f32 or wider."""
    dtype = from_mlir(x).dtype
    wide = DTYPES["f32"] if dtype.name in ("bf16", "f16") else dtype

    def of(y: Value, target: Any) -> Value:
        t = from_mlir(y)
        return y if t.dtype == target else build(ew.Convert, [y], results=[t.with_dtype(target)]).results[0]

    total = reduce(lambda a, b: build(ew.Add, [a, b]).results[0], (of(s, wide) for s in windows.slices(x, 0.0)))
    by = sympy.Integer(divisor or int(sympy.prod(windows.sizes)))
    count = build(Full, [], {"value": show(by)}, results=[from_mlir(total)]).results[0]
    return of(build(ew.Div, [total, count]).results[0], dtype)


def _depthwise(op: Conv, weights: dict[str, torch.Tensor]) -> Value | None:
    x, w, out = from_mlir(op.operands[0]), from_mlir(op.operands[1]), from_mlir(op.results[0])
    kernel, groups, made_by = w.shape[2:], attr(op, "groups"), defining(op.operands[1])
    each = not attr(op, "transposed") and x.shape[1] == out.shape[1] == groups
    if not each or x.dtype.name not in ("f32", "f64") or product_of(kernel) > _MOST_WEIGHED:
        return None
    found, values = _channels_last(op.operands[0], len(kernel)), None
    if isinstance(made_by, Weight):
        values = weights.get(attr(made_by, "name_"))
    if found is None or found[1][1] != x.rank - 1 or values is None or not _is_turned_back(op.results[0]):
        return None
    image, perm = found
    sizes = [int(k) for k in kernel]
    windows = _Windows(perm[2:], sizes, attr(op, "dilation"), attr(op, "stride"), op.pads, out.shape[2:])
    name, taps = f"{attr(made_by, 'name_')}.by_places", w.with_shape([product_of(kernel), w.shape[0]])
    weights[name] = values.detach().reshape(int(w.shape[0]), -1).t().contiguous()
    table = build(Weight, [], {"name_": name}, results=[taps]).results[0]

    def weighed(k: int, part: Value) -> Value:
        row = build(Slice, [table], {"starts": [str(k), "0"], "steps": [1, 1]}, results=[w.with_shape([1, w.shape[0]])]).results[0]
        row = build(Reshape, [row], results=[w.with_shape([w.shape[0]])]).results[0]
        wide = build(Broadcast, [row], {"dims": [x.rank - 1]}, results=[from_mlir(part)]).results[0]
        result: Value = build(ew.Mul, [part, wide]).results[0]
        return result

    products = [weighed(k, part) for k, part in enumerate(windows.slices(image(), 0.0))]
    y = reduce(lambda a, b: build(ew.Add, [a, b]).results[0], products)
    turned: Value = build(Transpose, [y], {"perm": perm}).results[0]
    return turned


def _is_turned_back(v: Value) -> bool:
    """Whether all that reads v, through arithmetic and reshapes, is a transposition that ends in v's dim 1."""
    todo, seen, channels = [v], {v}, from_mlir(v).shape[1]
    found = False
    while todo:
        for user in (use.owner.operation.opview for use in todo.pop().uses):
            if isinstance(user, Transpose):
                if from_mlir(user.results[0]).shape[-1] != channels:
                    return False
                found = True
            elif not (isinstance(user, Reshape) or getattr(user, "kind", None) is Kind.ELEMENTWISE):
                return False
            elif user.results[0] not in seen:
                seen.add(user.results[0])
                todo.append(user.results[0])
    return found
