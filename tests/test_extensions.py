"""What users add: lowerings, decompositions, and operators in C; in this process, in model files and in C++ hosts."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import Dim

import dhlo
from dhlo import interp
from dhlo.frontend import import_program
from dhlo.frontend.builder import OpBuilder, Value
from dhlo.frontend.registry import LOWERINGS
from dhlo.ir.ops import elementwise as ew
from tests.conftest import ROOT, BuildHost

NAMES = ("swish", "scale_rows", "halve", "unheard")


@torch.library.custom_op("dhlo_test::swish", mutates_args=())
def swish(x: torch.Tensor, beta: float = 1.0) -> torch.Tensor:
    return x * torch.sigmoid(beta * x)


@torch.library.custom_op("dhlo_test::scale_rows", mutates_args=())
def scale_rows(x: torch.Tensor, factors: torch.Tensor, by: float, plus: int) -> tuple[torch.Tensor, torch.Tensor]:
    y = x * factors[:, None] * by + plus
    return y, y.sum(1)


@torch.library.custom_op("dhlo_test::halve", mutates_args=())
def halve(x: torch.Tensor) -> torch.Tensor:
    n = x.shape[0] // 2
    return torch.cat([x[:n] - x[n : 2 * n], x.mean(0, keepdim=True)])


@torch.library.custom_op("dhlo_test::unheard", mutates_args=())
def unheard(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.numpy().copy())  # can't be traced


swish.register_fake(lambda x, beta=1.0: torch.empty_like(x))
scale_rows.register_fake(lambda x, factors, by, plus: (torch.empty_like(x), x.new_empty(x.shape[0])))
halve.register_fake(lambda x: x.new_empty(x.shape[0] // 2 + 1, x.shape[1]))
unheard.register_fake(lambda x: torch.empty_like(x))
OPS: Any = torch.ops.dhlo_test

SOURCE = r"""
#include "dhlo/abi.h"
#ifdef __cplusplus
extern "C"
#endif
int32_t my_scale_rows(const dhlo_tensor* in, dhlo_tensor* out, const dhlo_number* numbers) {
  const float *x = in[0].data, *factors = in[1].data;
  float *y = out[0].data, *sums = out[1].data;
  const int64_t rows = in[0].sizes[0], columns = in[0].sizes[1];
  if (in[0].rank != 2 || in[0].dtype != DHLO_F32 || out[0].sizes[0] != rows || in[1].sizes[0] != rows) return 1;
  for (int64_t i = 0; i < rows; ++i) {
    sums[i] = 0;
    if (factors[i] == 13) return 2;
    for (int64_t j = 0; j < columns; ++j)
      sums[i] += y[i * columns + j] = x[i * columns + j] * factors[i] * (float)numbers[0].f + (float)numbers[1].i;
  }
  return 0;
}
"""


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    """Registrations of a test are gone after it."""
    before = dict(LOWERINGS)
    yield
    LOWERINGS.clear()
    LOWERINGS.update(before)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with op.o and libop.so."""
    folder = tmp_path_factory.mktemp("c_op")
    (folder / "op.c").write_text(SOURCE)
    for flags in (["-c", "-o", "op.o"], ["-shared", "-o", "libop.so"]):
        subprocess.run(["cc", "-O1", "-fPIC", f"-I{ROOT}/runtime/include", "op.c", *flags], cwd=folder, check=True)
    return folder


