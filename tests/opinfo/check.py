"""Checks one operator in one dtype: export with dynamic sizes, compile, compare with PyTorch at the samples' and other sizes."""

from __future__ import annotations

import copy
import gc
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import mpmath
import sympy
import torch
from torch.utils import _pytree as pytree

import dhlo
from dhlo.errors import DhloError, UnsupportedError
from tests.opinfo.invariants import alike, invariants
from tests.opinfo.memory import columns, largest
from tests.opinfo.samples import Call, Sample, samples

__all__ = ["TOLERANCE", "Result", "as_good", "check", "check_samples", "in_double"]

_HERE = Path(__file__).parent
# (relative, absolute). Values farther away pass if they are as close to the double-precision result as PyTorch's are.
TOLERANCE: dict[torch.dtype, tuple[float, float]] = {
    torch.float32: (1e-4, 1e-5),
    torch.float64: (1e-6, 1e-7),
    torch.bfloat16: (1.6e-2, 1e-3),
    torch.float16: (2e-3, 1e-4),
    torch.complex64: (1e-4, 1e-5),
    torch.complex128: (1e-6, 1e-7),
}
# What is rounded isn't an element of a result but of the size of all of it, or of what cancels out in it.
SUMS = ("fft.", "stft", "istft", "nn.functional.conv", "cumulative_trapezoid", "nn.functional.triplet_margin_with_distance_loss")
# Parts of their inputs fit together, which other sizes don't keep; with pivots out of range PyTorch itself crashes.
ORDERED = {"bucketize", "searchsorted", "_segment_reduce", "lu_unpack", "lu_solve", "linalg.lu_solve", "linalg.ldl_solve"}
REGULAR = (
    "linalg.inv",
    "linalg.ldl",
    "linalg.lu",
    "linalg.solve",
    "linalg.tensor",
    "linalg.cholesky",
    "cholesky",
    "logdet",
)  # nor these regular
# Of the repeated rows of other sizes, rounding decides the digits, and of double precision there is nothing wider to tell how many.
ROUNDED = {"linalg.cond", "linalg.eig", "linalg.eigvals", "linalg.pinv"}
# Two inputs whose sizes before the last have to be equal, which export doesn't say: PyTorch reads no further than the first's.
EQUAL = {"nn.functional.scaled_dot_product_attention": (1, 2)}
# Where PyTorch's own double precision isn't exact: its J0 is off by up to 2e-7.
EXACT: dict[str, Callable[[float], Any]] = {"special.bessel_j0": lambda x: mpmath.besselj(0, x)}
SORTED = {"nn.functional.embedding_bag"}  # their sorted inputs have to stay so
TIES = {"sort", "argsort", "topk", "mode", "median", "nanmedian", "kthvalue"}  # of equal elements, any may be named
# Bytes; other sizes that need more aren't looked at, nor those whose result in double precision takes PyTorch 4 times that.
MEMORY = 1 << 30
UNINITIALISED = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted"}


@dataclass
class Result:
    """Outcome of one sample: pass, no export, refused, wrong, or failed; `sizes` counts other sizes that were compared."""

    sample: str
    outcome: str
    reason: str = ""
    sizes: int = 0
    dynamic: bool = False


@dataclass
class _Binary:
    exported: Any
    compiled: Any
    dynamic: bool
    exact: bool  # values can be compared: nothing random


def check(op: Any, dtype: str, structures: int | None = None) -> list[dict[str, Any]]:
    """Results of the samples of an operator, of at most `structures` structures."""
    return check_samples(op.name, samples(op, dtype, structures))


def check_samples(name: str, chosen: Iterable[Sample]) -> list[dict[str, Any]]:
    """Results of samples of what has that name."""
    warnings.filterwarnings("ignore")
    out: list[Result] = []
    binary: _Binary | None = None
    last = ""
    for s in chosen:
        shared = binary if binary is not None and s.structure == last else None
        result, binary, last = *_check_sample(name, s, shared), s.structure
        out.append(result)
    gc.collect()
    return [asdict(r) for r in out]


def _check_sample(name: str, s: Sample, binary: _Binary | None) -> tuple[Result, _Binary | None]:
    """Runs a sample on the binary of another of its structure if that takes it, else on one of its own."""
    try:
        with torch.no_grad():
            want = s.module(*_copies(s.tensors))
    except Exception as e:
        return Result(s.text, "no export", f"PyTorch: {_line(e)}"), binary
    if binary is not None and not _accepts(binary.exported, s.tensors):
        binary = None
    own = binary is None
    if binary is None:
        made = _compile(name, s)
        if isinstance(made, Result):
            return made, None
        binary = made
    result = Result(s.text, "pass", dynamic=binary.dynamic)
    problem = _compare(binary, s.tensors, want, s.module, name)
    if problem is None and own:
        problem, result.sizes = _other_sizes(binary, s, name)
    if problem is not None:
        result.outcome, result.reason = problem
    return result, binary


