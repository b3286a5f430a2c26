"""A compiled model as a Python callable."""

from __future__ import annotations

import copy
import json
import operator
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.autograd.graph import increment_version
from torch.utils import _pytree as pytree

from dhlo import _runtime
from dhlo.arguments import explain_mismatch
from dhlo.callspec import CallSpec
from dhlo.errors import ContractError, DhloError, translate
from dhlo.frontend.program import OutputSpec
from dhlo.hidden import Shared
from dhlo.session import Session
from dhlo.stopping import CancelToken, flag_of, in_thread, nanoseconds

if TYPE_CHECKING:
    from dhlo.codegen.backends.artifact import Artifact
    from dhlo.distributed import Groups
    from dhlo.profile import Profile

__all__ = ["CompiledModel"]

_FIRST = operator.itemgetter(0)


class CompiledModel:
    """One native binary for all shapes. Call it like the exported module: tensors in, tensors out, the same pytrees.

    Code and weights are immutable and shared by threads. What a call changes is held by a session: `session()` makes one.
    A model that was compiled of several programs is called like the first of them; `model["decode"]` is the entry of that name.
    Entries share weights, and state of one name: what a call of one changes, the next call of another sees.

    A model that is called itself uses a hidden session: without state, one for every thread that calls it; with state, one
    for the thread that calls it first, and calls from other threads raise SessionError, since whose state they mean can't
    be told.
    """

    def __init__(
        self,
        model: _runtime.Model,
        calls: Mapping[str, CallSpec],
        artifact: Artifact | None = None,
        entry: str | None = None,
        shared: Shared | None = None,
    ) -> None:
        """`calls` are those of the model's entries; `entry` is the one that this object is, by default the first; `shared` is what
        it has in common with the model's other entries, by default nothing."""
        self._entry = next(iter(calls)) if entry is None else entry
        self._calls, self._siblings = calls, dict[str, CompiledModel]()
        call = calls[self._entry]
        self._model = model
        self._inputs, self._outputs = list(call.inputs), list(call.outputs)
        self._in_spec, self._out_spec = call.in_spec, call.out_spec
        self._updates = list(call.updates)
        names = [v["name"] for v in model.inputs]
        self._grown = [(*s.grown, names[s.grown[0]]) for s in call.outputs if s.grown is not None]
        self._artifact = artifact
        # Not a cached_property, which makes all attributes of the object slower to read.
        self._state_types: dict[str, dict[str, Any]] | None = None
        self._local = threading.local()  # .session: the hidden native session of a thread
        self._shared = shared or Shared(model, calls, artifact)
        tensors = all(s.type is not None and s.scalar is None for s in self._inputs)
        self._plain_in = tensors and _is_flat(self._in_spec, len(self._inputs))
        self._plain_out: Any = _plain(self._out_spec, self._outputs)  # callable where calls are plain
        self._plain_call = self._plain_in and self._plain_out is not None and not self._grown and not self._updates

    # ------------------------------------------------------------------ entries
    @property
    def entries(self) -> list[str]:
        """Names of the programs that the model was compiled of, in order; [""] if that was one without a name."""
        return list(self._calls)

    def __getitem__(self, entry: str) -> CompiledModel:
        """The entry of that name: code, weights and state are those of the whole model. Raises KeyError, naming those there are."""
        if entry == self._entry:
            return self
        if entry not in self._siblings:
            if entry not in self._calls:
                raise KeyError(f"the model has no entry '{entry}'; it has {', '.join(self._calls) if self._entry else 'only one'}")
            self._siblings[entry] = CompiledModel(self._model.entry(entry), self._calls, self._artifact, entry, self._shared)
        return self._siblings[entry]

    # ------------------------------------------------------------------ calls
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the model. Raises ContractError where the arguments break the contract (see `signature`)."""
        try:
            session = self._local.session
        except AttributeError:
            session = self._hidden_session()
        if kwargs or not self._plain_call:
            return self._run(session, args, kwargs)
        try:  # as _run does, without another Python call
            results = session(args)
        except (RuntimeError, TypeError, ValueError) as e:
            raise translate(e) from e.__cause__
        return self._plain_out(results)

    def run(
        self,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        cancel: CancelToken | None = None,
    ) -> Any:
        """A call with a timeout in seconds, or a CancelToken that stops it from any thread. Raises the errors of a call, and
        DeadlineError or CancelledError: see `Session.run`."""
        return self._run(self._hidden_session(), tuple(args), dict(kwargs or {}), nanoseconds(timeout), cancel)

    async def run_async(self, *args: Any, **kwargs: Any) -> Any:
        """A call in a thread of the event loop's executor. A task that is cancelled, as by `asyncio.timeout`, stops the run. Of a
        model with state it is a call of the thread that awaits it, and one at a time."""
        session = self._hidden_session() if self._states else None
        return await in_thread(lambda token: self._run(session or self._hidden_session(), args, kwargs, 0, token))

    def _run(
        self,
        session: _runtime.Session,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        timeout_ns: int = 0,
        cancel: CancelToken | None = None,
    ) -> Any:
        """One call in a session. Raises ContractError, SessionError if the session is in use."""
        plain = self._plain_call and not kwargs
        leaves = args if plain else self._read_arguments(args, kwargs)
        limited = timeout_ns > 0 or cancel is not None
        flag = flag_of(cancel) if limited else None
        try:
            results = session.run(leaves, timeout_ns, flag) if limited else session(leaves)
        except (RuntimeError, TypeError, ValueError) as e:
            raise translate(e) from e.__cause__
        if plain:
            return self._plain_out(results)
        if self._updates:
            self._note_updates(args, kwargs)
        return self._unflatten(results, leaves) if self._plain_out is None else self._plain_out(results)

    def _read_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Any]:
        """The tensors of a call, checked as far as the runtime can't. Raises ContractError."""
        leaves = args if self._plain_in and not kwargs else self._flatten(args, kwargs)
        for number, dim, name in self._grown:
            if number < len(leaves):  # the runtime counts them
                _check_buffer(leaves[number], dim, name)
        return leaves

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
        order = list(self._in_spec.children()[1].context or [])
        if sorted(order) == sorted(kwargs):
            leaves, spec = pytree.tree_flatten((args, {k: kwargs[k] for k in order}))
            if len(leaves) == len(self._inputs) and spec == self._in_spec:
                return leaves
        raise ContractError(explain_mismatch(self._in_spec, [s.name for s in self._inputs], args, kwargs))

    def _note_updates(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Tells autograd which tensors have new content."""
        leaves = self._leaves(args, kwargs)
        increment_version([leaves[k] for k in self._updates if isinstance(leaves[k], torch.Tensor)])

    def _unflatten(self, results: list[torch.Tensor], arguments: Sequence[Any]) -> Any:
        leaves = [s.constant if s.index is None else _result(s, results[s.index], arguments) for s in self._outputs]
        return leaves if self._out_spec is None else pytree.tree_unflatten(leaves, self._out_spec)

    # ------------------------------------------------------------------ sessions
    def session(self, *, max_bytes: int = 0) -> Session:
        """A new session: state as it was when the program was exported, a random generator, and memory of its own.

        `max_bytes` caps what the session takes together with the weights and a call's results; calls that need more raise
        MemoryError. 0: no cap.
        """
        try:
            native = _runtime.Session(self._model, max_bytes=max_bytes, communicator=self._shared.communicator)
        except ValueError as e:
            raise translate(e) from e.__cause__
        return Session(self, native, max_bytes)

    @property
    def process_groups(self) -> dict[str, int]:
        """The groups of processes that calls of this entry do collective operations in, by name, and how many processes each must
        have; 0: any number."""
        groups: dict[str, int] = json.loads(self._model.metadata).get("process_groups", {})
        return groups

    def bind_process_group(self, groups: Groups = None) -> None:
        """Says with which processes the model does its collective operations: all of its entries, in all sessions. Every process
        must make the same calls in the same order.

        `groups` is a `torch.distributed.ProcessGroup`, for all operations; or such groups by the names that the program has for
        theirs (`torch.distributed`'s, when it was exported); by default those of these names in this process. To be called before
        the first call or session, and again with new groups after a call failed in an operation. Raises ContractError where a group
        is missing or has another number of processes than the program was exported for, TypeError for what is no group.
        """
        self._shared.bind(groups)

    @property
    def communicator(self) -> _runtime.Communicator | None:
        """What `bind_process_group` has made of its groups; None before."""
        return self._shared.communicator

    def _hidden_session(self) -> _runtime.Session:
        """The session of calls that name none. Raises SessionError if it belongs to another thread."""
        session: _runtime.Session | None = getattr(self._local, "session", None)
        if session is not None:
            return session
        try:
            session = self._local.session = self._shared.session(self._model)
        except ValueError as e:
            raise translate(e) from e.__cause__
        return session

    @property
    def _states(self) -> dict[str, dict[str, Any]]:
        """dtype and shape of each buffer that the program changes."""
        if self._state_types is None:
            self._state_types = json.loads(self._model.metadata).get("states") or {}
        return self._state_types

    def read_state(self, name: str) -> torch.Tensor:
        """A copy of a buffer that the program changes, as calls without a session have left it.

        Raises KeyError if there is none of that name, SessionError in a thread that the state doesn't belong to.
        """
        return Session(self, self._hidden_session()).read_state(name)

    def write_state(self, name: str, value: torch.Tensor) -> None:
        """Sets a buffer of the calls without a session. Raises the errors of `read_state`, ContractError for another shape or
        dtype."""
        Session(self, self._hidden_session()).write_state(name, value)

    def reset_state(self) -> None:
        """Puts all buffers of the calls without a session back to what they were when the program was exported."""
        Session(self, self._hidden_session()).reset()

    def manual_seed(self, seed: int) -> None:
        """Seeds this thread's calls without a session, as `Session.manual_seed` does: other threads' are not seeded."""
        Session(self, self._hidden_session()).manual_seed(seed)

    # ------------------------------------------------------------------ copies
    @staticmethod
    def _of(shared: Shared, entry: str) -> CompiledModel:
        model = shared.model if entry == shared.model.entries[0] else shared.model.entry(entry)
        return CompiledModel(model, shared.calls, shared.artifact, entry, shared)

    def __copy__(self) -> CompiledModel:
        """The same code and weights; state and random numbers of calls without a session go on from this model's, apart from it.

        Raises SessionError where a call is using the state, or the thread that it belongs to is gone.
        """
        return self._of(copy.copy(self._shared), self._entry)

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledModel:
        return self._of(copy.deepcopy(self._shared, memo), self._entry)

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle holds code and weights, or of a model that was loaded its file's path and digest; and state as a copy does."""
        return CompiledModel._of, (self._shared, self._entry)

    # ------------------------------------------------------------------ looking at it
    def __repr__(self) -> str:
        def values(of: Sequence[Any]) -> str:
            return ", ".join(f"{v['name']}: {v['dtype']}[{', '.join(v['dims'])}]" for v in of)

        name = self._model.name + (f", entry {self._entry}" if self._entry else "")
        return f"<dhlo.CompiledModel {name} ({values(self._model.inputs)}) -> ({values(self._model.outputs)})>"

    def _repr_html_(self) -> str:
        """The contract as a table, for notebooks."""
        from dhlo.signature import signature_html

        return signature_html(self._model)

    @property
    def signature(self) -> str:
        """The contract: arguments, results, symbols with their ranges, and what is checked at every call."""
        from dhlo.signature import signature

        return signature(self._model)

    def profile(self) -> Profile:
        """As `Session.profile`, of this thread's calls without a session. Raises the errors of `read_state`."""
        return Session(self, self._hidden_session()).profile()

    @property
    def counters(self) -> dict[str, int]:
        """Of this thread's calls without a session: runs, launches, arena bytes, ... `compilations` is always 1."""
        session = getattr(self._local, "session", None)
        counts: dict[str, int] = dict(session.counters) if session is not None else {"runs": 0}
        return {"compilations": 1, **counts}

    def trace(self, path: str | Path) -> AbstractContextManager[None]:
        """`with compiled.trace("trace.json"):` records this thread's calls without a session inside, as `Session.trace` does."""
        from dhlo.trace import traced

        return traced(Path(path), [self[name]._hidden_session() for name in self.entries])

    @property
    def native(self) -> _runtime.Model:
        """The runtime's model, which takes and gives flat sequences; for tools."""
        return self._model

    def digest(self) -> bytes:
        """32 bytes that stand for code and weights: of a model that was loaded, its file's.

        Raises ModelFileError where that isn't the file any more that was loaded, DhloError for one loaded with other weights.
        """
        if self._shared.origin is not None:
            return self._shared.origin.digest()
        if self._artifact is None:
            raise DhloError("a model that was loaded with other weights has no digest: it isn't its file's")
        return self._artifact.digest()

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

    def report(self, path: str | Path | None = None, *, profile: str | Path | Mapping[str, Any] | None = None) -> str:
        """The report of all entries, also written to `path` if one is given: an HTML page that needs no network, with contract,
        source lines, groups, kernels, and memory at sizes that are chosen in it.

        `profile` is a file of `dhlo bench --save-profile`, or its content, whose times are shown under the machine's roofline.
        Raises DhloError where it isn't one of this model, OSError if the page can't be written.
        """
        from dhlo.container import write_bytes
        from dhlo.model_file import ModelInfo
        from dhlo.report import read_profile, render_report

        infos = {name: ModelInfo.of(json.loads(self[name].metadata)) for name in self.entries}
        page = render_report(infos, profile=read_profile(profile) if isinstance(profile, (str, Path)) else profile)
        if path is not None:
            write_bytes(Path(path), page.encode())
        return page

    def save(self, path: str | Path, *, weights_file: str | None = None) -> None:
        """Writes the model file (a shared object with the weights behind it) for `dhlo.load` and C++ hosts; needs a C compiler.

        `weights_file` names a file in the same folder that the weights go to instead, such as "model.weights": several models may
        name one if their constants are equal. Raises CompileError if linking fails, OSError if a file can't be written, DhloError
        if the name isn't the plain name of another file.
        """
        from dhlo.codegen.backends.cpu.link import write_model

        write_model(self._compiled(), Path(path), weights_file)

    def save_object(self, path: str | Path, symbol: str | None = None) -> None:
        """Writes one relocatable object, and the weights beside it as `.constants`, for hosts that link the model themselves.

        It defines `SYMBOL_descriptor` and nothing else; `symbol` is by default made of the model's name. Raises CompileError for
        what is no name in C, OSError if a file can't be written.
        """
        from dhlo.codegen.backends.cpu.link import write_object

        write_object(self._compiled(), Path(path), symbol)

    def save_archive(self, path: str | Path, symbol: str | None = None) -> None:
        """Writes a static library of code and weights, which defines `SYMBOL_descriptor` and `SYMBOL_constants`. Raises the errors
        of `save_object`."""
        from dhlo.codegen.backends.cpu.link import write_archive

        write_archive(self._compiled(), Path(path), symbol)

    def save_header(self, path: str | Path, emit: Literal["so", "obj", "archive"] = "so", symbol: str | None = None) -> None:
        """Writes a header with typed calls, in C or, for names that end with `.hpp`, C++, for what `emit` names: the file of
        `save`, `save_object` or `save_archive`. What it declares begins with `symbol`. Raises the errors of `save_object`."""
        from dhlo.codegen.backends.cpu.link import write_header

        write_header(self._compiled(), Path(path), emit, symbol)

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


def _plain(spec: Any, outputs: Sequence[OutputSpec]) -> Callable[[list[torch.Tensor]], Any] | None:
    """What makes a call's result of the tensors, where these are the leaves of one node, in order; None where it takes more."""
    if any(s.index != i or s.scalar or s.grown for i, s in enumerate(outputs)):
        return None
    if spec is None:
        return _FIRST if len(outputs) == 1 else tuple
    if spec.is_leaf():
        return _FIRST
    node = pytree.SUPPORTED_NODES.get(spec.type)
    if node is None or spec.num_children != len(outputs) or not all(c.is_leaf() for c in spec.children()):
        return None
    make, context = node.unflatten_fn, spec.context
    return tuple if spec.type is tuple else lambda results: make(results, context)


def _kind(x: Any) -> str:
    return f"a {x.layout} tensor of {x.dim()} dims on {x.device}" if isinstance(x, torch.Tensor) else type(x).__name__


def _check_buffer(x: Any, dim: int, name: str) -> None:
    """The memory behind a growing argument is as long as its strides say. Raises ContractError."""
    if not isinstance(x, torch.Tensor) or x.layout != torch.strided or x.device.type != "cpu" or x.dim() <= dim:
        raise ContractError(f"'{name}' grows in place: expected a dense CPU tensor of PyTorch, got {_kind(x)}")
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
