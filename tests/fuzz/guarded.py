"""A host for compiled models whose memory lies between guard pages, driven through the C interface, in a process that may crash."""

from __future__ import annotations

import ctypes
import faulthandler
import functools
import gc
import hashlib
import mmap
import os
import pickle
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dhlo.codegen.backends.cpu.link import extern_addresses
from dhlo.codegen.backends.cpu.llvm import Jit
from dhlo.codegen.kernel_ir.abi import ABI_SYMBOL, DTYPES, VALUE
from dhlo.compiler import Artifact

__all__ = ["GuardDamage", "Host", "Memory", "Model", "Placed", "STATUS", "Tensor", "guarded", "isolated", "library"]

STATUS = ("ok", "invalid argument", "contract", "out of memory", "input/output", "format", "version", "cpu", "busy", "internal")
INTACT = -(1 << 63)
NOTE_BYTES = 8192
_PRINT_SECONDS = 1.0
# How numpy holds what it has no dtype for.
_RAW = {torch.bfloat16: torch.int16}


class Tensor(ctypes.Structure):
    """dhlo_tensor."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("sizes", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("capacity", ctypes.c_int64),
    ]


class GuardDamage(AssertionError):
    """Memory beside a tensor was written, or memory that a call only reads."""


@functools.cache
def library() -> ctypes.CDLL:
    """guard.cpp with the runtime in it, compiled once for both's content."""
    from tests.conftest import runtime_flags

    flags, source = runtime_flags(), Path(__file__).with_name("guard.cpp")
    archive = next(f for f in flags if f.endswith("libdhlo_runtime.a"))
    digest = hashlib.sha256(source.read_bytes() + Path(archive).read_bytes()).hexdigest()[:16]
    folder = Path(__file__).resolve().parents[2] / "build" / "tests-fuzz"
    path = folder / f"guard-{digest}.so"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f"{path.name}.{os.getpid()}"
        whole = ["-Wl,--whole-archive", archive, "-Wl,--no-whole-archive"]
        flags = [w for f in flags for w in (whole if f == archive else [f])]
        warnings = ["-Wall", "-Wextra", "-Werror"]
        command = ["c++", "-std=c++17", "-O1", "-shared", "-fPIC", *warnings, str(source), *flags, "-o", str(partial)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        partial.rename(path)
    lib = ctypes.CDLL(str(path))
    p, n, i = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "guard_new": (p, [n, n, i, ctypes.c_char_p]),
        "guard_damage": (n, [p, n]),
        "guard_delete": (None, [p, n]),
        "guard_read_only": (None, [p, n]),
        "guard_live_bytes": (n, []),
        "guard_damaged_blocks": (n, []),
        "guard_note": (None, [p, n]),
        "host_model": (p, [p, p, n, n]),
        "host_open": (p, [p, n, i]),
        "host_session": (p, [p]),
        "host_place": (None, [p, i, n]),
        "host_clear": (None, [p]),
        "host_close": (None, [p]),
        "dhlo_last_error": (ctypes.c_char_p, []),
        "dhlo_model_release": (None, [p]),
        "dhlo_model_num_outputs": (n, [p]),
        "dhlo_model_output": (p, [p, n]),
        "dhlo_model_plan": (i, [p, p, n, p, p]),
        "dhlo_session_run": (i, [p, p, n]),
        "dhlo_session_error": (ctypes.c_char_p, [p]),
        "dhlo_session_output": (i, [p, n, p]),
        "dhlo_session_bind_output": (i, [p, n, p, n]),
        "dhlo_session_trim": (None, [p]),
        "dhlo_session_seed": (None, [p, ctypes.c_uint64]),
        "dhlo_session_reset_state": (None, [p]),
        "dhlo_session_read_state": (i, [p, ctypes.c_char_p, p, n]),
        "dhlo_session_write_state": (i, [p, ctypes.c_char_p, p, n]),
    }
    for name, (result_type, arguments) in signatures.items():
        f = getattr(lib, name)
        f.restype, f.argtypes = result_type, arguments
    return lib


