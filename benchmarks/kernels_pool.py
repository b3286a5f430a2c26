"""Times the pooling kernels against PyTorch, with 1 and 2 threads, beside the time that moving the bytes takes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.kernels_conv import best, best_parallel
from dhlo.codegen.families.pool.adaptive import AdaptivePool
from dhlo.codegen.families.pool.pool import Pool
from tests.codegen.test_pool import launches_of

L3_GBS = 100.0  # read bandwidth a core
CASES: list[tuple[str, Pool | AdaptivePool, tuple[int, ...], Callable[[torch.Tensor], torch.Tensor]]] = [
    (
        "max 3x3/2",
        Pool("max", (3, 3), (2, 2), (1, 1), (1, 1)),
        (1, 64, 112, 112),
        lambda x: F.max_pool2d(x, 3, 2, 1),
    ),
    (
        "max 2x2/2",
        Pool("max", (2, 2), (2, 2), (0, 0), (1, 1)),
        (1, 64, 112, 112),
        lambda x: F.max_pool2d(x, 2, 2),
    ),
    (
        "max 5x5/1",
        Pool("max", (5, 5), (1, 1), (2, 2), (1, 1)),
        (1, 128, 20, 20),
        lambda x: F.max_pool2d(x, 5, 1, 2),
    ),
    (
        "avg 3x3/1",
        Pool("avg", (3, 3), (1, 1), (1, 1), (1, 1)),
        (1, 64, 56, 56),
        lambda x: F.avg_pool2d(x, 3, 1, 1),
    ),
    ("global avg", AdaptivePool("avg"), (1, 512, 7, 7), lambda x: F.adaptive_avg_pool2d(x, 1)),
    ("global avg", AdaptivePool("avg"), (8, 64, 56, 56), lambda x: F.adaptive_avg_pool2d(x, 1)),
]


def main() -> None:
    """Prints one line a case."""
    for label, pool, shape, torch_fn in CASES:
        x = torch.randn(shape)
        outs = [1, 1] if isinstance(pool, AdaptivePool) else pool.output_size(shape[2:])
        keep, launches = launches_of(pool, x, outs)
        ours = [best_parallel(launches, n) * 1e6 for n in (1, 2)]
        theirs = []
        for n in (1, 2):
            torch.set_num_threads(n)
            theirs.append(best(lambda fn=torch_fn, x=x: fn(x)) * 1e6)
        floor = (x.nbytes + keep[0].nbytes) / L3_GBS / 1e3
        print(
            f"{label:12} {'x'.join(map(str, shape)):14} ours {ours[0]:7.1f} / {ours[1]:7.1f} us, "
            f"torch {theirs[0]:7.1f} / {theirs[1]:7.1f} us, bytes from the third-level cache {floor:6.1f} us"
        )


if __name__ == "__main__":
    main()
