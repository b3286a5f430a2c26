"""Workers keep off the processor that the caller computes on: there they would only take turns with it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch.export import Dim, export

import dhlo


class Product(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b


def _threads() -> dict[int, str]:
    """This process's threads by id, with their names."""
    return {int(task.name): (task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()}


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
def test_a_worker_on_the_callers_processor_is_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DHLO_NUM_THREADS", "3")  # a pool that no other model shares
    before = _threads()
    exported = export(
        Product(), (torch.randn(4, 6), torch.randn(6, 8)), dynamic_shapes=({0: Dim("m"), 1: Dim("k")}, {0: Dim("k")})
    )
    model = dhlo.compile(exported)
    a, b = torch.randn(900, 700), torch.randn(700, 8)
    model(a, b)
    workers = [t for t, name in _threads().items() if name == "dhlo-worker" and t not in before]
    allowed = os.sched_getaffinity(0)
    here = min(allowed)
    assert workers
    try:
        os.sched_setaffinity(0, {here})
        for worker in workers:
            os.sched_setaffinity(worker, {here})
        for _ in range(20):
            torch.testing.assert_close(model(a, b), a @ b, atol=1e-3, rtol=1e-4)
        assert all(here not in os.sched_getaffinity(worker) for worker in workers)
    finally:
        os.sched_setaffinity(0, allowed)
