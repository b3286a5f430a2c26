"""What this machine can do: arithmetic and bandwidth ceilings, measured with generated code on pinned threads."""

from __future__ import annotations

import ctypes
import functools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from dhlo import _runtime
from dhlo.codegen.backends.cpu.llvm import Jit, compile_object, lower_to_llvm_ir
from dhlo.codegen.kernel_ir.builder import F32, I64, PTR, Fn, KernelModule, V, vec
from dhlo.codegen.target import native

__all__ = ["Ceilings", "cache_bytes", "machine", "measure", "processors", "raise_priority"]

_LANES = 16
_STEPS = 1000  # multiply-adds of each chain in a call
_UNROLL = 8  # vectors that one step of the reading loop takes
_ROUNDS = 9
_ROUND_SECONDS = 0.02
_DRAM_BYTES = 256 << 20
_LEVELS = ("l2", "l3", "dram")
_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)


@dataclass(frozen=True)
class Ceilings:
    """Of `threads` threads together: multiply-add rates in GFLOP/s (bf16's is f32's where the CPU has no instruction
    for it) and read bandwidths in GB/s of the second and third cache level and of memory."""

    threads: int
    f32_gflops: float
    bf16_gflops: float
    l2_gbs: float
    l3_gbs: float
    dram_gbs: float

    def gbs(self, nbytes: float) -> float:
        """Read bandwidth of the level in which `nbytes` fit beside other data."""
        sizes = cache_bytes()
        if nbytes > 0.75 * sizes.get(3, 0):
            return self.dram_gbs
        return self.l3_gbs if nbytes > 0.75 * sizes.get(2, 0) * self.threads else self.l2_gbs

    def gflops(self, dtype: str) -> float:
        """Arithmetic ceiling for an element type by torch's or MLIR's name: half of f32's for f64."""
        if dtype in ("bf16", "bfloat16"):
            return self.bf16_gflops
        return self.f32_gflops / 2 if dtype in ("f64", "float64") else self.f32_gflops

    def floor_seconds(self, flops: float, nbytes: float, dtype: str = "f32", resident: float | None = None) -> float:
        """The least time for that arithmetic and those bytes, lying where `resident` bytes fit (default: `nbytes`)."""
        return max(flops / self.gflops(dtype), nbytes / self.gbs(nbytes if resident is None else resident)) / 1e9


def processors() -> list[int]:
    """The processors that this process may use."""
    return sorted(os.sched_getaffinity(0))


@functools.cache
def cache_bytes() -> dict[int, int]:
    """Size of each level of data cache as the first processor sees it."""
    sizes = {}
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        if (index / "type").read_text().strip() != "Instruction":
            size = (index / "size").read_text().strip()
            sizes[int((index / "level").read_text())] = int(size.rstrip("KM")) << {"K": 10, "M": 20}.get(size[-1], 0)
    return sizes or {1: 32 << 10, 2: 1 << 20, 3: 32 << 20}


def machine() -> str:
    """The CPU for people: its name, the vector extensions that matter here, cores, caches."""
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    fields = [line.split(":", 1)[1].strip() for line in info.splitlines() if line.startswith("model name")]
    features = [f for f in ("avx2", "avx512f", "avx512bf16", "avx512vnni", "amx-bf16") if _runtime.cpu_supports(f)]
    caches = ", ".join(f"L{level} {size >> 10} KB" for level, size in sorted(cache_bytes().items()))
    return f"{fields[0] if fields else 'unknown CPU'} ({', '.join(features)}), {len(processors())} cores, {caches}"


# ---------------------------------------------------------------------- code
def _emit_multiply_add(module: KernelModule, name: str, chains: int, bf16: bool) -> None:
    """name(data, calls): `chains` independent chains of `_STEPS` multiply-adds each, `calls` times."""
    fn = Fn(module, name, [("data", PTR), ("calls", I64)], internal=False)
    data, calls = fn.args
    ty = vec(F32, _LANES)

    def as_pairs(v: V) -> V:
        pairs = vec("bf16", 2 * _LANES)
        return fn.op(pairs, f"vector.bitcast {v.name} : {v.type} to {pairs}")

    def step(x: V, y: V, total: V) -> V:
        if bf16:
            return fn.intrinsic("llvm.x86.avx512bf16.dpbf16ps.512", ty, total, as_pairs(x), as_pairs(y))
        return fn.fma(x, y, total)

    with fn.loop(0, calls):
        start = [fn.load(fn.gep(data, i * _LANES, F32), ty) for i in range(chains + 2)]
        with fn.loop(0, _STEPS, 1, start[:chains]) as loop:
            loop.yield_(*(step(start[chains], start[chains + 1], c) for c in loop.carried))
        for i, x in enumerate(loop.results):
            fn.store(x, fn.gep(data, i * _LANES, F32))
    fn.done()


