"""Random programs through export and compiler, called at many sizes, against eager PyTorch.

A run of a few seconds by default, always the same programs; `pytest tests/fuzz --fuzz-seconds 600` looks for new ones. What it
finds is fixed and kept below as source.
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import pytest
import sympy
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, Phase, given, note, seed, settings
from hypothesis import strategies as st
from torch.export import Dim

import dhlo
from dhlo.ir.symbols import evaluate
from tests.frontend.helpers import Fn
from tests.fuzz.generate import M, N, Program, Value, generate

SIZES = [(7, 5), (1, 1), (0, 3), (2, 0), (33, 17), (64, 3), (130, 31)]
EXAMPLE = (7, 5)
ATOL = {torch.float32: 2e-5, torch.bfloat16: 0.02}
ROUNDS = 1  # of programs, where no time is given
PROFILE = settings(max_examples=8, deadline=None, database=None, suppress_health_check=list(HealthCheck))


def inputs(program: Program, n: int, m: int) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(n * 1000 + m)
    out = []
    for a in program.arguments:
        shape, dtype = [evaluate(s, {"n": n, "m": m}) for s in a.dims], getattr(torch, a.dtype)
        if a.name == "at":
            out.append(torch.tensor([2, 0]))
        elif dtype.is_floating_point:
            out.append((torch.randn(shape, generator=g) * 1.5).to(dtype))
        else:
            out.append(torch.randint(-5, 6, shape, generator=g).to(dtype))
    return out


def function(program: Program) -> Any:
    scope: dict[str, Any] = {"torch": torch, "F": F}
    exec(program.source, scope)
    return scope["f"]


def compare(got: torch.Tensor, want: torch.Tensor, v: Value, where: str) -> None:
    assert (got.dtype, got.shape) == (want.dtype, want.shape), where
    if v.depth is None and want.dtype != torch.bfloat16:
        same = (got == want) | ((got != got) & (want != want))
        assert same.all(), f"{where}: {(~same).sum()} of {same.numel()} differ"
    else:
        tolerance = ATOL[torch.bfloat16 if v.coarse else want.dtype] * (1 + (v.depth or 0))
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance, equal_nan=True, msg=lambda text: f"{where}: {text}")


def check(program: Program) -> bool:
    """Compiles once and compares at all sizes; False where the function or its export isn't what PyTorch takes."""
    f, example = Fn(function(program)), inputs(program, *EXAMPLE)
    try:
        f(*example)
    except Exception:
        return False
    spec = tuple({d: Dim.AUTO for d in range(x.dim())} for x in example[:-1])
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exported = torch.export.export(f, tuple(example), dynamic_shapes=((*spec, None),))
    except Exception:
        return False
    try:
        model = dhlo.compile(exported)
    except dhlo.UnsupportedError:
        return False
    for n, m in SIZES:
        x = inputs(program, n, m)
        try:
            want = f(*[v.clone() for v in x])
        except Exception:
            continue  # an empty maximum, say
        try:
            got = model(*[v.clone() for v in x])
        except dhlo.ContractError:
            try:
                exported.module()(*x)
            except Exception:
                continue  # the exported program refuses it as well
            if (n, m) == EXAMPLE or min(n, m) > 1:
                raise
            continue
        for k, v in enumerate(program.results):
            compare(got[k], want[k], v, f"result {v.name} at n={n}, m={m}")
    return True


# What it found: source, and the arguments' dtypes and sizes.
FOUND: dict[str, tuple[list[str], list[Value]]] = {
    "a count of counted things, whose bound is beyond 64 bits": (
        ["v0 = (a0 > 0).nonzero()", "v1 = (v0 > 0).nonzero()"],
        [Value("a0", "float32", (N, M))],
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_found(name: str) -> None:
    lines, arguments = FOUND[name]
    last = Value(f"v{len(lines) - 1}", "", (), None)
    assert check(Program([*arguments, Value("at", "int64", (sympy.Integer(2),))], lines, [last]))


def test_random_programs(request: pytest.FixtureRequest) -> None:
    seconds = request.config.getoption("--fuzz-seconds")
    ends, counts = time.monotonic() + seconds, [0, 0]

    def run(data: st.DataObject) -> None:
        program = generate(lambda options: data.draw(st.sampled_from(options)), data.draw(st.integers(4, 12)))
        note(program.source)
        note(f"# arguments: {[(v.dtype, v.dims) for v in program.arguments]}")
        counts[0 if check(program) else 1] += 1

    number = int(time.time()) if seconds else 0
    while time.monotonic() < ends if seconds else number < ROUNDS:
        given_data = given(st.data())(lambda data: run(data))
        seed(number)(settings(PROFILE, phases=[Phase.generate, *([Phase.shrink] if seconds else [])])(given_data))()
        number += 1
    print(f"{counts[0]} programs checked, {counts[1]} that PyTorch doesn't take")
    assert counts[0]
