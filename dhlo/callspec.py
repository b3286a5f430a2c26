"""How a model is called: pytrees, keyword names, constants, updated inputs; as JSON in the model file for `load`."""

from __future__ import annotations

import contextlib
import enum
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from dhlo.errors import ModelFileError
from dhlo.frontend.program import InputSpec, Mutation, OutputSpec
from dhlo.ir.types import TensorType, from_torch_dtype
from dhlo.schema import check

if TYPE_CHECKING:
    from dhlo._runtime import Value

__all__ = ["CallSpec", "read_call", "write_call"]

_FORMAT = 2
_SPECS = ("in_spec", "out_spec")
_NONE = type(None)
_CONSTANT = (_NONE, bool, int, str, {str: str})
_SCHEMA = {
    "inputs": [{"name": str, "tensor": bool, "scalar": (str, _NONE), "constant": _CONSTANT}],
    "outputs": [{"name": str, "index": (int, _NONE), "scalar": (str, _NONE), "constant": _CONSTANT, "grown": ([int], _NONE)}],
    "in_spec": (str, _NONE), "out_spec": (str, _NONE), "updates": [int],
}  # fmt: skip
_TORCH_KINDS = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format}


@dataclass(frozen=True)
class CallSpec:
    """What CompiledModel needs besides the native model; `updates` are the leaves of the inputs that a call writes to."""

    inputs: list[InputSpec]
    outputs: list[OutputSpec]
    in_spec: Any
    out_spec: Any
    updates: list[int]

    @staticmethod
    def of(
        inputs: list[InputSpec], outputs: list[OutputSpec], in_spec: Any, out_spec: Any, mutations: Sequence[Mutation]
    ) -> CallSpec:
        """The call of a program that changes what `mutations` say."""
        leaf = {s.name: i for i, s in enumerate(inputs)}
        updates = sorted(leaf[m.target] for m in mutations if m.kind == "input")
        return CallSpec(inputs, outputs, in_spec, out_spec, updates)


def write_call(call: CallSpec) -> dict[str, Any] | None:
    """The call as JSON values, or None if it holds types that can't be written: then `load` gives flat sequences."""
    try:
        return {
            "format": _FORMAT,
            "inputs": [
                {"name": s.name, "tensor": s.type is not None, "scalar": s.scalar, "constant": _encode(s.constant)}
                for s in call.inputs
            ],
            "outputs": [
                {"name": s.name, "index": s.index, "scalar": s.scalar, "constant": _encode(s.constant), "grown": s.grown}
                for s in call.outputs
            ],
            "in_spec": None if call.in_spec is None else pytree.treespec_dumps(call.in_spec),
            "out_spec": None if call.out_spec is None else pytree.treespec_dumps(call.out_spec),
            "updates": call.updates,
        }
    except (NotImplementedError, TypeError):
        return None


def read_call(data: dict[str, Any] | None, inputs: Sequence[Value], outputs: Sequence[Value]) -> CallSpec:
    """The call of a model whose native inputs and outputs are given.

    Where `data` is missing, or names pytree types that this process hasn't registered (their library isn't imported),
    the call takes and gives flat sequences of tensors.
    """
    types = [TensorType.of(from_torch_dtype(getattr(torch, v["dtype"])), v["dims"]) for v in inputs]
    if data is not None:
        _check(data, len(inputs), len(outputs))
    if data is not None and data["format"] == _FORMAT:
        try:
            in_spec, out_spec = (None if data[k] is None else _read_spec(data[k]) for k in _SPECS)
        except (NotImplementedError, ValueError, KeyError):
            pass  # flat
        else:
            rest = iter(types)
            return CallSpec(
                [
                    InputSpec(s["name"], next(rest) if s["tensor"] else None, _decode(s["constant"]), s["scalar"])
                    for s in data["inputs"]
                ],
                [
                    OutputSpec(s["name"], s["index"], _decode(s["constant"]), s["scalar"], s["grown"] and tuple(s["grown"]))
                    for s in data["outputs"]
                ],
                in_spec,
                out_spec,
                list(data["updates"]),
            )
    return CallSpec(
        [InputSpec(v["name"], t) for v, t in zip(inputs, types, strict=True)],
        [OutputSpec(v["name"], i) for i, v in enumerate(outputs)],
        None,
        None,
        [],
    )


def _check(data: Any, num_inputs: int, num_outputs: int) -> None:
    """Raises ModelFileError for what `write_call` can't have written of a model with so many native inputs and outputs."""
    try:
        check(data, {"format": int})
        if data["format"] != _FORMAT:
            return
        check(data, _SCHEMA)
        numbers = [s["index"] for s in data["outputs"] if s["index"] is not None]
        grown = [s["grown"] for s in data["outputs"] if s["grown"] is not None]
        tensors = sum(s["tensor"] for s in data["inputs"])
        inside = all(0 <= n < num_outputs for n in numbers) and all(0 <= n < len(data["inputs"]) for n in data["updates"])
        if tensors != num_inputs or not inside or any(len(g) != 2 or not 0 <= g[0] < num_inputs or g[1] < 0 for g in grown):
            raise ValueError("it speaks of inputs or outputs that the model doesn't have")
    except ValueError as e:
        raise ModelFileError(f"the model's metadata is malformed: call: {e}") from None


def _read_spec(text: str) -> Any:
    """A pytree's structure from JSON. Raises NotImplementedError where the class of an enum, or what a defaultdict makes, is no
    class that this process has imported: torch's reader would import any module, and call any function."""
    found: list[Any] = [json.loads(text)]
    while found:
        x = found.pop()
        if isinstance(x, dict):
            if "__enum__" in x:
                module, _, name = str(x.get("fqn")).partition(":")
                _require(module, name, enum.Enum)
            if "default_factory_module" in x:
                _require(str(x["default_factory_module"]), str(x.get("default_factory_name")), object)
            found += x.values()
        elif isinstance(x, list):
            found += x
        elif isinstance(x, str):  # maybe a context, which is JSON in JSON
            with contextlib.suppress(ValueError):
                found.append(json.loads(x))
    return pytree.treespec_loads(text)


def _require(module: str, name: str, base: type) -> None:
    """Raises NotImplementedError unless there is such a class in a module that has been imported."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, type) or not issubclass(found, base):
        raise NotImplementedError(f"{module}.{name} isn't imported")


def _encode(x: Any) -> Any:
    """None, bool, int and str as they are, float and torch's types as one-entry objects; TypeError on others."""
    if x is None or type(x) in (bool, int, str):
        return x
    if type(x) is float:
        return {"float": x.hex()}
    if isinstance(x, torch.device):
        return {"device": str(x)}
    for kind, cls in _TORCH_KINDS.items():
        if isinstance(x, cls):
            return {kind: str(x).removeprefix("torch.")}
    raise TypeError(f"no JSON for {x!r}")


def _decode(x: Any) -> Any:
    if not isinstance(x, dict):
        return x
    ((kind, text),) = x.items()
    if kind == "float":
        return float.fromhex(text)
    if kind == "device":
        return torch.device(text)
    value = getattr(torch, text, None) if kind in _TORCH_KINDS else None
    if not isinstance(value, _TORCH_KINDS.get(kind, ())):
        raise ValueError(f"{text!r} is no {kind}")
    return value
