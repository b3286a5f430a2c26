"""torch.autocast: what every operator's arguments become, in every form that a region is exported in."""

from __future__ import annotations

import io
import itertools
from typing import Any

import pytest
import torch
from torch.export import export
from torch.utils._python_dispatch import TorchDispatchMode

import dhlo
from dhlo.frontend.autocast import conversion, policy
from tests.frontend.helpers import check, dynamic

F = torch.nn.functional
BF16, F16, F32, F64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
TOLERANCE: dict[torch.dtype, Any] = {BF16: {"rtol": 2e-2, "atol": 2e-2}, F16: {"rtol": 2e-3, "atol": 2e-3}}
rn = torch.randn


# ---------------------------------------------------------------------------------------------------- the table
class Conversions(TorchDispatchMode):
    """Notes what tensors are converted to."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._to_copy.default:
            self.seen.add(kwargs["dtype"])
        return func(*args, **(kwargs or {}))


def overloads() -> list[Any]:
    """The operators that PyTorch has a kernel of autocast for; tensors with named dims, which torch 2.12 has, can't be exported."""
    names = torch._C._dispatch_get_all_op_names()
    names = [n for n in names if torch._C._dispatch_has_kernel_for_dispatch_key(n, "AutocastCPU") and "imname" not in n]
    packets = [(n.removeprefix("aten::") + ".default").split(".")[:2] for n in names]
    return [getattr(getattr(torch.ops.aten, name), overload) for name, overload in packets]


def stand_in(kind: str, dtypes: Any) -> Any:
    """Some value of a schema's type; tensors take their dtypes by turns."""
    make: dict[str, Any] = {
        "Tensor": lambda: torch.ones(2, 2, dtype=next(dtypes)),
        "int": lambda: 1,
        "SymInt": lambda: 1,
        "float": lambda: 1.0,
        "bool": lambda: False,
        "number": lambda: 1,
        "str": lambda: "mean",
    }
    if kind.startswith("Optional["):
        return stand_in(kind[9:-1], dtypes) if "Tensor" in kind else None
    if kind.startswith("List["):
        return [stand_in(kind[5:-1], dtypes) for _ in range(2)]
    return make.get(kind, lambda: 0)()


def converted(op: Any, *dtypes: torch.dtype, autocast: bool = True) -> set[torch.dtype]:
    """What PyTorch converts tensors to in a call under autocast to bfloat16, which may well fail after that."""
    supply = itertools.cycle(dtypes)
    args, kwargs = [], {}
    for a in op._schema.arguments:
        value = stand_in(str(a.type), supply)
        if a.kwarg_only:
            kwargs[a.name] = a.default_value if a.has_default_value() and "Tensor" not in str(a.type) else value
        else:
            args.append(value)
    with torch.no_grad(), torch.autocast("cpu", BF16, enabled=autocast), Conversions() as conversions:
        try:
            op(*args, **kwargs)
        except Exception:  # whatever the operator thinks of such arguments
            pass
    return conversions.seen


@pytest.mark.parametrize("op", overloads(), ids=str)
def test_policy_is_pytorchs(op: Any) -> None:
    assert policy(op) in ("lower", "float32", "promote")
    for dtypes in ((F32,), (BF16,), (F32, BF16), (F64,), (torch.int64,)):
        convert = conversion(op, BF16, dtypes)
        assert convert is not None
        tensors = "".join(str(a.type) for a in op._schema.arguments)
        given = dtypes if tensors.count("Tensor") > 1 or "List[Tensor" in tensors else dtypes[:1]
        want = {convert(d) for d in given if convert(d) != d}
        its_own = converted(op, *map(convert, dtypes), autocast=False)
        assert want <= converted(op, *dtypes) <= want | its_own, (policy(op), dtypes)


def test_other_operators_are_left_alone() -> None:
    A = torch.ops.aten
    for op in (A.add.Tensor, A.softmax.int, A.layer_norm.default, A.relu.default, A.addmm_.default, A.sum.default):
        assert policy(op) is None
        assert not converted(op, F32)


