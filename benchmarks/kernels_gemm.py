"""Times the matrix product kernels alone against the machine's measured ceilings and torch."""

from __future__ import annotations

import argparse
import ctypes
import functools
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from dhlo.codegen.families.gemm.matmul import Matmul, Operands, workspace_bytes
from dhlo.codegen.families.gemm.pack import pack_b
from dhlo.codegen.kernel_ir.builder import F32, I64, PTR, Fn, KernelModule
from dhlo.codegen.kernel_ir.launch import EPILOGUE_ARGS, kernel_fn, load_args
from tests.codegen.harness import Launch, Param, Program, TestHost, address, aligned
from tests.targets import TARGET, TILES

_REPEAT = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 8)
_LANES = TARGET.lanes(F32)
_CHAINS = TARGET.registers * 3 // 4
_BATCH_SECONDS = 0.01


def emit_repeat(module: KernelModule) -> None:
    """repeat(kernel, args, begin, end, worker, scratch, kept, times): so that timing costs no interpreter in between. `kept` is
    that of the worker."""
    numbers = [(n, I64) for n in ("begin", "end", "worker")]
    types = [("kernel", PTR), ("args", PTR), *numbers, ("scratch", PTR), ("kept", PTR), ("times", I64)]
    fn = Fn(module, "repeat", types, internal=False)
    with fn.loop(0, fn.args[7]):
        fn.store(fn.i64(0), fn.args[6])
        fn.call_ptr(fn.args[0], fn.args[1:6])
    fn.done()


def emit_peak(module: KernelModule) -> None:
    """Kernel `peak`: _CHAINS independent chains of 1000 fused multiply-adds an item."""
    fn = kernel_fn(module, "peak")
    ty = fn.vec(F32)
    with fn.loop(fn.args[1], fn.args[2]):
        *start, x, y = (fn.load(fn.gep(fn.args[4], i * _LANES, F32), ty) for i in range(_CHAINS + 2))
        with fn.loop(0, 1000, 1, start) as loop:
            loop.yield_(*(fn.fma(x, y, c) for c in loop.carried))
        for i, x in enumerate(loop.results):
            fn.store(x, fn.gep(fn.args[4], i * _LANES, F32))
    fn.done()


def emit_read(module: KernelModule) -> None:
    """Kernel `read`: sums pages of 4 KiB, prefetching a page ahead."""
    fn = kernel_fn(module, "read")
    (p,) = load_args(fn, [PTR])
    ty = fn.vec(F32)
    zero = fn.const(0.0, ty)
    with fn.loop(fn.mul(fn.args[1], 1024), fn.mul(fn.args[2], 1024), 8 * _LANES, [zero] * 8) as loop:
        here = fn.gep(p, loop.iv, F32)
        for i in range(8):
            fn.prefetch(fn.gep(here, 1024 + i * _LANES, F32))
        loop.yield_(*(fn.add(c, fn.load(fn.gep(here, i * _LANES, F32), ty)) for i, c in enumerate(loop.carried)))
    for i, x in enumerate(loop.results):
        fn.store(x, fn.gep(fn.args[4], i * _LANES, F32))
    fn.done()


def emit_store(module: KernelModule) -> None:
    """Epilogue that stores tiles to dense C of n columns; eargs: c, n."""
    fn = Fn(module, "store", EPILOGUE_ARGS)
    eargs, tile, ld, _, m0, n0, mr, nr = fn.args
    c, n = fn.int_to_ptr(fn.load(eargs, I64)), fn.load(fn.gep(eargs, 1, I64), I64)
    with fn.loop(0, mr) as i, fn.loop(0, nr, _LANES) as j:
        x = fn.load(fn.gep(tile, fn.add(fn.mul(i.iv, ld), j.iv), F32), fn.vec(F32))
        to = fn.gep(c, fn.add(fn.mul(fn.add(m0, i.iv), n), fn.add(n0, j.iv)), F32)
        fn.masked_store(x, to, fn.tail_mask(fn.sub(nr, j.iv)))
    fn.done()


