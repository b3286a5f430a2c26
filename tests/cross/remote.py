"""Runs model files of another machine: the C++ host of this folder, built for it, in an emulator at the end of two pipes."""

from __future__ import annotations

import fcntl
import functools
import platform
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from dhlo.callspec import CallSpec
from dhlo.codegen.backends.cpu.link import write_model
from dhlo.codegen.kernel_ir.abi import DTYPES
from dhlo.compiler import Artifact
from dhlo.frontend.program import Program
from dhlo.model import CompiledModel

__all__ = ["ROOT", "HostDied", "Hosts", "RemoteHost", "RemoteModel", "built", "command", "missing_tools"]

ROOT = Path(__file__).resolve().parents[2]
EMULATOR = "qemu-aarch64"
SYSROOT = "/usr/aarch64-linux-gnu"
_TORCH = {code: getattr(torch, name) for name, code in DTYPES.items()}
# A CPU that has what a target asks for, and as little besides as the emulator offers.
_CPUS = {"": "cortex-a53", "dotprod": "cortex-a76"}


class HostDied(AssertionError):
    """The host ended in the middle of a command: compiled code crashed."""


def missing_tools() -> str:
    """Why models for aarch64 can't be run here; empty if they can."""
    if platform.machine() == "aarch64":
        return ""
    names = [(EMULATOR, "qemu-user"), ("aarch64-linux-gnu-g++", "g++-aarch64-linux-gnu")]
    missing = [package for command, package in names if shutil.which(command) is None]
    return f"needs the packages {', '.join(missing)}" if missing else ""


@functools.cache
def built(target: str) -> Path:
    """Builds a target of the runtime for aarch64, in a folder that is kept between runs; returns the executable."""
    local = Path(sys.executable).parent / "cmake"
    cmake = str(local) if local.exists() else shutil.which("cmake")
    assert cmake is not None, "needs cmake"
    folder = ROOT / "build" / "tests-aarch64"
    folder.mkdir(parents=True, exist_ok=True)
    options = ["-DDHLO_BUILD_PYTHON=OFF", "-DDHLO_BUILD_TESTS=ON", "-DDHLO_BUILD_EXAMPLES=ON"]
    if platform.machine() != "aarch64":
        options += ["--toolchain", str(ROOT / "runtime" / "cmake" / "aarch64.cmake")]
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for command in (
            [cmake, "-S", str(ROOT), "-B", str(folder), *options],
            [cmake, "--build", str(folder), "--target", target, "-j", "2"],
        ):
            result = subprocess.run(command, capture_output=True, text=True, check=False)
            assert result.returncode == 0, result.stdout + result.stderr
    return folder / "runtime" / target


def command(executable: Path, extras: frozenset[str] = frozenset()) -> list[str]:
    """How an executable for aarch64 is run on a CPU with `extras`."""
    if platform.machine() == "aarch64":
        return [str(executable)]
    names = sorted(extras)
    return ["env", "DHLO_TESTS_EMULATED=1", EMULATOR, "-L", SYSROOT, "-cpu", _CPUS.get("+".join(names), "max"), str(executable)]


