"""python -m benchmarks.sweep: matrix products of sizes drawn at random, beside other peers and the machine's multiply-add ceiling.

K and N are log-uniform in 16 … 16,384, the rows M in 1 … 2,048; B is a constant (one program for each K and N, three M each), an
argument (one program for all sizes) or a batch of arguments. The same seed draws the same sample everywhere. With `--powers` K and
N are powers of two, which models have and chance hardly draws: rows that far apart share few sets of a cache. `--types` compares
this compiler's products of bf16 with those of f32, of the same sizes.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn, randn
from torch.export import Dim

from benchmarks import measure, models
from benchmarks.workloads import Shape, Workload
from dhlo.bench.peers import PEERS
from dhlo.bench.subject import Subject

__all__ = ["DTYPES", "Summary", "compare_types", "main", "products", "sample", "subject", "summarise"]

_DEPTHS, _ROWS, _BATCHES = (16, 16_384), (1, 2_048), (2, 64)
_TINY_DEPTHS, _TINY_ROWS, _TINY_BATCHES = (3, 70), (1, 20), (2, 3)
_ROWS_EACH = 3  # products with each constant
_MOST_SIZE = 1 << 15  # of each dim, as the programs say
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
# Larger matrices are drawn again: four peers hold a copy or two each. Batches are of smaller products, as attention has them.
_MOST_ELEMENTS, _MOST_BATCHED = 1 << 26, 1 << 24
# Products that the ceiling of multiply-adds bounds, not memory.
_LARGE_ROWS, _LARGE_DEPTH = 256, 512
_PEERS = ("eager", "ort", "openvino", "dhlo")
# Of a comparison of types: passes over the sizes of a program at least and at most, and seconds that one size takes at most.
_LEAST_PASSES, _MOST_PASSES, _SIZE_SECONDS = 3, 30, 0.1
# How many products with the least ratios are named.
_WORST = 12
# Ranges of rows by which it is summed up.
_ROW_RANGES = ((1, 1), (2, 14), (15, 255), (256, _ROWS[1]))


def _draw(rng: random.Random, bounds: tuple[int, int]) -> int:
    """Log-uniform, both ends included."""
    lo, hi = bounds
    return min(hi, int(math.exp(rng.uniform(math.log(lo), math.log(hi + 1)))))


def sample(count: int, seed: int, tiny: bool = False, powers: bool = False) -> dict[str, Workload]:
    """Programs by name with `count` products of each kind and dtype in all. `tiny` ones test the machinery; `powers`: K and N are
    powers of two."""
    return {w.name: w for tag in DTYPES for w in _drawn(tag, tag, count, seed, tiny, powers)}


def _drawn(tag: str, stream: str, count: int, seed: int, tiny: bool, powers: bool) -> Iterator[Workload]:
    """Programs of one dtype, of the sizes that are drawn for the dtype `stream`."""
    depths, rows, batches = (_TINY_DEPTHS, _TINY_ROWS, _TINY_BATCHES) if tiny else (_DEPTHS, _ROWS, _BATCHES)
    return _programs(tag, count, random.Random(f"{stream}{seed}"), depths, rows, batches, powers)


def _programs(
    tag: str,
    count: int,
    rng: random.Random,
    depths: tuple[int, int],
    rows: tuple[int, int],
    batches: tuple[int, int],
    powers: bool,
) -> Iterator[Workload]:
    dtype = DTYPES[tag]

    def matrix(most: int) -> tuple[int, int]:
        while True:
            k, n = (_draw(rng, depths) for _ in range(2))
            if powers:
                k, n = (1 << round(math.log2(x)) for x in (k, n))
            if k * n <= most:
                return k, n

    def distinct(draw: Any) -> list[Shape]:
        found: dict[Shape, None] = {}
        while len(found) < count:
            found[draw()] = None
        return list(found)

    m = Dim("m", min=1, max=_MOST_SIZE)
    for i in range(-(-count // _ROWS_EACH)):
        size = matrix(_MOST_ELEMENTS)
        yield Workload(
            f"{tag}_constant_{i}_{size[0]}x{size[1]}",
            f"{tag} constant",
            partial(nn.Linear, *size, bias=False, dtype=dtype),
            partial(_rows, size[0], dtype),
            ({0: m},),
            [(r,) for r in sorted({_draw(rng, rows) for _ in range(_ROWS_EACH)})],
            (31,),
            dtype,
        )

    def one() -> Shape:
        k, n = matrix(_MOST_ELEMENTS)
        return _draw(rng, rows), k, n

    def many() -> Shape:
        while True:
            b, m, (k, n) = _draw(rng, batches), _draw(rng, rows), matrix(_MOST_BATCHED)
            if b * max(k * n, m * k, m * n) <= _MOST_BATCHED:
                return b, m, k, n

    yield products(f"{tag}_argument", f"{tag} argument", distinct(one), dtype)
    yield products(f"{tag}_batched", f"{tag} batched", distinct(many), dtype)


def products(
    name: str,
    group: str,
    shapes: Sequence[Shape],
    dtype: torch.dtype,
    matrix: Callable[..., torch.Tensor] = lambda dtype, *sizes: randn(sizes).to(dtype),
) -> Workload:
    """One program for products whose two sides are arguments; shapes are (M, K, N) or have a batch before. `matrix(dtype, *sizes)`
    makes a side."""

    def operands(*sizes: int) -> tuple[torch.Tensor, ...]:
        *lead, m, k, n = sizes
        return matrix(dtype, *lead, m, k), matrix(dtype, *lead, k, n)

    batch, m, k, n = (Dim(name, min=1, max=_MOST_SIZE) for name in ("batch", "m", "k", "n"))
    lead = [batch][: len(shapes[0]) - 3]
    dynamic = tuple(dict(enumerate([*lead, *sides])) for sides in ((m, k), (k, n)))
    example = (*(3 for _ in lead), 31, 40, 24)
    return Workload(name, group, partial(models.function, _product), operands, dynamic, shapes, example, dtype)


def _rows(k: int, dtype: torch.dtype, m: int) -> tuple[torch.Tensor]:
    return (randn(m, k).to(dtype),)


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b


def subject(name: str, count: int, seed: int, tiny: bool, powers: bool) -> Subject:
    """A program of the sample as the measuring process takes it."""
    return sample(count, seed, tiny, powers)[name].subject()


def compare_types(
    count: int, seed: int, threads: int, *, tiny: bool = False, powers: bool = False
) -> list[tuple[float, str, tuple[int, ...]]]:
    """Of each product drawn for f32, f32's shortest time over bf16's, the kind of B, and the sizes (batch and) M, K, N: both by
    this compiler, in one process, called in turn."""
    out = []
    for pair in zip(*(_drawn(tag, "f32", count, seed, tiny, powers) for tag in ("f32", "bf16")), strict=True):
        peers = [PEERS["dhlo"](w.subject(), threads) for w in pair]
        given = [[peer.prepare((w.arguments(s), {})) for s in w.shapes] for peer, w in zip(peers, pair, strict=True)]
        times: list[list[list[float]]] = [[[] for _ in pair[0].shapes] for _ in pair]
        with torch.no_grad():
            for i in range(_MOST_PASSES):
                for j in range(len(pair[0].shapes)):
                    if i >= _LEAST_PASSES and sum(times[0][j]) > _SIZE_SECONDS:
                        continue
                    for peer, args, spent in zip(peers, given, times, strict=True):
                        start = time.perf_counter()
                        peer.call(args[j])
                        spent[j].append(time.perf_counter() - start)
        depths = _depths(pair[0].name) if "constant" in pair[0].name else ()
        kind = pair[0].group.partition(" ")[2]
        for s, wide, narrow in zip(pair[0].shapes, *times, strict=True):
            out.append((min(wide) / min(narrow), kind, (*s, *depths)))
    return out


def _print_types(found: Sequence[tuple[float, str, tuple[int, ...]]]) -> None:
    print(f"{'':24} {'count':>5} {'mean':>6} {'least':>6} {'<0.97':>6}   f32's time over bf16's")
    for kind in [*dict.fromkeys(kind for _, kind, _ in found), "all"]:
        for first, last in _ROW_RANGES:
            ratios = [r for r, k, sizes in found if kind in (k, "all") and first <= sizes[-3] <= last]
            if ratios:
                below = sum(r < 0.97 for r in ratios) / len(ratios)
                name = f"{kind}, {first} to {last} rows"
                print(f"{name:24} {len(ratios):5} {statistics.geometric_mean(ratios):6.2f} {min(ratios):6.2f} {below:6.1%}")
    print("worst: " + ", ".join(f"{kind} {'x'.join(map(str, sizes))} {ratio:.2f}" for ratio, kind, sizes in sorted(found)[:12]))


@dataclass(frozen=True)
class Summary:
    """Of some products: how many, and with each the best other peer's time over this compiler's: geometric mean, least, and the
    share of products below 0.95; `ceiling`, the geometric mean of what part of the multiply-add ceiling is reached; and the
    products with the least ratios. Without another peer's figures all but `ceiling` are NaN."""

    count: int
    mean: float
    least: float
    below: float
    ceiling: float
    worst: Sequence[tuple[float, str]]


