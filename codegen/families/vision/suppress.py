"""A kernel that goes through boxes in order and keeps those that none kept before overlaps too much."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy
import sympy

from dhlo.codegen.elementwise.index import Index
from dhlo.codegen.families.kernel import Launch, finish
from dhlo.codegen.families.lines import OpKernel, while_loop
from dhlo.codegen.families.lowering import Lowering
from dhlo.codegen.kernel_ir.builder import I1, I64, V
from dhlo.ir.dialect import Op, attr
from dhlo.ir.ops.control import Group
from dhlo.ir.types import DTYPES, from_mlir

__all__ = ["lower_suppress"]

_FIELDS = 5  # of a box that is kept: x1, y1, x2, y2, area


def _below(threshold: float, dtype: str) -> float:
    """The greatest number of a dtype that isn't above a threshold: what is above the one is above the other."""
    if dtype == "f64" or math.isnan(threshold) or math.isinf(threshold):
        return threshold
    with numpy.errstate(over="ignore"):
        near = numpy.float32(threshold)
    return float(numpy.nextafter(near, numpy.float32("-inf")) if float(near) > threshold else near)


class _Suppress(OpKernel):
    """Boxes that are kept lie side by side in scratch. A box is compared with a vector of them at a time, until one suppresses it:
    as many comparisons as by marking what each box suppresses, or fewer, and all of them in the first cache as a rule."""

    def lower(self) -> Launch:
        fn, em = self.fn, self.em
        t = from_mlir(self.op.operands[0])
        self.elem, n = t.dtype.register, self.size(t.shape[1])
        room = t.shape[1] + fn.lanes
        boxes, y = self.operand(0), self.result(0)
        self.kept = [fn.gep(self.scratch, self.size(room * i), self.elem) for i in range(_FIELDS)]
        self.threshold = fn.const(_below(attr(self.op, "threshold"), self.elem), fn.vec(self.elem))
        with fn.loop(self.begin, self.end), em.scope():
            nothing = fn.const(float("nan"), fn.vec(self.elem))
            with fn.loop(0, n, fn.lanes) as lp:  # an area of NaN behind the last box: it suppresses nothing
                fn.store(nothing, fn.gep(self.kept[4], lp.iv, self.elem))
            with fn.loop(0, n, 1, [fn.i64(0)]) as lp, em.scope():
                x1, y1, x2, y2 = box = [self.load(boxes, t.dtype, Index(fn.add(fn.mul(n, i), lp.iv))) for i in range(4)]
                box.append(fn.mul(fn.sub(x2, x1), fn.sub(y2, y1)))
                going = lambda carried: fn.and_(fn.cmp("lt", carried[0], lp.carried[0]), fn.not_(carried[1]))
                start = [fn.i64(0), fn.const(False, I1)]
                hit = while_loop(fn, start, going, lambda carried: self._compare(box, carried[0]))[1]
                keep = fn.not_(hit)
                self.store(fn.cast(keep, "i8"), y, DTYPES["i1"], Index(lp.iv))
                with fn.when(keep):
                    for p, v in zip(self.kept, box, strict=True):
                        fn.store(v, fn.gep(p, lp.carried[0], self.elem))
                lp.yield_(fn.add(lp.carried[0], fn.cast(keep, I64)))
        scratch = _FIELDS * room * t.dtype.bytes
        return Launch(finish(self, "suppress"), self.args.slots, sympy.Integer(1), t.shape[1] * _FIELDS, scratch)

    def _compare(self, box: Sequence[V], at: V) -> list[V]:
        """The next position, and whether one of the boxes kept at this one suppresses a box."""
        fn = self.fn
        x1, y1, x2, y2, area = (fn.load(fn.gep(p, at, self.elem), fn.vec(self.elem)) for p in self.kept)
        width = fn.sub(fn.minnum(x2, box[2]), fn.maxnum(x1, box[0]))
        height = fn.sub(fn.minnum(y2, box[3]), fn.maxnum(y1, box[1]))
        both = fn.mul(*(fn.select(fn.cmp("gt", v, 0.0), v, 0.0) for v in (width, height)))
        over = fn.div(both, fn.sub(fn.add(area, box[4]), both))
        return [fn.add(at, fn.lanes), fn.reduce("or", fn.cmp("gt", over, self.threshold))]


def lower_suppress(low: Lowering, group: Group, op: Op) -> Launch:
    """A single item: whether a box is kept depends on all before it."""
    return _Suppress(low, group, op).lower()
