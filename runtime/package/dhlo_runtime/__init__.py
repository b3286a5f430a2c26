"""Runs model files of dhlo with numpy alone: no PyTorch, no compiler. Takes and gives numpy arrays, and DLPack tensors."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, get_args

import numpy as np

from dhlo_runtime import _runtime

__all__ = [
    "CancelledError", "ContractError", "DeadlineError", "Error", "Model", "ModelFileError", "Session", "SessionError", "Tensor",
    "load",
]  # fmt: skip
__version__: str = _runtime.__version__

Memory: TypeAlias = Literal["auto", "mapped", "populated", "locked", "copied"]
_MEMORY: Final[tuple[Memory, ...]] = get_args(Memory)  # in the order of dhlo_constants_memory


class Error(Exception):
    """Base of all errors of this package; `status` is the runtime's name for what went wrong."""

    status: str | None = None


class ContractError(Error, ValueError):
    """A call breaks the model's contract: names the argument, what was expected and what came."""


class ModelFileError(Error, RuntimeError):
    """A model file is truncated, damaged, foreign, made for another version of dhlo, or needs another CPU."""


class SessionError(Error, RuntimeError):
    """A session can't be used so: it is in use by another call, its model keeps state, or a snapshot doesn't fit."""


class CancelledError(Error, RuntimeError):
    """A run was cancelled. The session is free for the next one; its state is as after any run that fails."""


class DeadlineError(Error, TimeoutError):
    """A run took longer than its timeout. The session is free for the next one; its state is as after any run that fails."""


class Tensor:
    """A result of a dtype that numpy doesn't have (bfloat16, float8, complex32), for other libraries: `torch.from_dlpack(tensor)`.

    Can be taken once.
    """

    def __init__(self, capsule: Any, dtype: str) -> None:
        self._capsule, self.dtype = capsule, dtype

    def __dlpack__(
        self, *, stream: Any = None, max_version: tuple[int, int] | None = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        """The tensor as a versioned capsule. Raises BufferError where the library takes none, wants a copy, or has taken it."""
        if max_version is None or max_version[0] < 1:
            raise BufferError("the library takes no DLPack tensors of version 1")
        if copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError("the tensor can be given only as it is, on the CPU")
        capsule, self._capsule = self._capsule, None
        if capsule is None:
            raise BufferError("the tensor has been taken already")
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)  # the CPU

    def __repr__(self) -> str:
        return f"<dhlo_runtime.Tensor of {self.dtype}>"


def load(
    path: str | os.PathLike[str],
    *,
    num_threads: int = 0,
    verify: bool | Literal["always"] = True,
    memory: Memory = "auto",
    authorize: Callable[[bytes], object] | None = None,
    weights: str | os.PathLike[str] | None = None,
) -> Model:
    """Loads a model file, to be run by `num_threads` threads (0: one per processor); DHLO_NUM_THREADS wins.

    All of it is verified against its digests first; the weights once, and again when the file has changed, with
    `verify="always"` each time, with `verify=False` never. They are pages of the file that processes share ("mapped", by default
    where that can be), all read now ("populated"), kept in memory ("locked"), or a copy of the model's own ("copied").
    `authorize` is asked with the SHA-256 that stands for the whole file, before any code is loaded: false or an exception refuses
    it. `weights` is a weights file that was made for the model's code, and is taken instead of its own. A model file is code: load
    what you trust. Raises ModelFileError, ValueError for options that there aren't.
    """
    if verify not in (False, True, "always"):
        raise ValueError(f"verify: expected True, False or 'always', got {verify!r}")
    if memory not in _MEMORY:
        raise ValueError(f"memory: expected {', '.join(map(repr, _MEMORY))}, got {memory!r}")
    how = {"verify": 2 if verify == "always" else int(verify), "memory": _MEMORY.index(memory)}
    try:
        model = _runtime.Model.from_file(path, num_threads=num_threads, authorize=authorize, weights=weights, **how)
    except (MemoryError, RuntimeError) as e:
        raise _as(ModelFileError, e) if getattr(e, "status", None) else e from None
    return Model(model)


class Model:
    """A loaded model: immutable, shared by sessions and threads. Of several entries the first; `model["decode"]` is another."""

    def __init__(self, native: Any) -> None:
        self._native = native
        self._local = threading.local()
        self.metadata: dict[str, Any] = json.loads(native.metadata)
        self._names = [v["name"] for v in native.inputs]
        self._dtypes = [v["dtype"] for v in native.outputs]

    @property
    def name(self) -> str:
        return str(self._native.name)

    @property
    def inputs(self) -> list[dict[str, Any]]:
        """Name, dtype, sizes (-1 where a dim is symbolic) and dims of each argument."""
        return list(self._native.inputs)

    @property
    def outputs(self) -> list[dict[str, Any]]:
        """The same of each result."""
        return list(self._native.outputs)

    @property
    def entries(self) -> list[str]:
        """Names of the programs that the model was compiled of; [""] if that was one without a name."""
        return list(self._native.entries)

    def __getitem__(self, entry: str) -> Model:
        """The entry of that name. Raises KeyError, naming those there are."""
        try:
            return Model(self._native.entry(entry))
        except ValueError as e:
            raise KeyError(str(e)) from None

    def session(self, *, max_bytes: int = 0) -> Session:
        """A new session: state as exported, a random generator, memory of its own of at most `max_bytes` (0: no cap)."""
        return Session(self, _runtime.Session(self._native, max_bytes=max_bytes, capsules=True))

    def __call__(self, *args: Any, **named: Any) -> list[Any]:
        """Runs the model in a session of this thread's. Raises SessionError for a model with state, which needs a session of one's
        own, and the errors of `Session`."""
        session: Session | None = getattr(self._local, "session", None)
        if session is None:
            if self._native.states:
                names = ", ".join(s["name"] for s in self._native.states)
                raise SessionError(f"the model keeps state ({names}): call a session, session = model.session()")
            session = self._local.session = self.session()
        return session(*args, **named)

    def plan(self, *inputs: Any) -> dict[str, Any]:
        """Output shapes and bytes for inputs, or shapes of inputs, without running. Raises ContractError."""
        return dict(_called(self._native.plan, inputs))

    def __repr__(self) -> str:
        def values(of: list[dict[str, Any]]) -> str:
            return ", ".join(f"{v['name']}: {v['dtype']}[{', '.join(v['dims'])}]" for v in of)

        return f"<dhlo_runtime.Model {self.name} ({values(self.inputs)}) -> ({values(self.outputs)})>"


