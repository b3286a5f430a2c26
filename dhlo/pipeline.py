"""The passes from the imported program to the planned module, in order: the compiler's contents page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from dhlo.errors import InternalError
from dhlo.ir import mlir
from dhlo.passes.assign_buffers import assign_buffers
from dhlo.passes.attention_heads import attention_heads
from dhlo.passes.check_contract import check_contract
from dhlo.passes.cse import cse
from dhlo.passes.fold_weights import fold_weights
from dhlo.passes.fuse.fuse import fuse
from dhlo.passes.grow import grow
from dhlo.passes.hoist_slices import hoist_slices
from dhlo.passes.merge_matmuls import merge_matmuls
from dhlo.passes.own_results import own_results
from dhlo.passes.readers_first import readers_first
from dhlo.passes.separate_state import separate_state
from dhlo.passes.simplify import simplify
from dhlo.passes.split_counts import split_counts
from dhlo.passes.stage_inputs import stage_inputs
from dhlo.passes.update_parts import update_parts

__all__ = ["BUFFERS", "FRONT", "PASSES", "Pass", "Weights", "run_passes"]

Weights = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Pass:
    """A named rewrite of a module in place. Passes that need constant data take the weights and may add to them."""

    name: str
    run: Callable[[Any, Weights], None]

    @property
    def summary(self) -> str:
        return (self.run.__doc__ or "").split(".")[0].strip()


def plain(f: Callable[[Any], None]) -> Callable[[Any, Weights], None]:
    """A pass that needs no weights."""

    def run(module: Any, weights: Weights) -> None:
        f(module)

    run.__doc__ = f.__doc__
    return run


FRONT: tuple[Pass, ...] = (Pass("grow", plain(grow)),)
"""What decides about the results that a call gives: it runs before the cache of compiled programs is asked."""

PASSES: tuple[Pass, ...] = (
    *FRONT,
    Pass("separate-state", plain(separate_state)),
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
    Pass("split-counts", plain(split_counts)),
    Pass("check-contract", plain(check_contract)),
    Pass("stage-inputs", plain(stage_inputs)),
)
BUFFERS: tuple[Pass, ...] = (Pass("assign-buffers", plain(assign_buffers)),)
"""What follows once families have said how much memory their groups need."""


def run_passes(
    module: Any, weights: Weights, passes: tuple[Pass, ...] = PASSES, after: Callable[[Pass, Any], None] | None = None
) -> None:
    """Runs passes on a module in its context, verifying after each; `after` sees the module after each pass.

    Raises InternalError, naming the pass, if one leaves an invalid module.
    """
    for p in passes:
        p.run(module, weights)
        try:
            module.operation.verify()
        except mlir.ir.MLIRError as e:
            raise InternalError(f"pass {p.name} left an invalid module: {e}") from e
        if after is not None:
            after(p, module)
