"""Profiles: which kernels ran how often, for which line of the model's source."""

from __future__ import annotations

import inspect
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from torch.export import Dim, export
from typer.testing import CliRunner

import dhlo
from dhlo.cli import app


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(16, 24)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        y = torch.nn.functional.linear(x, self.linear.weight)
        return y.softmax(-1)


@pytest.fixture(scope="module")
def compiled() -> dhlo.CompiledModel:
    return dhlo.compile(export(Net().eval(), (torch.randn(3, 16),), dynamic_shapes=({0: Dim("n")},)))


def line_of(text: str) -> str:
    lines, first = inspect.getsourcelines(Net)
    return f"test_profile.py:{first + next(k for k, line in enumerate(lines) if text in line)}"


def test_a_profile_counts_launches_by_line(compiled: dhlo.CompiledModel, tmp_path: Path) -> None:
    session, x = compiled.session(), torch.randn(40, 16)
    with session.profile() as profile:
        for _ in range(3):
            session(x)
    sources = {r.source.rpartition("/")[2] for r in profile.rows}
    assert {line_of("linear(x"), line_of("softmax")} <= sources
    (product,) = (r for r in profile.rows if r.kernel.startswith("matmul") and r.source.endswith(line_of("linear(x")))
    assert product.launches == 3 and product.seconds > 0
    assert [r.seconds for r in profile.rows] == sorted((r.seconds for r in profile.rows), reverse=True)
    head, *rows = str(profile).splitlines()
    assert head.split()[:3] == ["kernel", "source", "launches"] and len(rows) == len(profile.rows)
    cells = list(ElementTree.fromstring(profile._repr_html_()).iter("td"))
    assert len(cells) == 6 * len(rows) and "launches" in repr(profile)
    session(x)  # outside, and not counted
    assert product.launches == 3 and not any(count for _, count, _ in session.native.profile)
    with pytest.raises(ValueError, match="mine"), session.profile() as profile:
        session(x)
        raise ValueError("mine")
    assert profile.rows and not any(count for _, count, _ in session.native.profile)

    with compiled.profile() as hidden:
        compiled(x)
    assert {r.kernel for r in hidden.rows} == {r.kernel for r in profile.rows}
    compiled.save(path := tmp_path / "model.so")
    text = CliRunner().invoke(app, ["run", str(path), "--shape", "x=40x16", "--profile"]).output
    assert line_of("softmax") in text and line_of("linear(x") in text
