"""Symbols: equal sizes get one name, ranges and conditions become the contract, run-time sizes are defined by ops."""

from __future__ import annotations

from typing import Any

import pytest
import sympy
import torch
import torch.nn.functional as F
from torch.export import Dim
from torch.utils._sympy.functions import FloorDiv

from dhlo.errors import CompileError, ContractError
from dhlo.frontend.builder import _exact_quotient
from dhlo.frontend.dims import Dims
from dhlo.ir.symbols import parse
from tests.frontend.helpers import check, import_fn, run

rn = torch.randn
D = Dim.DYNAMIC


def text(program: Any) -> str:
    with program.context:
        return str(program.module)


def test_keys_and_values_of_a_cache_share_a_length() -> None:
    """K and V lengths get symbols of their own (past + 1 each) that only attention ties together."""

    def f(q: Any, k: Any, v: Any) -> Any:
        k, v = torch.cat([k, q], 2), torch.cat([v, q], 2)
        return F.scaled_dot_product_attention(q, k, v), k, v

    args = [rn(2, 4, 1, 8), rn(2, 4, 5, 8), rn(2, 4, 5, 8)]
    p = import_fn(f, args, ({0: D}, {0: D, 2: D}, {0: D, 2: D}))
    assert len(p.symbols) == 2 and "dhlo.assert" not in text(p)
    assert p.inputs[1].type == p.inputs[2].type
    with pytest.raises(ContractError, match="size of dim 2"):
        run(p, (args[0], args[1], args[2][:, :, 1:]))


def test_mask_as_long_as_past_and_present() -> None:
    """One inequality each way is an equality, whose solution has no negative size."""
    d = Dims()
    for relation in ("s17 + 1 - s53 <= 0", "s53 <= s17 + 1"):
        assert d.learn(parse(relation)) is None or True
    d.equate("s53", "s17 + 1")
    assert d.expr("s53") == parse("s17 + 1")
    d.equate("s54 + 1", "s84 + 1")
    assert d.expr("s54") == d.expr("s84")


def test_a_quotient_that_is_one_broadcasts() -> None:
    """A view's size is the ratio of two batches, of which torch.export's guards say that it is 1, not that they are equal."""

    def f(scores: Any, mask: Any) -> Any:
        return scores + mask.unsqueeze(1).repeat_interleave(2, 0).view(scores.shape[0], 2, -1, mask.shape[-1])

    p = import_fn(f, [rn(3, 2, 4, 5), rn(3, 5)], ({0: D, 2: D, 3: D}, {0: D, 1: D}))
    for b, n, k in ((3, 4, 5), (2, 7, 3), (5, 1, 9)):
        args = (rn(b, 2, n, k), rn(b, k))
        torch.testing.assert_close(run(p, args)[0], f(*args))
    with pytest.raises(ContractError):
        run(p, (rn(2, 2, 4, 5), rn(4, 5)))


def test_one_picture_attends_to_its_patches() -> None:
    """torch.export asks whether the number of patches is a multiple of that in all pictures: not with two of them."""
    torch.manual_seed(0)
    attention = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()

    def f(x: Any, w: Any) -> Any:
        patches = F.conv2d(x, w, stride=4).flatten(2).transpose(1, 2)
        return attention(patches[:, :1], patches, patches)[0]

    w = rn(8, 3, 4, 4)
    p = import_fn(f, [rn(2, 3, 16, 24), w], ({0: D, 2: D, 3: D}, {}))
    for size in ((2, 3, 16, 24), (1, 3, 12, 9), (5, 3, 8, 8)):
        x = rn(size)
        with torch.no_grad():
            torch.testing.assert_close(run(p, (x, w))[0], f(x, w))


def test_ranges_accept_one_but_keep_the_users_bounds() -> None:
    p = check(lambda x: x * 2, [rn(3, 4)], [rn(1, 1)], [rn(0, 1)])
    assert all(r.lo == 0 and r.hi is None for r in p.symbols.values())
    bounded = import_fn(lambda x: x * 2, [rn(5)], ({0: Dim("n", min=3, max=9)},))
    (r,) = bounded.symbols.values()
    assert (r.lo, r.hi) == (3, 9)
    assert "= [3, 9]" in text(bounded)
    with pytest.raises(ContractError, match="outside"):
        run(bounded, (rn(10),))


