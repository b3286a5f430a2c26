"""Which of a product's matrices suit a machine's caches as they lie."""

from __future__ import annotations

from dhlo.codegen.families.gemm.operands import Operands
from dhlo.codegen.families.gemm.register_tile import F16, TileSpec, depth, in_one_set
from dhlo.codegen.kernel_ir.builder import BITS, Fn, V
from dhlo.codegen.kernel_ir.launch import HostContext
from dhlo.codegen.target import LINE_BYTES

__all__ = ["crowds", "leaves_caches", "reads_in_place", "row_distance"]

# Addresses this far apart share sets of the first-level cache, whatever its size; no machine's is smaller than so many bytes.
_L1_WAY_BYTES, _LEAST_L1_BYTES = 4096, 32 << 10
# Rows of bf16 are widened in place, for each tile, where no more than so many panels of B read them: else once, as they are packed.
_PANELS_WIDENED = 2
# Rows of single elements are read in place for fewer panels of B, or up to so many row panels, and more of these where B stays in
# half of the second-level cache, or wherever lines come fast enough.
_IN_PLACE_PANELS, _IN_PLACE_ROWS = 8, (2, 4)
# Rows of B that far apart, a power of two, share one set of any second-level cache.
_MOST_DISTANCE = 1 << 20


def reads_in_place(host: HostContext, elem: str, spec: TileSpec, x: Operands) -> V:
    """Whether A is read where it lies, or f16 in rows of f32 that are copied from there: k contiguous, and a row panel's lines
    don't crowd few sets of the L1 cache; and few panels of B meet it, if its numbers are widened.

    The rows' lines fall on 4096 / g different places, where g is the largest power of two that divides the row
    stride. There they may take two thirds of the cache: B passes through it, a line each while a row's line is in use. A
    stride that is known and suits every machine leaves no choice, and no code for the other form of A; but for single elements
    that many panels may meet, whose lines must come fast enough, too.
    """
    fn, m, (_, _, row_stride, k_stride) = host.fn, x.m, x.a_strides
    if elem == F16:  # whose copies are apart as suits a cache
        return fn.cmp("eq", k_stride, 1)
    stride = fn.mul(row_stride, BITS[elem] // 8)
    g = fn.min(fn.and_(stride, fn.sub(0, stride)), _L1_WAY_BYTES)
    room, rows = fn.divu(fn.mul(host.machine("l1d_bytes"), 2), 3), spec.rows(elem)
    fits = fn.or_(fn.cmp("le", fn.mul(g, rows), _LEAST_L1_BYTES * 2 // 3), fn.cmp("le", fn.mul(fn.min(m, rows), g), room))
    if depth(elem) > 1:  # whose last unit may miss elements and is added by itself: sums of several sets would be other ones then
        fits = fn.and_(fits, fn.cmp("ge", m, in_one_set(elem, spec)))
    if depth(elem) == 1:
        least, most = _IN_PLACE_ROWS
        few = fn.or_(fn.cmp("lt", x.n, _IN_PLACE_PANELS * spec.panel(elem)), fn.cmp("le", m, least * rows))
        few = fn.or_(few, fn.and_(fn.cmp("le", m, most * rows), _stays(host, elem, x)))
        fits = fn.and_(fits, fn.or_(few, _reads_lines_fast(host)))
    if spec.left_parts(elem) > 1:
        fits = fn.and_(fits, fn.cmp("le", x.n, _PANELS_WIDENED * spec.panel(elem)))
    return fn.and_(fn.cmp("eq", k_stride, 1), fits)


def _stays(host: HostContext, elem: str, x: Operands) -> V:
    """Whether a matrix of B takes no more than half of the second-level cache."""
    fn = host.fn
    with fn.wrapping():
        return fn.cmp("le", fn.mul(fn.mul(x.k, x.n), 2 * BITS[elem] // 8), host.l2_bytes)


def _reads_lines_fast(host: HostContext) -> V:
    """Whether the second-level cache delivers a quarter of a line in the time of a multiply-add of whole vectors. Lines of many
    rows in place are waited for elsewhere, where those of packed rows follow one another."""
    fn, rate = host.fn, host.machine(f"fma{host.module.target.vector_bits}_per_us")
    return fn.cmp("ge", host.machine("l2_bytes_per_us"), fn.mul(rate, LINE_BYTES // 4))


def row_distance(fn: Fn, elem: str, x: Operands) -> V:
    """The largest power of two that divides the bytes from one row of B to the next, or a line's: lines of as many rows as the
    second-level cache has of these fill the sets that they share. At most what suits every cache."""
    with fn.wrapping():  # without elements, strides have any size
        stride = fn.mul(x.b_strides[2], BITS[elem] // 8)
        return fn.min(fn.max(fn.and_(stride, fn.sub(0, stride)), LINE_BYTES), _MOST_DISTANCE)


def crowds(host: HostContext, elem: str, x: Operands) -> V:
    """Whether the lines of B's rows crowd few sets of the second-level cache: of those that two panels share, the second one
    would find none there."""
    fn, distance = host.fn, row_distance(host.fn, elem, x)
    with fn.wrapping():
        return fn.cmp("gt", fn.mul(x.k, distance), host.l2_bytes)


def leaves_caches(host: HostContext, elem: str, x: Operands) -> V:
    """Whether the result is larger than the second-level cache."""
    fn = host.fn
    with fn.wrapping():
        nbytes = fn.mul(fn.mul(fn.mul(x.m, x.n), fn.mul(*x.batch)), BITS[elem] // 8)
    return fn.cmp("gt", nbytes, host.l2_bytes)