class Memory:
    """`nbytes` of memory whose end, or start, lies at a page that can't be touched; freed by `close`, which checks its pads."""

    def __init__(self, nbytes: int, alignment: int = 64, *, at_end: bool = True, label: str = "memory") -> None:
        self.nbytes, self.label = nbytes, label
        self.address: int = library().guard_new(nbytes, alignment, int(at_end), label.encode())
        assert self.address, f"no memory for {nbytes} bytes"

    def array(self) -> npt.NDArray[np.uint8]:
        if not self.nbytes:
            return np.empty(0, np.uint8)
        return np.frombuffer((ctypes.c_char * self.nbytes).from_address(self.address), np.uint8)

    def close(self) -> None:
        at = library().guard_damage(self.address, self.nbytes)
        library().guard_delete(self.address, self.nbytes)
        if at != INTACT:
            raise GuardDamage(f"{self.label} ({self.nbytes} bytes): byte {at} was written")


@dataclass
class Placed:
    """A tensor in guarded memory: what a call is given, and what the tensor's elements are."""

    memory: Memory
    data: int | None
    sizes: list[int]
    strides: list[int] | None
    dtype: int
    view: npt.NDArray[Any]
    torch_dtype: torch.dtype
    whole: npt.NDArray[Any] | None = None  # the buffer of which the tensor is the first part

    @classmethod
    def of(
        cls,
        x: torch.Tensor,
        strides: Sequence[int] | None = None,
        *,
        at_end: bool = True,
        label: str = "input",
        dense: bool = False,
    ) -> Placed:
        """`x` with these strides (in elements, of any sign), row-major by default; `dense` says so by leaving strides out."""
        raw = x.detach().contiguous().view(_RAW.get(x.dtype, x.dtype)).numpy()
        if strides is None:
            strides = dense_strides(x.shape)
        low = sum(min(0, (n - 1) * s) for n, s in zip(x.shape, strides, strict=True))
        high = sum(max(0, (n - 1) * s) for n, s in zip(x.shape, strides, strict=True))
        span = (high - low + 1) * raw.itemsize if x.numel() else 0
        memory = Memory(span, raw.itemsize, at_end=at_end, label=label)
        if span:
            view = np.ndarray(
                raw.shape,
                raw.dtype,
                memory.array().data,
                -low * raw.itemsize,
                tuple(s * raw.itemsize if n > 1 else 0 for n, s in zip(x.shape, strides, strict=True)),
            )
            view[...] = raw
        else:
            view = raw
        return cls(
            memory,
            memory.address - low * raw.itemsize,
            list(x.shape),
            None if dense else list(strides),
            DTYPES[str(x.dtype)[6:]],
            view,
            x.dtype,
        )

    def value(self) -> torch.Tensor:
        """A copy of what the elements are now."""
        return torch.from_numpy(np.array(self.view, order="C")).view(self.torch_dtype)

    def freeze(self) -> None:
        """A write to it is a crash from now on."""
        library().guard_read_only(self.memory.address, self.memory.nbytes)


def dense_strides(sizes: Sequence[int]) -> list[int]:
    out, s = [], 1
    for n in reversed(sizes):
        out.append(s)
        s *= max(n, 1)
    return out[::-1]


