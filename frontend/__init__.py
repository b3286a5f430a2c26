"""The frontend: torch.export programs into dhlo modules."""

from dhlo.frontend import compat as _compat  # noqa: F401  (first: it refuses other versions of PyTorch)
from dhlo.frontend.extensions import register_c_op, register_decomposition
from dhlo.frontend.importer import import_program
from dhlo.frontend.program import InputSpec, Mutation, OutputSpec, Program, Range
from dhlo.frontend.registry import register_lowering

__all__ = [
    "InputSpec",
    "Mutation",
    "OutputSpec",
    "Program",
    "Range",
    "import_program",
    "register_c_op",
    "register_decomposition",
    "register_lowering",
]
