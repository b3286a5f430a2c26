"""The register-tiled inner kernels of matrix products and what builds on them: tile (+)= A panel times B panel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dhlo.codegen.elementwise.rules import narrow as rounded
from dhlo.codegen.families.broadcast import broadcast_each
from dhlo.codegen.families.gemm.matrix_microkernel import emit_matrix_sums
from dhlo.codegen.kernel_ir.builder import BITS, F32, I8, I32, I64, PTR, Fn, KernelModule, V, vec
from dhlo.codegen.target import DotProduct, Target

__all__ = [
    "BF16",
    "F16",
    "MATRIX",
    "PACKING_FIELDS",
    "SIGN_BITS",
    "TileSpec",
    "accumulator",
    "depth",
    "emit_microkernel",
    "emit_microkernel_table",
    "emit_packing_table",
    "emit_pointers",
    "in_one_set",
    "least_packing",
    "multiply_add",
    "result_type",
    "tile_spec",
    "unit",
    "widened_pair",
]

BF16, F16 = "bf16", "f16"


def accumulator(elem: str) -> str:
    """The element type of tiles: products of bf16 and f16 are summed in f32, those of i8 in i32."""
    return {BF16: F32, F16: F32, I8: I32}.get(elem, elem)


def result_type(elem: str) -> str:
    """The element type of results that micro-kernels store: sums as they are, or rounded to the operands' type."""
    return elem if elem in (BF16, F16) else accumulator(elem)


def unit(elem: str) -> str:
    """The element type of panels: bf16 and i8 lie in groups of adjacent k, as the dot-product instruction reads them; f16 becomes
    f32 as it is packed."""
    return I32 if depth(elem) > 1 else F32 if elem == F16 else elem


def depth(elem: str) -> int:
    """How many steps of k a unit of a panel holds."""
    return {BF16: 2, I8: 4}.get(elem, 1)


