"""The one place that knows how versions of PyTorch differ.

Operators come and go. Tables of rules look them up through the namespaces here, which give a placeholder for an operator that this
version lacks if it is listed as one that comes and goes; any other name that isn't found is a mistake, and raises AttributeError.
No graph holds a placeholder, so that a rule for one is never used.
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch
import torch.export.custom_ops  # registers the operator that reads parts of tensor subclasses

from dhlo.torch_version import require_supported

__all__ = ["ABSENT_IN", "VERSION", "Absent", "aten", "higher_order", "inner_tensor", "present", "prims"]

Rule = TypeVar("Rule")

VERSION = require_supported(torch.__version__)

# Operators that not every supported version has: the minor versions of torch 2 that lack them.
ABSENT_IN: dict[str, frozenset[int]] = {
    "aten::cholesky": frozenset({14, 15}),
}


class Absent:
    """Stands for an operator, or an overload of one, that this version of PyTorch lacks."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, overload: str) -> Absent:
        if overload.startswith("__"):
            raise AttributeError(overload)
        return Absent(f"{self.name}.{overload}")

    def __repr__(self) -> str:
        return f"<{self.name}, which torch {torch.__version__} lacks>"

    def overloads(self) -> list[str]:
        """None."""
        return []


class _Namespace:
    """As `torch.ops.<name>`, with placeholders for what is known to come and go."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, op: str) -> Any:
        try:
            found = getattr(getattr(torch.ops, self._name), op)
        except AttributeError:
            if f"{self._name}::{op}" not in ABSENT_IN:
                raise
            found = Absent(f"{self._name}::{op}")
        setattr(self, op, found)
        return found


def present(table: dict[Any, Rule]) -> dict[Any, Rule]:
    """The entries of a table for operators that this version of PyTorch has."""
    return {op: rule for op, rule in table.items() if not isinstance(op, Absent)}


aten: Any = _Namespace("aten")
prims: Any = _Namespace("prims")
higher_order: Any = _Namespace("higher_order")
inner_tensor: Any = torch.ops.export.access_subclass_inner_tensor.default
"""Gives an attribute of a tensor subclass that is a tensor."""
