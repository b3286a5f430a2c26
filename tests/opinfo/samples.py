"""Sample inputs of PyTorch's operator database, as modules of tensors alone."""

from __future__ import annotations

import importlib.util
import random
import sys
import unittest
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from types import ModuleType
from typing import Any

import torch
from torch.utils import _pytree as pytree

__all__ = ["DTYPES", "Call", "Sample", "module_samples", "modules", "operators", "samples"]

DTYPES: dict[str, torch.dtype] = {
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "bool": torch.bool,
    "f64": torch.float64,
    "f16": torch.float16,
    "i32": torch.int32,
    "c64": torch.complex64,
}
STRUCTURES = {"f32": 5}  # how many differently structured samples of an operator are compiled
STRUCTURES_OTHER = 3
EACH = 2  # samples of one structure; they share a binary
LOOK_AT = 150  # samples that are looked at to choose from


class Call(torch.nn.Module):
    """An operator on tensors, everything else fixed."""

    def __init__(self, op: Any, leaves: list[Any], spec: Any) -> None:
        super().__init__()
        self.op, self.spec = op, spec
        self.fixed = [None if isinstance(x, torch.Tensor) else (x,) for x in leaves]

    def forward(self, *tensors: torch.Tensor) -> Any:
        rest = iter(tensors)
        leaves = [next(rest) if x is None else x[0] for x in self.fixed]
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return self.op(*args, **kwargs)


@dataclass
class Sample:
    """One call of an operator. Samples of equal `structure` differ in sizes of at least 2 and in values only."""

    text: str
    structure: str
    module: torch.nn.Module
    tensors: tuple[torch.Tensor, ...]


def operators() -> dict[str, Any]:
    """The database by name: `op` or `op.variant`."""
    _stand_in_for_expecttest()
    from torch.testing._internal.common_methods_invocations import op_db

    return {f"{o.name}.{o.variant_test_name}" if o.variant_test_name else o.name: o for o in op_db}


def modules() -> dict[str, Any]:
    """PyTorch's database of modules, by name."""
    _stand_in_for_expecttest()
    from torch.testing._internal.common_modules import module_db

    return {m.name: m for m in module_db}


def _stand_in_for_expecttest() -> None:
    """PyTorch's test utilities derive a class from its TestCase, no more."""
    if "expecttest" not in sys.modules and importlib.util.find_spec("expecttest") is None:
        sys.modules["expecttest"] = module = ModuleType("expecttest")
        vars(module)["TestCase"] = unittest.TestCase


def samples(op: Any, dtype: str, structures: int | None = None) -> list[Sample]:
    """A few samples of differing structure, and others that fit the same structures; the same ones at every call. Evenly spread, or
    `structures` of them drawn by chance."""
    torch.manual_seed(0)
    seen: set[str] = set()
    groups: dict[str, list[Sample]] = {}
    for s in _all(op, DTYPES[dtype]):
        if s.text not in seen:
            seen.add(s.text)
            groups.setdefault(s.structure, []).append(s)
    every = list(groups.values())
    if structures is None:
        keep = _spread(every, STRUCTURES.get(dtype, STRUCTURES_OTHER))
    else:
        keep = random.Random(f"{op.name} {dtype}").sample(every, min(structures, len(every)))
    return [s for g in keep for s in _spread(g, EACH)]


def _spread(xs: list[Any], n: int) -> list[Any]:
    """At most n elements, evenly spread, with the first."""
    return xs if len(xs) <= n else [xs[i * len(xs) // n] for i in range(n)]


def _all(op: Any, dtype: torch.dtype) -> Iterator[Sample]:
    for s in islice(op.sample_inputs("cpu", dtype, requires_grad=False), LOOK_AT):
        leaves, spec = pytree.tree_flatten(((s.input, *s.args), s.kwargs))
        tensors = tuple(x for x in leaves if isinstance(x, torch.Tensor))
        if all(x.layout == torch.strided for x in tensors) and not any(isinstance(x, torch.Generator) for x in leaves):
            texts = [_text(x) if isinstance(x, torch.Tensor) else repr(x) for x in leaves]
            forms = [_form(x) if isinstance(x, torch.Tensor) else repr(x) for x in leaves]
            yield Sample(", ".join(texts), f"{forms} {spec}", Call(op.op, leaves, spec), tensors)


def _text(x: torch.Tensor) -> str:
    return f"{str(x.dtype)[6:]}{list(x.shape)}" + ("" if x.is_contiguous() else f" strides {list(x.stride())}")


def _form(x: torch.Tensor) -> str:
    return f"{x.dtype}{[min(n, 2) for n in x.shape]}"


def module_samples(info: Any, structures: int) -> list[Sample]:
    """Calls of a module in f32 and for inference, of a few differing structures."""
    torch.manual_seed(0)
    found: dict[str, Sample] = {}
    for given in info.module_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=False, training=False):
        built, call = given.constructor_input, given.forward_input
        leaves, spec = pytree.tree_flatten((call.args, call.kwargs))
        tensors = tuple(x for x in leaves if isinstance(x, torch.Tensor))
        text = f"{built.args} {built.kwargs}: " + ", ".join(map(_text, tensors))
        structure = f"{built.args} {built.kwargs} {list(map(_form, tensors))} {spec}"
        module = info.module_cls(*built.args, **built.kwargs).eval()
        with torch.no_grad():
            module(*call.args, **call.kwargs)  # gives lazy modules their parameters
        found.setdefault(structure, Sample(text, structure, Call(module, leaves, spec).eval(), tensors))
    return _spread(list(found.values()), structures)
