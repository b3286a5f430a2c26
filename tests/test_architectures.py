"""The benchmark of timm's models: which it takes, how far their sizes are dynamic, what it compares, and its table."""

from __future__ import annotations

import pytest
import torch
from torch import nn

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
    assert all(e < 1e-5 for f in (free, fixed) for e in f.errors.values()) and not free.refused | fixed.refused
    assert refused.failed.startswith("torch.export: ") and not refused.errors


def test_one_or_two_of_each_family_are_taken() -> None:
    many = [f"net{letter}" for letter in "abcdefghijklmn"]
    assert choose({"b": ["b_large", "b_tiny", "b_tiny_384"], "a": ["a_giant"], "c": [*many, "net_nano"]}) == [
        "a_giant",
        "b_tiny",
        "net_nano",
        "nete",
    ]


def test_report() -> None:
    good = Found(
        "good",
        3,
        1.0,
        2.0,
        {(1, 3, 8, 8): 1e-6, (2, 3, 8, 8): 2e-6},
        {(1, 3, 8, 8): 2.0, (2, 3, 8, 8): 8.0},
        {(3, 3, 4, 4): "a | b"},
    )
    lines = report(
        [good, Found("bad", 1, 1.0, 2.0, {(1, 3, 8, 8): float("nan")}, {(1, 3, 8, 8): 0.5}), Found("none", failed="why")]
    ).split("\n")
    assert lines[2] == "| good | 3 | 1.0 | 2.0 | 2.0e-06 | 2.00 to 8.00 | 3x3x4x4: a / b |"
    assert lines[4] == "| none | 0 | 0.0 | 0.0 |  |  | why |"
    assert lines[-1] == "2 of 3 models, 3 sizes: eager over dhlo 2.00, least 0.50; wrong: bad."


def test_nothing_measured() -> None:
    assert report([Found("none", failed="why")]).endswith("0 of 1 models, 0 sizes: nothing was timed; wrong: none.")


@pytest.mark.parametrize("worst", [1e-3, float("inf")])
def test_wrong_results_are_named(worst: float) -> None:
    assert report([Found("net", 1, errors={(1, 3, 8, 8): worst})]).endswith("wrong: net.")
