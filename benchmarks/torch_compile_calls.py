"""What a call through torch.compile costs beside its products: small layers, by the backends 'dhlo' and 'inductor', and in eager.
`python -m benchmarks.torch_compile_calls`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

ROUNDS, CALLS = 9, 300


def layers(count: int, width: int = 16) -> nn.Module:
    """`count` linear layers [*, width] with ReLU."""
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(count))).eval()


def per_call(run: Callable[[torch.Tensor], Any], inputs: list[torch.Tensor]) -> float:
    """Seconds; another size at every call."""
    began = time.perf_counter()
    for i in range(CALLS):
        run(inputs[i % len(inputs)])
    return (time.perf_counter() - began) / CALLS


def main() -> None:
    """Prints a table of microseconds a call, medians of rounds in turns."""
    torch.set_num_threads(1)
    inputs = [torch.randn(n, 16) for n in (2, 3, 5, 8)]
    print("| layers | eager, us | inductor, us | dhlo, us |\n| --- | --- | --- | --- |")
    for count in (1, 24):
        model = layers(count)
        runs = {"eager": model, **{b: torch.compile(model, backend=b, dynamic=True) for b in ("inductor", "dhlo")}}
        times: dict[str, list[float]] = {name: [] for name in runs}
        with torch.no_grad():
            for run in runs.values():
                per_call(run, inputs)
            for _ in range(ROUNDS):
                for name, run in runs.items():
                    times[name].append(per_call(run, inputs))
        print(f"| {count} | {' | '.join(f'{1e6 * statistics.median(t):.1f}' for t in times.values())} |", flush=True)


if __name__ == "__main__":
    main()
