"""The tensors that a program's module holds: which names are one piece of memory, and what state is called."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch.export.graph_signature import InputKind
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

__all__ = ["Parts", "has_parts", "parts_of", "state_names", "storage_span", "tensor_of"]

_LIFTED = re.compile(r"(.*\.)?(lifted_tensor|_tensor_constant)_?\d+")  # as torch.export calls what the module has no name for
_KINDS = (InputKind.BUFFER, InputKind.PARAMETER, InputKind.CONSTANT_TENSOR)


def tensor_of(ep: Any, target: str) -> torch.Tensor:
    """The data of a parameter, buffer or constant of an exported program."""
    data: torch.Tensor = ep.state_dict[target] if target in ep.state_dict else ep.constants[target]
    return data


@dataclass(frozen=True)
class Parts:
    """A constant of the module that is made of other tensors (a tensor subclass, as quantisers leave them): the program reads its
    parts, by the names of attributes."""

    name: str
    tensor: torch.Tensor


def has_parts(x: torch.Tensor) -> bool:
    """Is a tensor made of others?"""
    return bool(is_traceable_wrapper_subclass(x))


def parts_of(x: torch.Tensor) -> list[torch.Tensor]:
    """The plain tensors that a tensor is made of: itself, or what lies inside a subclass at any depth."""
    if not is_traceable_wrapper_subclass(x):
        return [x]
    names, _ = x.__tensor_flatten__()
    return [p for n in names for p in parts_of(getattr(x, n))]


def storage_span(x: torch.Tensor) -> tuple[int, int]:
    """The addresses that a tensor's elements lie in, [first, end)."""
    last = sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    return x.data_ptr(), x.data_ptr() + (last + 1) * x.element_size()


def _memory(ep: Any, target: str) -> Any:
    """Equal for names of the same elements in the same order."""
    x = tensor_of(ep, target)
    if is_traceable_wrapper_subclass(x):
        return (type(x), tuple(x.shape), *(_place(p) or target for p in parts_of(x)))
    return _place(x) or target


def _place(x: torch.Tensor) -> Any:
    return (x.data_ptr(), tuple(x.shape), x.stride(), x.dtype, x.is_conj(), x.is_neg()) if x.numel() else None


def state_names(ep: Any) -> dict[str, str]:
    """The name of every parameter, buffer and constant that the program reads, by torch.export's own. Of several names for the same
    memory it is the module's: that of a buffer before a parameter's or that of a plain attribute. Tensors that the module has no
    name for are numbered in the submodule that uses them."""
    nodes = {n.name: n for n in ep.graph.nodes if n.op == "placeholder"}
    specs = [s for s in ep.graph_signature.input_specs if s.kind in _KINDS]
    taken = {s.target for s in specs}
    names: dict[Any, str] = {}
    for s in sorted(specs, key=lambda s: _KINDS.index(s.kind)):
        key, name = _memory(ep, s.target), s.target
        if key not in names and name not in ep.state_dict and _LIFTED.fullmatch(name):
            name = _numbered(_user(nodes[s.arg.name]), taken)
            taken.add(name)
        names.setdefault(key, name)
    return {s.target: names[_memory(ep, s.target)] for s in specs}


def _user(node: Any) -> str:
    """The path of the innermost module that uses a value first."""
    for user in node.users:
        stack = user.meta.get("nn_module_stack")
        if stack:
            return str(list(stack.values())[-1][0])
    return ""


def _numbered(path: str, taken: set[str]) -> str:
    prefix = f"{path}.constant" if path else "constant"
    return next(name for k in range(len(taken) + 1) if (name := f"{prefix}_{k}") not in taken)
