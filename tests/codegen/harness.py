"""A small host for kernel tests: compiles kernels in process and runs their launches over chosen splits and threads."""

from __future__ import annotations

import ctypes
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dhlo.codegen.backends.cpu.llvm import Jit, compile_object, lower_to_llvm_ir
from dhlo.codegen.kernel_ir.abi import MACHINE_RANGES
from dhlo.codegen.kernel_ir.builder import I64, PTR, Fn, KernelModule, V
from dhlo.codegen.kernel_ir.split import split_module
from tests.codegen import tile_machine

__all__ = ["Launch", "Param", "Program", "TestHost", "aligned", "address", "build_hosts"]

_KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
_LAUNCH = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
_HOST = ctypes.CFUNCTYPE(None, ctypes.c_void_p, _LAUNCH, ctypes.c_int64, ctypes.c_void_p)
_GUARD, _MOST_WORKERS = 256, 1024

Array = npt.NDArray[np.generic]
Param = int | Array


def aligned(nbytes: int, fill: int = 0xFF) -> npt.NDArray[np.uint8]:
    """`nbytes` of 64-byte aligned memory filled with a byte pattern (0xFF reads as NaN in every float type)."""
    raw = np.full(nbytes + 64, fill, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + nbytes]


def address(x: Param) -> int:
    """A parameter as the i64 that the host function reads: arrays by address."""
    return int(x.ctypes.data) if isinstance(x, np.ndarray) else int(x)


class TestHost:
    """A `HostContext` whose host function reads named i64 parameters and launches through a callback.

    >>> module = KernelModule(TARGET); host = TestHost(module)
    >>> n, x = host.size("n"), host.pointer("x")
    >>> host.launch("kernel", [x, n], n, 16)
    >>> program = host.build(); program(n=100, x=array)
    """

    __test__ = False

    def __init__(self, module: KernelModule, name: str = "test_host", asked: Sequence[str] = ()) -> None:
        """`asked`: facts of the machine that are parameters; the others have their least values."""
        self.module, self.asked = module, asked
        self.fn = Fn(module, name, [("params", PTR), ("launch", PTR), ("threads", I64), ("kept", PTR)], internal=False)
        self.names: list[str] = []
        self._values: dict[str, V] = {}

    @property
    def num_threads(self) -> V:
        return self.fn.args[2]

    @property
    def l2_bytes(self) -> V:
        return self.size("l2_bytes") if "l2_bytes" in self.asked else self.fn.i64(1 << 20)

    def machine(self, fact: str) -> V:
        return self.size(fact) if fact in self.asked else self.fn.i64(MACHINE_RANGES[fact][0])

    def size(self, name: str) -> V:
        """The i64 parameter of that name; ask for parameters outside branches."""
        if name not in self._values:
            self.names.append(name)
            self._values[name] = self.fn.load(self.fn.gep(self.fn.args[0], len(self.names) - 1, I64), I64)
        return self._values[name]

    def pointer(self, name: str) -> V:
        """The pointer parameter of that name."""
        return self.fn.int_to_ptr(self.size(name))

    def kept(self) -> V:
        return self.fn.args[3]

    def launch(self, kernel: str, args: Sequence[V], count: V | int, grain: V | int, scratch: V | int = 0) -> None:
        f = self.fn
        array = f.alloca(max(1, len(args)), I64)
        for i, a in enumerate(args):
            f.store(a, f.gep(array, i, I64))
        sizes = [f.i64(x) for x in (len(args), count, grain, scratch)]
        f.call_ptr(f.args[1], [f.address_of(kernel), array, *sizes])

    def build(self) -> Program:
        """Finishes the host function and compiles the module."""
        return build_hosts([self])[0]


def build_hosts(hosts: Sequence[TestHost]) -> list[Program]:
    """Finishes host functions of one module, which differ in name, and compiles it once; tiles that the CPU lacks are emulated."""
    for host in hosts:
        host.fn.done()
    (module,) = {id(h.module): h.module for h in hosts}.values()
    texts, symbols = [lower_to_llvm_ir(part.text, module.target) for part in split_module(module, 1)], dict[str, int]()
    if tile_machine.is_needed(module.target):
        texts, symbols = [tile_machine.emulated(text) for text in texts], tile_machine.symbols()
    jit = Jit([compile_object(text, module.target) for text in texts], symbols)
    return [Program(jit, jit.address(h.fn.name), tuple(h.names)) for h in hosts]