def test_the_users_names_of_dims_are_kept() -> None:
    n, m = Dim("rows"), Dim("cols", max=64)
    p = import_fn(lambda x, y: x + y, [rn(3, 4), rn(3, 4)], ({0: n, 1: m}, {0: n, 1: m}))
    assert sorted(p.user_names.values()) == ["cols", "rows"] and set(p.user_names) == set(p.symbols)


def test_last_element_asks_for_a_nonempty_input() -> None:
    p = check(lambda x: x[:, -1:], [rn(2, 4)], [rn(3, 1)])
    assert p.outputs[0].index == 0 and 1 in [r.lo for r in p.symbols.values()]


def test_stride_conditions_hold_by_themselves() -> None:
    d = Dims()
    assert d.learn(parse("Eq(min(64*s0 + 64, 192*s0 + 192), 64*s0 + 64)")) is None


@pytest.mark.parametrize(
    ("condition", "truth"),
    [
        ("s0 >= 0", True),
        ("s0 + 1 > s0", True),
        ("Eq(s0, s0 + 1)", False),
        ("s0 < 0", False),
        ("s0 > 3", None),
        ("Ne(2*s0 + 2, 0)", True),
        ("max(0, s0) <= s0", True),
    ],
)
def test_proofs(condition: str, truth: bool | None) -> None:
    assert Dims().holds(parse(condition)) is truth


def test_contradictions_are_errors() -> None:
    d = Dims()
    d.tighten("s0", 3, 5)
    with pytest.raises(CompileError, match="s0"):
        d.tighten("s0", 6, None)
    with pytest.raises(CompileError, match="can't be equal"):
        d.equate(3, 4)


def test_equality_with_a_number_fixes_a_symbol() -> None:
    d = Dims()
    assert d.same("s0", 16) == 16 and d.expr("2*s0") == sympy.Integer(32)


def test_item_defines_a_symbol_that_is_checked() -> None:
    def f(x: Any, n: Any) -> Any:
        k = n.item()
        torch._check(k >= 1)
        torch._check(k <= x.shape[0])
        return x[:k] * 2

    p = check(f, [rn(6), torch.tensor(3)], [rn(4), torch.tensor(4)])
    with pytest.raises(ContractError):
        run(p, (rn(4), torch.tensor(5)))
    with pytest.raises(ContractError):
        run(p, (rn(4), torch.tensor(0)))


def test_sizes_that_are_1_unless_inputs_are_empty_broadcast() -> None:
    def f(x: Any) -> Any:
        bias = torch.ones(1)[torch.sym_max(1 - 2 * x.shape[0], 0) :]
        return x.t() + bias, bias.expand(x.shape[1], x.shape[0]) * 2

    check(f, [rn(6, 3)], [rn(1, 2)], [rn(9, 1)], shapes=({0: D, 1: D},))


def test_quotients_of_windows_are_spared_what_takes_sympy_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sides that are written with a common factor, nested roundings among them, are divided without being simplified."""

    def simplify(e: sympy.Expr) -> sympy.Expr:
        raise AssertionError(f"{e} is simplified")

    monkeypatch.setattr(sympy, "simplify", simplify)
    b, s, t = sympy.symbols("b s t", integer=True, nonnegative=True)
    high, wide = FloorDiv(FloorDiv(s + 1, 2) + 7, 8), FloorDiv(FloorDiv(t + 1, 2) + 7, 8)
    assert _exact_quotient(64 * b * high * wide, 8 * b * wide) == 8 * high
    assert _exact_quotient(2 * b * (high + 1) * (wide + 1), 4 * (wide + 1)) == FloorDiv(b * (high + 1), 2)
    assert _exact_quotient(6 * s * t, 4 * s * (t + 1)) == FloorDiv(3 * t, 2 * t + 2)
    assert _exact_quotient(s**3 * t, s**2) == s * t


def test_python_numbers_as_inputs() -> None:
    p = import_fn(lambda x, n: (x[:, -n:] * n, torch.arange(n)), [rn(3, 9), 4], ({0: D, 1: D}, D))
    got = run(p, (rn(2, 8), 3))
    assert got[0].shape == (2, 3) and got[1].tolist() == [0, 1, 2]
    assert [s.scalar for s in p.inputs] == [None, "int"]


def test_constant_inputs_are_part_of_the_interface() -> None:
    p = import_fn(lambda x, flag, nothing: x + 1 if flag else x, [rn(3), True, None])
    assert [(s.name, s.type is None, s.constant) for s in p.inputs][1:] == [
        ("args_1", True, True),
        ("args_2", True, None),
    ]