class Model:
    """An artifact's code, and its constants in guarded memory that can't be written, as a model of the C interface."""

    def __init__(self, artifact: Artifact, threads: int = 1) -> None:
        self._jit = Jit(artifact.objects, extern_addresses(artifact.metadata["externs"]))
        self._constants = Memory(artifact.constants.bytes, label="constants")
        if artifact.constants.bytes:
            blob, at = self._constants.array().view(np.uint8).reshape(-1), 0
            for chunk in artifact.constants.chunks():
                piece = np.ascontiguousarray(chunk).view(np.uint8).reshape(-1)
                blob[at : at + piece.size] = piece
                at += piece.size
        library().guard_read_only(self._constants.address, artifact.constants.bytes)
        nbytes = artifact.constants.bytes
        self.handle = library().host_model(self._jit.address(ABI_SYMBOL), self._constants.address, nbytes, threads)
        assert self.handle, library().dhlo_last_error()
        dtypes = {code: getattr(torch, name) for name, code in DTYPES.items()}
        values = [library().dhlo_model_output(self.handle, k) for k in range(library().dhlo_model_num_outputs(self.handle))]
        self.outputs: list[torch.dtype] = [dtypes[ctypes.c_int64.from_address(v + VALUE["dtype"]).value] for v in values]

    def close(self) -> None:
        library().dhlo_model_release(self.handle)


class Host:
    """A session. Calls give a status, and outputs as copies."""

    def __init__(self, model: Model, cap: int = 1 << 26, *, callback: bool = True) -> None:
        self.model = model
        self._host = library().host_open(model.handle, cap, int(callback))
        assert self._host, library().dhlo_last_error()
        self.session = library().host_session(self._host)

    def place(self, *, at_end: bool = True, alignment: int = 0) -> None:
        """Where later outputs lie; alignment 0 is that of the elements."""
        library().host_place(self._host, int(at_end), alignment)

    def run(self, tensors: Sequence[Tensor] | None, count: int | None = None) -> str:
        """The status by name; the outputs of the call before are gone."""
        library().host_clear(self._host)
        array = (Tensor * len(tensors))(*tensors) if tensors is not None else None
        status: int = library().dhlo_session_run(self.session, array, len(tensors or ()) if count is None else count)
        if library().guard_damaged_blocks():
            raise GuardDamage("memory beside a block of the runtime, or beside an output, was written")
        return STATUS[status]

    def error(self) -> str:
        text: bytes = library().dhlo_session_error(self.session)
        return text.decode()

    def outputs(self) -> list[torch.Tensor]:
        return [self.output(k) for k in range(len(self.model.outputs))]

    def output(self, k: int) -> torch.Tensor:
        """A copy of the last run's output."""
        out = Tensor()
        assert library().dhlo_session_output(self.session, k, ctypes.byref(out)) == 0
        dtype = self.model.outputs[k]
        assert out.dtype == DTYPES[str(dtype)[6:]]
        sizes = list((ctypes.c_int64 * out.rank).from_address(out.sizes)) if out.rank else []
        n = int(np.prod(sizes, dtype=np.int64)) * dtype.itemsize
        raw = bytearray(ctypes.string_at(out.data, n)) if n else bytearray()
        return torch.frombuffer(raw, dtype=dtype).reshape(sizes) if n else torch.empty(sizes, dtype=dtype)

    def read_state(self, name: str, like: torch.Tensor) -> torch.Tensor:
        raw = bytearray(like.numel() * like.element_size())
        buffer = (ctypes.c_char * len(raw)).from_buffer(raw) if raw else None
        assert library().dhlo_session_read_state(self.session, name.encode(), buffer, len(raw)) == 0, self.error()
        return torch.frombuffer(raw, dtype=like.dtype).reshape(like.shape) if raw else like.clone()

    def trim(self) -> None:
        library().dhlo_session_trim(self.session)

    def close(self) -> None:
        library().host_close(self._host)


def describe(placed: Placed) -> tuple[Tensor, Any]:
    """The tensor as the C interface takes it, and what keeps its arrays alive."""
    sizes = (ctypes.c_int64 * max(len(placed.sizes), 1))(*placed.sizes)
    strides = None if placed.strides is None else (ctypes.c_int64 * max(len(placed.sizes), 1))(*placed.strides)
    t = Tensor(
        placed.data,
        ctypes.addressof(sizes),
        None if strides is None else ctypes.addressof(strides),
        placed.dtype,
        len(placed.sizes),
    )
    return t, (sizes, strides)