# ---------------------------------------------------------------------------------------------------- values and dtypes
weight, bias = rn(8, 8), rn(8)
CASES: dict[str, Any] = {
    "linear_norm": (lambda x: F.layer_norm(F.linear(x, weight, bias), (8,)), rn(3, 5, 8)),
    "softmax": (lambda x: F.linear(x, weight).softmax(-1) * 2, rn(3, 5, 8)),
    "attention": (lambda x: F.scaled_dot_product_attention(x, x, x), rn(3, 2, 5, 8)),
    "convolution": (lambda x, w: F.gelu(F.conv2d(x, w, padding=1)), rn(3, 2, 5, 8), rn(4, 2, 3, 3)),
    "convolution_same": (lambda x, w: F.conv2d(x, w, padding="same"), rn(3, 2, 5, 8), rn(4, 2, 3, 3)),
    "float64": (lambda x: x @ x.transpose(0, 1) + 1, rn(3, 8).double()),
    "mixed_cat": (lambda x, y: torch.cat([x, F.linear(y, weight)]), rn(3, 8), rn(5, 8)),
    "low_stack": (lambda x: torch.stack([x @ weight, F.linear(x, weight)]), rn(3, 8)),
    "index_copy": (lambda x, y: torch.index_copy(x, 0, torch.tensor([1, 0]), y @ weight), rn(4, 8), rn(2, 8)),
    "composed_einsum": (lambda x: torch.einsum("bti,bsi->bts", x, x), rn(3, 5, 8)),
    "composed_tensordot": (lambda x: torch.tensordot(x, weight, 1), rn(3, 5, 8)),
    "composed_inner": (lambda x: torch.inner(x, weight), rn(3, 8)),
    "composed_kron": (lambda x: torch.kron(x @ weight, x), rn(2, 8)),
    "composed_pad": (lambda x: F.pad(F.linear(x, weight), (1, 1), mode="reflect"), rn(3, 5, 8)),
    "mean_squares": (lambda x, y: F.mse_loss(F.linear(x, weight), y), rn(3, 8), rn(3, 8)),
    "huber": (lambda x, y: F.huber_loss(x @ weight, y) + F.smooth_l1_loss(x @ weight, y), rn(3, 8), rn(3, 8)),
    "cross_entropy": (lambda x: F.cross_entropy(x @ weight, torch.tensor([1, 2, 3])), rn(3, 8)),
    "product": (lambda x: F.linear(x, weight / 4).prod(-1), rn(3, 8)),
    "distances": (lambda x: torch.cdist(x @ weight, x), rn(3, 8)),
    "prelu": (lambda x: F.prelu(x, bias), rn(4, 8)),
    "in_place": (lambda x: F.linear(x, weight).exp_().add_(x.bfloat16()), rn(4, 8) / 4),
    "view_written": (lambda x: (y := x @ weight, y[1:].zero_(), y.reshape(-1))[2], rn(4, 8)),
    "where": (lambda x: torch.where(x > 0, x @ weight, x), rn(4, 8)),
    "batched": (lambda x: torch.cat((torch.baddbmm(x, x, x), torch.addbmm(x[0], x, x)[None])), rn(3, 4, 4)),
    "trace": (lambda x: (x @ weight).trace(), rn(8, 8)),
}


def inside(f: Any, dtype: torch.dtype) -> Any:
    def region(*args: Any) -> Any:
        with torch.autocast("cpu", dtype):
            return f(*args)

    return region


@pytest.mark.parametrize("name", CASES)
def test_operators_inside(name: str) -> None:
    f, *args = CASES[name]
    check(inside(f, BF16), args, **TOLERANCE[BF16])


@pytest.mark.parametrize("name", ["linear_norm", "attention", "composed_einsum", "mixed_cat", "mean_squares"])
def test_operators_inside_of_float16(name: str) -> None:
    f, *args = CASES[name]
    check(inside(f, F16), args, **TOLERANCE[F16])


# ---------------------------------------------------------------------------------------------------- regions
class Regions(torch.nn.Module):
    """Regions after, inside and around each other; one writes to a buffer and to a view."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x):
        with torch.autocast("cpu", BF16):
            y = self.linear(x)
            z = self.norm(y)
            with torch.autocast("cpu", enabled=False):
                w = self.linear(y.float())
            with torch.autocast("cuda", F16):
                v = w @ w.transpose(1, 2)
            self.steps.add_(1)
            z[:, 0].add_(self.steps)
        with torch.autocast("cpu", F16, cache_enabled=False):
            u = self.linear(x)
        z.mul_(2)
        return y, z, w, v, u, self.linear(x)


@pytest.mark.parametrize("form", ["plain", "saved", "functional"])
def test_regions(form: str) -> None:
    torch.manual_seed(0)
    args = (rn(2, 5, 8),)
    exported = export(Regions().eval(), args, dynamic_shapes=dynamic(args))
    if form == "saved":
        file = io.BytesIO()
        torch.export.save(exported, file)
        exported = torch.export.load(io.BytesIO(file.getvalue()))
    if form == "functional":
        exported = exported.run_decompositions({})
    model, theirs = dhlo.compile(exported), exported.module()
    for shape in ((2, 5, 8), (3, 1, 8), (1, 7, 8)):
        x = rn(shape)
        with torch.no_grad():
            want = theirs(x)
        for g, w in zip(model(x), want, strict=True):
            torch.testing.assert_close(g, w, **TOLERANCE[BF16])


def test_branches_inside() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x @ x.clone().transpose(0, 1), lambda x: (x + 1) @ (x + 1).transpose(0, 1), (x,))

    for sign in (1, -1):
        check(inside(f, BF16), [rn(4, 8).abs() * sign], **TOLERANCE[BF16])


def test_off_is_off() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return F.linear(x, weight)

    check(f, [rn(4, 8)])


# ---------------------------------------------------------------------------------------------------- what is refused
def test_recurrent_layers_are_refused() -> None:
    """PyTorch runs them in one piece of the lower precision or not, as it was built."""
    lstm = torch.nn.LSTM(8, 8)
    with pytest.raises(
        dhlo.UnsupportedError,
        match=r"aten.lstm.input can't be compiled inside torch.autocast(.|\n)*"
        r"enabled=False\)\n  at .*\.py:\d+",
    ):
        check(inside(lambda x: lstm(x)[0], BF16), [rn(4, 3, 8)])


def test_floats_that_do_not_promote_are_refused() -> None:
    with pytest.raises(dhlo.CompileError, match=r"cat.default of torch.bfloat16, torch.float16 inside torch.autocast"):
        conversion(torch.ops.aten.cat.default, BF16, [F16, BF16])
