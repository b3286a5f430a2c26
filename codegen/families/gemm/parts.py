"""Products of few tiles and much depth, split over k: parts are items beside each other, and their sums are added up in order."""

from __future__ import annotations

import sympy

from dhlo.codegen.families.box import copy_cycles, product_wake_cycles
from dhlo.codegen.families.gemm.operands import Operands
from dhlo.codegen.families.gemm.pack_rows import widened_row
from dhlo.codegen.families.gemm.panels import PanelSource
from dhlo.codegen.families.gemm.register_tile import F16, TileSpec, accumulator, depth, unit
from dhlo.codegen.kernel_ir.builder import BITS, I64, PTR, Fn, KernelModule, V, vec
from dhlo.codegen.kernel_ir.launch import EPILOGUE_ARGS, HostContext, kernel_fn, load_args

__all__ = [
    "count_parts",
    "count_stream_parts",
    "emit_join_kernel",
    "emit_store_part",
    "launch_join",
    "may_split",
    "part_items",
    "part_of",
    "parts_bytes",
    "store_part_args",
]

# Products of more tiles aren't split.
_FEW_TILES = 4
# k is split so that there are up to so many tiles of parts.
_TILES_OF_PARTS = 16
# Multiply-adds of whole vectors of a part, for a column of tiles, at least; a step of k counts as so many at least, since few rows
# wait for B. Sizes alone decide: the number of parts is an order of sums, which mustn't hang on the machine or its threads.
_PART_CYCLES, _STEP_CYCLES = 1 << 14, 4
# The same of rows that stream B, which copy nothing for a part: so many of as many columns as an item has at least, and steps; of
# more columns, which threads can share as well, twice as many. Found on a Zen 4.
_STREAM_CYCLES, _STREAM_STEPS = 1 << 13, 256


def parts_bytes(elem: str, spec: TileSpec) -> int:
    """Memory for the parts' sums, of any product."""
    return _TILES_OF_PARTS * spec.rows(elem) * spec.panel(elem) * BITS[accumulator(elem)] // 8


