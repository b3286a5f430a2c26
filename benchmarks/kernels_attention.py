"""Times the attention kernels alone against FMA and memory ceilings and torch: `kernels_attention.py [--threads 1 2]
[--dtype f32]`.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from dhlo.codegen.families.attention.attention import Attention
from dhlo.codegen.kernel_ir.builder import I64, PTR, Fn, KernelModule
from tests.codegen.harness import Launch, Program, TestHost, aligned
from tests.targets import TARGET, TILES

_REPEAT = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 7)
_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


@dataclass(frozen=True)
class Case:
    """Sizes of one measurement."""

    batch: int
    kv_heads: int
    group: int
    sq: int
    skv: int
    d: int
    causal: bool = False

    def flops(self) -> float:
        pairs = self.sq * self.skv
        if self.causal:
            pairs = sum(min(i + 1, self.skv) for i in range(self.sq))
        return 4.0 * self.batch * self.kv_heads * self.group * pairs * self.d

    def bytes(self, width: int) -> float:
        return 2.0 * self.batch * self.kv_heads * self.skv * self.d * width


CASES = (
    Case(1, 12, 1, 128, 128, 64),
    Case(1, 12, 1, 512, 512, 64),
    Case(1, 12, 1, 512, 512, 64, True),
    Case(1, 8, 4, 512, 512, 128, True),
    Case(1, 2, 1, 2048, 2048, 64, True),
    Case(8, 12, 1, 33, 33, 64),
    Case(4, 12, 1, 16, 77, 64),
    Case(1, 12, 1, 1, 128, 64),
    Case(1, 12, 1, 1, 1000, 64),
    Case(1, 32, 1, 1, 4096, 128),
    Case(1, 8, 4, 1, 4096, 128),
    Case(1, 8, 8, 1, 4096, 64),
    Case(1, 1, 4, 1, 8192, 64),
    Case(1, 8, 4, 3, 1024, 64),
)


def build(d: int, elem: str, causal: bool) -> Program:
    module = KernelModule(TARGET)
    host = TestHost(module)
    repeat = Fn(
        module,
        "repeat",
        [("kernel", PTR), ("args", PTR), ("begin", I64), ("end", I64), ("worker", I64), ("scratch", PTR), ("times", I64)],
        internal=False,
    )
    with repeat.loop(0, repeat.args[6]):
        repeat.call_ptr(repeat.args[0], repeat.args[1:6])
    repeat.done()
    p = {x: host.pointer(x) for x in ("q", "k", "v", "o", "workspace")}
    s = {x: host.size(x) for x in ("batch", "kv_heads", "group", "sq", "skv")}
    strides = {f"{x}_strides": [host.size(f"{x}s{i}") for i in range(3)] for x in "qkvo"}
    op = Attention(d, d, elem, causal, tiles=TILES)
    op.emit_kernels(module)
    op.emit_launch(host, **p, **s, **strides, scale=d**-0.5)
    return host.build()


def chunk_seconds(work: Callable[[int], None], workers: int, budget: float) -> float:
    """Least time of one pass: `work(w)` runs on a thread of its own per worker, each measured over several rounds."""
    best = float("inf")
    end = time.perf_counter() + budget
    while time.perf_counter() < end:
        start = time.perf_counter()
        if workers == 1:
            work(0)
        else:
            threads = [threading.Thread(target=work, args=(w,)) for w in range(workers)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
        best = min(best, time.perf_counter() - start)
    return best


def seconds(program: Program, launches: list[Launch], threads: int) -> float:
    """Best time of the launches; each thread repeats its own chunk, so that wake-ups aren't counted."""
    repeat = _REPEAT(program.jit.address("repeat"))
    total = 0.0
    for x in launches:
        workers = max(1, min(threads, x.count // max(1, x.grain)))
        scratch = [aligned(x.scratch + 64, 0) for _ in range(workers)]
        bounds = [x.count * w // workers for w in range(workers + 1)]

        def work(w: int, times: int, x: Launch = x, scratch: list[np.ndarray] = scratch, bounds: list[int] = bounds) -> None:
            repeat(x.address, x.args.ctypes.data, bounds[w], bounds[w + 1], w, scratch[w].ctypes.data, times)

        once = chunk_seconds(lambda w: work(w, 1), workers, 0.02)
        batch = 0.002 if workers == 1 else 0.03  # short batches are rarely interrupted; starting threads takes long
        times = max(1, int(batch / once))
        total += chunk_seconds(lambda w, n=times: work(w, n), workers, 0.25) / times  # type: ignore[misc]
    return total


def measure(case: Case, elem: str, threads: int) -> str:
    """A line of the table: our time, rate, bandwidth of K and V, and torch's time."""
    rng = torch.Generator().manual_seed(0)
    heads = case.kv_heads * case.group
    shapes = ((heads, case.sq), (case.kv_heads, case.skv), (case.kv_heads, case.skv))
    q, k, v = (torch.randn(case.batch, h, n, case.d, generator=rng).to(_DTYPES[elem]) for h, n in shapes)
    out = torch.empty_like(q)
    program = build(case.d, elem, case.causal)
    ws = torch.empty(Attention(case.d, case.d, elem, tiles=TILES).workspace_bytes // 4)
    params = {f"{n}s{i}": t.stride(i) for n, t in zip("qkvo", (q, k, v, out), strict=True) for i in range(3)}
    launches = program.record(
        num_threads=threads,
        q=q.data_ptr(),
        k=k.data_ptr(),
        v=v.data_ptr(),
        o=out.data_ptr(),
        workspace=ws.data_ptr(),
        batch=case.batch,
        kv_heads=case.kv_heads,
        group=case.group,
        sq=case.sq,
        skv=case.skv,
        **params,
    )
    ours = seconds(program, launches, threads)
    torch.set_num_threads(threads)

    def sdpa(_: int = 0) -> None:
        F.scaled_dot_product_attention(q, k, v, is_causal=case.causal, enable_gqa=case.group > 1)

    theirs = chunk_seconds(sdpa, 1, 0.3)
    causal = " causal" if case.causal else ""
    sizes = f"{case.batch}x{case.kv_heads}x{case.group} q{case.sq} kv{case.skv} d{case.d}{causal}"
    return (
        f"{sizes:<34}{threads:>2}{ours * 1e6:>10.1f}{case.flops() / ours / 1e9:>9.1f}"
        f"{case.bytes(q.element_size()) / ours / 1e9:>8.1f}{theirs * 1e6:>11.1f}{theirs / ours:>7.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--dtype", choices=list(_DTYPES), default="f32")
    args = parser.parse_args()
    print(f"{'batch x kv heads x group':<34}{'th':>2}{'us':>10}{'GFLOP/s':>9}{'GB/s':>8}{'torch us':>11}{'ratio':>7}")
    for threads in args.threads:
        for case in CASES:
            print(measure(case, args.dtype, threads), flush=True)


if __name__ == "__main__":
    main()
