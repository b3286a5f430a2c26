"""The benchmark of timm's models: which it takes, how far their sizes are dynamic, what it compares, and its table."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import dhlo
from benchmarks.architectures import Found, choose, examine, report


class Patches(nn.Module):
    """Of one size of image, as position embeddings have it."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Conv2d(3, 8, 16, 16)
        self.positions = nn.Parameter(torch.randn(1, 8, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.project(x).flatten(2)
        return (y + self.positions).mean(2)


class Halves(nn.Module):
    """Of images that are at least 96 wide, as its guards say."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean((1, 2, 3)) if x.shape[3] >= 96 else x.sum((1, 2, 3))


class Refused(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x
        return -x


def pooled() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, 2), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1, inplace=True)
    )


def test_what_is_dynamic_and_compared() -> None:
    free, fixed, refused = examine("free", pooled, 64), examine("fixed", Patches, 64, fixed=True), examine("refused", Refused, 64)
    assert (free.dims, fixed.dims) == (3, 1)
    assert [*free.errors] == [(2, 3, 96, 128), (1, 3, 128, 160), (3, 3, 96, 64), (1, 3, 224, 224)] == [*free.ratios]
    assert [*fixed.errors] == [(2, 3, 64, 64), (3, 3, 64, 64), (1, 3, 64, 64)]
    assert all(e < 1e-5 for f in (free, fixed) for e in f.errors.values()) and not free.refused + fixed.refused + free.faults
    assert refused.left_out.startswith("torch.export: ") and not refused.errors


def test_one_or_two_of_each_family_are_taken() -> None:
    many = [f"net{letter}" for letter in "abcdefghijklmn"]
    assert choose({"b": ["b_large", "b_tiny", "b_tiny_384"], "a": ["a_giant"], "c": [*many, "net_nano"]}) == [
        "a_giant",
        "b_tiny",
        "net_nano",
        "nete",
    ]


def test_report() -> None:
    few, many = (1, 3, 8, 8), (2, 3, 8, 8)
    good = Found("good", 3, 1.0, 2.0, {few: 1e-6, many: 2e-6}, {few: 2.0, many: 8.0}, [(3, 3, 4, 4)])
    bad = Found("bad", 1, 1.0, 2.0, {few: 0.1}, {few: 0.5}, faults=["1x3x8x8: wrong by 1.0e-01", "a | b"])
    lines = report([good, bad, Found("none", left_out="why")]).split("\n")
    assert lines[2] == "| good | 3 | 1.0 | 2.0 | 2.0e-06 | 2.00 to 8.00 | refuses 3x3x4x4 |"
    assert lines[3] == "| bad | 1 | 1.0 | 2.0 | 1.0e-01 | 0.50 to 0.50 | 1x3x8x8: wrong by 1.0e-01; a / b |"
    assert lines[4] == "| none | 0 | 0.0 | 0.0 |  |  | why |"
    assert lines[-1] == "2 of 3 models, 3 sizes: eager over dhlo 2.00, least 0.50; faulty: bad."


def test_nothing_measured() -> None:
    assert report([Found("none", left_out="why")]).endswith("0 of 1 models, 0 sizes: nothing was timed; faulty: none.")


class Strict:
    """A model that refuses what its program takes, or adds something to its results."""

    def __init__(self, model: Any, more: float) -> None:
        self.model, self.more = model, more

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] == 3:
            raise dhlo.ContractError("too strict")
        y: torch.Tensor = self.model(x)
        return y + self.more


@pytest.mark.parametrize("more", [0.0, 0.5, float("nan")])
def test_faults_are_found(more: float, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = dhlo.compile
    monkeypatch.setattr(dhlo, "compile", lambda *args, **options: Strict(compiled(*args, **options), more))
    faults = examine("net", pooled, 64, fixed=True).faults
    assert faults[-2 if more else 0].startswith("3x3x64x64: too strict") and len(faults) == (3 if more else 1)


def test_sizes_that_the_program_refuses_are_no_faults() -> None:
    found = examine("halves", Halves, 64)
    assert found.refused == [(3, 3, 96, 64)] and not found.faults and len(found.errors) == 3
