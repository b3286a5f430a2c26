"""Which values are mere views: a buffer seen through an offset and one stride per dim."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy

from dhlo.ir.dialect import attr, defining, exprs
from dhlo.ir.handles import Value
from dhlo.ir.ops.host import Stride
from dhlo.ir.ops.movement import Broadcast, Reshape, Slice, Transpose
from dhlo.ir.symbols import evaluate, is_static, symbol, symbols_of
from dhlo.ir.types import from_mlir

__all__ = ["View", "dense_strides", "free_strides", "memory_strides", "reshape_groups", "strided"]


@dataclass(frozen=True)
class View:
    """Element i of the view is element `offset + sum(i * strides)` of the buffer `base`, a dense one but for some arguments."""

    base: Value
    offset: sympy.Expr
    shape: tuple[sympy.Expr, ...]
    strides: tuple[sympy.Expr, ...]

    @property
    def is_dense(self) -> bool:
        """The same as a pointer to a dense tensor."""
        want = dense_strides(self.shape)
        return all(n == 1 or same(s, w) for n, s, w in zip(self.shape, self.strides, want, strict=True))


def same(a: sympy.Expr, b: sympy.Expr) -> bool:
    """Equal as expressions."""
    return bool(a == b or (a - b).expand() == 0)


def dense_strides(shape: Sequence[sympy.Expr]) -> tuple[sympy.Expr, ...]:
    """Row-major strides in elements."""
    return free_strides(shape, {})


def free_strides(shape: Sequence[sympy.Expr], free: Mapping[int, sympy.Expr]) -> tuple[sympy.Expr, ...]:
    """Strides in elements where those of some dims are given, and the others lie as in dense memory beside the dim behind."""
    out, n = [], sympy.Integer(1)
    for d in reversed(range(len(shape))):
        out.append(free.get(d, n))
        n = out[-1] * shape[d]
    return tuple(reversed(out))


def memory_strides(v: Value) -> tuple[sympy.Expr, ...]:
    """Strides in elements of a value that has memory: dense ones, but of arguments that are read where a call has them."""
    owners = [] if defining(v) is not None else [use.owner.operation.opview for use in v.uses]
    free = {attr(op, "dim"): symbol(attr(op, "symbol")) for op in owners if isinstance(op, Stride)}
    return free_strides(from_mlir(v).shape, free)


def reshape_groups(src: Sequence[sympy.Expr], dst: Sequence[sympy.Expr]) -> list[tuple[range, range]]:
    """Splits two shapes of the same elements into the smallest runs of dims with equal products. Unit dims that belong to
    neither side's run stand as runs of their own with nothing on the other side."""
    return _groups(tuple(src), tuple(dst))


@functools.cache
def _groups(src: tuple[sympy.Expr, ...], dst: tuple[sympy.Expr, ...]) -> list[tuple[range, range]]:
    """Kept, as kernels ask for the same views again and again; not to be changed."""
    out: list[tuple[range, range]] = []
    i = j = 0
    while i < len(src) or j < len(dst):
        if i < len(src) and j < len(dst) and same(src[i], dst[j]):
            out.append((range(i, i + 1), range(j, j + 1)))
            i, j = i + 1, j + 1
            continue
        if i < len(src) and src[i] == 1:
            out.append((range(i, i + 1), range(j, j)))
            i += 1
            continue
        if j < len(dst) and dst[j] == 1:
            out.append((range(i, i), range(j, j + 1)))
            j += 1
            continue
        i0, j0 = i, j
        a = b = sympy.Integer(1)
        if i < len(src):
            a, i = src[i], i + 1
        if j < len(dst):
            b, j = dst[j], j + 1
        while not same(a, b) and (i < len(src) or j < len(dst)):
            if i < len(src) and (j >= len(dst) or _behind(a, b)):
                a, i = a * src[i], i + 1
            else:
                b, j = b * dst[j], j + 1
        out.append((range(i0, i), range(j0, j)))
    return out


def _behind(a: sympy.Expr, b: sympy.Expr) -> bool:
    """Whether the running product `a` needs more factors to reach `b`."""
    if is_static(a) and is_static(b):
        return bool(a < b)
    names = sorted(symbols_of(a) | symbols_of(b))
    for prime in (7919, 104729):  # exact division is slow, and a wrong answer only makes a run longer
        env = {name: prime + 1009 * n for n, name in enumerate(names)}
        x, y = evaluate(a, env), evaluate(b, env)
        if x == 0 or y % x != 0:
            return bool(y == 0)
    return True


def strided(
    v: Value, is_buffer: Callable[[Value], bool], strides_of: Callable[[Value], tuple[sympy.Expr, ...]] = memory_strides
) -> View | None:
    """`v` as a view of a buffer, which has the strides that `strides_of` says, through reshapes, transposes, slices and
    broadcasts; None if it isn't one."""
    chain: list[Any] = []
    while not is_buffer(v):
        op = defining(v)
        if not isinstance(op, (Reshape, Transpose, Slice, Broadcast)):
            return None
        chain.append(op)
        v = op.operands[0]
    view: View | None = View(v, sympy.Integer(0), from_mlir(v).shape, strides_of(v))
    while chain and view is not None:
        view = _seen_through(chain.pop(), view)
    return view


def _seen_through(op: Any, x: View) -> View | None:
    """The result of a view of x; None if its elements don't lie at regular distances."""
    shape = from_mlir(op.results[0]).shape
    if isinstance(op, Transpose):
        return View(x.base, x.offset, shape, tuple(x.strides[p] for p in attr(op, "perm")))
    if isinstance(op, Slice):
        starts, steps = exprs(attr(op, "starts")), attr(op, "steps")
        offset = x.offset + sum((a * s for a, s in zip(starts, x.strides, strict=True)), sympy.Integer(0))
        return View(x.base, offset, shape, tuple(s * k for s, k in zip(x.strides, steps, strict=True)))
    if isinstance(op, Broadcast):
        strides = [sympy.Integer(0)] * len(shape)
        for i, d in enumerate(attr(op, "dims")):
            if not (x.shape[i] == 1 and shape[d] != 1):
                strides[d] = x.strides[i]
        return View(x.base, x.offset, shape, tuple(strides))
    new = _reshape(x, shape)
    return None if new is None else View(x.base, x.offset, shape, new)


def _reshape(x: View, shape: tuple[sympy.Expr, ...]) -> tuple[sympy.Expr, ...] | None:
    """Strides after a reshape, or None where the elements no longer lie at regular distances."""
    out = [sympy.Integer(0)] * len(shape)
    for src, dst in reshape_groups(x.shape, shape):
        if not src or not dst:
            continue
        dims = [k for k in src if x.shape[k] != 1]
        for a, b in zip(dims, dims[1:], strict=False):
            if not same(x.strides[a], x.strides[b] * x.shape[b]):
                return None
        n = x.strides[dims[-1]] if dims else sympy.Integer(0)
        for k in reversed(dst):
            out[k] = n
            n = n * shape[k]
    return tuple(out)
