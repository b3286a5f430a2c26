"""Register tiles of depthwise convolutions of bytes: columns of a window lie side by side in a lane, for dot products of bytes."""

from __future__ import annotations

from dhlo.codegen.families.conv.depthwise_rows import Columns, Rows
from dhlo.codegen.families.conv.params import COLUMNS_OF_STEP, ConvParams
from dhlo.codegen.families.gemm.multiply_add import as_vector_of, multiply_add
from dhlo.codegen.families.gemm.register_tile import SIGN_BITS, TileSpec
from dhlo.codegen.kernel_ir.builder import BITS, I1, I8, I32, I64, V, vec

__all__ = ["ByteRows", "has_byte_rows"]

_MOST_BYTES = BITS[I64]  # that are loaded at once, of which lanes gather theirs: a word has a bit of the mask for each


def has_byte_rows(kernel: int, stride: int, dilation: int, spec: TileSpec) -> bool:
    """Whether rows of such windows can be read for dot products: by what masks are cheap for, and an instruction gathers."""
    has = spec.dot(I8) is not None and spec.target.mask_registers and kernel <= _MOST_BYTES
    return has and _span(spec.lanes(I32), stride, dilation) <= _MOST_BYTES


def _span(lanes: int, stride: int, dilation: int) -> int:
    """Bytes of a row that a step of a vector of windows meets."""
    return (lanes - 1) * stride + (COLUMNS_OF_STEP - 1) * dilation + 1


class ByteRows(Rows):
    """As `Rows`, of i8, or of ui8 if `spec.unsigned`. A channel's weights are i32s: what its sums begin with, then four columns of
    the window's first row, the next four, ..., the next row; `zeros` is the byte that lies outside of the image."""

    def __init__(self, p: ConvParams, name: str, rows: int, lanes: int) -> None:
        super().__init__(p, name, rows, lanes)
        self.head = self.w
        self.w = self.f.gep(self.w, p.heads, I32)
        self.outside = self.f.load(self.zeros, vec(I8, self.loaded))

    @property
    def loaded(self) -> int:
        """Bytes of a row that are loaded at once."""
        return 1 << (_span(self.lanes, self.p.stride[2], self.p.dilation[2]) - 1).bit_length()

    def start(self) -> list[V]:
        return [self.weight(self.head, 0)] * self.rows + [self.zero] * (self.rows * (self.chains - 1))

    def columns(self, column: V) -> Columns:
        return _ByteColumns(self, column)

    def multiply_add(self, factor: V, value: V, total: V) -> V:
        return multiply_add(self.f, I8, self.p.spec, value, factor, total)

    def bytes_inside(self, column: V) -> V:
        """Which bytes from `column` on lie in the image."""
        f, n = self.f, self.loaded
        before = f.min(f.max(f.neg(column), 0), _MOST_BYTES)
        after = f.max(f.min(f.sub(self.geo.iw, column), _MOST_BYTES), 0)
        bits = f.cast(f.and_(self._lowest(after), f.not_(self._lowest(before))), I32 if n == BITS[I32] else I64)
        return f.op(vec(I1, n), f"llvm.bitcast {bits.name} : {bits.type} to {vec(I1, n)}")

    def _lowest(self, n: V) -> V:
        """The lowest `n` bits, of 0 to 64."""
        f = self.f
        return f.select(f.cmp("eq", n, _MOST_BYTES), f.i64(-1), f.sub(f.shl(f.i64(1), f.and_(n, _MOST_BYTES - 1)), 1))


class _ByteColumns(Columns):
    """Loads four columns of a vector of windows at a time, each lane's as an i32."""

    def __init__(self, rows: ByteRows, column: V) -> None:
        self.bytes = rows
        step = COLUMNS_OF_STEP * rows.p.dilation[2]
        self.masks = {step * i: rows.bytes_inside(rows.f.add(column, step * i)) for i in range(rows.p.row_steps)}

    def load(self, line: V) -> list[V]:
        rows, f, p = self.bytes, self.bytes.f, self.bytes.p
        places = [i * p.stride[2] + k * p.dilation[2] for i in range(rows.lanes) for k in range(COLUMNS_OF_STEP)]
        out = []
        for start, mask in self.masks.items():
            assert mask is not None
            x = f.masked_load(f.gep(line, start, I8), mask, rows.outside)
            x = as_vector_of(f, I32, f.shuffle(x, x, places))
            out.append(f.xor(x, SIGN_BITS) if p.spec.flips(I8) else x)
        return out
