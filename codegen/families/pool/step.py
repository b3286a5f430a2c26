"""Pooling of groups."""

from __future__ import annotations

from dhlo.codegen.elementwise.emit import memory_type
from dhlo.codegen.families.family import ChoiceFamily
from dhlo.codegen.families.kernel import where
from dhlo.codegen.families.lowering import GroupHost, Lowering, anchor_of, view_pointer
from dhlo.codegen.families.pool.adaptive import AdaptivePool
from dhlo.codegen.families.pool.pool import Pool
from dhlo.errors import CompileError
from dhlo.ir.dialect import Kind, Op, attr
from dhlo.ir.dtypes import DType
from dhlo.ir.ops import compute
from dhlo.ir.ops.control import Group
from dhlo.ir.symbols import product
from dhlo.ir.types import from_mlir

__all__ = ["PoolFamily"]


class PoolFamily(ChoiceFamily):
    """Pooling over windows, fixed or adaptive; the result's type has the sizes, rounded down or up."""

    anchor = Kind.WINDOW.value

    def __init__(self, low: Lowering, group: Group) -> None:
        super().__init__(low, group)
        op = anchor_of(group, Kind.WINDOW)
        self.x, self.out = from_mlir(op.operands[0]), from_mlir(op.results[0])
        if not self.x.dtype.is_float and (attr(op, "how") != "max" or isinstance(op, compute.AdaptivePool)):
            raise CompileError(f"pooling of {self.x} has no kernel yet", where=where(op), hint="pool floats")
        self.view = low.view(group, op.operands[0])
        self.pool = _parameters(op, self.x.dtype)
        self.rank = attr(op, "spatial") if isinstance(self.pool, AdaptivePool) else len(self.pool.kernel)

    def emit_kernels(self) -> None:
        self.pool.emit_kernels(self.low.module)

    def emit_launch(self, host: GroupHost) -> None:
        n = self.rank
        self.pool.emit_launch(
            host,
            x=view_pointer(host, self.view),
            out=host.pointer(self.group.results[0]),
            planes=host.size(product(self.x.shape[:-n])),
            spatial=[host.size(s) for s in self.x.shape[-n:]],
            out_spatial=[host.size(s) for s in self.out.shape[-n:]],
        )


def _parameters(op: Op, dtype: DType) -> Pool | AdaptivePool:
    """The static parameters of a dhlo.pool or dhlo.adaptive_pool."""
    if isinstance(op, compute.AdaptivePool):
        return AdaptivePool(attr(op, "how"), elem=dtype.name)
    window, stride, padding, dilation = (tuple(attr(op, n)) for n in ("window", "stride", "padding", "dilation"))
    how, divisor = attr(op, "how"), attr(op, "divisor") or None
    return Pool(
        how,
        window,
        stride,
        padding,
        dilation,
        count_include_pad=attr(op, "count_pad"),
        divisor_override=divisor,
        elem=memory_type(dtype),
        unsigned=dtype.name.startswith("ui"),
    )
