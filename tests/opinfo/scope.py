"""Operators that dhlo leaves out on purpose, with the reason."""

from __future__ import annotations

import re

__all__ = ["out_of_scope"]

# What must match an operator's qualified name, and why it has no lowering.
_REASONS: list[tuple[str, str]] = [
    (r"_?sparse\w*|to_sparse\w*|_to_sparse\w*|_nested\w*|to_mkldnn", "sparse and nested tensors"),
]


def out_of_scope(operator: str) -> str | None:
    """Why an operator ("aten.svd.default") is left out; None if it isn't."""
    parts = operator.split(".")
    name = parts[1] if len(parts) > 1 else operator
    return next((reason for pattern, reason in _REASONS if re.fullmatch(pattern, name)), None)
