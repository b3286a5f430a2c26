"""python -m benchmarks.cold SIZES…: matrix products whose operands come again at once, from the third cache, and from memory.

A benchmark that calls one shape again and again finds its operands in the nearest cache, where a program that has been elsewhere
since does not. Here as many copies of the operands as fill a part of a cache, or twice the third one, take turns. SIZES are MxKxN
or BATCHxMxKxN; without them they are those of benchmarks.sweep's random sample that caches hold. A peer `dhlo@FOLDER` is another
checkout that has this benchmark, to compare two states.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from itertools import chain

import torch

from benchmarks import measure
from benchmarks.sweep import DTYPES, products, sample
from benchmarks.workloads import Shape, Workload
from dhlo.bench.ceilings import cache_bytes
from dhlo.bench.subject import Subject

__all__ = ["LEVELS", "copies", "main", "operand_bytes", "subject", "table", "workload"]

LEVELS = ("again", "third cache", "memory")
_MOST_COPIES = 400
# What lies behind each operand, so that a prefetch beyond its end doesn't bring the next copy.
_GAP_BYTES = 64 << 10
_MOST_BYTES = 1 << 30


def operand_bytes(sizes: Shape, dtype: torch.dtype) -> int:
    """Of both operands of a product (batch, M, K, N) or (M, K, N)."""
    *lead, m, k, n = sizes
    return math.prod(lead) * (m * k + k * n) * dtype.itemsize


def copies(level: str, nbytes: int) -> int:
    """How many operands of `nbytes` take turns so that each comes from `level`; 0 where they can't: one alone leaves the third
    cache, or the third cache isn't larger than the second."""
    sizes = cache_bytes()
    second, third = sizes.get(2, 0), sizes.get(3, 0)
    if level == "again":
        return 1
    total = min(8 * second, third // 2) if level == "third cache" else min(2 * third, _MOST_BYTES)
    if level == "third cache" and (total < 2 * second or 2 * nbytes > total):
        return 0
    return max(2, min(_MOST_COPIES, -(-total // nbytes)))


def _matrix(dtype: torch.dtype, *sizes: int) -> torch.Tensor:
    room = torch.randn(math.prod(sizes) + _GAP_BYTES // dtype.itemsize).to(dtype)
    return room[: math.prod(sizes)].view(sizes)


def workload(tag: str, sizes: Shape, level: str) -> Workload:
    """A product of run-time operands of dtype `tag` whose shapes are the copies that take turns."""
    name = f"{tag}_{'x'.join(map(str, sizes))}_{level.replace(' ', '_')}"
    return products(name, level, [sizes] * copies(level, operand_bytes(sizes, DTYPES[tag])), DTYPES[tag], _matrix)


def subject(tag: str, sizes: Sequence[int], level: str) -> Subject:
    """A workload as the measuring process takes it."""
    return workload(tag, tuple(sizes), level).subject()


def table(found: Mapping[Shape, Mapping[str, Mapping[str, float]]], peers: Sequence[str]) -> str:
    """Lines of Markdown: of each product GFLOP/s of the first peer at each level, and the other peers' times over its own, then
    their geometric means. `found`: milliseconds by sizes, level and peer."""
    first, *others = peers
    columns = [f"{p} over {first}, {level}" for level in LEVELS for p in others]
    lines = ["| product | " + " | ".join([f"GFLOP/s {first}: " + ", ".join(LEVELS), *columns]) + " |"]
    lines.append("|" + " --- |" * (2 + len(columns)))
    ratios: dict[tuple[str, str], list[float]] = {(level, p): [] for level in LEVELS for p in others}
    for sizes, by_level in found.items():
        speeds = [
            f"{2 * math.prod(sizes) / by_level[level][first] / 1e6:.0f}" if first in by_level.get(level, {}) else "-"
            for level in LEVELS
        ]
        cells = []
        for level, p in ratios:
            times = by_level.get(level, {})
            known = first in times and p in times
            if known:
                ratios[level, p].append(times[p] / times[first])
            cells.append(f"{ratios[level, p][-1]:.2f}" if known else "-")
        lines.append(f"| {' x '.join(f'{s:,}' for s in sizes)} | " + " | ".join([", ".join(speeds), *cells]) + " |")
    means = [f"{statistics.geometric_mean(r):.2f}" if r else "-" for r in ratios.values()]
    return "\n".join([*lines, "| mean | " + " | ".join(["", *means]) + " |"])


def _sizes(text: str) -> Shape:
    sizes = tuple(int(part) for part in text.split("x"))
    if len(sizes) not in (3, 4) or min(sizes) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' isn't MxKxN or BATCHxMxKxN")
    return sizes


def _arguments() -> argparse.Namespace:
    parser = measure.options("benchmarks.cold", __doc__, "product and level", 4, ("dhlo", "eager"), "cold", limited=True)
    parser.add_argument("sizes", nargs="*", type=_sizes, help="MxKxN or BATCHxMxKxN; without, of a random sample")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="f32")
    parser.add_argument("--samples", type=int, default=16, help="products drawn of single matrices and of batches each")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def _measured(tag: str, sizes: Shape, level: str, peers: Sequence[str], a: argparse.Namespace) -> dict[str, float]:
    """Milliseconds by peer: the mean over the copies of each one's least."""
    w = workload(tag, sizes, level)
    result = measure.measure_workload(
        w,
        peers,
        a.threads,
        budget=a.budget,
        results=a.results,
        subject=("benchmarks.cold:subject", {"tag": tag, "sizes": sizes, "level": level}),
    )
    measure.save(result, a.results)
    for p, facts in result["peers"].items():
        if "error" in facts:
            print(f"   {w.name}: {p} fails: {facts['error']}", file=sys.stderr, flush=True)
    return {p: statistics.fmean(facts["min_ms"]) for p, facts in result["peers"].items() if "error" not in facts}


def main() -> int:
    """Exit code 1 if a product failed on the first peer."""
    a = _arguments()
    peers = measure.chosen_peers(a)
    drawn = sample(a.samples, a.seed, a.tiny)
    of_both = chain.from_iterable(drawn[f"{a.dtype}_{kind}"].shapes for kind in ("argument", "batched"))
    chosen = a.sizes or [s for s in of_both if copies("third cache", operand_bytes(s, DTYPES[a.dtype]))]
    found: dict[Shape, dict[str, dict[str, float]]] = {}
    for sizes in chosen:
        print(f"== {'x'.join(map(str, sizes))}", file=sys.stderr, flush=True)
        levels = [level for level in LEVELS if copies(level, operand_bytes(sizes, DTYPES[a.dtype]))]
        found[sizes] = {level: _measured(a.dtype, sizes, level, peers, a) for level in levels}
    print(table(found, peers))
    return int(any(peers[0] not in times for by_level in found.values() for times in by_level.values()))


if __name__ == "__main__":
    sys.exit(main())
