"""Operators of PyTorch's own database: a few at every run, all of them with `-m slow`."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

from tests.opinfo.check import as_good, check, in_double
from tests.opinfo.pool import ROOT
from tests.opinfo.report import columns, counts, document, load
from tests.opinfo.samples import DTYPES, Call, operators

# One of each kind: arithmetic, functions, choices, reductions, orders, indices, views, joins, products, windows, losses.
QUICK = """
div.floor_rounding lgamma where argmax cumsum topk scatter_add nonzero diagonal cat repeat_interleave einsum
nn.functional.interpolate.bilinear nn.functional.layer_norm nn.functional.cross_entropy
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


def test_what_is_as_good_as_pytorchs_result() -> None:
    """A result is measured by double precision's; where that is beyond the dtype's numbers, one infinity is as good as another,
    but no NaN in its place; where PyTorch alone overflows, ours is to be near."""
    inf, nan = torch.inf, torch.nan
    half, exact = torch.tensor([nan, inf, inf], dtype=torch.float16), torch.tensor([2.0, 3.0, 1e6], dtype=torch.float64)
    good = torch.tensor([2.0, 3.0, inf], dtype=torch.float16)
    assert as_good(good, half, exact, False)
    for i, wrong in enumerate((2.1, 4.0, 65504.0)):
        assert not as_good(torch.where(torch.arange(3) == i, wrong, good), half, exact, False)
    large = torch.tensor([complex(1e300, 1e300)], dtype=torch.complex128)
    ours, theirs, none = (
        torch.tensor([z], dtype=torch.complex64) for z in (complex(inf, nan), complex(inf, inf), complex(nan, nan))
    )
    assert as_good(ours, theirs, large, False) and not as_good(none, theirs, large, False)
    assert as_good(theirs, none, large, False)
    assert not as_good(ours, theirs, torch.ones(1, dtype=torch.complex128), False)


def test_dtypes_that_a_call_names_are_doubled() -> None:
    call = Call(torch.linspace, [0.0, 1.0, 3, torch.float16], torch.utils._pytree.tree_structure(((0, 0, 0), {"dtype": 0})))
    assert in_double(call, ())[0].dtype == torch.float64 and call().dtype == torch.float16


def test_a_document_keeps_dtypes_that_were_not_run() -> None:
    def answer(outcome: str, reason: str = "") -> dict[str, Any]:
        return {"samples": [{"outcome": outcome, "reason": reason, "sizes": 4}], "seconds": 2.0}

    every = [("add", "f32"), ("add", "i64"), ("exp", "f32"), ("neg", "i64")]
    long = "1 | 2; " + 99 * " long"
    old = {"add|f32": answer("pass"), "add|i64": answer("wrong", long), "neg|i64": answer("no export", "PyTorch: not {u1, u2}")}
    whole = document(old, "", every, {})
    assert f"i64: wrong: {long.replace('|', chr(92) + '|')} |" in whole and "i64: (eager PyTorch: not {u…})" in whole
    assert "- f32: 1 of 2 operators" in whole and "- i64: 2 of 2 operators" in whole
    kept = columns(whole, {"f32"})
    assert list(kept) == ["i64"] and kept["i64"].cells == {"add": "0/1", "neg": "-"}
    assert document({"add|f32": old["add|f32"]}, "", every, kept) == whole


@pytest.mark.slow
def test_whole_database() -> None:
    subprocess.run([sys.executable, "-m", "tests.opinfo"], cwd=ROOT, check=True)
    c = counts(load().values())
    total = c["pass"] + c["refused"] + c["wrong"] + c["failed"]
    assert total > 5000 and c["pass"] >= 0.985 * total, c