class RemoteHost:
    """One process of the host, started again after a crash."""

    def __init__(self, extras: frozenset[str] = frozenset()) -> None:
        self._command = command(built("cross_host"), extras)
        self._process: subprocess.Popen[bytes] | None = None

    def load(self, path: Path, threads: int) -> None:
        text = str(path).encode()
        self.ask(b"L" + _text(text) + struct.pack("<q", threads))

    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Outputs of the loaded model, then the memory of the inputs that it updated."""
        self.ask(b"R" + struct.pack("<q", len(inputs)) + b"".join(map(_tensor, inputs)))
        return [self._read_tensor() for _ in range(self._number())]

    def reset(self) -> None:
        self.ask(b"Z")

    def ask(self, request: bytes) -> None:
        """Sends a command. Raises RuntimeError for a status that isn't ok."""
        if self._process is None:
            self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(request)
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # reading says more
        status = self._number()
        if status:
            raise RuntimeError(f"status {status}: {self._read(self._number()).decode()}")

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _read(self, n: int) -> bytes:
        assert self._process is not None and self._process.stdout is not None
        data = self._process.stdout.read(n)
        if len(data) < n:
            code = self._process.wait()
            self._process = None
            raise HostDied(f"the host died with status {code}")
        return data

    def _number(self) -> int:
        value: int = struct.unpack("<q", self._read(8))[0]
        return value

    def _read_tensor(self) -> torch.Tensor:
        dtype, rank = self._number(), self._number()
        sizes = [self._number() for _ in range(rank)]
        raw = bytearray(self._read(self._number()))
        return torch.frombuffer(raw, dtype=_TORCH[dtype]).reshape(sizes) if raw else torch.empty(sizes, dtype=_TORCH[dtype])


Hosts = Callable[[str], RemoteHost]
"""Gives the host for a target by its name."""


def _text(data: bytes) -> bytes:
    return struct.pack("<q", len(data)) + data


def _tensor(x: torch.Tensor) -> bytes:
    strides = list(x.stride()) if x.numel() else [0] * x.dim()
    raw = memory(x).view(torch.uint8).numpy().tobytes() if x.numel() else b""
    head = [DTYPES[str(x.dtype).removeprefix("torch.")], x.dim(), *x.shape, *strides, 0]
    return struct.pack(f"<{len(head)}q", *head) + _text(raw)


def memory(x: torch.Tensor) -> torch.Tensor:
    """All elements from a tensor's first to its last, those between them included."""
    span = sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True)) + 1 if x.numel() else 0
    return x.detach().as_strided((span,), (1,))


class _Session:
    """What a CompiledModel asks of a session of the runtime."""

    def __init__(self, model: RemoteModel) -> None:
        self._model = model

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return self._model.run(inputs)

    def reset(self) -> None:
        self._model.reset()

    reset_state = reset


class RemoteModel:
    """A model on the host; of several on one host each is loaded again when its turn comes."""

    _loaded: dict[RemoteHost, RemoteModel] = {}

    def __init__(self, artifact: Artifact, host: RemoteHost, threads: int = 1) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="dhlo-cross-")
        self._path = Path(self._folder.name) / "model.dhlo"
        self._host, self._threads, self._artifact = host, threads, artifact
        self.inputs: list[dict[str, Any]] = artifact.metadata["inputs"]
        self._updated: list[int] = []
        write_model(artifact, self._path)

    def load(self) -> None:
        if self._loaded.get(self._host) is not self:
            self._loaded.pop(self._host, None)
            self._host.load(self._path, self._threads)
            self._loaded[self._host] = self

    def run(self, inputs: Sequence[torch.Tensor], updated: Sequence[int] = ()) -> list[torch.Tensor]:
        """The outputs. Raises RuntimeError where the call fails, HostDied where compiled code crashes."""
        try:
            self.load()
            results = self._host.run(inputs)
        except HostDied:
            self._loaded.pop(self._host, None)
            raise
        count = len(results) - len(self._updated)
        for k, new in zip(self._updated, results[count:], strict=True):
            if new.numel():
                memory(inputs[k]).copy_(new)
        return results[:count]

    def reset(self) -> None:
        self.load()
        self._host.reset()

    def compiled(self, program: Program) -> CompiledModel:
        """The model as `dhlo.compile` gives it."""
        call = CallSpec.of(program.inputs, program.outputs, program.in_spec, program.out_spec, program.mutations)
        tensors = [k for k, s in enumerate(program.inputs) if s.type is not None]
        self._updated = [tensors.index(k) for k in call.updates]
        made = CompiledModel(self, {"": call}, self._artifact)  # type: ignore[arg-type]
        made._local.session = _Session(self)  # type: ignore[assignment]
        return made
