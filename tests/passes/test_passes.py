"""Every pass on a small module: the text it gives (the golden), and that the results stay the same.

`pytest --update-goldens` writes the goldens; review them as a diff.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dhlo import interp
from dhlo.ir import mlir
from dhlo.ir.context import context
from dhlo.ir.symbols import evaluate, symbols_of
from dhlo.ir.types import TensorType, from_mlir
from dhlo.pipeline import REWRITES, Pass, run_passes
from tests.goldens import Golden

HERE = Path(__file__).parent
OTHER_RESULTS = {
    "add-adapters",
    "grow",
    "join-caches",
    "keep-sums",
    "page-caches",
    "quantise-caches",
    "quantise-weights",
    "round-activations",
    "recurrent-states",
    "widen-chains",
}  # passes that change what the function gives
CANCELS = {"multiply-bytes"}  # passes that subtract sums: their error is of the largest result's scale
TESTED = [p for p in REWRITES if not p.name.endswith("-again")]


def test_every_pass_has_an_input() -> None:
    assert sorted(p.name for p in TESTED) == sorted(f.stem for f in HERE.glob("*.mlir") if not f.stem.endswith(".golden"))


@pytest.mark.parametrize("tested", TESTED, ids=lambda p: p.name)
def test_pass(tested: Pass, golden: Golden) -> None:
    with context():
        module = mlir.ir.Module.parse((HERE / f"{tested.name}.mlir").read_text())
        before, weights = str(module), weights_of(module)
        args = [from_mlir(a) for a in module.body.operations[0].regions[0].blocks[0].arguments]
        calls = [inputs(args, n) for n in (1, 2, 5)]
        want = [interp.run(module, x, weights) for x in calls] if tested.name not in OTHER_RESULTS else []
        run_passes(module, weights, (tested,))
        assert str(module) != before
        golden(HERE / f"{tested.name}.golden.mlir", str(module))
        for x, results in zip(calls, want, strict=bool(want)):
            scale = max([1.0, *(float(r.abs().max()) for r in results if r.is_floating_point())]) if tested.name in CANCELS else 1.0
            for a, b in zip(interp.run(module, x, weights), results, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6 * scale)
        again = str(mlir.ir.Module.parse(str(module)))
        assert again == str(module)


@pytest.mark.parametrize("tested", TESTED, ids=lambda p: p.name)
def test_pass_without_weight_data(tested: Pass) -> None:
    """`dhlo opt` runs passes on text alone."""
    with context():
        run_passes(mlir.ir.Module.parse((HERE / f"{tested.name}.mlir").read_text()), {}, (tested,))


def walk(block: Any) -> Iterator[Any]:
    for op in block.operations:
        yield op
        for region in op.regions:
            for inner in region.blocks:
                yield from walk(inner)


def weights_of(module: Any) -> dict[str, torch.Tensor]:
    """Numbers for every weight of a module."""
    torch.manual_seed(0)
    types = {
        op.attributes["name_"].value: from_mlir(op.results[0])
        for op in walk(module.body)
        if op.operation.name in ("dhlo.weight", "dhlo.state")
    }
    out = {}
    for name, t in types.items():
        shape = [int(s) for s in t.shape]
        most = 16 if t.dtype.name == "ui8" else 100  # bytes stand for codes of four bits, too
        out[name] = (torch.randn(shape) if t.dtype.is_float else torch.randint(0, most, shape)).to(t.dtype.torch)
        if t.dtype.is_bool and len(shape) > 1:  # which keys tokens see
            out[name] = torch.ones(shape, dtype=torch.bool).tril().triu(-2)
    return out


def inputs(types: list[TensorType], n: int) -> list[torch.Tensor]:
    """Arguments for sizes that differ from symbol to symbol."""
    env = {s: n + k for k, s in enumerate(sorted({s for t in types for e in t.shape for s in symbols_of(e)}))}
    shapes = [[evaluate(e, env) for e in t.shape] for t in types]
    return [(torch.rand(s) if t.dtype.is_float else torch.ones(s)).to(t.dtype.torch) for s, t in zip(shapes, types, strict=True)]


T, U = '!t = tensor<?xf32, #dhlo.shape<["n"]>>', '!u = tensor<?xf64, #dhlo.shape<["n"]>>'
INVALID = {
    "operands of two dtypes": ('%y = "dhlo.add"(%x, %u) : (!t, !u) -> !t', "dhlo.add: operands have different dtypes"),
    "a wrong result type": ('%y = "dhlo.exp"(%x) : (!t) -> !u', "dhlo.exp: result type must be"),
    "no permutation": (
        '%y = "dhlo.transpose"(%x) {perm = [1]} : (!t) -> !t',
        "dhlo.transpose: [1] does not permute 1 dims",
    ),
    "static sizes that differ": (
        '%y = "dhlo.broadcast"(%c) {dims = [0]} : (tensor<3xf32>) -> tensor<4xf32>',
        "dhlo.broadcast: operand dim 0 of size 3 can't become 4",
    ),
    "an unknown reduction": (
        '%y = "dhlo.reduce"(%x) {how = "mean", dims = [0]} : (!t) -> tensor<f32>',
        "unknown reduction 'mean'",
    ),
    "a reduction of numbers as truth": (
        '%y = "dhlo.reduce"(%x) {how = "any", dims = [0]} : (!t) -> tensor<f32>',
        "any wants a bool",
    ),
    "a number as a condition": (
        '"dhlo.assert_tensor"(%c) {message = "m"} : (tensor<3xf32>) -> ()',
        "assert_tensor wants a bool",
    ),
}


@pytest.mark.parametrize("case", INVALID)
def test_verifier_names_op_and_line(case: str) -> None:
    line, message = INVALID[case]
    head = f"{T}\n{U}\nmodule {{\n  func.func @main(%x: !t, %u: !u, %c: tensor<3xf32>) {{"
    text = f"{head}\n    {line}\n    return\n  }}\n}}\n"
    with context(), pytest.raises(mlir.ir.MLIRError) as error:
        mlir.ir.Module.parse(text)
    assert message in str(error.value) and '"-":5:' in str(error.value)
