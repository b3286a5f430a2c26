"""Register tiles of depthwise convolutions of bytes: columns of a window lie side by side in a lane, for dot products of bytes."""

from __future__ import annotations

from dhlo.codegen.families.conv.byte_columns import ByteColumns
from dhlo.codegen.families.conv.depthwise_rows import Columns, Rows
from dhlo.codegen.families.conv.params import ConvParams
from dhlo.codegen.families.gemm.multiply_add import multiply_add
from dhlo.codegen.kernel_ir.builder import I8, I32, V, vec

__all__ = ["ByteRows"]


class ByteRows(Rows):
    """As `Rows`, of i8, or of ui8 if `spec.unsigned`. A channel's weights are i32s: what its sums begin with, then four columns of
    the window's first row, the next four, ..., the next row; `zeros` is the byte that lies outside of the image."""

    def __init__(self, p: ConvParams, name: str, rows: int, lanes: int) -> None:
        super().__init__(p, name, rows, lanes)
        self.head = self.w
        self.w = self.f.gep(self.w, p.heads, I32)
        self.bytes = ByteColumns(self.f, p.spec, p.stride[2], p.dilation[2], p.row_steps, self.geo.iw)
        self.outside = self.f.load(self.zeros, vec(I8, self.bytes.loaded))

    def start(self) -> list[V]:
        return [self.weight(self.head, 0)] * self.rows + [self.zero] * (self.rows * (self.chains - 1))

    def columns(self, column: V) -> Columns:
        return _ByteColumns(self, column)

    def multiply_add(self, factor: V, value: V, total: V) -> V:
        return multiply_add(self.f, I8, self.p.spec, value, factor, total)


class _ByteColumns(Columns):
    """Loads four columns of a vector of windows at a time, each lane's as an i32."""

    def __init__(self, rows: ByteRows, column: V) -> None:
        self.of = rows
        self.masks = dict(enumerate(rows.bytes.masks(column)))

    def load(self, line: V) -> list[V]:
        rows = self.of
        return [rows.bytes.load(line, step, mask, rows.outside) for step, mask in self.masks.items() if mask is not None]