class Rows(torch.nn.Module):
    def forward(self, x: torch.Tensor, f: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y, sums = OPS.scale_rows(x.t(), f + 1, 0.5, x.shape[0])
        return y * 2, torch.softmax(sums, 0)


def exported() -> torch.export.ExportedProgram:
    shapes = ({0: Dim("columns"), 1: Dim("rows")}, {0: Dim("rows")})
    return torch.export.export(Rows(), (torch.randn(3, 4), torch.randn(4)), dynamic_shapes=shapes)


def check(model: Any) -> None:
    for columns, rows in ((5, 7), (1, 1), (3, 0), (0, 2)):
        x, f = torch.randn(columns, rows), torch.randn(rows)
        for got, want in zip(model(x, f), Rows()(x, f), strict=True):
            torch.testing.assert_close(got, want)


def test_lowering() -> None:
    @dhlo.register_lowering(OPS.swish)
    def lower(b: OpBuilder, x: Value, beta: float = 1.0) -> Value:
        return b.mul(x, b.unary(ew.Sigmoid, b.mul(x, beta)))

    program = torch.export.export(_Swish(), (torch.randn(3),), dynamic_shapes=({0: Dim("n")},))
    model = dhlo.compile(program)
    for n in (0, 1, 33):
        x = torch.randn(n)
        torch.testing.assert_close(model(x), _Swish()(x), rtol=1e-5, atol=1e-6)


class _Swish(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return OPS.swish(x, 2.0) + OPS.swish(x)


class _Halves(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return OPS.halve(OPS.halve(x) + 1)


def test_decomposition_is_traced_under_the_programs_symbols() -> None:
    @dhlo.register_decomposition(OPS.halve)
    def decompose(x: torch.Tensor) -> torch.Tensor:
        n = x.shape[0] // 2
        y = x[:n].clone()
        y -= x[n : 2 * n]
        return torch.cat([y, x.mean(0, keepdim=True)])

    program = torch.export.export(_Halves(), (torch.randn(9, 3),), dynamic_shapes=({0: Dim("n", min=2), 1: Dim("m")},))
    model = dhlo.compile(program)
    for n, m in ((9, 3), (2, 1), (64, 17), (5, 0)):
        x = torch.randn(n, m)
        torch.testing.assert_close(model(x), _Halves()(x))


def test_what_a_decomposition_is_made_of_must_be_known() -> None:
    dhlo.register_decomposition(OPS.halve)(lambda x: OPS.unheard(x))
    program = torch.export.export(_Halves(), (torch.randn(9, 3),))
    with pytest.raises(dhlo.UnsupportedError, match=r"dhlo_test\.unheard.* in the decomposition of dhlo_test\.halve"):
        dhlo.compile(program)


@pytest.mark.parametrize("library", ["op.o", "libop.so"])
def test_c_op_in_this_process_and_in_a_model_file(built: Path, tmp_path: Path, library: str) -> None:
    dhlo.register_c_op(OPS.scale_rows, "my_scale_rows", built / library)
    model = dhlo.compile(exported())
    check(model)
    with pytest.raises(dhlo.ContractError, match="'my_scale_rows' at .* returned an error"):
        model(torch.zeros(2, 2), torch.tensor([1.0, 12.0]))
    model.save(tmp_path / "rows.so")
    check(dhlo.load(tmp_path / "rows.so"))


def test_shape_rule_and_reference(built: Path) -> None:
    seen = []

    def shapes(x: Any, factors: Any, by: float, plus: Any) -> list[Any]:
        seen.append((str(x), by, str(plus)))
        return [(torch.float32, x.shape), (torch.float32, [x.shape[0]])]

    dhlo.register_c_op(OPS.scale_rows.default, "my_scale_rows", built / "libop.so", shapes=shapes)
    program = import_program(exported())
    assert "rows" in str(program.user_names.values()) and seen[-1][1] == 0.5
    x, f = torch.randn(3, 4), torch.randn(4)
    with program.context:
        got = interp.run(program.module, [x, f], program.weights)
    for a, b in zip(got, Rows()(x, f), strict=True):
        torch.testing.assert_close(a, b)


def test_missing_functions_are_errors(built: Path) -> None:
    dhlo.register_c_op(OPS.scale_rows, "nobody", built / "libop.so")
    with pytest.raises(dhlo.CompileError, match="no function 'nobody' in .*libop.so"):
        dhlo.compile(exported())


HOST = r"""
#include <cstdio>
#include "dhlo/runtime.hpp"
int main(int, char** argv) {
  const dhlo::Model model = dhlo::Model::load(argv[1]);
  dhlo::Session session(model);
  float x[6] = {1, 2, 3, 4, 5, 6}, factors[3] = {0, 1, 3};
  session.run({dhlo::Tensor::of(x, {2, 3}), dhlo::Tensor::of(factors, {3})});
  for (int i = 0; i < 6; ++i) std::printf("%g ", session.output(0).data<float>()[i]);
}
"""


def test_c_op_of_a_cpp_host_is_found_when_the_model_is_loaded(built: Path, tmp_path: Path, build_host: BuildHost) -> None:
    dhlo.register_c_op(OPS.scale_rows, "my_scale_rows", built / "op.o")
    inside = dhlo.compile(exported())
    inside.save(tmp_path / "inside.so")
    import ctypes

    ctypes.CDLL(str(built / "libop.so"), ctypes.RTLD_GLOBAL)
    dhlo.register_c_op(OPS.scale_rows, "my_scale_rows")
    outside = dhlo.compile(exported())
    check(outside)
    outside.save(tmp_path / "outside.so")
    (tmp_path / "host.cpp").write_text(HOST)
    plain = build_host(tmp_path / "plain", tmp_path / "host.cpp")
    with_op = build_host(tmp_path / "with_op", tmp_path / "host.cpp", built / "op.o", Path("-rdynamic"))

    def run(host: Path, model: str) -> str:
        return subprocess.run([str(host), str(tmp_path / model)], capture_output=True, text=True, check=True).stdout

    want = "5 8 8 14 16 28 "
    assert run(plain, "inside.so") == want and run(with_op, "outside.so") == want
    refused = subprocess.run([str(plain), str(tmp_path / "outside.so")], capture_output=True, text=True, check=False)
    assert refused.returncode != 0 and "my_scale_rows" in refused.stderr