@dataclass(frozen=True)
class Launch:
    """One recorded launch; `args` is a copy that outlives the call, so that it can be replayed."""

    kernel: Callable[..., None]
    address: int
    args: npt.NDArray[np.int64]
    count: int
    grain: int
    scratch: int
    kept: npt.NDArray[np.int64]  # of each worker; see HostContext.kept

    def run(self, chunks: Sequence[Sequence[tuple[int, int]]], between: Callable[[], object] | None = None) -> None:
        """Runs the chunks of each worker, one thread a worker, and `between` two of them what it says; checks that no worker writes
        past its scratch."""
        scratch = [aligned(self.scratch + _GUARD) for _ in chunks]
        self.kept[:] = 0

        def work(w: int) -> None:
            for i, (begin, end) in enumerate(chunks[w]):
                if i and between is not None:
                    between()
                self.kernel(self.args.ctypes.data, begin, end, w, scratch[w].ctypes.data)

        if len(chunks) == 1:
            work(0)
        else:
            threads = [threading.Thread(target=work, args=(w,)) for w in range(len(chunks))]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
        for block in scratch:
            if not (block[self.scratch :] == 0xFF).all():
                raise AssertionError("kernel wrote past its scratch")


def _static_split(count: int, grain: int, threads: int) -> list[list[tuple[int, int]]]:
    workers = max(1, min(threads, count // max(1, grain)))
    bounds = [count * w // workers for w in range(workers + 1)]
    return [[(bounds[w], bounds[w + 1])] for w in range(workers)]


def _random_split(count: int, threads: int, rng: random.Random) -> list[list[tuple[int, int]]]:
    cuts = sorted({0, count, *(rng.randrange(count + 1) for _ in range(rng.randrange(6)))})
    pieces = list(zip(cuts, cuts[1:], strict=False))
    rng.shuffle(pieces)
    return [pieces[w::threads] for w in range(threads)]


@dataclass
class Program:
    """A compiled test module. Calling it runs the host function with named parameters (ints, or arrays by address).

    `num_threads` is what the host function sees and how many threads run. With `seed`, every launch is split at random
    (ignoring the grain) and its chunks run in random order; without, as the runtime would: one chunk a worker.
    """

    jit: Jit
    host: int
    names: tuple[str, ...]
    launches: list[Launch] = field(default_factory=list)
    between: Callable[[], object] | None = None

    def __call__(self, *, num_threads: int = 1, seed: int | None = None, **params: Param) -> None:
        rng = None if seed is None else random.Random(seed)

        def run(launch: Launch) -> None:
            if self.between is not None:
                launch.run([[(0, 1), (1, launch.count)]], self.between)
                return
            launch.run(
                _static_split(launch.count, launch.grain, num_threads)
                if rng is None
                else _random_split(launch.count, num_threads, rng)
            )

        self._call(run, num_threads, params)

    @contextmanager
    def in_two_ranges(self, between: Callable[[], object]) -> Iterator[None]:
        """In calls inside of `with` one worker runs each launch: its first item, then what `between` does, then the others."""
        self.between = between
        try:
            yield
        finally:
            self.between = None

    def record(self, *, num_threads: int = 1, **params: Param) -> list[Launch]:
        """The launches that a call would make, without running them."""
        launches: list[Launch] = []
        self._call(launches.append, num_threads, params)
        return launches

    def _call(self, on_launch: Callable[[Launch], None], num_threads: int, params: Mapping[str, Param]) -> None:
        if set(params) != set(self.names):
            raise TypeError(f"parameters {sorted(params)} given, {sorted(self.names)} expected")
        values = np.array([address(params[n]) for n in self.names], np.int64)
        errors: list[BaseException] = []
        kept = np.full(_MOST_WORKERS, -1, np.int64)

        def callback(kernel: int, args: int, n: int, count: int, grain: int, scratch: int) -> None:
            try:
                if count > 0 and not errors:
                    copy = np.array((ctypes.c_int64 * n).from_address(args), np.int64)
                    on_launch(Launch(_KERNEL(kernel), kernel, copy, count, grain, scratch, kept))
            except BaseException as e:  # ctypes drops exceptions of callbacks; raised below
                errors.append(e)

        _HOST(self.host)(values.ctypes.data, _LAUNCH(callback), num_threads, kept.ctypes.data)
        if errors:
            raise errors[0]
