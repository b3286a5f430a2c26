"""Products of a few rows with a panel of codes by integer dot products: rows of A as 23-bit fixed point, block by block of k.

A block of a row is an integer times a power of two, the integer split into three signed bytes ("limbs"), so that four products with
codes take one instruction for each limb. Integer sums are exact; what is lost is what of an element lies 22 bits and more below
the block's largest, as much as sums in f32 lose. Where a few elements are so large that this would be most of the others, they are
taken out of the block (`quantised_outliers.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from dhlo.codegen.families.gemm.quantised import COLUMNS, Coding, Form
from dhlo.codegen.families.gemm.quantised_decode import SIGN_OF_BYTES, bytes_of, emit_words, parameters
from dhlo.codegen.kernel_ir.builder import F32, I8, I32, I64, PTR, Fn, KernelModule, V, vec
from dhlo.codegen.target import DotProduct, Target

__all__ = [
    "BLOCK",
    "INFO_BYTES",
    "LIMBS",
    "RANGE",
    "DotPass",
    "block_units",
    "dot_bias",
    "dot_rows",
    "emit_dot_kernel",
    "emit_split",
    "has_dots",
]

LIMBS = 3
BLOCK = 256
"""Steps of k in a block at most: their sums of products of bytes fit 24 bits, which f32 holds."""

# Of a block beside its limbs: by what integers are multiplied to be numbers, their sum as f32, and what the sums of each limb with
# codes begin with, to be without the codes' bias.
INFO_BYTES = 20
RANGE = 9
"""Half of a block's elements but zeros must be no more than so many bits below its largest, which leaves them 12 bits: else a few
outliers, multiplied by codes that are 0, would leave too little of the others."""
# Sums that cover the latency of dot products: four or five cycles of two.
_MIN_SUMS = 8
# The bias of f32's exponents, and the bits of the integers.
_BIAS, _BITS = 127, 22


def _dot(target: Target) -> DotProduct | None:
    return target.dots.get("i8") or target.dots.get("ui8")


def has_dots(target: Target, form: Form) -> bool:
    """Whether the target multiplies bytes, and the form's numbers are integers."""
    return form.kind == "lanes" and _dot(target) is not None


def _offset(target: Target, form: Form) -> int:
    """What is added to what is stored for it to be what the instruction takes: without negative numbers, if it must be."""
    if "i8" in target.dots:
        return 0
    return {"i8": 128, "ui8": 128, "f4e2m1fn": 12}.get(form.name, 0)


def dot_bias(target: Target, form: Form) -> int:
    """What the instruction's numbers are above codes."""
    return _offset(target, form) + form.bias


