"""Arguments with room behind their elements: what the program joins to them is written there."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.export import Dim
from typer.testing import CliRunner

import dhlo
from dhlo import _runtime
from dhlo.cli import app
from tests.conftest import BuildHost


class Step(torch.nn.Module):
    """Attention over a cache that grows with every call."""

    def __init__(self) -> None:
        super().__init__()
        self.project = torch.nn.Linear(8, 24)

    def forward(self, x: torch.Tensor, past_k: torch.Tensor, past_v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q, k, v = (y.unflatten(-1, (2, 4)).transpose(1, 2) for y in self.project(x).chunk(3, -1))
        k, v = torch.cat([past_k, k], 2), torch.cat([past_v, v], 2)
        y = F.scaled_dot_product_attention(q, k, v)
        return y.transpose(1, 2).flatten(2), k, v


def exported(module: Step) -> torch.export.ExportedProgram:
    batch, new, past = Dim("batch", min=1, max=64), Dim("new", min=1, max=512), Dim("past", min=0, max=4096)
    example = (torch.randn(2, 3, 8), torch.randn(2, 2, 5, 4), torch.randn(2, 2, 5, 4))
    shapes = ({0: batch, 1: new}, {0: batch, 2: past}, {0: batch, 2: past})
    with torch.no_grad():
        return torch.export.export(module, example, dynamic_shapes=shapes)


@pytest.mark.parametrize("saved", [False, True])
def test_a_growing_cache_is_appended_to_in_place(saved: bool, tmp_path: Path) -> None:
    module = Step().eval().requires_grad_(False)
    model = dhlo.compile(exported(module), grow={"past_*": 2})
    if saved:
        model.save(tmp_path / "step.so")
        model = dhlo.load(tmp_path / "step.so")
    for batch in (1, 3):
        buffers = [torch.full((batch, 2, 32, 4), float("nan")) for _ in range(2)]
        past = [b[:, :, :0] for b in buffers]
        want_past = [torch.zeros(batch, 2, 0, 4)] * 2
        for n in (7, 1, 1, 4):
            x = torch.randn(batch, n, 8)
            got, *past = model(x, *past)
            want, *want_past = module(x, *want_past)
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
            for p, w, b in zip(past, want_past, buffers, strict=True):
                torch.testing.assert_close(p, w, rtol=1e-4, atol=1e-5)
                assert p.data_ptr() == b.data_ptr() and p.stride() == b.stride()
                assert b[:, :, p.shape[2] :].isnan().all()
    session = _runtime.Session(model.native, profile=True)
    session([torch.randn(3, 1, 8), *past])
    assert not {"copy_flat", "copy_in_4"} & {name for name, count, _ in session.profile if count}
    with pytest.raises(dhlo.ContractError, match="the buffer of 'past_k' is full"):
        model(torch.randn(3, 32, 8), *past)
    with pytest.raises(dhlo.ContractError, match="'past_k' must be the first part"):
        model(torch.randn(3, 1, 8), *[torch.zeros(3, 2, 0, 4)] * 2)  # no memory at all
    with pytest.raises(dhlo.ContractError, match="'past_v' must be the first part, along dim 2, of a dense buffer"):
        model(torch.randn(3, 1, 8), past[0], torch.randn(3, 4, 13, 2).transpose(1, 3)[:, :2])


def test_what_cannot_grow() -> None:
    program = exported(Step())
    with pytest.raises(dhlo.CompileError, match="no argument is called 'cache'"):
        dhlo.compile(program, grow={"cache": 2})
    with pytest.raises(dhlo.CompileError, match="no result is 'past_k' with something joined to its dim 1"):
        dhlo.compile(program, grow={"past_k": 1})
    with pytest.raises(dhlo.CompileError, match="no dim 0 behind its first"):
        dhlo.compile(program, grow={"past_k": 0})
    for wrong in ({"past_k": "2"}, {"past_k": 1 << 70}, {2: 2}, ["past_k"], {"past_k": True}):
        with pytest.raises(dhlo.CompileError, match="grow: is a dict of arguments"):
            dhlo.compile(program, grow=wrong)
    reads = torch.export.export(Reads(), (torch.randn(2, 2, 5, 4),))
    with pytest.raises(dhlo.CompileError, match="^entry 'reads': grow: no result is 'past_k'.*\n.*call it something else"):
        dhlo.compile({"step": program, "reads": reads}, grow={"past_k": 2})


def test_command_line(tmp_path: Path) -> None:
    torch.export.save(exported(Step().eval().requires_grad_(False)), program := tmp_path / "step.pt2")

    def compiled(*options: str) -> str:
        found = CliRunner().invoke(app, ["compile", str(program), "-o", str(tmp_path / "step.so"), *options])
        assert found.exit_code == (0 if options[0] == "--no-updatable" else 1), found.output
        return found.output

    compiled("--no-updatable", "--grow", "past_*=2")
    (_, k, v) = dhlo.load(tmp_path / "step.so")(torch.randn(1, 1, 8), *(torch.empty(1, 2, 9, 4)[:, :, :3] for _ in range(2)))
    assert k.shape[2] == v.shape[2] == 4 and k.stride(1) == 9 * 4
    with pytest.raises(dhlo.ModelFileError, match="updatable=False"):
        dhlo.update_weights(tmp_path / "step.so", {})
    for wrong in ("past_k", "past_k=", "=2", "past_k=x"):
        assert "is not NAME=DIM" in compiled("--grow", wrong)


HOST = r"""
#include <cstdio>
#include "dhlo/runtime.hpp"
int main(int, char** argv) {
  const dhlo::Model model = dhlo::Model::load(argv[1]);
  dhlo::Session session(model);
  const int64_t capacity = 10;
  std::vector<float> x(8, 1.0f), k(2 * capacity * 4, -1.0f), v(2 * capacity * 4, -1.0f);
  int64_t filled = 0;
  for (int step = 0; step < 3; ++step) {
    const std::vector<int64_t> sizes{1, 2, filled, 4}, strides{2 * capacity * 4, capacity * 4, 4, 1};
    session.run({dhlo::Tensor::of(x.data(), {1, 1, 8}), dhlo::Tensor(k.data(), DHLO_F32, sizes, strides),
                 dhlo::Tensor(v.data(), DHLO_F32, sizes, strides)});
    filled = *session.output(1).data<int64_t>();
  }
  int written = 0;
  for (float e : k) written += e != -1.0f;
  std::printf("%d %d %d%d%d", static_cast<int>(filled), written, model.input_is_updated(0), model.input_is_updated(1),
              model.input_is_updated(2));
}
"""


def test_in_cpp(tmp_path: Path, build_host: BuildHost) -> None:
    dhlo.compile(exported(Step().eval().requires_grad_(False)), grow={"past_*": 2}).save(tmp_path / "step.so")
    (tmp_path / "host.cpp").write_text(HOST)
    binary = build_host(tmp_path / "host", tmp_path / "host.cpp")
    out = subprocess.run([str(binary), str(tmp_path / "step.so")], capture_output=True, text=True, check=True).stdout
    assert out == f"3 {3 * 2 * 4} 011"


@pytest.mark.parametrize("wrong", [None, 3, np.zeros((2, 3, 4, 8)), torch.zeros(2, 3, 4, 8).to_sparse(), torch.zeros(3)])
def test_what_is_no_buffer_is_refused_by_name(wrong: object) -> None:
    model, example = Joined(), (torch.randn(2, 3, 4, 8), torch.randn(2, 3, 1, 8))
    sizes = ({2: torch.export.Dim("past", min=0, max=64)}, None)
    compiled = dhlo.compile(torch.export.export(model, example, dynamic_shapes=sizes), grow={"past": 2})
    with pytest.raises(dhlo.ContractError, match="'past' grows in place: expected a dense CPU tensor of PyTorch, got"):
        compiled(wrong, example[1])
    with pytest.raises(dhlo.ContractError, match="expected|structure"):
        compiled(example[0])
    room = torch.empty(2, 3, 16, 8)
    past = room[:, :, :4].copy_(example[0])
    torch.testing.assert_close(compiled(past, example[1]), model(*example))


class Joined(torch.nn.Module):
    def forward(self, past: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        return torch.cat([past, new], 2)


class Reads(torch.nn.Module):
    def forward(self, past_k: torch.Tensor) -> torch.Tensor:
        return past_k.sum()