def _compile(name: str, s: Sample) -> _Binary | Result:
    dynamic = {d for x in s.tensors for d in x.shape if d >= 2}
    shapes = tuple({i: torch.export.Dim.AUTO for i, n in enumerate(x.shape) if n >= 2} for x in s.tensors)
    exported = None
    for attempt in ((shapes,),) if dynamic else (None,), (None,):
        try:
            with torch.no_grad():
                exported = torch.export.export(s.module, _copies(s.tensors), dynamic_shapes=attempt[0])
            break
        except Exception as e:
            reason, dynamic = _line(e), set()
    if exported is None:
        return Result(s.text, "no export", reason)
    tags = {t for n in exported.graph.nodes if n.op == "call_function" for t in getattr(n.target, "tags", ())}
    exact = torch.Tag.nondeterministic_seeded not in tags and name not in UNINITIALISED
    try:
        return _Binary(exported, dhlo.compile(exported), bool(dynamic), exact)
    except UnsupportedError as e:
        return Result(s.text, "refused", "no lowering: " + ", ".join(sorted({str(o).split(",")[0] for o, _ in e.problems})))
    except DhloError as e:
        return Result(s.text, "refused", _line(e))
    except Exception as e:
        return Result(s.text, "failed", f"{type(e).__name__} while compiling: {_line(e)}")


def _accepts(exported: Any, tensors: Sequence[torch.Tensor]) -> bool:
    try:
        with torch.no_grad():
            exported.module()(*_copies(tensors))
    except Exception:
        return False
    return True


# ---------------------------------------------------------------------------------------------------- comparing
def _compare(
    binary: _Binary,
    tensors: Sequence[torch.Tensor],
    want: Any,
    module: Any,
    name: str,
    at: str = "",
) -> tuple[str, str] | None:
    """(outcome, reason) where the binary's results differ from `want`; which of equal elements is named is open for TIES, and for
    SUMS PyTorch's largest error in a result is the measure of all its elements."""
    ties, sums = name in TIES, name.startswith(SUMS)
    try:
        got = binary.compiled(*_copies(tensors))
    except Exception as e:
        return "failed", f"{at}{_line(e)}"
    ours, theirs, same = pytree.tree_leaves(got), pytree.tree_leaves(want), None
    if len(ours) != len(theirs):
        return "wrong", f"{at}{len(ours)} results, not {len(theirs)}"
    if all(_difference(a, b, False) is None for a, b in zip(ours, theirs, strict=True)):
        same = alike(name, ours, theirs)
        ours, theirs = (invariants(name, tensors, x, same) for x in (ours, theirs))
    wide: Any = None
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        problem = _difference(a, b, binary.exact)
        if problem == "values" and ties and b.dtype == torch.int64 and _same_elements(tensors[0], a, b):
            continue
        if problem == "values" and b.dtype in TOLERANCE:
            wide = wide if wide is not None else invariants(name, _doubled(tensors), _exact(name, module, tensors), same)
            good = _good(a, b, wide[i], sums) if len(wide) == len(ours) else _close(a, b)
            if bool(good.all()):
                continue
            problem = _differing(a, b, ~good)
        elif problem == "values":
            problem = _differing(a, b, ~_close(a, b))
        if problem is not None:
            where = f"result {i}: " if len(ours) > 1 else ""
            return "wrong", f"{at}{where}{problem}"
    return None


def _difference(a: Any, b: Any, exact: bool) -> str | None:
    if not isinstance(b, torch.Tensor):
        same = type(a) is type(b) and (a == b or (a != a and b != b) or (isinstance(b, float) and abs(a - b) <= 1e-5 * abs(b)))
        return None if same else f"{a!r}, not {b!r}"
    if not isinstance(a, torch.Tensor) or a.dtype != b.dtype or a.shape != b.shape:
        kind = f"{str(a.dtype)[6:]}{list(a.shape)}" if isinstance(a, torch.Tensor) else type(a).__name__
        return f"{kind}, not {str(b.dtype)[6:]}{list(b.shape)}"
    return None if not exact or bool(_close(a, b).all()) else "values"


