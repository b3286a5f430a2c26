"""Asks for caches as pools of blocks, and reads how the pass `page-caches` has changed a program's arguments and results."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase

from dhlo.errors import CompileError
from dhlo.frontend.program import InputSpec, Mutation, Program, Range
from dhlo.ir.function import (
    argument_names,
    argument_type,
    bodies,
    mark_argument,
    number_results,
    numbers_of_results,
    ranges_of,
    requested_pages,
    updates_of,
    user_names,
)
from dhlo.ir.mlir import ir
from dhlo.ir.paging import request_joins, requested_joins

__all__ = ["read_pages", "request_pages"]

_MOST_SLOTS = 1 << 20


def request_pages(programs: Collection[Program], pages: Mapping[str, int]) -> None:
    """Marks arguments (by name or pattern, with the slots of a block) for the pass `page-caches`, in all programs that have them.
    Raises CompileError where no argument has the name, or blocks can't have so many slots."""
    if not isinstance(pages, Mapping) or not all(
        isinstance(k, str) and type(n) is int and 0 < n <= _MOST_SLOTS for k, n in pages.items()
    ):
        raise CompileError(
            "pages: is a dict of arguments, by name or pattern, each with the slots of a block", hint='{"past_*": 16}, say'
        )
    for pattern, slots in pages.items():
        if not any([_mark(program, pattern, slots) or _mark_state(program, pattern, slots) for program in programs]):
            names = dict.fromkeys(s.name for program in programs for s in program.inputs if s.type is not None)
            raise CompileError(f"pages: no argument is called '{pattern}'", hint=f"the arguments are {', '.join(names)}")


def _mark(program: Program, pattern: str, slots: int) -> bool:
    """Whether there is such an argument."""
    names = [s.name for s in program.inputs if s.type is not None]
    found = [k for k, name in enumerate(names) if fnmatchcase(name, pattern)]
    with program.context:
        block = bodies(program.module)[0]
        if found and not requested_pages(block):
            number_results(block)
        for k in found:
            mark_argument(block, k, {"dhlo.page": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), slots)})
    return bool(found)


def _mark_state(program: Program, pattern: str, slots: int) -> bool:
    """Whether the program keeps such buffers itself, and changes them."""
    found = [m.target for m in program.mutations if m.kind != "input" and fnmatchcase(m.target, pattern)]
    with program.context:
        block = bodies(program.module)[0]
        if found and not requested_pages(block) and not requested_joins(program.module):
            number_results(block)
        request_joins(program.module, dict.fromkeys(found, slots))
    return bool(found)


def read_pages(program: Program) -> None:
    """Brings what the program says of its arguments and results in step with the function. A program of pools is called with flat
    sequences of tensors, and gives such."""
    with program.context:
        block = bodies(program.module)[0]
        numbers = numbers_of_results(block)
        if not numbers:
            return
        names, updates = argument_names(block), updates_of(block)
        types = [argument_type(block, k) for k in range(len(names))]
        program.user_names = user_names(program.module)
        ranges = {s.name: Range(0, None) for t in types for e in t.shape for s in e.free_symbols}
        program.symbols = ranges | {n: Range(*r) for n, r in ranges_of(program.module).items()}
    known = {s.name: s for s in program.inputs}
    program.inputs = [replace(known[n], type=t) if n in known else InputSpec(n, t) for n, t in zip(names, types, strict=True)]
    program.outputs = [replace(s, index=numbers[s.index]) for s in program.outputs if s.index in numbers]
    program.mutations = [replace(m, index=numbers[m.index]) for m in program.mutations if m.index in numbers]
    told = {m.index for m in program.mutations}
    program.mutations += [Mutation("input", names[k], i) for i, k in updates.items() if i not in told and isinstance(k, int)]
    program.in_spec = program.out_spec = None