def summarise(results: Sequence[Mapping[str, Any]], *, large: bool = False) -> Summary:
    """`results` as `measure.measure_workload` returns them; `large`: only of products that arithmetic bounds."""
    ratios, shares = [], []
    for r in results:
        peers = {p: f["min_ms"] for p, f in r["peers"].items() if "error" not in f}
        if "dhlo" not in peers:
            continue
        peak = r["ceilings"]["bf16_gflops" if r["dtype"] == "bfloat16" else "f32_gflops"]
        for i, (label, ours) in enumerate(zip(r["labels"], peers["dhlo"], strict=True)):
            sizes = [*map(int, label.split("x")), *(() if "constant" not in r["workload"] else _depths(r["workload"]))]
            if large and (sizes[-3] < _LARGE_ROWS or min(sizes[-2:]) < _LARGE_DEPTH):
                continue
            shares.append(r["flops"][i] / (ours * 1e6 * peak))
            others = [t[i] for p, t in peers.items() if p != "dhlo"]
            ratios.append((min(others, default=math.nan) / ours, f"{r['group']} {'x'.join(map(str, sizes))}"))
    mean = statistics.geometric_mean([x for x, _ in ratios]) if ratios else math.nan
    below = sum(x < 0.95 for x, _ in ratios) / len(ratios) if ratios else math.nan
    least = min((x for x, _ in ratios), default=math.nan)
    return Summary(
        len(ratios), mean, least, below, statistics.geometric_mean(shares) if shares else math.nan, sorted(ratios)[:_WORST]
    )