@dataclass(frozen=True)
class TileSpec:
    """How a target's vector registers are tiled (MR x NR in BLIS's terms): `mr` rows by `vectors` vectors.

    A panel of B is [k][panel(elem)] on every target, so that all read the same packed weights: as wide as a tile, or as
    `per_panel` tiles side by side. A panel of A is [k][mr] with exactly as many rows as the micro-kernel variant that
    reads it (1 to rows(elem), so tails are balanced rather than padded), a tile row-major with its columns as leading
    dimension. For bf16, panels hold pairs: [ceil(k / 2)][columns or mr][2], an odd k padded with 0; tiles are f32.
    Without a dot product of pairs, panels of A hold f32 instead, [ceil(k / 2)][2][mr], and those of B are widened in
    registers, one k after the other: a tile then is as large as that of f32. For i8 they hold four:
    [ceil(k / 4)][columns or mr][4], and tiles are i32, whose sums wrap; the left side may be ui8 as well, and lies there
    as the dot product wants it (`flips`). Where the target multiplies matrices of bytes (`matrices`), a panel of A holds two
    units of a row side by side, [ceil(k / 8)][mr][8].
    """

    target: Target
    mr: int
    vectors: int
    per_panel: int
    widen: bool = False  # even where the target has a dot product of pairs
    unsigned: bool = False  # the left side of i8 is ui8
    matrices: bool = False  # bytes are multiplied by `Target.matrix_dots`

    def __str__(self) -> str:
        return f"{self.target.name} {self.name}"

    @property
    def name(self) -> str:
        return f"{self.mr}x{self.nr(F32)}{self.suffix}"

    @property
    def suffix(self) -> str:
        """What tells symbols of kernels apart: for wider panels than a tile, for units that needn't be widened, for ui8."""
        of = "" if self.per_panel == 1 else f"_of{self.panel(F32)}"
        return (
            of
            + ("_widened" if self.widen else "")
            + ("_unsigned" if self.unsigned else "")
            + ("_matrices" if self.matrices else "")
        )

    @property
    def alone(self) -> TileSpec:
        """The same tiles with panels of their own width, for what is packed and read in one place."""
        return replace(self, per_panel=1)

    def of_bytes(self, *, unsigned: bool) -> TileSpec:
        """Tiles of products of i8, or of ui8 and i8: higher and narrower ones where the target multiplies matrices of them, since
        the units of B, which lie as all targets read them, are brought to pairs of columns once for all rows."""
        spec, target = replace(self, unsigned=unsigned), self.target
        if spec._own not in target.matrix_dots:
            return spec
        # Columns of a register of B, and as many sums for each two rows, beside it and two vectors of each side.
        pairs = _MATRIX_VECTORS * target.lanes(I32) // MATRIX
        mr = (target.registers - pairs - 4) // pairs * MATRIX
        per_panel = self.vectors * self.per_panel // _MATRIX_VECTORS
        return replace(spec, mr=mr, vectors=_MATRIX_VECTORS, per_panel=per_panel, matrices=True)

    @property
    def by_dots(self) -> TileSpec:
        """The same without products of matrices."""
        return replace(self, matrices=False)

    @property
    def bf16_dot(self) -> DotProduct | None:
        return None if self.widen else self.target.dots.get(BF16)

    def dot(self, elem: str) -> DotProduct | None:
        """The target's dot product of the elements of a unit."""
        return self.bf16_dot if elem == BF16 else self.target.dots.get(self._left) if elem == I8 else None

    @property
    def matrix_dot(self) -> DotProduct | None:
        """The target's product of matrices of bytes, where it is used."""
        return self.target.matrix_dots[self._own] if self.matrices else None

    @property
    def _own(self) -> str:
        """The type of the left side's bytes."""
        return "ui8" if self.unsigned else I8

    @property
    def _left(self) -> str:
        """What the left side of the dot product of bytes is: the operand's type if there is a choice."""
        mine, other = ("ui8", I8) if self.unsigned else (I8, "ui8")
        return other if other in self.target.dots and mine not in self.target.dots else mine

    def flips(self, elem: str) -> bool:
        """Whether panels of A hold bytes with their sign bit flipped, i8 + 128 as ui8 or ui8 - 128 as i8, since the dot product
        wants the other kind. The micro-kernels take back what that adds to each sum, a multiple of the sum of B's column, and
        have two arguments more, after A: `sums`, memory for panel(elem) of those in i32, and `turn`, which is 0 in the first
        call for some columns and steps of B. That one computes them, the calls after it read them."""
        return elem == I8 and not self.matrices and self._left != self._own

    def lanes(self, elem: str) -> int:
        """Columns of the tile in a vector register."""
        return self.target.lanes(accumulator(elem))

    def rows(self, elem: str) -> int:
        """The most rows of a tile: taking bytes apart takes registers, and so do sums of B's columns."""
        return self.mr - 2 if self._takes_apart(elem) else self.mr - self.flips(elem)

    def widens(self, elem: str) -> bool:
        """Whether units are taken apart: bf16 is then multiplied as f32, i8 as i16 or i32."""
        return depth(elem) > 1 and not self.dot(elem)

    def _takes_apart(self, elem: str) -> bool:
        """Whether the parts of units of both sides lie in registers at once."""
        return elem == I8 and self.widens(elem) and not self.matrices

    def left_parts(self, elem: str) -> int:
        """How many numbers of unit(elem)'s size a panel of A has for one row's unit: the elements of bf16 that is widened, or 1."""
        return depth(elem) if elem == BF16 and self.widens(elem) else 1

    def left_steps(self, fn: Fn, steps: V) -> V:
        """How many units a panel of A has for one row's `steps`."""
        return fn.mul(fn.ceildivu(steps, MATRIX), MATRIX) if self.matrices else steps

    def products(self, elem: str) -> int:
        """Multiplications for a unit: of each of its elements, of pairs of bytes, or of all by a dot product."""
        if elem != I8:
            return self.left_parts(elem)
        return 1 if self.dot(elem) else 2 if self.target.pair_products else 4

    def nr(self, elem: str) -> int:
        """Columns of a tile."""
        return self.vectors * self.lanes(elem)

    def panel(self, elem: str) -> int:
        """Columns of a panel of B."""
        return self.nr(elem) * self.per_panel

    def columns(self, elem: str, mr: int) -> int:
        """Columns of a tile of `mr` rows over packed panels, and its leading dimension."""
        return self.panel(elem) if mr <= self.whole_panel_rows(elem) else self.nr(elem)

    def tile_elements(self, elem: str) -> int:
        """Room for the largest tile."""
        return max(mr * self.columns(elem, mr) for mr in range(1, self.rows(elem) + 1))

    def row_bytes(self, elem: str) -> int:
        """Bytes of a panel of B at one step of k."""
        return self.panel(elem) * BITS[unit(elem)] // 8

    def accumulators(self, elem: str) -> int:
        """Registers left for sums of few rows beside a row of B and two more vectors. Bytes taken apart have two of each row of B,
        the second of pairs take a mask."""
        beside = self.vectors * (1 + self._takes_apart(elem)) + (self.left_parts(elem) > 1)
        return self.target.registers - beside - 2

    def whole_panel_rows(self, elem: str) -> int:
        """The most rows for which a tile spans a panel, where panels are wider than tiles: sums of few rows leave registers
        for more columns, and B then streams through in one pass."""
        if self.per_panel == 1:
            return 0
        if self.matrices:
            return MATRIX
        columns = self.vectors * self.per_panel * (1 + self._takes_apart(elem))
        return self.accumulators(elem) // columns - self.flips(elem)


