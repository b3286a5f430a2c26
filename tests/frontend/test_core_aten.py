"""Every operator of the Core ATen set has a lowering, a decomposition, or a reason not to."""

from __future__ import annotations

import torch

from dhlo.frontend.decompose import decompositions_of
from dhlo.frontend.functionalize import functional_form
from dhlo.frontend.registry import COMPLEX, LOWERINGS

WITHOUT = {
    "aten.convolution_backward.default": "training",
    "aten.avg_pool2d_backward.default": "training",
    "aten._adaptive_avg_pool2d_backward.default": "training",
}


def core() -> list[torch._ops.OpOverload]:
    """The overloads that PyTorch tags as core."""
    packets = [getattr(torch.ops.aten, name) for name in dir(torch.ops.aten)]
    overloads = [getattr(p, o) for p in packets if hasattr(p, "overloads") for o in p.overloads()]
    return [op for op in overloads if torch.Tag.core in op.tags]


def test_every_core_operator_is_accounted_for() -> None:
    ops = core()
    assert len(ops) > 150
    known = [op for op in ops if op in LOWERINGS or op in COMPLEX or functional_form(op) in LOWERINGS]
    left = {str(op) for op in ops if op not in known and not decompositions_of(op)}
    assert left == set(WITHOUT), sorted(left ^ set(WITHOUT))
    assert len(known) >= len(ops) - 25  # decompositions are for what is rare
