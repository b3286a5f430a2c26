"""A session: the state, random numbers and memory of one caller of a compiled model."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dhlo import _runtime
from dhlo.errors import ContractError, SessionError, translate
from dhlo.stopping import CancelToken, in_thread, nanoseconds

if TYPE_CHECKING:
    from dhlo.model import CompiledModel
    from dhlo.profile import Profile

__all__ = ["Session"]


class Session:
    """One user's run of a model: called like the model, it keeps the buffers that the program changes from call to call.

    `CompiledModel.session()` makes one; sessions share code and weights and nothing else. For one call at a time, from
    any thread: a second call that comes meanwhile raises SessionError. A call that fails leaves the state as it was, but
    for parts of buffers that the program writes at a position, which it may have written. A process that is forked has
    a copy of its own, of the random generator, too.
    """

    __slots__ = ("__weakref__", "_max_bytes", "_model", "_native", "_root", "_siblings")

    def __init__(self, model: CompiledModel, native: _runtime.Session, max_bytes: int = 0, root: Session | None = None) -> None:
        """`max_bytes` is what `native` was made with; `root` the session whose state this one of another entry shares."""
        self._model, self._native, self._max_bytes = model, native, max_bytes
        self._root = None if root is None else weakref.ref(root)  # which holds this one
        self._siblings: dict[str, Session] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the model. Raises ContractError where the arguments break the contract (see `CompiledModel.signature`)."""
        return self._model._run(self._native, args, kwargs)

    def run(
        self,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        cancel: CancelToken | None = None,
    ) -> Any:
        """The same with a timeout in seconds, or a CancelToken that stops it from any thread. Raises the errors of a call, and
        DeadlineError or CancelledError, in general within a millisecond; in single kernels that take longer than 64 ms,
        when a 64th is done."""
        return self._model._run(self._native, tuple(args), dict(kwargs or {}), nanoseconds(timeout), cancel)

    async def run_async(self, *args: Any, **kwargs: Any) -> Any:
        """A call in a thread of the event loop's executor. A task that is cancelled, as by `asyncio.timeout`, stops the run."""
        return await in_thread(lambda token: self.run(args, kwargs, cancel=token))

    def cancel(self) -> None:
        """Stops the run in progress, if there is one, from any thread: it raises CancelledError."""
        self._native.cancel()

    def __getitem__(self, entry: str) -> Session:
        """The session of another entry of the model over the same state and random generator, and in the memory that a run takes:
        all of them are for one call at a time. Raises KeyError, naming the entries that there are."""
        root = self._whose()
        if root is not self:
            return root[entry]
        model = self._model[entry]
        if model is self._model:
            return self
        if entry not in self._siblings:
            with _errors():
                self._siblings[entry] = Session(model, self._native.sharing(model.native), self._max_bytes, self)
        return self._siblings[entry]

    def _whose(self) -> Session:
        """The session that this one of another entry was made by, while there is that."""
        root = None if self._root is None else self._root()
        return self if root is None else root

    @property
    def model(self) -> CompiledModel:
        """The model, which all its sessions share."""
        return self._model

    # ------------------------------------------------------------------ state
    @property
    def state(self) -> dict[str, torch.Tensor]:
        """Copies of all buffers that the program changes, by name."""
        return {name: self.read_state(name) for name in self._model._states}

    def read_state(self, name: str) -> torch.Tensor:
        """A copy of a buffer that the program changes. Raises KeyError if there is none of that name."""
        meta = self._describe(name)
        with _errors():
            data = bytearray(self._native.read_state(name))
        dtype: torch.dtype = getattr(torch, meta["dtype"])
        return torch.frombuffer(data, dtype=dtype).reshape(meta["shape"]) if data else torch.empty(meta["shape"], dtype=dtype)

    def write_state(self, name: str, value: torch.Tensor) -> None:
        """Sets a buffer. Raises KeyError if there is none of that name, ContractError for another shape or dtype."""
        meta = self._describe(name)
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.device.type == "meta":
            raise ContractError(f"state '{name}' is a dense tensor, got {type(value).__name__}")
        if list(value.shape) != meta["shape"] or str(value.dtype)[6:] != meta["dtype"]:
            raise ContractError(f"state '{name}' is {meta['dtype']}{meta['shape']}, got {str(value.dtype)[6:]}{list(value.shape)}")
        value = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
        with _errors():
            self._native.write_state(name, value.reshape(-1).view(torch.uint8).numpy().data)

    def reset(self) -> None:
        """Puts all buffers back to what they were when the program was exported. The random generator goes on."""
        with _errors():
            self._native.reset_state()

    def manual_seed(self, seed: int) -> None:
        """Random numbers of later calls follow from the seed alone, on any number of threads. They have PyTorch's
        distributions, not its bits; torch.manual_seed doesn't concern them. A session that was never seeded is seeded by
        the operating system."""
        with _errors():
            self._native.seed(operator.index(seed) & (1 << 64) - 1)

    def copy(self) -> Session:
        """A new session that goes on from the same state and random generator, with the same options."""
        with _errors():
            return Session(self._model, self._native.copy(), self._max_bytes)

    def snapshot(self) -> bytes:
        """State and random generator, to be restored here or in another session, in this process or another."""
        with _errors():
            return self._native.snapshot()

    def restore(self, snapshot: bytes | bytearray | memoryview) -> None:
        """Goes on from a snapshot, of any session whose model has states of the same names, sizes and dtypes.

        Raises SessionError, having changed nothing, for a snapshot of another model or a damaged one.
        """
        with _errors():
            try:
                self._native.restore(snapshot)
            except (BufferError, RuntimeError, ValueError) as e:
                raise SessionError(str(e)) from None

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> Session:
        return self.copy()

    @staticmethod
    def _restored(model: CompiledModel, snapshot: bytes, max_bytes: int) -> Session:
        session = model.session(max_bytes=max_bytes)
        session.restore(snapshot)
        return session

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle holds the model's (see CompiledModel) and a snapshot; the same pickle's sessions of other entries share it."""
        root = self._whose()
        if root is not self:
            return operator.getitem, (root, self._model._entry)
        return Session._restored, (self._model, self.snapshot(), self._max_bytes)

    # ------------------------------------------------------------------ memory and figures
    def trace(self, path: str | Path) -> AbstractContextManager[None]:
        """`with session.trace("trace.json"):` records the calls inside, of all entries over this session's state.

        The file has runs, launches, what each thread did and where it waited, with source lines and shapes; Perfetto
        (ui.perfetto.dev) and Chrome's about:tracing show it. It is written when the `with` ends, also by an exception. Raises
        SessionError where the session is in use or being traced, OSError if the file can't be written.
        """
        from dhlo.trace import traced

        entries = [self[name].native for name in self._model.entries]
        return traced(Path(path), entries)

    def profile(self) -> Profile:
        """Times each launch of this session's calls inside of `with session.profile() as profile:`; `print(profile)` shows them by
        kernel and line of the model's source. Raises SessionError while a call is running."""
        from dhlo.profile import Profile

        return Profile(self._native)

    @property
    def counters(self) -> dict[str, int]:
        """Runs, launches, and bytes held and used; `compilations` is always 1: nothing is compiled later."""
        return {"compilations": 1, **self._native.counters}  # type: ignore[dict-item]

    @property
    def native(self) -> _runtime.Session:
        """The runtime's session, which takes and gives flat sequences; for tools."""
        return self._native

    def trim(self) -> None:
        """Frees the memory that is kept for the next call; the state stays."""
        with _errors():
            self._native.trim()

    def _describe(self, name: str) -> dict[str, Any]:
        states = self._model._states
        if name not in states:
            raise KeyError(f"the model has no state '{name}'; it has {', '.join(states) or 'none'}")
        meta: dict[str, Any] = states[name]
        return meta


@contextmanager
def _errors() -> Iterator[None]:
    """Refusals of a session that is in use become SessionError."""
    try:
        yield
    except RuntimeError as e:
        raise translate(e) from None