def dot_rows(target: Target) -> int:
    """Rows of a pass over a panel's half or other part."""
    return max(1, (target.registers - 4) // LIMBS - 1)


def block_units(form: Form, units: int) -> int:
    """Units of a block, of a group of `units`: as many as can be, but for the last one all alike."""
    return min(units, BLOCK // form.depth)


def emit_split(module: KernelModule) -> str:
    """Emits `limbs_split(x, size, dst, info, weight, exponent) -> i32` once: splits the `size` numbers of a block at x, a multiple
    of 4, that have no larger exponent (of f32, with its bias, up to 254); others count as zeros.

    dst[k / 4][limb, the highest first][k % 4] are bytes; sums of limbs are stored `weight` times. Negative if too many are too
    small beside the largest, or at all: the limbs are then of no use.
    """
    name = "limbs_split"
    if name in module.functions:
        return name
    names = [("x", PTR), ("size", I64), ("dst", PTR), ("info", PTR), ("weight", I32), ("exponent", I32)]
    fn = Fn(module, name, names, I32, noinline=True)
    x, size, dst, info, weight, largest = fn.args
    four = vec(I32, 4)
    main = fn.mul(fn.divu(size, fn.lanes), fn.lanes)
    exponent = fn.max(largest, _BITS + 1)  # the powers of two stay normal
    least = fn.select(fn.cmp("gt", largest, _BITS), fn.shl(fn.sub(largest, RANGE), 23), 0x7FFFFFFF)
    up = fn.bitcast(fn.shl(fn.sub(2 * _BIAS + _BITS - 1, exponent), 23), F32)
    down = fn.bitcast(fn.shl(fn.sub(exponent, _BITS - 1), 23), F32)
    beyond = fn.shl(fn.add(largest, 1), 23)

    def split(k: V, lanes: int, sums: Sequence[V]) -> list[V]:
        raw = fn.load(fn.gep(x, k, F32), vec(I32, lanes))
        size = fn.and_(raw, 0x7FFFFFFF)
        known = fn.select(fn.cmp("lt", size, fn.splat(beyond, lanes)), raw, 0)
        small = fn.select(fn.cmp("eq", size, 0), size, fn.const(-1, size.type))
        vote = fn.select(fn.cmp("ge", size, fn.splat(least, lanes)), fn.const(1, size.type), small)
        left = fn.cast(fn.unary("roundeven", fn.mul(fn.bitcast(known, F32), fn.splat(up, lanes))), I32)
        limbs: list[V] = []
        for _ in range(LIMBS):
            limb = fn.shr(fn.shl(left, 24), 24)
            limbs.insert(0, limb)
            left = fn.shr(fn.sub(left, limb), 8)
        fn.store(_interleaved(fn, [fn.cast(limb, I8) for limb in limbs]), fn.gep(dst, fn.mul(k, LIMBS), I8), 1)
        return [fn.add(s, x) for s, x in zip(sums, [*limbs, vote], strict=True)]

    with fn.loop(0, main, fn.lanes, [fn.const(0, fn.vec(I32))] * (LIMBS + 1)) as loop:
        loop.yield_(*split(loop.iv, fn.lanes, loop.carried))
    with fn.loop(main, size, 4, [fn.const(0, four)] * (LIMBS + 1)) as rest:
        rest.yield_(*split(rest.iv, 4, rest.carried))
    *parts, votes = (fn.add(fn.reduce("add", s), fn.reduce("add", r)) for s, r in zip(loop.results, rest.results, strict=True))
    fn.store(down, info)
    fn.store(_combined(fn, [fn.cast(p, F32) for p in parts]), fn.gep(info, 4, I8))
    for i, p in enumerate(parts):
        fn.store(fn.mul(p, weight), fn.gep(info, 8 + 4 * i, I8))
    fn.ret(votes)
    fn.done()
    return name


def _interleaved(fn: Fn, limbs: Sequence[V]) -> V:
    """Vectors of bytes joined by turns, four bytes of each."""
    n, each = limbs[0].lanes // 4, len(limbs)
    words = []
    for x in limbs:
        ty = vec(I32, n)
        words.append(fn.op(ty, f"vector.bitcast {x.name} : {x.type} to {ty}"))
    low = fn.shuffle(words[0], words[1], [*range(2 * n)])
    high = fn.shuffle(words[2], words[2], [*range(n), *[0] * n])
    return fn.shuffle(low, high, [i * n + q for q in range(n) for i in range(each)])


def _combined(fn: Fn, parts: Sequence[V]) -> V:
    """Sums of limbs as one."""
    total = parts[0]
    for p in parts[1:]:
        total = fn.fma(total, fn.const(256.0, total.type), p)
    return total


def emit_dot_kernel(module: KernelModule, coding: Coding, rows: int) -> str:
    """Emits `coded_dots_{coding}_{rows}(limbs, info, ld, panel, groups, units, block, tile, ahead)` once and returns its symbol.

    tile[rows][32] = A times the panel's columns, which are prefetched `ahead` bytes ahead. Rows of `limbs` and `info` (see
    `emit_limbs`) are `ld` bytes apart; a group has `units`, a block `block` of them.
    """
    name = f"coded_dots_{coding.name}_{rows}"
    if name in module.functions:
        return name
    names = [("limbs", PTR), ("info", PTR), ("ld", I64), ("panel", PTR), ("groups", I64), ("units", I64)]
    fn = Fn(module, name, [*names, ("block", I64), ("tile", PTR), ("ahead", I64)], noinline=True)
    lanes = fn.lanes
    vectors = COLUMNS // lanes
    # As many columns at a time as leave registers for codes.
    nv = vectors
    while nv > 1 and rows * LIMBS * nv > fn.target.registers - 3 * nv - 2:
        nv //= 2
    for first in range(0, vectors, nv):
        _LimbPass(fn, coding, rows, range(first, first + nv), lanes).emit(fetch=first == 0)
    fn.done()
    return name


class DotPass:
    """Some vectors of columns of a panel, over all k, times rows of bytes: `limbs` of them are a number. Of the function's
    arguments it reads those that are named here; how rows lie in memory its heirs know."""

    panel: V
    groups: V
    units: V
    block: V
    tile: V
    ahead: V

    def __init__(self, fn: Fn, coding: Coding, rows: int, columns: range, lanes: int, limbs: int) -> None:
        self.fn, self.coding, self.rows, self.columns, self.lanes, self.limbs = fn, coding, rows, columns, lanes, limbs
        self.offset = _offset(fn.target, coding.form)
        # Sets of sums: the words of a unit take them in turn.
        n, words = rows * limbs * len(columns), coding.form.depth // 4
        self.sets = words if n < _MIN_SUMS and n * words <= fn.target.registers - 3 * len(columns) - 2 else 1

    def starts(self, k0: V) -> list[V]:
        """Where each row's bytes of step k0 of k are."""
        raise NotImplementedError

    def word(self, q: int, r: int, limb: int) -> int:
        """Bytes from a row's start to four bytes of a limb of row r: those of the steps from 4 q on."""
        raise NotImplementedError

    @property
    def step_bytes(self) -> int:
        """From a step of k to the next."""
        raise NotImplementedError

    def infos(self, block: V) -> list[V]:
        """What is known of a block of each row: see `INFO_BYTES`."""
        raise NotImplementedError

    def emit(self, *, fetch: bool) -> None:
        fn, form = self.fn, self.coding.form
        zero = fn.const(0.0, vec(F32, self.lanes))
        cells = [fn.gep(self.tile, r * COLUMNS + v * self.lanes, F32) for r in range(self.rows) for v in self.columns]
        for p in cells:
            fn.store(zero, p)
        group_bytes = fn.add(fn.mul(self.units, form.bytes), self.coding.header_bytes)
        blocks = fn.divu(fn.add(self.units, fn.sub(self.block, 1)), self.block)
        with fn.loop(0, self.groups) as g:
            head = fn.gep(self.panel, fn.mul(g.iv, group_bytes), I8)
            if fetch:
                for line in range(0, self.coding.header_bytes, 64):
                    fn.prefetch(fn.gep(fn.gep(head, self.ahead, I8), line, I8))
            with fn.loop(0, blocks) as b:
                first = fn.mul(b.iv, self.block)
                count = fn.min(fn.sub(self.units, first), self.block)
                at = fn.add(fn.mul(g.iv, self.units), first)
                of = self.infos(fn.add(fn.mul(g.iv, blocks), b.iv))
                codes = fn.gep(fn.gep(head, self.coding.header_bytes, I8), fn.mul(first, form.bytes), I8)
                sums = self._block(codes, fn.mul(at, form.depth), count, of, fetch)
                self._add(head, sums, of, cells)

    def _block(self, codes: V, k0: V, count: V, info: list[V], fetch: bool) -> list[V]:
        """Integer sums of a block, by row, column and limb."""
        fn, form, lanes = self.fn, self.coding.form, self.lanes
        ty = vec(I32, lanes)
        bias = dot_bias(fn.target, form)
        init = []
        for p in info:
            for _ in self.columns:
                for i in range(self.limbs):
                    init.append(fn.splat(fn.load(fn.gep(p, 8 + 4 * i, I8), I32), lanes) if bias else fn.const(0, ty))
        each = len(init)  # sums of a set
        init += [fn.const(0, ty)] * (each * (self.sets - 1))
        starts = self.starts(k0)
        with fn.loop(0, count, 1, init) as u:
            unit, at = fn.gep(codes, fn.mul(u.iv, form.bytes), I8), fn.mul(u.iv, form.depth * self.step_bytes)
            if fetch:
                for line in range(0, form.bytes, 64):
                    fn.prefetch(fn.gep(fn.gep(unit, self.ahead, I8), line, I8))
            words = [self._operands(unit, v) for v in self.columns]
            acc = list(u.carried)
            for q in range(len(words[0])):
                for r, start in enumerate(starts):
                    for i in range(self.limbs):
                        four = fn.splat(fn.load(fn.gep(fn.gep(start, at, I8), self.word(q, r, i), I8), I32, 1), lanes)
                        for c, word in enumerate(words):
                            n = q % self.sets * each + (r * len(words) + c) * self.limbs + i
                            acc[n] = self._dot(acc[n], word[q], four)
            u.yield_(*acc)
        return [reduce(fn.add, u.results[n::each]) for n in range(each)]

    def _operands(self, unit: V, v: int) -> list[V]:
        fn, form = self.fn, self.coding.form
        words = emit_words(fn, form, unit, v * self.lanes, self.lanes, self.offset)
        return [fn.xor(w, SIGN_OF_BYTES) for w in words] if self.offset == 128 else words

    def _dot(self, acc: V, x: V, y: V) -> V:
        fn = self.fn
        dot = _dot(fn.target)
        assert dot is not None
        return fn.intrinsic(dot.intrinsic, acc.type, acc, bytes_of(fn, x), bytes_of(fn, y))

    def _add(self, head: V, sums: list[V], info: list[V], cells: list[V]) -> None:
        """Adds a block's sums to the tile, scaled and as numbers."""
        fn, lanes = self.fn, self.lanes
        downs = [fn.splat(fn.load(p, F32), lanes) for p in info]
        totals = [fn.splat(fn.load(fn.gep(p, 4, I8), F32), lanes) if self.coding.zero else None for p in info]
        for c, v in enumerate(self.columns):
            scale, zero = parameters(fn, self.coding, head, v, lanes)
            for r, (down, total) in enumerate(zip(downs, totals, strict=True)):
                n = r * len(self.columns) + c
                x = _combined(fn, [fn.cast(s, F32) for s in sums[n * self.limbs : (n + 1) * self.limbs]])
                if zero is not None and total is not None:
                    x = fn.sub(x, fn.mul(zero, total))
                # Scaled first: it's the codes' numbers that are known not to overflow.
                fn.store(fn.fma(fn.mul(x, scale), down, fn.load(cells[n], x.type)), cells[n])


class _LimbPass(DotPass):
    """Of rows whose numbers are split in limbs, each a row of its own in memory."""

    def __init__(self, fn: Fn, coding: Coding, rows: int, columns: range, lanes: int) -> None:
        super().__init__(fn, coding, rows, columns, lanes, LIMBS)
        self.rows_at, self.info, self.ld, self.panel, self.groups, self.units, self.block, self.tile, self.ahead = fn.args

    def starts(self, k0: V) -> list[V]:
        fn = self.fn
        return [fn.gep(fn.gep(self.rows_at, fn.mul(self.ld, r), I8), fn.mul(k0, LIMBS), I8) for r in range(self.rows)]

    def word(self, q: int, r: int, limb: int) -> int:
        return 4 * (q * LIMBS + limb)

    @property
    def step_bytes(self) -> int:
        return LIMBS

    def infos(self, block: V) -> list[V]:
        fn = self.fn
        info = fn.gep(self.info, fn.mul(block, INFO_BYTES), I8)
        return [fn.gep(info, fn.mul(self.ld, r), I8) for r in range(self.rows)]