def _depths(name: str) -> tuple[int, int]:
    k, n = name.rpartition("_")[2].split("x")
    return int(k), int(n)


def _arguments() -> argparse.Namespace:
    parser = measure.options("benchmarks.sweep", __doc__, "program", 15, _PEERS, "sweep", limited=True)
    parser.add_argument("--samples", type=int, default=60, help="products of each kind of B and dtype")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--powers", action="store_true", help="K and N are powers of two")
    parser.add_argument("--only", default="", help="first part of the programs' names: f32, bf16_constant, f32_argument …")
    parser.add_argument("--report-only", action="store_true", help="measure nothing, report the kept results")
    parser.add_argument("--types", action="store_true", help="compare products of bf16 and of f32 by this compiler alone")
    return parser.parse_args()


def main() -> int:
    """Exit code 2 where `--only` names nothing, 1 if a program failed on this compiler."""
    a = _arguments()
    peers = measure.chosen_peers(a)
    if a.types:
        _print_types(compare_types(a.samples, a.seed, a.threads, tiny=a.tiny, powers=a.powers))
        return 0
    given = {"count": a.samples, "seed": a.seed, "tiny": a.tiny, "powers": a.powers}
    chosen = [w for w in sample(**given).values() if w.name.startswith(a.only)]
    if not chosen:
        print(f"error: no program begins with '{a.only}'", file=sys.stderr)
        return 2
    sizes = f"{'tiny' if a.tiny else 'full'}{'_powers' if a.powers else ''}"
    folder = a.results / f"{sizes}_{a.samples}_{a.seed}{a.target or ''}"
    for w in [] if a.report_only else chosen:
        print(f"== {w.name}", file=sys.stderr, flush=True)
        result = measure.measure_workload(
            w,
            peers,
            a.threads,
            budget=a.budget,
            results=folder,
            subject=("benchmarks.sweep:subject", {"name": w.name, **given}),
            even=True,
            tell=lambda text: print(f"   {text}", file=sys.stderr, flush=True),
        )
        measure.save(result, folder)
    names = {w.name for w in chosen}
    results = [r for r in measure.load(a.threads, folder) if r["workload"] in names]
    print(f"{'':24} {'count':>5} {'mean':>6} {'least':>6} {'<0.95':>6} {'ceiling':>7}   best other peer's time over ours")
    for group in [*dict.fromkeys(w.group for w in chosen), "all"]:
        of_group = [r for r in results if group in (r["group"], "all")]
        for large in (False, True):
            s = summarise(of_group, large=large)
            if s.count:
                name = f"{group}{', large' if large else ''}"
                print(f"{name:24} {s.count:5} {s.mean:6.2f} {s.least:6.2f} {s.below:6.1%} {s.ceiling:7.1%}")
    print("worst: " + ", ".join(f"{name} {ratio:.2f}" for ratio, name in summarise(results).worst))
    failed = [r["workload"] for r in results if "error" in r["peers"].get("dhlo", {})]
    for name in failed:
        print(f"error: dhlo fails on {name}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
