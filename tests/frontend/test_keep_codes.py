"""Bytes that are dequantised and quantised again in the same way, wherever they come from and go to; bytes that are pooled."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # defines the operators
from torch._higher_order_ops import while_loop

import dhlo

Q = torch.ops.quantized_decomposed
HOW = (0.02, 3, -128, 127, torch.int8)


def again(codes: torch.Tensor) -> torch.Tensor:
    """What `keep-codes` takes out."""
    y: torch.Tensor = Q.quantize_per_tensor(Q.dequantize_per_tensor(codes, *HOW), *HOW)
    return y


class Swapped(torch.nn.Module):
    """States that each become the other."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("a", torch.arange(0, 100, dtype=torch.int8))
        self.register_buffer("b", torch.arange(-100, 0, dtype=torch.int8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = again(self.a), again(self.b)
        self.a.copy_(b)
        self.b.copy_(a)
        return x + 1


class Before(torch.nn.Module):
    """A state as it was before it's written."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("a", torch.arange(0, 100, dtype=torch.int8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        old = again(self.a)
        self.a.add_(x)
        return old


class Of(torch.nn.Module):
    def __init__(self, f: Any) -> None:
        super().__init__()
        self.f = f

    def forward(self, x: torch.Tensor) -> Any:
        return self.f(x)


def several(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    codes = Q.quantize_per_tensor(x.float() / 10, *HOW)
    return codes, again(codes), again(again(codes))


def written(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    old = again(x)
    x.add_(1)
    return old, x.float()


CASES: dict[str, Any] = {
    "the argument": lambda: Of(again),
    "one value three times": lambda: Of(several),
    "the argument, written afterwards": lambda: Of(written),
    "a branch's argument": lambda: Of(lambda x: torch.cond(x.float().sum() > 0, again, lambda x: x + 1, (x,))),
    "a loop's": lambda: Of(
        lambda x: while_loop(lambda i, c: i < 3, lambda i, c: (i + 1, again(c)), (torch.zeros((), dtype=torch.int64), x))
    ),
    "states": Swapped,
    "a state, written afterwards": Before,
}


@pytest.mark.parametrize("case", CASES)
def test_results_have_memory_of_their_own(case: str) -> None:
    module = CASES[case]()
    eager, x = copy.deepcopy(module), torch.randint(-100, 100, (100,), dtype=torch.int8)
    model = dhlo.compile(torch.export.export(module, (x.clone(),)))
    for shift in (0, 1, -3):
        ours, theirs = x + shift, x + shift
        got, want = model(ours), eager(theirs)
        for g, w in zip(*(v if isinstance(v, tuple) else (v,) for v in (got, want)), strict=True):
            assert torch.equal(g, w)
            assert g.data_ptr() != ours.data_ptr()
        assert torch.equal(ours, theirs)
        for name, state in eager.named_buffers():
            assert torch.equal(torch.as_tensor(model.read_state(name)), state)


@pytest.mark.parametrize(("scale", "kept"), [(0.02, True), (1e36, False), (1e37, False), (1e-38, False)])
def test_codes_that_overflow_are_others(scale: float, kept: bool) -> None:
    """What is infinite when it is dequantised is the last code afterwards."""
    how = (scale, 0, 0, 255, torch.uint8)
    module = Of(lambda x: Q.quantize_per_tensor(Q.dequantize_per_tensor(x, *how), *how).int())
    x, texts = torch.arange(256, dtype=torch.uint8), dict[str, str]()
    model = dhlo.compile(torch.export.export(module, (x,)), dump=texts.__setitem__)
    assert torch.equal(model(x), module(x))
    assert ("dhlo.round" not in texts["keep-codes"]) == kept


@pytest.mark.parametrize("scale", [float("inf"), 1e38, -1.0])
def test_maxima_of_scaled_codes(scale: float) -> None:
    """Where the order isn't that of bytes, as infinity times 0 is NaN, and where large numbers are infinite."""
    module = Of(lambda x: torch.nn.functional.max_pool2d((x.float() - 3) * scale, 3, 2, 1) + 1)
    x = torch.arange(-100, 92, dtype=torch.int8).reshape(1, 2, 8, 12)[
        ..., torch.randperm(12, generator=torch.Generator().manual_seed(0))
    ]
    model = dhlo.compile(torch.export.export(module, (x,)))
    torch.testing.assert_close(model(x), module(x), rtol=0, atol=0, equal_nan=True)


def test_scales_that_are_weights_can_be_replaced(tmp_path: Path) -> None:
    """Also by one below 0, with which the order of numbers isn't that of bytes."""

    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.tensor([0.02]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.max_pool2d((x.float() - 3) * self.scale, 3, 2, 1) + 1

    module, x = Scaled(), torch.randint(-100, 100, (1, 2, 9, 17), dtype=torch.int8)
    dhlo.compile(torch.export.export(module, (x,))).save(tmp_path / "model.so")
    for scale in (0.02, 0.5, -0.02):
        module.scale.fill_(scale)
        model = dhlo.load(tmp_path / "model.so", weights=module.state_dict())
        torch.testing.assert_close(model(x), module(x), rtol=1e-6, atol=1e-6)
