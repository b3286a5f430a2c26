"""Columns of windows side by side in lanes, for dot products of bytes: read from an image, or written as one of their own."""

from __future__ import annotations

from dhlo.codegen.families.conv.params import COLUMNS_OF_STEP, column_steps
from dhlo.codegen.families.gemm.multiply_add import as_vector_of
from dhlo.codegen.families.gemm.register_tile import SIGN_BITS, TileSpec
from dhlo.codegen.kernel_ir.builder import BITS, I1, I8, I32, I64, PTR, Fn, KernelModule, V, vec
from dhlo.codegen.kernel_ir.launch import kernel_fn, load_args

__all__ = ["ByteColumns", "emit_columns", "has_byte_columns"]

_MOST_BYTES = BITS[I64]  # that are loaded at once, of which lanes gather theirs: a word has a bit of the mask for each


def has_byte_columns(kernel: int, stride: int, dilation: int, spec: TileSpec) -> bool:
    """Whether rows of such windows can be read for dot products: by what masks are cheap for, and an instruction gathers."""
    has = spec.dot(I8) is not None and spec.target.mask_registers and kernel <= _MOST_BYTES
    return has and _span(spec.lanes(I32), stride, dilation) <= _MOST_BYTES


def _span(lanes: int, stride: int, dilation: int) -> int:
    """Bytes of a row that a step of a vector of windows meets."""
    return (lanes - 1) * stride + (COLUMNS_OF_STEP - 1) * dilation + 1


class ByteColumns:
    """Reads vectors of windows along rows of `width` bytes: four columns of each in an i32, in `steps` of them. Bytes are i8, or
    ui8 if `spec.unsigned`, and come as the target's dot product wants them (`TileSpec.flips`)."""

    def __init__(self, f: Fn, spec: TileSpec, stride: int, dilation: int, steps: int, width: V) -> None:
        self.f, self.lanes, self.width, self.flips = f, spec.lanes(I32), width, spec.flips(I8)
        self.starts = [COLUMNS_OF_STEP * dilation * i for i in range(steps)]
        self.loaded = 1 << (_span(self.lanes, stride, dilation) - 1).bit_length()  # bytes, at once
        self.places = [i * stride + k * dilation for i in range(self.lanes) for k in range(COLUMNS_OF_STEP)]

    def masks(self, column: V) -> list[V]:
        """For each step which bytes lie inside, if windows start at `column`."""
        return [self._inside(self.f.add(column, start)) for start in self.starts]

    def load(self, line: V, step: int, mask: V, outside: V) -> V:
        """A step of the windows that start at `line`; `outside` is a vector of `loaded` bytes."""
        f = self.f
        x = f.masked_load(f.gep(line, self.starts[step], I8), mask, outside)
        x = as_vector_of(f, I32, f.shuffle(x, x, self.places))
        return f.xor(x, SIGN_BITS) if self.flips else x

    def _inside(self, column: V) -> V:
        """Which bytes from `column` on lie in the row."""
        f, n = self.f, self.loaded
        before = f.min(f.max(f.neg(column), 0), _MOST_BYTES)
        after = f.max(f.min(f.sub(self.width, column), _MOST_BYTES), 0)
        bits = f.cast(f.and_(self._lowest(after), f.not_(self._lowest(before))), I32 if n == BITS[I32] else I64)
        return f.op(vec(I1, n), f"llvm.bitcast {bits.name} : {bits.type} to {vec(I1, n)}")

    def _lowest(self, n: V) -> V:
        """The lowest `n` bits, of 0 to 64."""
        f = self.f
        return f.select(f.cmp("eq", n, _MOST_BYTES), f.i64(-1), f.sub(f.shl(f.i64(1), f.and_(n, _MOST_BYTES - 1)), 1))


def emit_columns(module: KernelModule, spec: TileSpec, kernel: int, stride: int, dilation: int, before: int, zero: int) -> str:
    """Emits (once) the kernel that makes an image of columns of windows; returns its symbol.

    Args (x, to, rows, width, out): x is [images * channels][rows][width] of bytes, `to` is [images * channels][steps][rows][out] of
    i32, in each of which are four columns of a window that `kernel`, `stride`, `dilation` and the padding `before` place; `zero` is
    the byte outside. Items are rows of a channel.
    """
    sign = "ui8" if spec.unsigned else "i8"
    name = f"conv_columns_{kernel}_{sign}_s{stride}_d{dilation}_p{before}_{zero}{'_flipped' if spec.flips(I8) else ''}"
    name = name.replace("-", "m")
    if name in module.functions:
        return name
    f = kernel_fn(module, name)
    x, to, rows, width, out = load_args(f, [PTR, PTR, I64, I64, I64])
    _, begin, end, *_ = f.args
    steps = column_steps(kernel)
    columns = ByteColumns(f, spec, stride, dilation, steps, width)
    outside = f.const((zero + 128) % 256 - 128, vec(I8, columns.loaded))
    with f.loop(begin, end) as items:
        channel = f.divu(items.iv, rows)
        line = f.gep(x, f.mul(items.iv, width), I8)
        row = f.add(f.mul(f.mul(channel, rows), steps), f.sub(items.iv, f.mul(channel, rows)))
        with f.loop(0, out, columns.lanes) as lp:
            column = f.sub(f.mul(lp.iv, stride), before)
            for i, mask in enumerate(columns.masks(column)):
                value = columns.load(f.gep(line, column, I8), i, mask, outside)
                at = f.add(f.mul(f.add(row, f.mul(rows, i)), out), lp.iv)
                f.store_first(value, f.gep(to, at, I32), f.sub(out, lp.iv))
    f.done()
    return name
