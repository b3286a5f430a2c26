"""Operators of PyTorch's own database: a few at every run, all of them with `-m slow`."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from tests.opinfo.check import check
from tests.opinfo.pool import ROOT
from tests.opinfo.report import counts, load
from tests.opinfo.samples import DTYPES, operators

# One of each kind: arithmetic, functions, choices, reductions, orders, indices, views, joins, products, windows, losses.
QUICK = """
add div.floor_rounding pow remainder bitwise_xor exp lgamma sigmoid round where clamp sum var argmax
cumsum logsumexp sort topk median index_select gather scatter_add index_put masked_select nonzero
diagonal squeeze permute roll cat split repeat_interleave matmul einsum nn.functional.conv2d
nn.functional.max_pool2d nn.functional.interpolate.bilinear nn.functional.layer_norm
nn.functional.cross_entropy nn.functional.pad.reflect
""".split()


@pytest.fixture(scope="module")
def ops() -> dict[str, Any]:
    return operators()


@pytest.mark.parametrize("name", QUICK)
def test_samples_match(ops: dict[str, Any], name: str) -> None:
    compared = 0
    for dtype in ("f32", "i64"):
        if DTYPES[dtype] in ops[name].dtypes:
            for result in check(ops[name], dtype, structures=1):
                assert result["outcome"] in ("pass", "no export"), result
                compared += result["outcome"] == "pass"
    assert compared


@pytest.mark.slow
def test_whole_database() -> None:
    subprocess.run([sys.executable, "-m", "tests.opinfo"], cwd=ROOT, check=True)
    c = counts(load().values())
    total = c["pass"] + c["refused"] + c["wrong"] + c["failed"]
    assert total > 5000 and c["pass"] >= 0.985 * total, c
