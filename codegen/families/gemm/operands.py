"""What the host program gives a product of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dhlo.codegen.kernel_ir.builder import V

__all__ = ["Operands"]


@dataclass(frozen=True)
class Operands:
    """What a product is given in the host program: addresses, and sizes and strides (in elements) as i64.

    `a_strides` are those of (batch 0, batch 1, m, k), 0 to broadcast. Without `workspace`, B is in panels (see `pack_b`) and
    `b_strides` are those of (batch 0, batch 1) in panel units (pairs for bf16, else elements); otherwise B is any matrix with
    strides of (batch 0, batch 1, k, n), and `workspace` has room for `workspace_bytes(distinct batches of B, n, k)`, 64-byte
    aligned. `parts`, if given, has room for `parts_bytes`: a product of one batch may then be split over k; it may overlap the
    workspace. `touch`, a function called like the epilogue before a tile's products, prefetches what the epilogue will write
    and read. `result`, if given, is the address of the result, dense and of `result_type(elem)`, where the epilogue does nothing
    but store tiles there, or round them to it: kernels may do so themselves.
    """

    a: V
    b: V
    m: V
    n: V
    k: V
    a_strides: Sequence[V]
    b_strides: Sequence[V]
    batch: Sequence[V]
    epilogue: V
    epilogue_args: V
    touch: V | None = None
    workspace: V | None = None
    parts: V | None = None
    result: V | None = None