@contextmanager
def guarded(artifact: Artifact, threads: int = 1) -> Iterator[Callable[..., list[torch.Tensor]]]:
    """A function of tensors that runs the artifact in guarded memory, with the tensors' own strides. Arguments are at a page's
    end or start by turns, outputs likewise; what a call only reads can't be written."""
    model = Model(artifact, threads)
    host = Host(model)
    turn = 0

    def call(*inputs: torch.Tensor) -> list[torch.Tensor]:
        nonlocal turn
        turn += 1
        host.place(at_end=turn % 4 != 0)
        host.trim()
        placed = [
            Placed.of(x, x.stride() if x.numel() else None, at_end=turn % 4 != 1, label=f"input {k}") for k, x in enumerate(inputs)
        ]
        for p in placed:
            p.freeze()
        made = [describe(p) for p in placed]
        status = host.run([t for t, _ in made])
        if status != "ok":
            raise AssertionError(f"{status}: {host.error()}")
        results = host.outputs()
        for p in placed:
            p.memory.close()
        return results

    yield call
    host.close()
    model.close()


def isolated(work: Callable[[Callable[[str], None]], Any], stuck: float = 60.0) -> Any:
    """Runs `work(note)` in a child process and returns what it returns. Fails with the last noted text where the child dies, or
    notes nothing new for `stuck` seconds; raises AssertionError with the child's traceback where it raises."""
    library()  # compiled before the child begins
    shared = mmap.mmap(-1, NOTE_BYTES)
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        _child(work, shared, write)
    os.close(write)
    text, data, changed, was = "", bytearray(), time.monotonic(), b""
    while True:
        ready, _, _ = select.select([read], [], [], 1.0)
        if ready:
            chunk = os.read(read, 1 << 16)
            if not chunk:
                break
            data += chunk
        now = shared[:64]
        if now != was:
            was, changed = now, time.monotonic()
        if time.monotonic() - changed > stuck:
            os.kill(child, signal.SIGUSR1)  # it prints where it is
            time.sleep(_PRINT_SECONDS)
            os.kill(child, signal.SIGKILL)
            text = f"no progress for {stuck:g} s: "
            break
    os.close(read)
    _, status = os.waitpid(child, 0)
    if text or os.WIFSIGNALED(status) or not data:
        died = f"died of {signal.Signals(os.WTERMSIG(status)).name}" if os.WIFSIGNALED(status) else "ended without a word"
        raise AssertionError(text + died + " in: " + shared[8:].split(b"\0")[0].decode(errors="replace"))
    ok, value = pickle.loads(bytes(data))
    if not ok:
        raise AssertionError(value)
    return value


def _child(work: Callable[[Callable[[str], None]], Any], shared: mmap.mmap, write: int) -> None:
    counter = 0
    note_at = ctypes.addressof(ctypes.c_char.from_buffer(shared, 8))

    def note(text: str) -> None:
        nonlocal counter
        counter += 1
        data = text.encode()[: NOTE_BYTES - 1024]
        shared[:8] = counter.to_bytes(8, "little")
        shared[8 : 8 + len(data) + 1] = data + b"\0"

    # Garbage of the parent stays garbage: what it finalises may wait for threads, of which a forked process has one.
    gc.freeze()
    faulthandler.register(signal.SIGUSR1, sys.__stderr__)
    try:
        torch.set_num_threads(1)
        library().guard_note(note_at, NOTE_BYTES - 8)
        answer = (True, work(note))
    except BaseException:
        answer = (False, traceback.format_exc() + "\nin: " + shared[8:].split(b"\0")[0].decode(errors="replace"))
    with os.fdopen(write, "wb") as out:
        out.write(pickle.dumps(answer))
    os._exit(0)
