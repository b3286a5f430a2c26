"""Constant right sides of products: packed beforehand, once for all that read them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dhlo.codegen.families.gemm.matmul import workspace_bytes
from dhlo.codegen.families.gemm.pack import pack_matrix
from dhlo.codegen.families.gemm.quantised import QuantisedMatrix
from dhlo.codegen.families.gemm.register_tile import F16, TileSpec
from dhlo.codegen.families.lowering import Lowering
from dhlo.ir.handles import Value
from dhlo.ir.types import from_mlir

__all__ = ["coded_constant", "packed_constant"]


def packed_constant(low: Lowering, matrices: Value, value: torch.Tensor, spec: TileSpec) -> int:
    """Offset of a constant [..., k, n], of which the value is given, in panels as `pack_matrix` makes them, matrix after matrix.
    Those of f16, which are several (one alone is kept as codes), are of f32."""
    *batch, k, n = value.shape
    count, elem = math.prod(batch), from_mlir(matrices).dtype.name
    columns = spec.panel(elem)
    value = value.float() if elem == F16 else value

    def data() -> npt.NDArray[Any]:
        packed = [pack_matrix(m, columns) for m in value.detach().reshape(count, k, n)]
        return np.concatenate([p.reshape(-1) for p in packed]) if len(packed) > 1 else packed[0] if packed else np.empty(0)

    nbytes = count * int(workspace_bytes(1, n, k, elem, spec))
    return low.constants.add(("packed_b", low.constant_key(matrices), columns), nbytes, data)


def coded_constant(low: Lowering, matrices: Value, matrix: QuantisedMatrix) -> int:
    """Offset of a constant that is kept as codes, as `QuantisedMatrix.pack` makes them."""
    return low.constants.add(("coded", low.constant_key(matrices)), matrix.bytes, matrix.pack)
