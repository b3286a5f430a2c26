"""A compiled model as a Python callable."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import increment_version
from torch.utils import _pytree as pytree

from dhlo import _runtime
from dhlo.callspec import CallSpec
from dhlo.errors import ContractError, DhloError
from dhlo.frontend.program import OutputSpec

if TYPE_CHECKING:
    from dhlo.compiler import Artifact

__all__ = ["CompiledModel"]


class CompiledModel:
    """One native binary for all shapes. Call it like the exported module: tensors in, tensors out, the same pytrees.

    Thread-safe: each thread has a session (arena, outputs) of its own; code and weights are shared.
    """

    def __init__(self, model: _runtime.Model, call: CallSpec, artifact: Artifact | None = None) -> None:
        self._model = model
        self._inputs, self._outputs = list(call.inputs), list(call.outputs)
        self._in_spec, self._out_spec = call.in_spec, call.out_spec
        self._updates = list(call.updates)
        names = [v["name"] for v in model.inputs]
        self._grown = [(*s.grown, names[s.grown[0]]) for s in call.outputs if s.grown is not None]
        self._artifact = artifact
        self._local = threading.local()
        tensors = all(s.type is not None and s.scalar is None for s in self._inputs)
        self._plain_in = tensors and _is_flat(self._in_spec, len(self._inputs))
        self._plain_out = _plain(self._out_spec, self._outputs)

    # ------------------------------------------------------------------ calls
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the model. Raises ContractError where the arguments break the contract (see `signature`)."""
        leaves = args if self._plain_in and not kwargs else self._flatten(args, kwargs)
        try:
            session = self._local.session
        except AttributeError:
            session = self._session()
        for number, dim, name in self._grown:
            _check_buffer(leaves[number], dim, name)
        try:
            results = session(leaves)
        except ValueError as e:
            raise ContractError(str(e)) from None
        if self._updates:
            self._note_updates(args, kwargs)
        if self._plain_out == "tensor":
            return results[0]
        if self._plain_out == "tuple":
            return tuple(results)
        return self._unflatten(results, leaves)

    def _flatten(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        leaves = self._leaves(args, kwargs)
        out = []
        for spec, x in zip(self._inputs, leaves, strict=True):
            if spec.type is not None:
                out.append(x)
            elif not (x is spec.constant or (type(x) is type(spec.constant) and x == spec.constant)):
                raise ContractError(f"argument '{spec.name}' was exported as the constant {spec.constant!r}, got {x!r}")
        return out

    def _leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        if self._in_spec is None:
            return list(args)
        kw_spec = self._in_spec.children()[1]
        order = list(kw_spec.context or [])
        if sorted(order) != sorted(kwargs):
            missing, extra = sorted(set(order) - set(kwargs)), sorted(set(kwargs) - set(order))
            what = [f"; {k}: {', '.join(v)}" for k, v in (("missing", missing), ("unknown", extra)) if v]
            raise ContractError("keyword arguments don't match the exported program's" + "".join(what))
        leaves, spec = pytree.tree_flatten((args, {k: kwargs[k] for k in order}))
        if len(leaves) != len(self._inputs) or spec != self._in_spec:
            raise ContractError(f"arguments of structure {spec} given, the program was exported with {self._in_spec}")
        return leaves

    def _note_updates(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Tells autograd which tensors have new content."""
        leaves = self._leaves(args, kwargs)
        increment_version([leaves[k] for k in self._updates if isinstance(leaves[k], torch.Tensor)])

    def _unflatten(self, results: list[torch.Tensor], arguments: Sequence[Any]) -> Any:
        leaves = [s.constant if s.index is None else _result(s, results[s.index], arguments) for s in self._outputs]
        return leaves if self._out_spec is None else pytree.tree_unflatten(leaves, self._out_spec)

    def _session(self) -> _runtime.Session:
        """This thread's session."""
        if getattr(self._local, "session", None) is None:
            self._local.session = _runtime.Session(self._model)
        session: _runtime.Session = self._local.session
        return session

    # ------------------------------------------------------------------ state
    def read_state(self, name: str) -> torch.Tensor:
        """A copy of a buffer that the program changes, as this thread's session has it. Raises KeyError if there is none."""
        meta = json.loads(self._model.metadata)["states"][name]
        data = bytearray(self._session().read_state(name))
        dtype: torch.dtype = getattr(torch, meta["dtype"])
        return torch.frombuffer(data, dtype=dtype).reshape(meta["shape"]) if data else torch.empty(meta["shape"], dtype=dtype)

    def write_state(self, name: str, value: torch.Tensor) -> None:
        """Sets a buffer of this thread's session. Raises KeyError if there is none, ContractError for another shape or dtype."""
        meta = json.loads(self._model.metadata)["states"][name]
        if list(value.shape) != meta["shape"] or str(value.dtype)[6:] != meta["dtype"]:
            raise ContractError(f"state '{name}' is {meta['dtype']}{meta['shape']}, got {str(value.dtype)[6:]}{list(value.shape)}")
        raw = value.detach().contiguous().reshape(-1).view(torch.uint8)
        self._session().write_state(name, raw.numpy().data)

    def reset_state(self) -> None:
        """Puts all buffers of this thread's session back to what they were when the program was exported."""
        self._session().reset_state()

    def manual_seed(self, seed: int) -> None:
        """Seeds this thread's session: the random numbers of its later calls follow from the seed alone, on any number of
        threads. They have PyTorch's distributions, not its bits; torch.manual_seed doesn't concern them. A session that was
        never seeded is seeded by the operating system."""
        self._session().seed(seed & (1 << 64) - 1)

    # ------------------------------------------------------------------ looking at it
    @property
    def signature(self) -> str:
        """The contract: arguments, results, symbols with their ranges, and what is checked at every call."""
        from dhlo.signature import signature

        return signature(self._model)

    @property
    def counters(self) -> dict[str, int]:
        """Of this thread's session: runs, launches, arena bytes, ... `compilations` is always 1: nothing is compiled later."""
        session = getattr(self._local, "session", None)
        counts: dict[str, int] = dict(session.counters) if session is not None else {"runs": 0}
        return {"compilations": 1, **counts}

    @property
    def native(self) -> _runtime.Model:
        """The runtime's model, which takes and gives flat sequences; for tools."""
        return self._model

    def plan(self, *shapes: Any, **kwargs: Any) -> _runtime.Plan:
        """Output shapes, arena bytes and launches for arguments (tensors, or shapes as lists of ints) without running."""
        one_list = len(shapes) == 1 and not kwargs and isinstance(shapes[0], (list, tuple))
        if one_list and shapes[0] and not isinstance(shapes[0][0], int):
            shapes = tuple(shapes[0])
        try:
            return self._model.plan(list(shapes) if not kwargs else self._flatten(shapes, kwargs))
        except ValueError as e:
            raise ContractError(str(e)) from None

    @property
    def planned(self) -> str:
        """The planned module's text (only on the model that `compile` returned)."""
        if self._artifact is None:
            raise DhloError("a loaded model carries no IR; compile it again to look at the IR")
        return self._artifact.planned

    @property
    def metadata(self) -> str:
        """JSON: symbols, checks, groups, buffers."""
        return self._model.metadata

    def save(self, path: str | Path) -> None:
        """Writes the model file (a shared object with the weights behind it) for `dhlo.load` and C++ hosts; needs a C compiler.

        Raises CompileError if linking fails, OSError if the file can't be written.
        """
        from dhlo.codegen.link import write_model

        write_model(self._compiled(), Path(path))

    def save_object(self, path: str | Path) -> None:
        """Writes one relocatable object, and the weights beside it as `.constants`, for hosts that link the model themselves."""
        from dhlo.codegen.link import write_object

        write_object(self._compiled(), Path(path))

    def _compiled(self) -> Artifact:
        if self._artifact is None:
            raise DhloError("only a model fresh from compile can be saved; copy the file that this one was loaded from")
        return self._artifact


def _is_flat(spec: Any, n: int) -> bool:
    """args is a plain tuple of n leaves and there are no keyword arguments."""
    if spec is None:
        return True
    args, kwargs = spec.children()
    return args.num_children == n and all(c.is_leaf() for c in args.children()) and kwargs.num_leaves == 0


def _plain(spec: Any, outputs: Sequence[OutputSpec]) -> str | None:
    """'tensor' or 'tuple' where results can be handed out as they are."""
    if any(s.index != i or s.scalar or s.grown for i, s in enumerate(outputs)):
        return None
    if spec is None:
        return "tensor" if len(outputs) == 1 else "tuple"
    if spec.is_leaf():
        return "tensor"
    return "tuple" if spec.type is tuple and all(c.is_leaf() for c in spec.children()) else None


def _check_buffer(x: torch.Tensor, dim: int, name: str) -> None:
    """The memory behind a growing argument is as long as its strides say. Raises ContractError."""
    sizes = [x.stride(dim - 1) // max(x.stride(dim), 1) if d == dim else n for d, n in enumerate(x.shape)]
    last = sum((n - 1) * s for n, s in zip(sizes, x.stride(), strict=True)) if 0 not in sizes else -1
    if (x.storage_offset() + last + 1) * x.element_size() > x.untyped_storage().nbytes():
        raise ContractError(f"'{name}' must be the first part, along dim {dim}, of a dense buffer")


def _result(spec: OutputSpec, t: torch.Tensor, arguments: Sequence[Any]) -> Any:
    if spec.grown is None:
        return _number(t, spec.scalar)
    number, dim = spec.grown
    buffer: torch.Tensor = arguments[number]
    sizes = [int(t) if d == dim else n for d, n in enumerate(buffer.shape)]
    return buffer.as_strided(sizes, buffer.stride(), buffer.storage_offset())


def _number(t: torch.Tensor, scalar: str | None) -> Any:
    return t if scalar is None else {"int": int, "float": float, "bool": bool}[scalar](t.item())
