"""Real models: one compile, many shapes in random order, against eager."""

from __future__ import annotations

import pytest
import torch
from torch.utils._pytree import tree_leaves

import dhlo
from tests.models import MODELS
from tests.plans import assert_plan_is_run

TOLERANCE = 1e-4  # of the output's scale


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Largest difference over the largest magnitude; shapes, dtypes and non-finite values must agree."""
    assert got.shape == want.shape and got.dtype == want.dtype
    if want.numel() == 0:
        return 0.0
    got, want = got.double(), want.double()
    assert torch.equal(got.isfinite(), want.isfinite())
    scale = want[want.isfinite()].abs().max() if want.isfinite().any() else torch.tensor(1.0)
    return float((got - want).nan_to_num(0, 0, 0).abs().max() / scale.clamp(min=1e-12))


def check(name: str, full: bool, shapes: int, cap: int) -> None:
    torch.manual_seed(0)
    model = MODELS[name](full)
    model.module.eval()
    compiled = dhlo.compile(model.export())
    for n, sizes in enumerate(model.sizes(shapes, cap)):
        torch.manual_seed(n)
        args = model.inputs(*sizes)
        with torch.no_grad():
            want = model.module(*args)
        got = compiled(*args)
        errors = [relative_error(a, b) for a, b in zip(tree_leaves(got), tree_leaves(want), strict=True)]
        assert max(errors) <= TOLERANCE, f"{name} at {sizes}: {max(errors):.1e}"
        assert_plan_is_run(compiled, *args)
    assert compiled.counters["compilations"] == 1
    assert compiled.counters["runs"] >= shapes


@pytest.mark.parametrize("name", MODELS)
def test_small(name: str) -> None:
    check(name, full=False, shapes=30, cap=90)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_full_size(name: str) -> None:
    check(name, full=True, shapes=30, cap=10**9)


@pytest.mark.slow
def test_memory_stays_flat() -> None:
    """10,000 calls of one session at random shapes; the process may not grow after the first 500."""
    import os

    torch.manual_seed(0)
    model = MODELS["bert"](False)
    model.module.eval()
    compiled = dhlo.compile(model.export())
    sizes = model.sizes(500, 128)
    args = [model.inputs(b % 8 + 1, s) for b, s in sizes]

    def rss() -> int:
        with open("/proc/self/statm") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    for a in args:
        compiled(*a)
    before = rss()
    for n in range(9_500):
        compiled(*args[n * 7919 % len(args)])
    assert rss() - before <= 2 << 20
