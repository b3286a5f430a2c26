"""The passes from the imported program to the planned module, in order: the compiler's contents page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from dhlo.errors import InternalError
from dhlo.ir import mlir
from dhlo.ir.handles import Module
from dhlo.passes.attention_heads import attention_heads
from dhlo.passes.cse import cse
from dhlo.passes.fold_weights import fold_weights
from dhlo.passes.fuse.fuse import fuse
from dhlo.passes.hoist_slices import hoist_slices
from dhlo.passes.merge_matmuls import merge_matmuls
from dhlo.passes.own_results import own_results
from dhlo.passes.readers_first import readers_first
from dhlo.passes.simplify import simplify
from dhlo.passes.update_parts import update_parts
from dhlo.shape_infer.verify import misused_symbol

__all__ = ["PASSES", "Pass", "Weights", "run_passes"]

Weights = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Pass:
    """A named rewrite of a module in place. Passes that need constant data take the weights and may add to them."""

    name: str
    run: Callable[[Module, Weights], None]

    @property
    def summary(self) -> str:
        return (self.run.__doc__ or "").split(".")[0].strip()


def plain(f: Callable[[Module], None]) -> Callable[[Module, Weights], None]:
    """A pass that needs no weights."""

    def run(module: Module, weights: Weights) -> None:
        f(module)

    run.__doc__ = f.__doc__
    return run


PASSES: tuple[Pass, ...] = (
    Pass("cse", plain(cse)),
    Pass("simplify", plain(simplify)),
    Pass("fold-weights", fold_weights),
    Pass("attention-heads", plain(attention_heads)),
    Pass("hoist-slices", plain(hoist_slices)),
    Pass("merge-matmuls", merge_matmuls),
    Pass("simplify-again", plain(simplify)),
    Pass("cse-again", plain(cse)),
    Pass("update-parts", plain(update_parts)),
    Pass("own-results", plain(own_results)),
    Pass("fuse", plain(fuse)),
    Pass("readers-first", plain(readers_first)),
)


def run_passes(
    module: Module, weights: Weights, passes: tuple[Pass, ...] = PASSES, after: Callable[[Pass, Any], None] | None = None
) -> None:
    """Runs passes on a module in its context, verifying after each; `after` sees the module after each pass.

    Raises InternalError, naming the pass, if one leaves an invalid module; so for one that is invalid before the first.
    """
    _verify(module, "the importer made an invalid module")
    for p in passes:
        p.run(module, weights)
        _verify(module, f"pass {p.name} left an invalid module")
        if after is not None:
            after(p, module)


def _verify(module: Module, what: str) -> None:
    """Raises InternalError, which says what is wrong and where."""
    try:
        module.operation.verify()
    except mlir.ir.MLIRError as e:
        raise InternalError(f"{what}: {e}") from e
    misuse = misused_symbol(module)
    if misuse is not None:
        raise InternalError(f"{what}: {misuse.op.OPERATION_NAME} at {misuse.op.location}: {misuse.text}")