MATRIX = 2
"""Rows, columns and units of k of a product of matrices."""
# Vectors of a tile of such products.
_MATRIX_VECTORS = 2
# Columns of f32 of a tile, at least, and of a panel of B on every target.
_LEAST_COLUMNS, _PANEL_COLUMNS = 16, 32


def tile_spec(target: Target) -> TileSpec:
    """The largest tile whose accumulators, a row of B and two more vectors fit the target's registers: at least two vectors and 16
    columns of f32 wide, so that an element of A serves several multiply-adds."""
    vectors = max(2, _LEAST_COLUMNS // target.lanes(F32))
    mr = (target.registers - vectors - 2) // vectors
    return TileSpec(target, mr, vectors, _PANEL_COLUMNS // (vectors * target.lanes(F32)))


# Independent accumulators that cover FMA latency times issue width (4 x 2 on Zen 5 and on Intel's servers) with some
# slack.
_MIN_ACCUMULATORS = 12
# FMA vectors in one iteration of the unrolled k loop; more only grows the code.
_FMAS_PER_ITERATION = 28
# To the second level: it is far ahead.
_PREFETCH_LOCALITY = 2
# A prefetch may be lost, and the line is then missed a whole panel later. From so many rows on there is time to ask for each a
# second time, so many bytes after the first.
_RETRY_ROWS, _RETRY_BYTES = 5, 2048

SIGN_BITS = -0x7F7F7F80
"""Of a unit of bytes."""

_I16 = "i16"
_ARGS = (("b", PTR), ("k", I64), ("tile", PTR), ("accumulate", I64))
_AHEAD_ARGS = (("ahead", PTR), ("ahead_step", I64))


_PLACED_ARGS, _ROUNDED_ARGS = (("ld", I64),), (("to", PTR), ("ld", I64))

PACKING_FIELDS = 5
"""Numbers that tell a micro-kernel what it packs."""
_LEAST_PACKING = 4


def emit_microkernel(
    module: KernelModule,
    elem: str,
    mr: int,
    spec: TileSpec,
    *,
    rows: bool = False,
    narrow: bool = False,
    placed: str | None = None,
    packing: bool = False,
) -> str:
    """Emits `ukr_{elem}_{mr}_ahead(a, b, k, tile, accumulate, ahead, ahead_step)` or, with `rows`,
    `ukr_{elem}_{mr}_rows_ahead(a, lda, ...)` once and returns its symbol. Units with flipped signs have two more arguments after a.

    tile[mr][columns] = sum_k a[k][mr] * b[k][columns], added to the tile's content if `accumulate` != 0; `k` counts units and may
    be 0, and a[k] is left_parts(elem) times mr. `elem` is f32, f64, bf16 or i8. With `rows`, A is read in place: row r at a + r *
    lda elements, whole units of it; those of bytes have no such variant. Rows of B are panel(elem) apart and those of the tile
    columns(elem, mr), which are as many as it has; element alignment does. At step kk of k as many bytes are prefetched as are
    read of B, at ahead + kk * ahead_step bytes: so that the calls that share a panel of B can fetch the next panel between them.
    `narrow`: only the first vector of columns is computed, the rest of the tile isn't written. `placed`, a type: the sums may
    become a part of a larger matrix of such elements. Where that is the tile's own type, a last argument says how many elements
    its rows are apart; else two say where the part lies and how many its rows are apart, and sums are rounded to it instead of
    stored to the tile, unless the address is null. `packing`: B's columns are read where they lie and packed on the way; `b` is the
    address of PACKING_FIELDS numbers (i64): where the tile's columns of the panel are and how many elements apart its rows, where
    the columns lie and how many elements apart, how many there are; of fewer than the tile has those that miss are packed as zeros,
    where the target has `mask_registers`, and mustn't be fewer elsewhere. The function is internal and not inlined.
    """
    name = f"ukr_{elem}_{mr}{_form(elem, rows, narrow, placed, packing)}{spec.suffix}_ahead"
    if name in module.functions:
        return name
    head = (("a", PTR), ("lda", I64)) if rows else _left_args(elem, spec)
    placing = () if placed is None else _PLACED_ARGS if placed == accumulator(elem) else _ROUNDED_ARGS
    fn = Fn(module, name, (*head, *_ARGS, *_AHEAD_ARGS, *placing), noinline=True)
    a, b, rest = fn.args[0], fn.args[len(head)], fn.args[len(head) + 1 :]
    right = (_RowsToPack if packing else _Panel)(fn, elem, spec, b)
    if rows:
        _emit_body(fn, elem, mr, spec, right, rest, _RowsInPlace(fn, elem, mr, a, 1, fn.args[1]), narrow, placed)
    else:
        panel = a if spec.matrices and (mr > 1 or spec.by_dots.flips(elem)) else None
        packed = _PackedRows(fn, elem, mr, a, mr * spec.left_parts(elem))
        _emit_body(fn, elem, mr, spec, right, rest, packed, narrow, placed, fn.args[1 : len(head)], panel)
    return name


def _form(elem: str, rows: bool, narrow: bool, placed: str | None, packing: bool = False) -> str:
    """What names of variants say."""
    where = "" if placed is None else "_placed" if placed == accumulator(elem) else f"_to_{placed}"
    return f"{'_rows' if rows else ''}{'_narrow' if narrow else ''}{where}{'_packing' if packing else ''}"


def _left_args(elem: str, spec: TileSpec) -> tuple[tuple[str, str], ...]:
    """The arguments before B of a micro-kernel that reads packed panels."""
    return (("a", PTR), ("sums", PTR), ("turn", I64)) if spec.flips(elem) else (("a", PTR),)


def emit_microkernel_table(
    module: KernelModule, elem: str, *, rows: bool = False, narrow: bool = False, placed: str | None = None, spec: TileSpec
) -> str:
    """Emits all variants and a constant table of them, entry mr - 1 for mr rows; returns the table's symbol. With `narrow` as many
    narrow ones follow."""
    name = f"ukr_table_{elem}{_form(elem, rows, narrow, placed)}{spec.suffix}_ahead"
    if name not in module.globals:
        symbols = [
            emit_microkernel(module, elem, i + 1, spec, rows=rows, narrow=half, placed=placed)
            for half in (False, True)[: 1 + narrow]
            for i in range(spec.rows(elem))
        ]
        emit_pointers(module, name, symbols)
    return name


def least_packing(elem: str, spec: TileSpec) -> int:
    """The fewest rows whose tiles pack B on the way: of fewer the products don't hide it, or they span more than a tile."""
    return max(_LEAST_PACKING, spec.whole_panel_rows(elem) + 1)


def emit_packing_table(module: KernelModule, elem: str, *, rows: bool, placed: str | None, spec: TileSpec) -> str:
    """Emits all variants that pack B and a constant table of them, entry mr - 1 for mr rows, from `least_packing` on; returns its
    symbol."""
    name = f"ukr_table_{elem}{_form(elem, rows, False, placed, True)}{spec.suffix}_ahead"
    if name not in module.globals:
        heights = (max(i + 1, least_packing(elem, spec)) for i in range(spec.rows(elem)))
        symbols = [emit_microkernel(module, elem, mr, spec, rows=rows, placed=placed, packing=True) for mr in heights]
        emit_pointers(module, name, symbols)
    return name


def emit_pointers(module: KernelModule, name: str, symbols: Sequence[str]) -> None:
    """Emits a constant table of the functions' addresses."""
    ty = f"!llvm.array<{len(symbols)} x ptr>"
    lines = [f"%t0 = llvm.mlir.undef : {ty}"]
    for i, symbol in enumerate(symbols):
        lines.append(f"%p{i} = llvm.mlir.addressof @{module.tagged(symbol)} : !llvm.ptr")
        lines.append(f"%t{i + 1} = llvm.insertvalue %p{i}, %t{i}[{i}] : {ty}")
    lines.append(f"llvm.return %t{len(symbols)} : {ty}")
    body = "\n  ".join(lines)
    module.add_constant(name, f"() : {ty} {{\n  {body}\n}}", symbols)


class _Panel:
    """B in a packed panel."""

    stores = False  # something, beside which rows of A don't change: LLVM loads them where it likes

    def __init__(self, fn: Fn, elem: str, spec: TileSpec, b: V) -> None:
        self.fn, self.elem, self.spec, self.b = fn, elem, spec, b
        # The elements of a unit are loaded each by itself, as both would take registers: LLVM mustn't see that they are the same.
        self.parts = [b, *(_apart(fn, b) for _ in range(1, spec.left_parts(elem)))]

    def at(self, k: V) -> list[V]:
        """Addresses of a step of k, one for each part of a unit."""
        return [self.fn.gep(p, self.fn.mul(k, self.spec.panel(self.elem)), unit(self.elem)) for p in self.parts]

    def vector(self, p: V, k: V, u: int, which: int, v: int) -> V:
        """Vector `v` of a row, or of one of its parts, `u` steps on from `k`, whose address is p."""
        fn, spec, part = self.fn, self.spec, unit(self.elem)
        lanes = spec.lanes(self.elem)
        y = fn.load(fn.gep(p, u * spec.panel(self.elem) + v * lanes, part), vec(part, lanes))
        return y if len(self.parts) == 1 else widened_pair(fn, y)[which]

    def keep(self, row: Sequence[V], k: V, u: int, after: Sequence[V]) -> None:
        """Called with a row's vectors once they were multiplied, and the last sums: stored before them, they would keep LLVM from
        loading A's numbers one after the other."""


class _RowsToPack(_Panel):
    """B where it lies, packed as it is read (see `emit_microkernel`)."""

    stores = True

    def __init__(self, fn: Fn, elem: str, spec: TileSpec, b: V) -> None:
        to, self.panel_step, source, self.row_step, width = (fn.load(fn.gep(b, i, I64), I64) for i in range(PACKING_FIELDS))
        super().__init__(fn, elem, spec, fn.int_to_ptr(source))
        self.to, self.masks = fn.int_to_ptr(to), list[V]()
        if spec.target.mask_registers:
            lanes = spec.lanes(elem)
            self.masks = [fn.tail_mask(fn.max(fn.sub(width, v * lanes), 0), lanes) for v in range(spec.vectors)]

    def at(self, k: V) -> list[V]:
        return [self.fn.gep(self.b, self.fn.mul(k, self.row_step), self.elem)]

    def vector(self, p: V, k: V, u: int, which: int, v: int) -> V:
        fn, elem, lanes = self.fn, self.elem, self.spec.lanes(self.elem)
        ty = vec(elem, lanes)
        at = fn.gep(fn.gep(p, fn.mul(self.row_step, u), elem), v * lanes, elem)
        return fn.masked_load(at, self.masks[v], fn.const(0.0, ty)) if self.masks else fn.load(at, ty, BITS[elem] // 8)

    def keep(self, row: Sequence[V], k: V, u: int, after: Sequence[V]) -> None:
        at = self.fn.gep(self.to, self.fn.mul(self.fn.add(k, u), self.panel_step), self.elem)
        for x in after:
            at = _after(self.fn, at, x)
        for v, y in enumerate(row):
            self.fn.store(y, self.fn.gep(at, v * y.lanes, self.elem))


@dataclass(frozen=True)
class _PackedRows:
    """Rows of A in a panel, step after step of `step` numbers."""

    fn: Fn
    elem: str
    mr: int
    a: V
    step: int
    in_place = False  # units as they lie in memory, not in parts

    def start(self) -> list[V]:
        """Pointers that a loop over k carries."""
        return []

    def at(self, k: V, pointers: Sequence[V]) -> list[tuple[V, int]]:
        """Address of each row at unit `k`, where the pointers are, and an offset; the next unit is `step` on."""
        a = self.fn.gep(self.a, self.fn.mul(k, self.step), unit(self.elem))
        return [(a, i) for i in range(self.mr)]

    def after(self, units: int, pointers: Sequence[V]) -> list[V]:
        """The pointers so many units on."""
        return []


@dataclass(frozen=True)
class _RowsInPlace(_PackedRows):
    """Rows of A where they lie, `step` numbers of A apart. Where addresses may add multiples of that, few pointers serve all.

    They go through the loop, `_apart` in each turn: otherwise LLVM derives them from one another again or keeps one for each row,
    and spills."""

    lda: V
    in_place = True

    def start(self) -> list[V]:
        return [self.fn.gep(self.a, self.fn.mul(self.lda, i), self.elem) for i in range(0, self.mr, self.fn.target.strides)]

    def at(self, k: V, pointers: Sequence[V]) -> list[tuple[V, int]]:
        fn, strides, out = self.fn, self.fn.target.strides, list[tuple[V, int]]()
        for p, first in zip(pointers, range(0, self.mr, strides), strict=True):
            here = _apart(fn, p)
            out += [(fn.gep(here, fn.mul(self.lda, i), self.elem), 0) for i in range(min(strides, self.mr - first))]
        return out

    def after(self, units: int, pointers: Sequence[V]) -> list[V]:
        return [self.fn.gep(p, units, unit(self.elem)) for p in pointers]


def _apart(fn: Fn, p: V) -> V:
    """The same address in a register of its own: it passes through an empty inline assembly, behind which LLVM can't see what it
    is."""
    return fn.op(PTR, f'llvm.inline_asm "", "=r,0" {p.name} : (!llvm.ptr) -> !llvm.ptr')


def _after(fn: Fn, p: V, x: V) -> V:
    """The same address, of which LLVM loads nothing before it has computed `x`: registers are short."""
    args = f"{p.name}, {x.name} : (!llvm.ptr, {x.type})"
    return fn.op(PTR, f'llvm.inline_asm "", "=r,0,{fn.target.constraint}" {args} -> !llvm.ptr')


def multiply_add(fn: Fn, elem: str, spec: TileSpec, x: V, y: V, sum_: V) -> V:
    """sum_ + x * y for vectors of units, or of elements of such that lie apart (`left_parts`); units of several elements add all
    their products."""
    if depth(elem) == 1 or spec.left_parts(elem) > 1:
        return fn.fma(x, y, sum_)
    dot = spec.dot(elem)
    if dot is not None:
        if spec.target.lane_factors and not (elem == I8 and spec._left == "ui8"):
            x, y = y, x  # which is what LLVM takes a lane for; of bytes of two kinds it knows both forms
        return fn.intrinsic(dot.intrinsic, sum_.type, sum_, _as_vector_of(fn, elem, x), _as_vector_of(fn, elem, y))
    pairs = spec.target.pair_products
    wide = "i16" if pairs else I32
    for x_byte, y_byte in zip(_bytes(fn, x, wide, unsigned=spec.unsigned), _bytes(fn, y, wide), strict=True):
        product = fn.intrinsic(pairs, sum_.type, x_byte, y_byte) if pairs else fn.mul(x_byte, y_byte)
        sum_ = fn.add(sum_, product)
    return sum_


def widened_pair(fn: Fn, pairs: V) -> tuple[V, V]:
    """The first and the second of vectors of pairs of bf16, as f32."""
    return fn.bitcast(fn.shl(pairs, 16), F32), fn.bitcast(fn.and_(pairs, -65536), F32)


def _as_vector_of(fn: Fn, elem: str, x: V) -> V:
    """The same bits."""
    ty = vec(elem, x.lanes * BITS[x.elem] // BITS[elem])
    return x if ty == x.type else fn.op(ty, f"vector.bitcast {x.name} : {x.type} to {ty}")


def _bytes(fn: Fn, units: V, wide: str, *, unsigned: bool = False) -> list[V]:
    """The first, second, ... byte of every `wide` integer in a vector of units, as such integers."""
    x, last = _as_vector_of(fn, wide, units), BITS[wide] - 8
    if unsigned:
        return [fn.and_(fn.shr(x, at) if at else x, 255) for at in range(0, last + 1, 8)]
    return [fn.shr(fn.shl(x, last - at) if at < last else x, last) for at in range(0, last + 1, 8)]


def in_one_set(elem: str, spec: TileSpec) -> int:
    """From so many rows on the steps of k are summed one after the other: those of panels of products that are split, so that no
    split changes a sum's order."""
    return (spec.rows(elem) + 1) // 2


def _interleaved_sums(elem: str, mr: int, accumulators: int, spec: TileSpec) -> int:
    """In how many sets of `accumulators` the steps of k are summed: more than one where a single set can't keep the FMA units busy
    and registers allow."""
    if mr >= in_one_set(elem, spec):
        return 1
    return max(1, min(-(-_MIN_ACCUMULATORS // accumulators), spec.accumulators(elem) // accumulators))


def _emit_body(
    fn: Fn,
    elem: str,
    mr: int,
    spec: TileSpec,
    right: _Panel,
    rest: Sequence[V],
    left: _PackedRows,
    narrow: bool,
    placed: str | None = None,
    column_sums: Sequence[V] = (),
    matrices: V | None = None,
) -> None:
    """The k loop and the tile's update. `column_sums`: see `TileSpec.flips`. `matrices`: a panel of A that is multiplied as such;
    one row alone lies as dot products want it."""
    k, tile, accumulate, ahead, ahead_step, *placing = rest
    row_step = placing if placed == accumulator(elem) else []
    lanes, ld, part = spec.lanes(elem), spec.columns(elem, mr), unit(elem)
    nv = 1 if narrow else ld // lanes
    ty = vec(accumulator(elem), lanes)
    fetched = [*range(0, nv * lanes * BITS[part] // 8, 64), *([-_RETRY_BYTES] if mr >= _RETRY_ROWS else [])]
    zero = fn.const(0.0, ty)

    def cells(tile: V) -> list[V]:
        if not row_step:
            return [fn.gep(tile, i * ld + v * lanes, accumulator(elem)) for i in range(mr) for v in range(nv)]
        starts = [fn.gep(tile, fn.mul(row_step[0], i), accumulator(elem)) for i in range(mr)]
        return [fn.gep(start, v * lanes, accumulator(elem)) for start in starts for v in range(nv)]

    # Addresses of rows that are placed are computed where they are needed: registers mustn't hold them throughout the loop.
    at = [] if row_step else cells(tile)
    parts = spec.left_parts(elem)
    by_lane = fn.target.lane_factors and depth(elem) > 1 and not left.in_place and not spec.widens(elem)

    def step(rows: int, at_k: V, u: int, which: int, acc: list[V], b_k: V, a_k: list[tuple[V, int]]) -> list[V]:
        """Adds the products of the unit `u` from `at_k` on, or of one of its `parts`."""
        factors = list(broadcast_each(fn, fn.gep(a_k[0][0], u * left.step, part), mr, part, lanes)) if by_lane else []
        out = list(acc)

        def row(i: int) -> V:
            if i == mr:
                return fn.const(SIGN_BITS, vec(part, lanes))
            if factors:
                return factors[i]
            base, offset = a_k[i]
            if right.stores and i > 1:
                for v in range(nv):
                    base = _after(fn, base, out[(i - 2) * nv + v])
            if left.in_place:
                if parts == 1:
                    return fn.splat(fn.load(fn.gep(base, u, part), part, BITS[elem] // 8), lanes)
                # In both halves of each lane: LLVM would keep pairs in registers for the second number, and has none left.
                number = fn.load(fn.gep(base, u * parts + which, _I16), _I16)
                return fn.bitcast(fn.shl(_as_vector_of(fn, part, fn.splat(number, lanes * parts)), 16), F32)
            at = fn.gep(base, offset + u * left.step + which * mr, part)
            x = fn.splat(fn.load(at, part), lanes)
            return fn.bitcast(x, F32) if parts > 1 else x

        def vector(v: int) -> V:
            return right.vector(b_k, at_k, u, which, v)

        if nv > spec.vectors:  # a whole panel of few rows: B's row wouldn't fit the registers, A's column does
            xs = [row(i) for i in range(rows)]
            for v in range(nv):
                y = vector(v)
                for i, x in enumerate(xs):
                    out[i * nv + v] = multiply_add(fn, elem, spec, x, y, acc[i * nv + v])
            return out
        ys = [vector(v) for v in range(nv)]
        for i in range(rows):
            x = row(i)
            for v, y in enumerate(ys):
                out[i * nv + v] = multiply_add(fn, elem, spec, x, y, acc[i * nv + v])
        right.keep(ys, at_k, u, out[-nv:])
        return out

    c = mr * nv
    start = fn.if_else(
        fn.cmp("ne", accumulate, 0), lambda: [fn.load(p, ty) for p in at or cells(tile)], lambda: [zero] * c, [ty] * c
    )

    def summed(rows: int) -> list[V]:
        """Of the tile's rows, and perhaps of one of sign bits."""
        n = rows * nv
        sets = _interleaved_sums(elem, mr, n, spec)
        unroll = sets * max(1, _FMAS_PER_ITERATION // (n * sets * spec.products(elem)))
        main = fn.mul(fn.divu(k, unroll), unroll)
        with fn.loop(0, main, unroll, [*start, *[zero] * (n * sets - c), *left.start()]) as loop:
            acc, pointers = list(loop.carried[: n * sets]), loop.carried[n * sets :]
            b_k, a_k = right.at(loop.iv), left.at(loop.iv, pointers)
            fetch = fn.gep(ahead, fn.mul(loop.iv, ahead_step), I8)
            for u in range(unroll):
                for line in fetched:
                    fn.prefetch(fn.gep(fetch, line, I8), _PREFETCH_LOCALITY)
                fetch = fn.gep(fetch, ahead_step, I8)
                s = u % sets * n
                for i, p in enumerate(b_k):
                    here = _after(fn, p, acc[s + n - 1]) if i and left.in_place else p
                    acc[s : s + n] = step(rows, loop.iv, u, i, acc[s : s + n], here, a_k)
            loop.yield_(*acc, *left.after(unroll, pointers))
        sums, pointers = loop.results[:n], loop.results[n * sets :]
        for s in range(1, sets):
            sums = [fn.add(x, y) for x, y in zip(sums, loop.results[s * n : (s + 1) * n], strict=True)]
        with fn.loop(main, k, 1, [*sums, *pointers]) as tail:
            acc, pointers = list(tail.carried[:n]), tail.carried[n:]
            b_k, a_k = right.at(tail.iv), left.at(tail.iv, pointers)
            for i, p in enumerate(b_k):
                acc = step(rows, tail.iv, 0, i, acc, p, a_k)
            tail.yield_(*acc, *left.after(1, pointers))
        return tail.results[:n]

    def fetch_units(at: V, count: int) -> None:
        fetch = fn.gep(ahead, fn.mul(at, ahead_step), I8)
        for u in range(count):
            for line in fetched:
                fn.prefetch(fn.gep(fn.gep(fetch, fn.mul(ahead_step, u), I8), line, I8), _PREFETCH_LOCALITY)

    if matrices is not None:
        sums = emit_matrix_sums(fn, spec, mr, nv, matrices, right.b, k, start, fetch_units)
    else:
        sums = _less_what_flips_add(fn, summed, mr, nv, *column_sums) if column_sums else summed(mr)

    def to_tile() -> list[V]:
        for p, x in zip(at or cells(_apart(fn, tile)), sums, strict=True):
            fn.store(x, p)
        return []

    if placed is None or row_step:
        to_tile()
    else:
        to, apart = placing
        fn.if_else(
            fn.cmp("eq", fn.ptr_to_int(to), 0),
            to_tile,
            lambda: _store_rounded(fn, elem, sums, nv, placed, _apart(fn, to), apart),
            [],
        )
    fn.done()


def _store_rounded(fn: Fn, elem: str, sums: Sequence[V], nv: int, to: str, memory: V, apart: V) -> list[V]:
    """Stores rows of `nv` vectors as elements of the narrower float type `to`, rows `apart` elements apart; two vectors at a time,
    which are shortened together."""
    if elem == BF16:
        fn.plain |= {x.name for x in sums}  # of bf16 come no other NaNs
    for i in range(len(sums) // nv):
        row = fn.gep(memory, fn.mul(apart, i), to)
        for v in range(0, nv, 2):
            xs = sums[i * nv + v : i * nv + min(v + 2, nv)]
            fn.store(_rounded_together(fn, xs, to), fn.gep(row, v * xs[0].lanes, to), BITS[to] // 8)
    return []


def _rounded_together(fn: Fn, xs: Sequence[V], to: str) -> V:
    """One or two vectors side by side, rounded to the type `to`."""
    if len(xs) == 1:
        return rounded(fn, xs[0], to)
    x = fn.shuffle(xs[0], xs[1], range(2 * xs[0].lanes))
    if all(y.name in fn.plain for y in xs):
        fn.plain.add(x.name)
    return rounded(fn, x, to)


def _less_what_flips_add(fn: Fn, summed: Callable[[int], list[V]], mr: int, nv: int, memory: V, turn: V) -> list[V]:
    """The sums of `mr` rows of `nv` vectors; those of a row more are what `flips` says is in `memory` from the second turn on."""
    lanes, n = fn.target.lanes(I32), mr * nv
    ty, at = vec(I32, lanes), [fn.gep(memory, v * lanes, I32) for v in range(nv)]

    def first() -> list[V]:
        out = summed(mr + 1)
        for p, x in zip(at, out[n:], strict=True):
            fn.store(x, p)
        return out

    out = fn.if_else(fn.cmp("eq", turn, 0), first, lambda: [*summed(mr), *(fn.load(p, ty) for p in at)], [ty] * (n + nv))
    return [fn.sub(x, out[n + i % nv]) for i, x in enumerate(out[:n])]
