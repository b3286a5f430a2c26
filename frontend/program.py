"""What the importer hands to the compiler: the module, its weights, and how calls map onto its arguments and
results."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.export.graph_signature import OutputKind
from torch.utils import _pytree as pytree

from dhlo.ir.types import TensorType

__all__ = ["GRADIENTS", "InputSpec", "Mutation", "OutputSpec", "Program", "Range", "output_structure"]

GRADIENTS = (OutputKind.GRADIENT_TO_PARAMETER, OutputKind.GRADIENT_TO_USER_INPUT)


@dataclass(frozen=True)
class Range:
    """The values that a symbol may take: lo <= symbol <= hi; None means no bound."""

    lo: int | None
    hi: int | None


@dataclass(frozen=True)
class InputSpec:
    """A leaf of the input pytree. A tensor has a `type`; a number that stays dynamic has the type of the rank-0
    argument that
    carries it and `scalar` says which Python type ("int", "float" or "bool"); anything else must equal `constant` at
    the call."""

    name: str
    type: TensorType | None
    constant: Any = None
    scalar: str | None = None


@dataclass(frozen=True)
class OutputSpec:
    """A leaf of the output pytree: result number `index` (as a Python number if `scalar` says so), or else a
    `constant`. If it is `grown`, (number of an argument, dim), the result is only the size of that dim: the leaf is the
    argument's buffer, so far."""

    name: str
    index: int | None
    constant: Any = None
    scalar: str | None = None
    grown: tuple[int, int] | None = None


@dataclass(frozen=True)
class Mutation:
    """Result number `index` is the new content of an input (by its InputSpec name) or of a buffer (by its weight
    name)."""

    kind: str
    target: str
    index: int


@dataclass
class Program:
    """An imported program. `module` lives in `context`; work on it inside `with program.context:`."""

    context: Any
    module: Any
    weights: dict[str, torch.Tensor]
    inputs: list[InputSpec]
    outputs: list[OutputSpec]
    in_spec: Any
    out_spec: Any
    symbols: dict[str, Range]
    user_names: dict[str, str] = field(default_factory=dict)
    mutations: list[Mutation] = field(default_factory=list)
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Where the module has the buffers that the program changes, of which `weights` holds copies: addresses, [first, end)."""
    bounded: frozenset[str] = frozenset()
    """Keys of `Options.shapes` that mean a size of this program which isn't static."""
    parameters: dict[str, str] = field(default_factory=dict)
    """By name in the module's state dict, also of several names for one tensor: the name of the weight."""


def output_structure(ep: torch.export.ExportedProgram) -> Any:
    """The pytree of a call's results. A program with gradients (a joint graph) gives its own results and a dict of the gradients,
    by the name of the parameter or input."""
    spec = ep.call_spec.out_spec
    targets = [s.target for s in ep.graph_signature.output_specs if s.kind in GRADIENTS]
    if not targets:
        return spec
    return pytree.tree_structure((pytree.tree_unflatten([0] * spec.num_leaves, spec), dict.fromkeys(targets, 0)))