def _same_elements(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> bool:
    """Do the positions `a` and `b` along some dim of x name equal elements?"""
    flat = a.dim() == 0 and x.dim() > 1  # positions in x as a line
    if flat or x.dim() == 0:
        x, a, b = x.flatten(), a.flatten(), b.flatten()
    for d in range(x.dim()):
        i, j = (v if v.dim() == x.dim() else v.unsqueeze(d) for v in (a, b)) if a.dim() in (x.dim(), x.dim() - 1) else (a, b)
        if i.dim() == x.dim() and all(m <= n for k, (m, n) in enumerate(zip(i.shape, x.shape, strict=True)) if k != d):
            if bool(((i >= 0) & (i < x.shape[d])).all()):
                u, v = x.gather(d, i), x.gather(d, j)
                if bool(((u == v) | ((u != u) & (v != v))).all()):
                    return True
    return False


def _close(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if b.dtype not in TOLERANCE:
        return a == b
    rtol, atol = TOLERANCE[b.dtype]
    wide = _widest(b.dtype)
    return torch.isclose(a.to(wide), b.to(wide), rtol=rtol, atol=atol, equal_nan=True)


def as_good(a: torch.Tensor, b: torch.Tensor, exact: Any, sums: bool) -> bool:
    """Is `a` as near to the exact result as `b`, up to a factor of 2 and the tolerance? With `sums`, as the worst of b."""
    return bool(_good(a, b, exact, sums).all())


def _good(a: torch.Tensor, b: torch.Tensor, exact: Any, sums: bool) -> torch.Tensor:
    """Which elements of `a` are near to those of `b`, or as near to the exact ones as those are."""
    if not isinstance(exact, torch.Tensor) or exact.shape != a.shape or exact.is_complex() != b.is_complex():
        return _close(a, b)
    rtol, atol = TOLERANCE[b.dtype]
    wide = _widest(b.dtype)
    mine, theirs = ((x.to(wide) - exact).abs() for x in (a, b))
    theirs = theirs.where(theirs.isfinite(), 0)  # where steps between overflow, a result needn't
    rounded = exact.to(b.dtype)
    near = mine <= 2 * (theirs.max() if sums and theirs.numel() else theirs) + rtol * exact.abs() + atol
    if b.is_complex():  # beyond the largest number, some product of parts is inf - inf
        near |= ~(a.isfinite() | b.isfinite() | rounded.isfinite()) & (a.isinf() | ~b.isinf())
    return near | (a == rounded) | _close(a, b)


def _widest(dtype: torch.dtype) -> torch.dtype:
    """Double precision of a dtype's kind."""
    return torch.complex128 if dtype.is_complex else torch.float64 if dtype.is_floating_point else dtype


def _exact(name: str, module: Any, tensors: Sequence[torch.Tensor]) -> list[Any]:
    """The results of the call of an operator in double precision, where PyTorch's own are exact, else as mpmath has them."""
    f = EXACT.get(name)
    if f is None:
        return in_double(module, tensors)
    return [x.double().apply_(lambda v: float(f(v))) for x in _copies(tensors)]


def in_double(module: Any, tensors: Sequence[torch.Tensor]) -> list[Any]:
    """The results of the same call in double precision; nothing where that doesn't work."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # what integers become
    try:
        with torch.no_grad():
            return pytree.tree_leaves(_doubled_module(module)(*_doubled(tensors)))
    except Exception:
        return []
    finally:
        torch.set_default_dtype(default)


def _doubled_module(module: Any) -> Any:
    """A copy with parameters in double precision, that asks for results in it."""
    wide = copy.deepcopy(module).double()
    if isinstance(wide, Call):
        wide.fixed = [(_widest(x[0]),) if x and isinstance(x[0], torch.dtype) else x for x in wide.fixed]
    return wide


def _doubled(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [x.to(_widest(x.dtype)) for x in _copies(tensors)]


def _differing(a: torch.Tensor, b: torch.Tensor, where: torch.Tensor) -> str:
    bad = where.flatten().nonzero().flatten()
    i = int(bad[0])
    return f"{len(bad)} of {a.numel()} values differ, first at {i}: {a.flatten()[i].item()}, not {b.flatten()[i].item()}"


# ---------------------------------------------------------------------------------------------------- other sizes
def _other_sizes(binary: _Binary, s: Sample, op_name: str) -> tuple[tuple[str, str] | None, int]:
    """Compares with the exported program at sizes that it accepts; (problem, number of comparisons)."""
    ep = binary.exported
    inputs = [n.meta["val"] for n in ep.graph.nodes if n.op == "placeholder" and isinstance(n.meta.get("val"), torch.Tensor)]
    inputs = inputs[len(inputs) - len(s.tensors) :]
    symbols = sorted({x for t in inputs for d in t.shape if isinstance(d, torch.SymInt) for x in d.node.expr.free_symbols}, key=str)
    if not symbols or len(inputs) != len(s.tensors) or op_name in ORDERED or op_name.startswith(REGULAR):
        return None, 0
    if op_name in ROUNDED and any(x.dtype in (torch.float64, torch.complex128) for x in s.tensors):
        return None, 0
    now = _solve(inputs, s.tensors)
    module, done = ep.module(), 0
    for name, rule in (
        ("grown", lambda k, v: v + 1 + k % 3),
        ("larger", lambda k, v: 2 * v + 15),
        ("of 1", lambda k, v: 1),
        ("of 0", lambda k, v: 0),
    ):
        env = {x: rule(k, now.get(x, 2)) for k, x in enumerate(symbols)}
        for a, b in zip(*(inputs[i].shape[:-1] for i in EQUAL.get(op_name, (0, 0))), strict=True):
            if isinstance(a, torch.SymInt) and isinstance(b, torch.SymInt) and b.node.expr in env:
                env[b.node.expr] = _size(a, env)
        tensors = [_resized(x, [_size(d, env) for d in t.shape]) for x, t in zip(s.tensors, inputs, strict=True)]
        if any(x is None or x.numel() > 1 << 20 for x in tensors):
            continue
        if op_name in SORTED:
            tensors = [_as_sorted(x, y) for x, y in zip(s.tensors, tensors, strict=True)]
        needed = _memory(binary, tensors)
        if needed is None and (most := largest(s.module, tensors)) is not None and most <= MEMORY:
            return ("failed", f"sizes {name}: said to be too large, though no tensor of the program has over {most} bytes"), done
        if needed is None or needed > MEMORY or 8 * columns(s.module, tensors) > 4 * MEMORY:
            continue
        try:
            with torch.no_grad():
                want = module(*_copies(tensors))
                s.module(*_copies(tensors))
        except Exception:
            continue
        if not _as_claimed(ep, want, env):
            continue
        problem = _compare(binary, tensors, want, s.module, op_name, f"sizes {name}: ")
        if problem is not None:
            return problem, done
        done += 1
    return None, done


def _memory(binary: _Binary, tensors: Sequence[torch.Tensor]) -> int | None:
    """Bytes that the call needs; 0 where the binary doesn't take the sizes, None where it says that they are too large."""
    try:
        return int(binary.compiled.plan([list(x.shape) for x in tensors])["arena_bytes"])
    except DhloError:
        return 0
    except MemoryError:
        return None


def _as_claimed(ep: Any, want: Any, env: dict[Any, int]) -> bool:
    """Do the results have the shapes and dtypes that the exported program states? (squeeze was traced for sizes that aren't 1.)"""
    stated = [n.meta.get("val") if isinstance(n, torch.fx.Node) else n for n in ep.graph.output_node().args[0]]
    for a, b in zip(stated, pytree.tree_leaves(want), strict=False):
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            if a.dim() != b.dim() or a.dtype != b.dtype:
                return False
            for d, n in zip(a.shape, b.shape, strict=True):
                known = isinstance(d, int) or d.node.expr.free_symbols <= set(env)
                if known and _size(d, env) != n:
                    return False
    return True


def _solve(inputs: Sequence[Any], tensors: Sequence[torch.Tensor]) -> dict[Any, int]:
    """The symbols' values at the sample, as far as dims that are bare symbols tell."""
    return {
        d.node.expr: n
        for t, x in zip(inputs, tensors, strict=True)
        for d, n in zip(t.shape, x.shape, strict=True)
        if isinstance(d, torch.SymInt) and d.node.expr.is_Symbol
    }


def _size(d: Any, env: dict[Any, int]) -> int:
    return int(sympy.sympify(d.node.expr).xreplace(env)) if isinstance(d, torch.SymInt) else int(d)


def _resized(x: torch.Tensor, shape: list[int]) -> torch.Tensor | None:
    """The tensor's own values in another shape, repeated in turn, a little smaller each time so that few are equal."""
    if any(n < 0 for n in shape) or (x.numel() == 0 and 0 not in shape):
        return None
    y = x
    for d, n in enumerate(shape):
        if n != x.shape[d]:
            y = y.index_select(d, torch.arange(n) % max(x.shape[d], 1))
    if x.dtype.is_floating_point and y.numel() > x.numel():
        y = y * (1 - torch.linspace(0, 0.05, y.numel(), dtype=torch.float64)).to(x.dtype).reshape(y.shape)
    return y


def _as_sorted(x: torch.Tensor, y: Any) -> torch.Tensor:
    """y in ascending order if x, which it was made of, is."""
    line = x.dim() == 1 and bool((x[1:] >= x[:-1]).all())
    return y.sort().values if line else y


def _copies(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    return tuple(x.detach().clone() for x in tensors)


def _line(e: BaseException) -> str:
    """The telling part of an error message, on one line: not where the samples' own source lies."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(e)).strip() or type(e).__name__
    lines = [t.strip() for t in text.split("\n") if t.strip() and not t.strip().startswith(f"at {_HERE}")]
    return f"{type(e).__name__}: {' '.join(lines[:3])}"[:300]