class Session:
    """Runs a model, by one call at a time, and holds its state, random numbers and memory. `Model.session` makes one."""

    def __init__(self, model: Model, native: Any) -> None:
        self.model, self._native = model, native

    def __call__(self, *args: Any, **named: Any) -> list[Any]:
        """Runs the model with arrays, tensors of any library with DLPack, or numbers, by position or by name.

        Returns the results in their order: numpy arrays, or `Tensor` where numpy has no such dtype. Arguments that the model
        updates are written to. Raises ContractError where the arguments break the contract, MemoryError, SessionError, and
        CancelledError where `cancel` stopped it.
        """
        return self.run(args, named)

    def run(self, args: Sequence[Any] = (), named: Mapping[str, Any] | None = None, *, timeout: float | None = None) -> list[Any]:
        """A call with a timeout in seconds. Raises the errors of a call, DeadlineError, and ValueError for what is no timeout."""
        if timeout is not None and not (hasattr(timeout, "__float__") and timeout > 0):
            raise ValueError(f"timeout: expected seconds above 0, or None, got {timeout!r}")
        given = self._positional(tuple(args), named) if named else args
        leaves = [np.asarray(x) if isinstance(x, np.generic) else x for x in given]
        if timeout is None:
            capsules = _called(self._native, leaves)
        else:
            capsules = _called(self._native.run, leaves, max(1, int(min(timeout, 1e9) * 1e9)))
        return [_result(c, dtype) for c, dtype in zip(capsules, self.model._dtypes, strict=True)]

    def cancel(self) -> None:
        """Stops the run in progress, if there is one, from any thread: it raises CancelledError."""
        self._native.cancel()

    def __getitem__(self, entry: str) -> Session:
        """A session of another entry of the model over the same state, random generator and memory: of all of them one is called at
        a time. Raises KeyError, naming the entries that there are."""
        model = self.model[entry]
        return Session(model, _called(self._native.sharing, model._native))

    def _positional(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> list[Any]:
        names = self.model._names[len(args) :]
        if sorted(names) != sorted(named):
            raise ContractError(f"expected the arguments {', '.join(names) or '(none)'} by name, got {', '.join(named)}")
        return [*args, *(named[n] for n in names)]

    def read_state(self, name: str) -> np.ndarray[Any, Any]:
        """A copy of a buffer that the model keeps; dtypes that numpy doesn't have as their bits. Raises KeyError."""
        dtype, shape = self._state(name)
        return np.frombuffer(bytearray(_called(self._native.read_state, name)), dtype).reshape(shape)

    def write_state(self, name: str, value: np.ndarray[Any, Any]) -> None:
        """Sets a buffer. Raises KeyError, ContractError for another dtype or shape."""
        dtype, shape = self._state(name)
        value = np.asarray(value)
        if value.dtype != dtype or value.shape != shape:
            raise ContractError(f"state '{name}': expected {dtype}{list(shape)}, got {value.dtype}{list(value.shape)}")
        _called(self._native.write_state, name, np.ascontiguousarray(value).tobytes())

    def _state(self, name: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
        states = self.model.metadata["states"]
        if name not in states:
            raise KeyError(f"the model has no state '{name}'; it has {', '.join(states) or 'none'}")
        return np.dtype(_NUMPY.get(states[name]["dtype"], states[name]["dtype"])), tuple(states[name]["shape"])

    def reset(self) -> None:
        """Puts all buffers back to what they were when the program was exported."""
        _called(self._native.reset_state)

    def manual_seed(self, seed: int) -> None:
        """Random numbers of later runs follow from the seed."""
        _called(self._native.seed, seed)

    def copy(self) -> Session:
        """A session that goes on from the same state and random numbers."""
        return Session(self.model, _called(self._native.copy))

    def snapshot(self) -> bytes:
        """State and random generator, for `restore` here or in another process."""
        return bytes(_called(self._native.snapshot))

    def restore(self, snapshot: bytes) -> None:
        """Goes on from a snapshot. Raises SessionError, or ContractError, where it doesn't fit."""
        _called(self._native.restore, snapshot)

    @property
    def counters(self) -> dict[str, int]:
        """Runs, launches, bytes held, ..."""
        return dict(self._native.counters)


# The bits of dtypes that numpy doesn't have.
_NUMPY = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8", "complex32": "uint32"}


def _result(capsule: Any, dtype: str) -> Any:
    tensor = Tensor(capsule, dtype)
    return tensor if dtype in _NUMPY else np.from_dlpack(tensor)


_STOPPED: Final[dict[str | None, type[Error]]] = {"cancelled": CancelledError, "deadline": DeadlineError}


def _called(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except (TypeError, ValueError) as e:
        raise _as(ContractError, e) from None
    except RuntimeError as e:
        raise _as(_STOPPED.get(getattr(e, "status", None), SessionError), e) from None


def _as(kind: type[Error], error: BaseException) -> Error:
    made = kind(str(error))
    made.status = getattr(error, "status", None)
    return made