class Bench:
    """The compiled kernels, and timing of launches on real threads."""

    def __init__(self) -> None:
        self.programs = {packed: self._build(packed) for packed in (True, False)}
        p = self.programs[True]
        self.repeat = _REPEAT(p.jit.address("repeat"))

    @staticmethod
    def _build(packed: bool) -> Program:
        module = KernelModule(TARGET)
        host = TestHost(module)
        for emit in (emit_repeat, emit_peak, emit_read, emit_store):
            emit(module)
        fn = host.fn
        p = {x: host.size(x) for x in ("eargs", "m", "n", "k", "pages", "items")}
        q = {x: host.pointer(x) for x in ("a", "b", "ws")}
        eargs = fn.int_to_ptr(p["eargs"])
        matmul = Matmul(F32, TILES)
        matmul.emit_kernels(module, packed=packed)
        host.launch("peak", [], p["items"], 1, 4096)
        host.launch("read", [q["b"]], p["pages"], 1, 4096)
        zero, one = fn.i64(0), fn.i64(1)
        operands = Operands(
            a=q["a"],
            b=q["b"],
            m=p["m"],
            n=p["n"],
            k=p["k"],
            a_strides=(zero, zero, p["k"], one),
            b_strides=(zero, zero) if packed else (zero, zero, p["n"], one),
            batch=(one, one),
            epilogue=fn.address_of("store"),
            epilogue_args=eargs,
            workspace=None if packed else q["ws"],
        )
        matmul.emit_launch(host, operands)
        return host.build()

    def launches(self, threads: int, *, packed: bool = True, **params: Param) -> list[Launch]:
        """The launches for the given parameters, 0 for those not given; `c` and `n` go to the epilogue."""
        eargs = np.array([address(params.pop("c", 0)), address(params.get("n", 0))], np.int64)
        self._keep = eargs
        program = self.programs[packed]
        return program.record(num_threads=threads, **(dict.fromkeys(program.names, 0) | {"eargs": eargs} | params))

    def seconds(self, launches: Sequence[Launch], threads: int) -> float:
        """Best time of one pass over the launches; each thread repeats its own chunk, so wake-ups aren't counted."""
        return sum(self._launch_seconds(x, threads) for x in launches)

    def _launch_seconds(self, launch: Launch, threads: int) -> float:
        workers = max(1, min(threads, launch.count // max(1, launch.grain)))
        scratch = [aligned(launch.scratch + 64, 0) for _ in range(workers)]
        bounds = [launch.count * w // workers for w in range(workers + 1)]
        barrier = threading.Barrier(workers)
        times = [[0.0] * workers for _ in range(_ROUNDS)]

        def go(w: int, reps: int) -> float:
            t = time.perf_counter()
            memory, kept = scratch[w].ctypes.data, launch.kept[w:].ctypes.data
            self.repeat(launch.address, launch.args.ctypes.data, bounds[w], bounds[w + 1], w, memory, kept, reps)
            return time.perf_counter() - t

        go(0, 1)
        reps = max(1, int(_BATCH_SECONDS / max(go(0, 1), 1e-7)))

        def work(w: int) -> None:
            for r in range(_ROUNDS):
                barrier.wait()
                times[r][w] = go(w, reps) / reps

        pool = [threading.Thread(target=work, args=(w,)) for w in range(workers)]
        for t in pool:
            t.start()
        for t in pool:
            t.join()
        return min(max(t) for t in times)

    def peak(self, threads: int) -> float:
        """FLOP/s of all threads together."""
        (launch,) = self.launches(threads, items=20 * threads)
        return 20 * threads * _CHAINS * 1000 * 2 * _LANES / self.seconds([launch], threads)

    def bandwidth(self, threads: int, nbytes: int) -> float:
        """Bytes/s of reading `nbytes` again and again, each thread its share."""
        pages = max(threads, nbytes // 4096)
        data = aligned(pages * 4096 + 8192, 0).view(np.float32)
        (launch,) = self.launches(threads, b=data, pages=pages)
        return pages * 4096 / self.seconds([launch], threads)


_ROUNDS = 9


def best_seconds(call: Callable[[], object]) -> float:
    """Best time of a call, batched to some milliseconds."""
    call()
    t = time.perf_counter()
    call()
    reps = max(1, int(_BATCH_SECONDS / (time.perf_counter() - t)))
    best = float("inf")
    for _ in range(_ROUNDS):
        t = time.perf_counter()
        for _ in range(reps):
            call()
        best = min(best, (time.perf_counter() - t) / reps)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer sizes")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 3, 5, 8, 16, 31, 64, 100, 257, 512])
    parser.add_argument("--dynamic", action="store_true", help="pack B at run time")
    parser.add_argument("--no-torch", action="store_true")
    args = parser.parse_args()
    weights = [(768, 768), (768, 3072), (3072, 768), (768, 32000)]
    if args.quick:
        weights, args.rows = weights[1:3], [1, 8, 31, 100, 257]
    bench = Bench()
    rng = np.random.default_rng(0)
    print("threads     K     N     M       us  GFLOP/s   GB/s  ceiling    torch us  vs torch   read GB/s")
    for threads in args.threads:
        torch.set_num_threads(threads)
        peak = max(bench.peak(threads) for _ in range(5))
        print(f"{threads} threads: {peak / 1e9:.0f} GFLOP/s of fused multiply-adds")
        for k, n in weights:
            w = rng.standard_normal((k, n)).astype(np.float32) / 16
            b = w if args.dynamic else pack_b(w, False, TILES.panel(F32))
            tw = torch.from_numpy(np.ascontiguousarray(w.T))
            ws = aligned(workspace_bytes(1, n, k, F32, TILES))
            bw = bench.bandwidth(threads, k * n * 4)
            for m in args.rows:
                a = rng.standard_normal((m, k)).astype(np.float32)
                c = np.zeros((m, n), np.float32)
                launches = bench.launches(threads, packed=not args.dynamic, a=a, b=b, c=c, ws=ws, m=m, n=n, k=k)
                t = bench.seconds(launches, threads)
                floor = max(2 * m * n * k / peak, 4 * n * k / bw)
                ta = torch.from_numpy(a)
                tt = 0.0 if args.no_torch else best_seconds(functools.partial(torch.nn.functional.linear, ta, tw))
                if not np.allclose(c[:, -5:], a @ w[:, -5:], atol=1e-2):
                    raise AssertionError("wrong result")
                print(
                    f"{threads:7} {k:5} {n:5} {m:5} {t * 1e6:8.1f} {2e-9 * m * n * k / t:8.1f}"
                    f" {4e-9 * n * k / t:6.1f} {floor / t:7.0%} {tt * 1e6:11.1f} {tt / t:8.2f}x   {bw / 1e9:4.0f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