def _emit_read(module: KernelModule) -> None:
    """read(data, n): sums n floats, a multiple of what a step takes, into the first vector of data."""
    fn = Fn(module, "read", [("data", PTR), ("n", I64)], internal=False)
    data, n = fn.args
    ty = vec(F32, _LANES)
    with fn.loop(0, n, _UNROLL * _LANES, [fn.const(0.0, ty)] * _UNROLL) as loop:
        here = fn.gep(data, loop.iv, F32)
        for i in range(_UNROLL):
            fn.prefetch(fn.gep(here, 1024 + i * _LANES, F32))  # a page ahead, which the hardware doesn't cross
        loop.yield_(*(fn.add(c, fn.load(fn.gep(here, i * _LANES, F32), ty)) for i, c in enumerate(loop.carried)))
    total = loop.results[0]
    for x in loop.results[1:]:
        total = fn.add(total, x)
    fn.store(total, data)
    fn.done()


class _Code:
    """The compiled loops, and threads to time them on."""

    def __init__(self, threads: int) -> None:
        self.cpus = processors()[:threads]
        self.wide = _runtime.cpu_supports("avx512f")
        self.bf16 = _runtime.cpu_supports("avx512bf16")
        self.chains = 24 if self.wide else 6  # more than latency times issue width, fewer than there are registers
        module = KernelModule(native())
        _emit_multiply_add(module, "fma", self.chains, bf16=False)
        if self.bf16:
            _emit_multiply_add(module, "dot", self.chains, bf16=True)
        _emit_read(module)
        self._jit = Jit([compile_object(lower_to_llvm_ir(module.text(), native()), native())])

    def function(self, name: str) -> Callable[[int, int], None]:
        return _FUNCTION(self._jit.address(name))

    def seconds(self, calls: Sequence[Callable[[], object]]) -> float:
        """The best round's time for one call by each thread, all at once."""
        barrier = threading.Barrier(len(calls))
        times = [[0.0] * len(calls) for _ in range(_ROUNDS)]

        def work(k: int, call: Callable[[], object]) -> None:
            os.sched_setaffinity(0, {self.cpus[k % len(self.cpus)]})  # of this thread only
            call()
            start = time.perf_counter()
            call()
            repeat = max(1, int(_ROUND_SECONDS / max(time.perf_counter() - start, 1e-7)))
            shared[k] = repeat
            barrier.wait()
            repeat = max(shared)
            for r in range(_ROUNDS):
                barrier.wait()
                start = time.perf_counter()
                for _ in range(repeat):
                    call()
                times[r][k] = (time.perf_counter() - start) / repeat

        shared = [1] * len(calls)
        pool = [threading.Thread(target=work, args=(k, c)) for k, c in enumerate(calls)]
        for t in pool:
            t.start()
        for t in pool:
            t.join()
        return min(map(max, times))

    def gflops(self, name: str, threads: int, flops_a_lane: int) -> float:
        calls = 100
        data = [np.zeros((self.chains + 2) * _LANES + 16, np.float32) for _ in range(threads)]
        fn = self.function(name)
        t = self.seconds([functools.partial(fn, d.ctypes.data, calls) for d in data])
        return threads * calls * _STEPS * self.chains * _LANES * flops_a_lane / t / 1e9

    def gbs(self, threads: int, nbytes: int) -> float:
        """Of all threads together, each reading `nbytes` of its own again and again."""
        step = _UNROLL * _LANES * 4
        nbytes = max(step, nbytes // step * step)
        fn = self.function("read")
        buffers = [_runtime.Buffer(nbytes + 8192) for _ in range(threads)]
        for b in buffers:
            np.frombuffer(b, np.uint8)[:] = 0  # type: ignore[call-overload]
        t = self.seconds([functools.partial(fn, b.address, nbytes // 4) for b in buffers])
        return threads * nbytes / t / 1e9


def raise_priority() -> None:
    """Of this process, where the user may: else any other job's time slice falls into the measurement."""
    try:
        os.nice(-20)
        Path("/proc/self/autogroup").write_text("-20")
    except OSError:
        pass


@functools.cache
def measure(threads: int) -> Ceilings:
    """Measures the machine with that many threads, in a process of its own and about three seconds."""
    command = [sys.executable, "-m", "dhlo.bench.ceilings", str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return Ceilings(**json.loads(done.stdout))


def _measure_here(threads: int) -> Ceilings:
    code = _Code(threads)
    f32 = code.gflops("fma", threads, 2)
    sizes = cache_bytes()
    level = {
        "l2": sizes.get(2, 1 << 20) // 2,
        "l3": sizes.get(3, 32 << 20) // (3 * threads),
        "dram": max(_DRAM_BYTES, 4 * sizes.get(3, 0)) // threads,
    }
    rates = {name: code.gbs(threads, level[name]) for name in _LEVELS}
    return Ceilings(
        threads,
        f32,
        code.gflops("dot", threads, 4) if code.bf16 else f32,
        rates["l2"],
        rates["l3"],
        rates["dram"],
    )


if __name__ == "__main__":
    raise_priority()
    print(json.dumps(asdict(_measure_here(int(sys.argv[1])))))
