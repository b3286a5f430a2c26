"""Asks for room behind arguments' elements, and reads how the pass `grow` has changed the program's results."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase

from dhlo.errors import CompileError
from dhlo.frontend.program import Mutation, Program
from dhlo.ir.function import bodies, grown_dims, mark_argument, sizes_of, updates_of
from dhlo.ir.mlir import ir

__all__ = ["read_growth", "request_growth"]

_MOST_DIMS = 64


def request_growth(programs: Collection[Program], grow: Mapping[str, int]) -> None:
    """Marks arguments (by name or pattern, with the dim along which they grow) for the pass `grow`, in all programs that have them.
    Raises CompileError where no argument has the name, or there is no such dim."""
    if not isinstance(grow, Mapping) or not all(
        isinstance(k, str) and type(d) is int and abs(d) < _MOST_DIMS for k, d in grow.items()
    ):
        raise CompileError(
            "grow: is a dict of arguments, by name or pattern, each with the number of a dim", hint='{"past_*": 2}, say'
        )
    for pattern, dim in grow.items():
        marked = [_mark(program, pattern, dim) for program in programs]
        if not any(marked):
            names = dict.fromkeys(name for program in programs for name in _arguments(program))
            raise CompileError(f"grow: no argument is called '{pattern}'", hint=f"the arguments are {', '.join(names)}")


def _arguments(program: Program) -> list[str]:
    return [s.name for s in program.inputs if s.type is not None]


def _mark(program: Program, pattern: str, dim: int) -> bool:
    """Whether there is such an argument."""
    found = [k for k, name in enumerate(_arguments(program)) if fnmatchcase(name, pattern)]
    with program.context:
        block = bodies(program.module)[0]
        for k in found:
            mark_argument(block, k, {"dhlo.grow": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), dim)})
    return bool(found)


def read_growth(program: Program) -> None:
    """Brings what the program says of its results in step with the function: results that have become sizes, and buffers that are
    results now."""
    names = _arguments(program)
    with program.context:
        block = bodies(program.module)[0]
        sizes, dims, updates = sizes_of(block), grown_dims(block), updates_of(block)
    program.outputs = [
        replace(s, grown=(sizes[s.index], dims[sizes[s.index]])) if s.index is not None and s.index in sizes else s
        for s in program.outputs
    ]
    known = {m.index for m in program.mutations}
    program.mutations += [
        Mutation("input", names[k], i) for i, k in updates.items() if i not in known and isinstance(k, int) and k in dims
    ]
