"""Every operator of the Core ATen set has a lowering or a decomposition."""

from __future__ import annotations

import torch

from dhlo.frontend.decompose import decompositions_of
from dhlo.frontend.functionalize import functional_form, out_form
from dhlo.frontend.registry import COMPLEX, LOWERINGS


def core() -> list[torch._ops.OpOverload]:
    """The overloads that PyTorch tags as core."""
    packets = [getattr(torch.ops.aten, name) for name in dir(torch.ops.aten)]
    overloads = [getattr(p, o) for p in packets if hasattr(p, "overloads") for o in p.overloads()]
    return [op for op in overloads if torch.Tag.core in op.tags]


def _twin_of_out(op: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    found = out_form(op)
    return found[0] if found is not None else None


def test_every_core_operator_is_known() -> None:
    ops = core()
    assert len(ops) > 150
    known = [op for op in ops if op in COMPLEX or any(form in LOWERINGS for form in (op, functional_form(op), _twin_of_out(op)))]
    left = {str(op) for op in ops if op not in known and not decompositions_of(op)}
    assert not left, sorted(left)
    assert len(known) >= len(ops) - 25  # decompositions are for what is rare
