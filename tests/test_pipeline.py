"""The pass list, and the interpreter as the oracle: no pass may change a module's results."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.export import Dim

from dhlo import interp
from dhlo.errors import InternalError
from dhlo.frontend import import_program
from dhlo.ir.mlir import ir
from dhlo.pipeline import PASSES, Pass, run_passes
from tests.programs import Module
from tests.random_programs import random_part


class Decoder(torch.nn.Module):
    """One layer of grouped-query attention with a cache, and a normalised feed-forward part."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.RMSNorm(16)
        self.q, self.k, self.v = torch.nn.Linear(16, 16), torch.nn.Linear(16, 8), torch.nn.Linear(16, 8)
        self.o = torch.nn.Linear(16, 16)
        self.up, self.down = torch.nn.Linear(16, 24), torch.nn.Linear(24, 16)

    def forward(self, x: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        n, s, _ = x.shape
        h = self.norm(x)
        q = self.q(h).view(n, s, 4, 4).transpose(1, 2)
        k = torch.cat([k, self.k(h).view(n, s, 2, 4).transpose(1, 2)], 2)
        v = torch.cat([v, self.v(h).view(n, s, 2, 4).transpose(1, 2)], 2)
        wide = [t[:, :, None].expand(-1, -1, 2, -1, -1).reshape(n, 4, t.shape[2], 4) for t in (k, v)]
        a = torch.nn.functional.scaled_dot_product_attention(q, *wide)
        x = x + self.o(a.transpose(1, 2).reshape(n, s, 16))
        return x + self.down(torch.nn.functional.silu(self.up(x))), k, v


class Convolution(torch.nn.Module):
    """Convolution and batch norm with a shortcut, pooled."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.BatchNorm2d(4)
        self.norm.running_mean, self.norm.running_var = torch.randn(4), torch.rand(4) + 0.5
        self.short = torch.nn.Conv2d(3, 4, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norm(self.conv(x)) + self.short(x))
        return torch.nn.functional.max_pool2d(y, 2).mean((2, 3)).softmax(-1)


class Chosen(torch.nn.Module):
    """A branch, and rows picked by the data."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.cond(x.sum() > 0, lambda t: self.a(t).tanh(), lambda t: self.b(t) * 2, (x,))
        rows = (y[:, 0] > 0).nonzero().squeeze(1)
        return y, y[rows] + 1


def decoder_inputs(n: int, s: int) -> tuple[torch.Tensor, ...]:
    return torch.randn(n, s, 16), torch.randn(n, 2, s + 3, 4), torch.randn(n, 2, s + 3, 4)


n, s, p, h = (Dim(x, max=4096) for x in ("n", "s", "p", "h"))
MODELS: dict[str, tuple[Any, Any, Any]] = {
    "decoder": (Decoder, decoder_inputs, ({0: n, 1: s}, {0: n, 2: p}, {0: n, 2: p})),
    "convolution": (Convolution, lambda n, s: (torch.randn(n, 3, 2 * s, 9),), ({0: n, 2: 2 * h},)),
    "chosen": (Chosen, lambda n, s: (torch.randn(n, 6),), ({0: n},)),
}


def name_of(p: Pass | None) -> str:
    return p.name if p else "import"


@pytest.mark.parametrize("name", MODELS)
def test_every_pass_keeps_the_results(name: str) -> None:
    cls, inputs, dims = MODELS[name]
    model = cls().eval().requires_grad_(False)
    with torch.no_grad():
        program = import_program(torch.export.export(model, inputs(3, 5), dynamic_shapes=dims))
    calls = [inputs(*sizes) for sizes in ((3, 5), (2, 7), (5, 2))]
    eager = [model(*x) for x in calls]
    seen = []
    with program.context:

        def agrees(p: Pass | None, module: Any) -> None:
            seen.append(p)
            for x, want in zip(calls, eager, strict=True):
                got = interp.run(module, x, program.weights)
                for a, b in zip(got, [want] if isinstance(want, torch.Tensor) else want, strict=True):
                    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=lambda m: f"{name_of(p)}: {m}")

        agrees(None, program.module)
        run_passes(program.module, program.weights, after=agrees)
        assert seen[1:] == list(PASSES)
        text = program.module.operation.get_asm(enable_debug_info=True)
        assert str(ir.Module.parse(text)) == str(program.module)


def test_passes_are_named_once_and_say_what_they_do() -> None:
    assert len({p.name for p in PASSES}) == len(PASSES)
    assert all(p.summary for p in PASSES)


def test_a_pass_that_breaks_the_module_is_named() -> None:
    model = torch.nn.Linear(3, 4)
    program = import_program(torch.export.export(model, (torch.randn(2, 3),)))

    def swap(module: Any, _: Any) -> None:
        for op in module.body.operations[0].regions[0].blocks[0].operations:
            if op.operation.name == "dhlo.transpose":
                op.attributes["perm"] = ir.ArrayAttr.get([ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 7)] * 2)

    with program.context, pytest.raises(InternalError, match=r"pass wreck left an invalid module(?s:.*)dhlo.transpose"):
        run_passes(program.module, program.weights, (Pass("wreck", swap),))


@pytest.mark.parametrize("seed", [2, 25, 42, 100, 1029, 1043])
def test_random_programs_compute_what_the_interpreter_does(seed: int) -> None:
    module = Module([random_part(seed)])
    model, _ = module.compile()
    for k, (a, b) in enumerate([(0, 3), (5, 0), (1, 1), (2, 1), (3, 15), (16, 17), (17, 2), (33, 31)]):
        module.check(model, {"n": a, "m": b}, k)
