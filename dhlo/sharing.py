"""What programs that become entries of one model have in common: equal weights, and states of one name."""

from __future__ import annotations

import logging
import re
from collections.abc import Hashable, Iterable, Mapping

import torch

from dhlo import _runtime
from dhlo.codegen.families.constants import raw
from dhlo.codegen.kernel_ir.abi import MAX_ENTRIES
from dhlo.errors import CompileError
from dhlo.frontend.program import Program
from dhlo.frontend.state import storage_span
from dhlo.ir.dialect import attr
from dhlo.ir.function import bodies, updates_of, walk
from dhlo.ir.mlir import ir
from dhlo.ir.ops.movement import State, Weight
from dhlo.passes.separate_state import request_states

__all__ = ["check_names", "share_states", "share_weights"]


_LOG = logging.getLogger("dhlo")


def check_names(names: Iterable[str]) -> None:
    """Raises CompileError where these aren't names of a model's entries: "" for the only one, or else letters, digits, `_`, `-` and
    `.`, beginning with a letter."""
    names = list(names)
    if names == [""]:
        return
    if not 0 < len(names) <= MAX_ENTRIES:
        raise CompileError(f"a model has 1 to {MAX_ENTRIES} entries, not {len(names)}")
    for name in names:
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]*", name):
            raise CompileError(f"an entry can't be called {name!r}", hint="name it by letters, digits, '_', '-' and '.'")


def share_states(programs: Mapping[str, Program]) -> None:
    """Makes what one of the programs changes state in all that have a tensor of that name.

    Raises CompileError where another program knows the same memory by another name. Of programs from files that can't be told:
    names that differ in the first module alone ("m.keys", "model.keys") look like an oversight, which is logged ("dhlo", WARNING).
    """
    names = dict.fromkeys(name for program in programs.values() for name in _written(program))
    _check_memory(programs)
    for entry, program in programs.items() if len(programs) > 1 else ():
        with program.context:
            request_states(program.module, [name for name in names if name in program.weights])
        for name in program.weights:
            for state in names:
                if name not in names and state not in program.weights and {name, _below(name)} & {state, _below(state)} - {""}:
                    _LOG.warning(
                        "entry '%s': its tensor '%s' isn't the state '%s' of another entry, as state is shared by name; if it is "
                        "meant to be, export the programs from modules that call it the same",
                        *(entry, name, state),
                    )


def _check_memory(programs: Mapping[str, Program]) -> None:
    """Raises CompileError where a program changes memory that another knows by another name, as a part or as a whole."""
    spans = {
        entry: {name: storage_span(t) for name, t in program.weights.items() if t.numel()} | program.spans
        for entry, program in programs.items()
    }
    for entry, program in programs.items():
        for state, (begin, end) in program.spans.items():
            for other, places in spans.items():
                alias = next((n for n, (first, last) in places.items() if n != state and first < end and begin < last), None)
                if alias is not None:
                    raise CompileError(
                        f"'{state}', which entry '{entry}' changes, shares memory with '{alias}' of entry '{other}'",
                        hint="state is shared by name: export the programs from modules that call the buffer the same",
                    )


def _below(name: str) -> str:
    """A tensor's name without the first module's."""
    return name.partition(".")[2]


def _written(program: Program) -> list[str]:
    with program.context:
        return [target for target in updates_of(bodies(program.module)[0]).values() if isinstance(target, str)]


def share_weights(programs: Mapping[str, Program]) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The weights of all programs and the initial content of their states, by names under which each weight is known once, whatever
    it is called in a program: `dhlo.weight` is renamed where it has to be. States are known by their names.

    Raises CompileError where states of one name differ in shape, dtype or content.
    """
    states = dict[str, torch.Tensor]()
    for program in programs.values():
        for name in _written(program):
            states.setdefault(name, program.weights[name])
    first, *rest = programs.values()
    if not rest:
        return first.weights, states
    names, weights = _Names(states), dict(states)
    for entry, program in programs.items():
        with program.context:
            for op in [op for block in bodies(program.module) for op in walk(block)]:
                if isinstance(op, Weight):
                    value = program.weights[attr(op, "name_")]
                    name = names.of(attr(op, "name_"), value)
                    weights[name] = value
                    op.operation.attributes["name_"] = ir.StringAttr.get(name)
                elif isinstance(op, State):
                    _check_equal(attr(op, "name_"), entry, states[attr(op, "name_")], program.weights[attr(op, "name_")])
        for name in _written(program):
            _check_equal(name, entry, states[name], program.weights[name])
    return weights, states


def _check_equal(state: str, entry: str, known: torch.Tensor, other: torch.Tensor) -> None:
    def described(t: torch.Tensor) -> str:
        return f"{str(t.dtype)[6:]}{list(t.shape)}"

    if known.dtype != other.dtype or known.shape != other.shape:
        raise CompileError(f"entry '{entry}': its state '{state}' is {described(other)}, in another entry it is {described(known)}")
    if known is not other and _content(known) != _content(other):
        raise CompileError(
            f"entry '{entry}': its state '{state}' begins with another content than in another entry",
            hint="export all entries from the same module, or give buffers that aren't shared different names",
        )


class _Names:
    """One name for each weight, by what is in it. Hashing is left out where tensors are the same memory."""

    def __init__(self, taken: Mapping[str, torch.Tensor]) -> None:
        self._taken = set(taken)
        self._by_memory: dict[Hashable, str] = {}
        self._by_content: dict[Hashable, str] = {}

    def of(self, name: str, value: torch.Tensor) -> str:
        memory = (value.data_ptr(), value.dtype, tuple(value.shape), value.stride())
        if value.numel() and memory in self._by_memory:
            return self._by_memory[memory]
        content = _content(value)
        if content not in self._by_content:
            free, number = name, 1
            while free in self._taken:
                free, number = f"{name}.{number}", number + 1
            self._taken.add(free)
            self._by_content[content] = free
        return self._by_memory.setdefault(memory, self._by_content[content])


def _content(t: torch.Tensor) -> Hashable:
    return str(t.dtype), tuple(t.shape), _runtime.section_digest(raw(t).data)
