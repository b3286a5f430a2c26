"""Says where arguments with gaps are copied to dense memory, and where new content of arguments and state is written back."""

from __future__ import annotations

from typing import Any

from dhlo.ir.dialect import build
from dhlo.ir.function import bodies, grown_dims, updates_of
from dhlo.ir.mlir import ir
from dhlo.ir.ops.host import CONTRACT, Stage, UpdateArgument, UpdateState
from dhlo.ir.types import from_mlir

__all__ = ["stage_inputs"]


def stage_inputs(module: Any) -> None:
    """Behind the checks of @main, stages each argument that may have gaps; updates stand at its end, behind all checks, so that a
    failed call changes nothing."""
    for block in bodies(module)[:1]:
        ops = list(block.operations)
        if any(isinstance(op, (Stage, UpdateArgument, UpdateState)) for op in ops):
            continue  # done before
        grown = grown_dims(block)
        with ir.InsertionPoint(next(op for op in ops if not isinstance(op, CONTRACT))), ir.Location.unknown():
            for k, v in enumerate(block.arguments):
                if from_mlir(v).rank and k not in grown:  # a buffer that grows is dense, or the call has failed
                    build(Stage, [v], {"input": k})
        with ir.InsertionPoint(ops[-1]), ir.Location.unknown():
            for i, target in updates_of(block).items():
                v = ops[-1].operands[i]
                if isinstance(target, int):
                    build(UpdateArgument, [v], {"input": target})
                else:
                    build(UpdateState, [v], {"name_": target})
