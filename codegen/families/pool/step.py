"""Pooling of groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy

from dhlo.codegen.families.family import Family
from dhlo.codegen.families.kernel import where
from dhlo.codegen.families.lowering import GroupHost, anchor_of, view_pointer
from dhlo.codegen.families.pool.adaptive import AdaptivePool
from dhlo.codegen.families.pool.pool import Pool
from dhlo.errors import CompileError
from dhlo.ir.dialect import Kind, attr
from dhlo.ir.symbols import evaluate, product
from dhlo.ir.types import TensorType, from_mlir

__all__ = ["PoolFamily"]


class PoolFamily(Family):
    """Pooling over windows, fixed or adaptive."""

    anchor = Kind.WINDOW.value

    def emit_kernels(self) -> None:
        low, group = self.low, self.group
        op = anchor_of(group, Kind.WINDOW)
        self.group, self.x, self.out = group, from_mlir(op.operands[0]), from_mlir(op.results[0])
        self.view = low.view(group, op.operands[0])
        if not self.x.dtype.is_float:
            raise CompileError(f"pooling of {self.x} has no kernel yet", where=where(op), hint="pool floats")
        self.pool: Pool | AdaptivePool
        if op.OPERATION_NAME == "dhlo.adaptive_pool":
            self.spatial = attr(op, "spatial")
            self.pool = AdaptivePool(attr(op, "how"), elem=self.x.dtype.name)
        else:
            self.pool = _pool(op, self.x, self.out)
            self.spatial = len(self.pool.kernel)
        self.pool.emit_kernels(low.module)

    def emit_launch(self, host: GroupHost) -> None:
        n = self.spatial
        planes = host.size(product(self.x.shape[:-n]))
        spatial = [host.size(s) for s in self.x.shape[-n:]]
        x, out = view_pointer(host, self.view), host.pointer(self.group.results[0])
        if isinstance(self.pool, AdaptivePool):
            self.pool.emit_launch(
                host, x=x, out=out, planes=planes, spatial=spatial, out_spatial=[host.size(s) for s in self.out.shape[-n:]]
            )
        else:
            self.pool.emit_launch(host, x=x, out=out, planes=planes, spatial=spatial)


def _pool(op: Any, x: TensorType, out: TensorType) -> Pool:
    """The pooling whose output sizes are those of the result type: rounded down, or up."""

    def get(n: str) -> Any:
        return attr(op, n)

    n = len(get("window"))
    for ceil in (False, True):
        pool = Pool(
            get("how"),
            tuple(get("window")),
            tuple(get("stride")),
            tuple(get("padding")),
            tuple(get("dilation")),
            ceil,
            get("count_pad"),
            get("divisor") or None,
            elem=x.dtype.name,
        )
        if _agree(pool, x.shape[-n:], out.shape[-n:]):
            return pool
    raise CompileError(f"pooling can't give {out} from {x}", where=where(op))


def _agree(pool: Pool, given: Sequence[sympy.Expr], wanted: Sequence[sympy.Expr]) -> bool:
    for base in range(37, 37 + 2 * max(pool.stride)):  # sizes of every remainder
        env = {s.name: base + 3 * i for i, s in enumerate(sorted({s for e in [*given, *wanted] for s in e.free_symbols}, key=str))}
        sizes = [evaluate(e, env) for e in given]
        if pool.output_size(sizes) != [evaluate(e, env) for e in wanted]:
            return False
    return True
