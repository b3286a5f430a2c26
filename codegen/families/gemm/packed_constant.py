"""Constant right sides of products: packed beforehand, once for all that read them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from dhlo.codegen.families.gemm.pack import pack_matrix
from dhlo.codegen.families.lowering import Lowering
from dhlo.errors import InternalError
from dhlo.ir.dialect import attr, defining
from dhlo.ir.handles import Value
from dhlo.ir.ops.movement import Transpose

__all__ = ["packed_constant"]


def packed_constant(low: Lowering, matrices: Value, columns: int, step: int, *, transposed: bool = False) -> int:
    """Offset of a constant [..., k, n], [..., n, k] if `transposed`, in panels of `columns` with `step` elements of k in a unit, as
    `pack_matrix` makes them, matrix after matrix. Raises InternalError for what is no constant."""
    op, value = defining(matrices), low.constant_value(matrices)
    if value is None:
        raise InternalError(f"{matrices} is no constant")
    if isinstance(op, Transpose) and attr(op, "perm") == [1, 0]:
        return packed_constant(low, op.operands[0], columns, step, transposed=not transposed)
    value = value.detach().mT if transposed else value.detach()
    *batch, k, n = value.shape
    count, elements = math.prod(batch), -(-n // columns) * columns * -(-k // step) * step

    def data() -> npt.NDArray[Any]:
        packed = [pack_matrix(m, columns, step) for m in value.reshape(count, k, n)]
        return np.concatenate([p.reshape(-1) for p in packed]) if len(packed) > 1 else packed[0] if packed else np.empty(0)

    key = ("packed_b", low.constant_key(matrices), transposed, columns, step)
    return low.constants.add(key, count * elements * value.element_size(), data)
