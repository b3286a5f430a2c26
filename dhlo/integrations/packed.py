"""A captured graph as a callable, with weights that are constants as long as they stay what they are."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch

from dhlo.integrations.captured import Captured
from dhlo.model import CompiledModel

__all__ = ["PackedGraph"]

_LOG = logging.getLogger("dhlo")
_MOST_SETS = 64
_MOST_THAWS = 3

_address: Callable[[torch.Tensor], int] = torch.Tensor.data_ptr
_version: Callable[[torch.Tensor], int] = torch.Tensor._version.__get__  # type: ignore[attr-defined]


@dataclass(frozen=True)
class _Compiled:
    """The program with one set of constants. `held` keeps their memory, so that no other tensor has the same address; `owner` lets
    go of all that with the first of them."""

    model: CompiledModel | None
    fetch: Callable[[Any], tuple[Any, ...]]
    held: list[torch.Tensor]
    owner: weakref.ref[torch.Tensor] | None


class PackedGraph:
    """Calls a graph in AOTAutograd's boxed convention: takes a list of arguments, which it empties, and returns a list.

    A module's tensors are packed as constants when they are first seen, and known again by address and version. Where others
    come, the graph is compiled for these, too (modules of one class share a graph); those whose content has changed
    are arguments from then on, of which the graph is compiled once more: results are never stale. What bypasses versions,
    `p.data.add_(1)`, isn't noticed.
    """

    _boxed_call = True

    def __init__(self, graph: Captured, options: Mapping[str, Any]) -> None:
        self._graph, self._options = graph, options
        self._constants = list(graph.constants)  # numbers of the arguments that are constants
        self._pick = _getter(self._constants)
        self._known: dict[tuple[int, ...], _Compiled] = {}
        self._lock = threading.Lock()
        self._thaws = 0

    def __call__(self, args: list[Any]) -> list[Any]:
        """Runs the graph. Raises what `dhlo.compile` and calls of its models raise."""
        arguments = tuple(args)
        args.clear()
        found = None
        try:
            constants = self._pick(arguments)
            found = self._known.get((*map(_address, constants), *map(_version, constants)))
        except RuntimeError:  # a tensor of torch.inference_mode has no version
            pass
        if found is None:
            with self._lock:
                found = self._compiled(arguments)
        returned: Any = ()
        if found.model is not None:
            if self._graph.random:
                found.model.manual_seed(int(torch.randint(1 << 62, ())))  # torch.manual_seed decides
            returned = found.model(*found.fetch(arguments))
            if isinstance(returned, torch.Tensor):
                returned = (returned,)
        results = self._graph.results
        views = results.views(*arguments, *returned) if results.views is not None else ()
        sources = {"program": returned, "views": views}
        return [r.constant if r.kind == "constant" else sources[r.kind][r.index] for r in results.of_graph]

    def _compiled(self, arguments: tuple[Any, ...]) -> _Compiled:
        """The program for the constants among these arguments; compiled if that is new."""
        unversioned = [i for i in self._constants if arguments[i].is_inference()]
        if unversioned:
            self._thaw(unversioned, "are tensors of torch.inference_mode, whose changes can't be told")
        constants = self._pick(arguments)
        addresses, versions = tuple(map(_address, constants)), tuple(map(_version, constants))
        found = self._known.get((*addresses, *versions))
        if found is not None:  # another thread was first
            return found
        old = next((k for k in list(self._known) if k[: len(addresses)] == addresses), None)
        if old is not None and addresses:
            changed = [i for i, a, b in zip(self._constants, old[len(addresses) :], versions, strict=True) if a != b]
            self._thaw(changed if self._thaws < _MOST_THAWS else list(self._constants), "have changed since they were packed")
            return self._compiled(arguments)
        if len(self._known) == _MOST_SETS:
            self._thaw(list(self._constants), f"have come in {_MOST_SETS} sets")
            return self._compiled(arguments)
        key = (*addresses, *versions)
        self._known[key] = made = self._compile(arguments, key)
        return made

    def _thaw(self, numbers: list[int], why: str) -> None:
        """Makes constants arguments."""
        names = [self._graph.names[i] for i in numbers]
        some = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        _LOG.warning(
            "weights (%s) %s: calls of this graph take them as arguments from now on, which is slower; torch.compiler.reset() "
            "lets them be packed again",
            *(some, why),
        )
        self._thaws += 1
        self._constants = [i for i in self._constants if i not in numbers]
        self._pick = _getter(self._constants)
        self._known.clear()

    def _compile(self, arguments: tuple[Any, ...], key: tuple[int, ...]) -> _Compiled:
        import dhlo

        constants = {i: arguments[i] for i in self._constants}
        held = [t.detach() for t in constants.values()]
        owner = weakref.ref(arguments[self._constants[0]], _forgetting(self, key)) if constants else None
        if not self._graph.computes:
            return _Compiled(None, _getter([]), held, owner)
        program, taken = self._graph.program(constants)
        model = dhlo.compile(program, **self._options)
        if model.process_groups:
            model.bind_process_group()
        return _Compiled(model, _getter(taken), held, owner)


def _forgetting(graph: PackedGraph, key: tuple[int, ...]) -> Callable[[Any], None]:
    """Drops a set of constants. Holds the graph weakly: one that TorchDynamo drops goes, however long its module lives."""
    weak = weakref.ref(graph)

    def forget(_: Any) -> None:
        alive = weak()
        if alive is not None:
            alive._known.pop(key, None)

    return forget


def _getter(numbers: list[int]) -> Callable[[Any], tuple[Any, ...]]:
    """Picks elements by number, as a tuple whatever their count."""
    if len(numbers) > 1:
        return itemgetter(*numbers)
    return (lambda xs: (xs[numbers[0]],)) if numbers else (lambda xs: ())
