"""What kernels of pooling over windows share: items are rows of the output."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dhlo.codegen.kernel_ir.builder import BITS, F32, I64, PTR, Fn, KernelModule, V, vec
from dhlo.codegen.kernel_ir.launch import kernel_fn, load_args
from dhlo.codegen.kernel_ir.values import FLOATS

__all__ = ["PoolRows", "Triple", "accumulator", "load_float", "store_value", "triple"]

if TYPE_CHECKING:
    from dhlo.codegen.families.pool.pool import Pool

Triple = tuple[int, int, int]


class PoolRows(ABC):
    """Emits the kernel of a pooling: items are the rows (plane, z, y) of the outputs, in order."""

    def __init__(self, pool: Pool, module: KernelModule) -> None:
        self.pool = pool
        self.acc = accumulator(pool.elem)
        self.lanes = module.target.lanes(self.acc)
        self.kernel, self.stride = triple(pool.kernel, 1), triple(pool.stride, 1)
        self.padding, self.dilation = triple(pool.padding, 0), triple(pool.dilation, 1)
        self.f = kernel_fn(module, pool.name)

    def emit(self) -> None:
        """Calls `row` for each item."""
        f = self.f
        self.x, self.out, self.indices, *sizes = load_args(f, [PTR] * 3 + [I64] * 6)
        self.sizes, self.outs = sizes[:3], sizes[3:]
        plane_size = f.mul(f.mul(sizes[0], sizes[1]), sizes[2])
        _, begin, self.end, *_ = f.args
        with f.loop(begin, self.end) as items:
            rest = f.divu(items.iv, self.outs[1])
            oy = f.sub(items.iv, f.mul(rest, self.outs[1]))
            plane = f.divu(rest, self.outs[0])
            oz = f.sub(rest, f.mul(plane, self.outs[0]))
            z, y = (f.sub(f.mul(o, self.stride[d]), self.padding[d]) for d, o in enumerate((oz, oy)))
            self.row(f.mul(plane, plane_size), z, y, f.mul(items.iv, self.outs[2]))
        f.done()

    @abstractmethod
    def row(self, plane: V, z: V, y: V, at: V) -> None:
        """Pools a row, whose windows start at (z, y, ...) in the plane of x that begins at element `plane`, to element `at`."""


def accumulator(elem: str) -> str:
    """The element type that values of `elem` are reduced in."""
    return F32 if elem in FLOATS and BITS[elem] < 32 else elem


def triple(values: Sequence[int], fill: int) -> Triple:
    """Three entries, leading ones filled."""
    a, b, c = (fill,) * (3 - len(values)) + tuple(values)
    return a, b, c


def load_float(f: Fn, p: V, mask: V, other: float, elem: str) -> V:
    """A masked load of f16, bf16, f32 or f64 elements, f32 if narrower; `other` in the lanes not loaded."""
    lanes = mask.lanes
    if BITS[elem] >= 32:
        return f.masked_load(p, mask, f.const(other, vec(elem, lanes)))
    bits = f.masked_load(p, mask, f.const(0, vec("i16", lanes)))
    return f.select(mask, f.cast(f.bitcast(bits, elem), F32), f.const(other, vec(F32, lanes)))


def store_value(f: Fn, x: V, p: V, n: V, elem: str) -> None:
    """Stores the first `n` lanes of a vector of `accumulator(elem)`, rounded to `elem`."""
    f.store_first(x if x.elem == elem else f.bitcast(f.cast(x, elem), "i16"), p, n)
