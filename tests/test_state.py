"""Buffers that the program changes live in the session: updated by every call, readable, resettable. Arguments that it
changes are written to."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch
from torch.export import Dim

import dhlo
from dhlo import _runtime
from tests.conftest import BuildHost


class Counter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.total.add_(x.sum(0))
        self.calls += 1
        return x * self.total, self.calls + 0


def test_state_follows_eager_and_can_be_reset() -> None:
    torch.manual_seed(0)
    compiled = dhlo.compile(torch.export.export(Counter(), (torch.randn(4, 3),), dynamic_shapes=({0: Dim.DYNAMIC},)))
    reference = Counter()
    for n in (1, 5, 17, 0):
        x = torch.randn(n, 3)
        for got, want in zip(compiled(x), reference(x), strict=True):
            torch.testing.assert_close(got, want)
    torch.testing.assert_close(compiled.read_state("total"), reference.total)
    with pytest.raises(dhlo.ContractError):
        compiled(torch.randn(2, 4))
    assert compiled.read_state("calls") == 4  # a failed call changes nothing
    compiled.write_state("calls", torch.tensor(41))
    assert compiled(torch.ones(1, 3))[1] == 42
    compiled.reset_state()
    assert compiled.read_state("calls") == 0 and torch.equal(compiled.read_state("total"), torch.zeros(3))
    with pytest.raises(dhlo.ContractError, match=r"state 'calls' is int64\[\], got float32\[2\]"):
        compiled.write_state("calls", torch.zeros(2))
    with pytest.raises(KeyError):
        compiled.read_state("nothing")


def session_kernels(model: dhlo.CompiledModel, *args: object) -> list[str]:
    """The kernels that a call launches."""
    session = _runtime.Session(model.native, profile=True)
    session(list(args))
    return [name for name, count, _ in session.profile if count]


class Cache(torch.nn.Module):
    """Keys of two layers in one buffer, values in a buffer of their own, written at a position."""

    def __init__(self, capacity: int = 16) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(2, 3, capacity, 4))
        self.register_buffer("values", torch.zeros(3, capacity, 4))
        self.register_buffer("picked", torch.zeros(capacity, 2))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        n = x.shape[1]
        used = (self.values[0, :, 0] != 0).sum()
        start = at[0].item()
        torch._check(start >= 0)
        torch._check(start + n <= self.values.shape[1])
        self.keys[1, :, start : start + n] = x
        self.values.index_copy_(1, at, x)
        self.picked[at, 1] = x[0, :, 0]
        return (self.keys[1] * self.values).sum((0, 2)) + self.picked.sum() + used


def test_parts_of_buffers_are_written_in_place() -> None:
    shapes = ({1: Dim("n", max=8)}, {0: Dim("n", max=8)})
    exported = torch.export.export(Cache(), (torch.randn(3, 2, 4), torch.arange(2)), dynamic_shapes=shapes)
    compiled, reference = dhlo.compile(exported), Cache()
    position = 0
    for n in (3, 1, 0, 5, 1):
        x, at = torch.randn(3, n, 4), torch.arange(position, position + n)
        if n == 0:
            continue
        torch.testing.assert_close(compiled(x, at), reference(x, at))
        position += n
    for name, want in reference.named_buffers():
        torch.testing.assert_close(compiled.read_state(name), want)
    assert not {"copy_flat"} & set(session_kernels(compiled, torch.randn(3, 2, 4), torch.arange(2)))
    before = {n: compiled.read_state(n) for n in ("values", "picked")}
    with pytest.raises(dhlo.ContractError, match="out of range"):
        compiled(torch.ones(3, 2, 4), torch.tensor([5, 99]))
    assert torch.equal(compiled.read_state("values")[:, :5], before["values"][:, :5])  # what no index names stays


def test_old_content_that_is_read_later_is_kept() -> None:
    class Swap(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("kept", torch.arange(8.0))
            self.register_buffer("twice", torch.arange(8.0))

        def forward(self, x: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, ...]:
            old = self.kept.clone()
            self.kept.index_copy_(0, at, x)
            mixed = torch.softmax(old * self.kept, 0) + old
            self.twice.index_copy_(0, at, x)
            self.twice.index_add_(0, at, x)
            return mixed, self.twice, self.twice[2:5]

    shapes = ({0: Dim("n")}, {0: Dim("n")})
    exported = torch.export.export(Swap(), (torch.randn(2), torch.arange(2)), dynamic_shapes=shapes)
    compiled, reference = dhlo.compile(exported), Swap()
    for at in ([0, 1], [7], [3, 2, 1]):
        x, index = torch.randn(len(at)), torch.tensor(at)
        for got, want in zip(compiled(x, index), reference(x, index), strict=True):
            torch.testing.assert_close(got, want)
    for name, want in reference.named_buffers():
        torch.testing.assert_close(compiled.read_state(name), want)


def test_a_part_that_moves_within_its_buffer() -> None:
    class Window(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("last", torch.zeros(2, 6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.last[:, :-1] = self.last[:, 1:].clone()
            self.last[:, -1] = x.sum(1)
            return self.last * 2

    compiled = dhlo.compile(torch.export.export(Window(), (torch.ones(2, 3),), dynamic_shapes=({1: Dim("n")},)))
    reference = Window()
    for n in range(5):
        x = torch.randn(2, n)
        torch.testing.assert_close(compiled(x), reference(x))
    torch.testing.assert_close(compiled.read_state("last"), reference.last)


class Writer(torch.nn.Module):
    """Changes its arguments: one a row at a time, one as a whole, one not."""

    def forward(self, cache: torch.Tensor, total: torch.Tensor, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(0, at, x)
        total.add_(x.sum(0))
        return cache.sum() + total


def writer(tmp_path: Path) -> tuple[dhlo.CompiledModel, dhlo.CompiledModel, Path]:
    example = (torch.zeros(8, 3), torch.zeros(3), torch.randn(2, 3), torch.arange(2))
    shapes = ({0: Dim("rows")}, {}, {0: Dim("n")}, {0: Dim("n")})
    compiled = dhlo.compile(torch.export.export(Writer(), example, dynamic_shapes=shapes))
    compiled.save(tmp_path / "writer.so")
    return compiled, dhlo.load(tmp_path / "writer.so"), tmp_path / "writer.so"


def test_arguments_are_written_in_place(tmp_path: Path) -> None:
    compiled, loaded, _ = writer(tmp_path)
    assert [v["name"] for v in compiled.native.outputs] == [v["name"] for v in loaded.native.outputs]
    assert len(compiled.native.outputs) == 1
    for model in (compiled, loaded):
        for gaps in (False, True):
            cache, total = torch.randn(9, 3), torch.randn(3)
            if gaps:
                cache, total = torch.randn(3, 18).t()[::2], torch.randn(6)[::2]
            mine, mine_total = (cache.clone(), total.clone()) if not gaps else (torch.empty(3, 18).t()[::2], torch.empty(6)[::2])
            mine.copy_(cache)
            mine_total.copy_(total)
            x, at = torch.randn(4, 3), torch.tensor([0, 8, 3, 5])
            version = mine._version
            torch.testing.assert_close(model(mine, mine_total, x, at), Writer()(cache, total, x, at))
            torch.testing.assert_close(mine, cache)
            torch.testing.assert_close(mine_total, total)
            assert mine._version > version
            with pytest.raises(dhlo.ContractError):
                model(mine, mine_total, x, torch.tensor([1, 2, 3, 9]))
            torch.testing.assert_close(mine_total, total)  # written whole, so last


HOST = r"""
#include <cstdio>
#include <vector>
#include "dhlo/runtime.hpp"
int main(int, char** argv) {
  const dhlo::Model model = dhlo::Model::load(argv[1]);
  dhlo::Session session(model);
  std::vector<float> cache(5 * 3), total(6, 1.0f), x(2 * 3, 2.0f);  // total has gaps
  std::vector<int64_t> at{4, 1};
  session.run({dhlo::Tensor::of(cache.data(), {5, 3}), dhlo::Tensor(total.data(), DHLO_F32, {3}, {2}),
               dhlo::Tensor::of(x.data(), {2, 3}), dhlo::Tensor::of(at.data(), {2})});
  for (float v : cache) std::printf("%g ", v);
  for (float v : total) std::printf("%g ", v);
  std::printf("%d%d%d", model.input_is_updated(0), model.input_is_updated(1), model.input_is_updated(2));
}
"""


def test_a_host_in_cpp_sees_its_arguments_updated(tmp_path: Path, build_host: BuildHost) -> None:
    model = writer(tmp_path)[2]
    (tmp_path / "host.cpp").write_text(HOST)
    binary = build_host(tmp_path / "host", tmp_path / "host.cpp")
    text = subprocess.run([str(binary), str(model)], capture_output=True, text=True, check=True).stdout
    assert text.split() == [*"000222000000222", *"515151", "110"]