def may_split(m: sympy.Expr, n: sympy.Expr, k: sympy.Expr, elem: str, spec: TileSpec) -> bool:
    """Whether some product of such sizes would be split."""

    def least(size: sympy.Expr, step: int) -> int:
        return -(-int(size) // step) if size.is_Integer else 1

    panels, row_panels = least(n, spec.panel(elem)), least(m, spec.rows(elem))
    if panels * row_panels > _FEW_TILES:
        return False
    rows = int(m) if m.is_Integer else _FEW_TILES // max(panels, 1) * spec.rows(elem)
    step = max(rows * spec.vectors * spec.per_panel, _STEP_CYCLES)
    return not k.is_Integer or least(k, depth(elem)) * step >= 2 * _PART_CYCLES


def count_parts(fn: Fn, elem: str, spec: TileSpec, m: V, steps: V, panels: V) -> V:
    """In how many parts k is taken, of so many units; less than 2 where it isn't split."""
    tiles = fn.mul(fn.ceildivu(m, spec.rows(elem)), panels)
    step = fn.max(fn.mul(m, spec.vectors * spec.per_panel), _STEP_CYCLES)
    with fn.wrapping():
        parts = fn.divu(fn.mul(steps, step), _PART_CYCLES)
    parts = fn.min(parts, fn.divu(fn.i64(_TILES_OF_PARTS), fn.max(tiles, 1)))
    few = fn.and_(fn.cmp("gt", tiles, 0), fn.cmp("le", tiles, _FEW_TILES))
    return fn.select(few, parts, 0)


def count_stream_parts(fn: Fn, elem: str, spec: TileSpec, m: V, k: V, panels: V, item_panels: int) -> V:
    """In how many parts k is taken by rows that stream B, in items of `item_panels` at least: a power of two, as are most numbers
    of threads; 1 where it isn't split."""
    room = fn.divu(fn.i64(_TILES_OF_PARTS * spec.rows(elem)), fn.max(fn.mul(m, panels), 1))
    step = fn.max(fn.mul(fn.mul(m, fn.min(panels, item_panels)), spec.vectors * spec.per_panel), _STEP_CYCLES)
    with fn.wrapping():
        most = fn.min(fn.divu(fn.mul(k, step), _STREAM_CYCLES), room)
    least = fn.select(fn.cmp("gt", panels, item_panels), fn.i64(2 * _STREAM_STEPS), _STREAM_STEPS)
    most = fn.min(most, fn.divu(k, least))
    parts, power = fn.i64(1), 2
    while power <= _TILES_OF_PARTS:
        parts = fn.select(fn.cmp("ge", most, power), power, parts)
        power *= 2
    return parts


def part_items(
    host: HostContext, elem: str, spec: TileSpec, source: PanelSource, m: V, steps: V, panels: V, parts: V, *, rows: bool
) -> tuple[V, V, V, V, V]:
    """Of the launch of a product in parts: row blocks, units of a part, items, how few of them pay for a thread, scratch bytes.

    A panel of B that is copied is copied once for all rows."""
    fn = host.fn
    blocks = fn.ceildivu(m, spec.rows(elem)) if source.in_place else fn.i64(1)
    each, height = fn.ceildivu(steps, parts), fn.ceildivu(m, blocks)
    step = fn.max(fn.mul(height, spec.vectors * spec.per_panel * spec.left_parts(elem)), _STEP_CYCLES)
    cycles = fn.mul(each, step if source.in_place else fn.add(step, copy_cycles(host, spec.row_bytes(elem))))
    elements = fn.i64(spec.tile_elements(elem) + spec.lanes(elem))
    if not source.in_place:
        elements = fn.add(elements, fn.mul(each, spec.panel(elem)))
    if elem == F16 and rows:
        elements = fn.add(elements, fn.mul(height, widened_row(fn, each, spec)))
    elif not rows or depth(elem) > 1:
        packed = fn.i64(1) if rows else spec.left_steps(fn, each)
        elements = fn.add(elements, fn.mul(fn.mul(height, packed), spec.left_parts(elem)))
    count = fn.mul(fn.mul(parts, blocks), panels)
    return blocks, each, count, fn.add(fn.divu(product_wake_cycles(host), cycles), 1), fn.mul(elements, BITS[unit(elem)] // 8)


def emit_store_part(module: KernelModule, elem: str, spec: TileSpec) -> str:
    """Emits (once) an epilogue that stores tiles of part `batch` to memory [parts][rows][columns], in whole vectors; its arguments:
    address, rows, columns."""
    acc, lanes = accumulator(elem), spec.lanes(elem)
    name = f"store_part_{acc}"
    if name in module.functions:
        return name
    fn = Fn(module, name, EPILOGUE_ARGS)
    eargs, tile, ld, part, m0, n0, mr, nr = fn.args
    memory, m, columns = (fn.load(fn.gep(eargs, i, I64), I64) for i in range(3))
    first = fn.add(fn.mul(part, m), m0)
    with fn.loop(0, mr) as i:
        to = fn.gep(fn.int_to_ptr(memory), fn.add(fn.mul(fn.add(first, i.iv), columns), n0), acc)
        with fn.loop(0, nr, lanes) as j:
            x = fn.load(fn.gep(tile, fn.add(fn.mul(i.iv, ld), j.iv), acc), vec(acc, lanes))
            fn.store(x, fn.gep(to, j.iv, acc))
    fn.done()
    return name


def store_part_args(fn: Fn, elem: str, spec: TileSpec, memory: V, m: V, n: V) -> V:
    """The argument of `emit_store_part`'s function, for a product of so many rows and columns."""
    args, columns = fn.alloca(3, I64), fn.mul(fn.ceildivu(n, spec.panel(elem)), spec.panel(elem))
    for i, x in enumerate((fn.ptr_to_int(memory), m, columns)):
        fn.store(x, fn.gep(args, i, I64))
    return args


def emit_join_kernel(module: KernelModule, elem: str, spec: TileSpec) -> str:
    """Emits the kernel that adds up the parts of tiles in order of k and hands them to the product's epilogue; returns its symbol.

    Items are (row panel, column panel). Arguments: the parts' memory, parts, m, n, epilogue, its argument. Scratch: a tile of
    rows(elem) times panel(elem).
    """
    acc, lanes, height, width = accumulator(elem), spec.lanes(elem), spec.rows(elem), spec.panel(elem)
    name = f"matmul_{elem}_join{spec.suffix}"
    if name in module.functions:
        return name
    fn = kernel_fn(module, name)
    memory, parts, m, n, epilogue, eargs = load_args(fn, [PTR, *[I64] * 3, PTR, PTR])
    panels, tile = fn.ceildivu(n, width), fn.args[4]
    columns = fn.mul(panels, width)
    apart = fn.mul(m, columns)
    with fn.loop(fn.args[1], fn.args[2]) as item:
        m0, n0 = fn.mul(fn.divu(item.iv, panels), height), fn.mul(fn.remu(item.iv, panels), width)
        mr, nr = fn.min(fn.sub(m, m0), height), fn.min(fn.sub(n, n0), width)
        with fn.loop(0, mr) as i, fn.loop(0, nr, lanes) as j:
            at = fn.gep(memory, fn.add(fn.mul(fn.add(m0, i.iv), columns), fn.add(n0, j.iv)), acc)
            with fn.loop(1, parts, 1, [fn.load(at, vec(acc, lanes))]) as part:
                more = fn.load(fn.gep(at, fn.mul(part.iv, apart), acc), vec(acc, lanes))
                part.yield_(fn.add(part.carried[0], more))
            fn.store(part.results[0], fn.gep(tile, fn.add(fn.mul(i.iv, width), j.iv), acc))
        fn.call_ptr(epilogue, [eargs, tile, fn.i64(width), fn.i64(0), m0, n0, mr, nr])
    fn.done()
    return name


def launch_join(host: HostContext, elem: str, spec: TileSpec, x: Operands, memory: V, parts: V) -> None:
    """Adds up the parts of a product, in one thread."""
    fn = host.fn
    count = fn.mul(fn.ceildivu(x.m, spec.rows(elem)), fn.ceildivu(x.n, spec.panel(elem)))
    scratch = spec.rows(elem) * spec.panel(elem) * BITS[accumulator(elem)] // 8
    args = [memory, parts, x.m, x.n, x.epilogue, x.epilogue_args]
    host.launch(emit_join_kernel(host.module, elem, spec), args, count, count, scratch)


def part_of(fn: Fn, part: V, parts: V, steps: V) -> tuple[V, V]:
    """First unit of a part, and how many it has: nearly as many as the others, `steps` in all."""
    first, after = (fn.divu(fn.mul(x, steps), parts) for x in (part, fn.add(part, 1)))
    return first, fn.sub(after, first)
