"""Calls of compiled programs through the C interface, legal and hostile, in guarded memory: each must be right or a clean error,
and the session must work afterwards.

`python -m tests.fuzz.calls CASE SEED [FIRST [LAST]]` makes the calls of a failure again; CASE is a name of cases.py, or "random 7".
"""

from __future__ import annotations

import copy
import ctypes
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

import dhlo
from dhlo.codegen.kernel_ir.abi import DTYPE_BYTES, DTYPES
from tests.fuzz.cases import CASES, Case, Leaf, Values, random_case
from tests.fuzz.guarded import Host, Memory, Model, Placed, dense_strides, describe, isolated, library

__all__ = ["Failure", "Session", "compiled", "fuzz"]

CLEAN = ("invalid argument", "contract", "out of memory")
HUGE = [1 << 20, 1 << 31, 1 << 32, 1 << 47, (1 << 48) - 1, 1 << 48, 1 << 61, 1 << 62, (1 << 63) - 1]
NEGATIVE = [-1, -2, -(1 << 31), -(1 << 62), -(1 << 63)]
NUMBERS = [*HUGE, *NEGATIVE, 0, 1, 2, 100, 101, (1 << 31) - 1, 4097]
LIMIT = 1 << 48  # dims of tensors lie below
CAP = 1 << 24
PLAN_BYTES = 72  # sizeof(dhlo_plan)


class Failure(AssertionError):
    """A call that was neither right nor a clean error."""


@dataclass
class Given:
    """An argument of a call: what is placed and how, and what is said of it that isn't so."""

    value: torch.Tensor
    strides: list[int] | None = None
    dense: bool = False  # strides are left out
    at_end: bool = True
    lies: dict[str, Any] = field(default_factory=dict)  # fields of dhlo_tensor, or other strides
    sizes: list[int] | None = None  # claimed, with memory for one element
    share: tuple[int, int] | None = None  # lies in another argument's memory, bytes from its start


@dataclass
class Call:
    """Arguments, what is expected, and what was done to them."""

    given: list[Given]
    what: str = "legal"
    kind: str = ""
    count: int | None = None
    null: bool = False
    legal: bool = True  # must succeed wherever PyTorch does
    refused: bool = False  # must not succeed
    defined: bool = True  # PyTorch can say what is right
    bound: dict[int, tuple[str, int]] = field(default_factory=dict)  # outputs: how they are bound
    empty: int | None = None  # must not succeed unless this output is empty


def numbers(leaves: Sequence[Leaf]) -> list[torch.Tensor]:
    return [x if isinstance(x, torch.Tensor) else torch.tensor(x) for x in leaves]


class Session:
    """One program, one session, and PyTorch beside them."""

    def __init__(
        self,
        case: Case,
        artifact: Any,
        exported: torch.export.ExportedProgram,
        updates: Sequence[int],
        *,
        threads: int = 1,
        callback: bool = True,
    ) -> None:
        self.case, self.exported, self.updates = case, exported, list(updates)
        self.model = Model(artifact, threads)
        self.host = Host(self.model, CAP, callback=callback)
        self.module = copy.deepcopy(case.module)
        self.ints = [k for k, x in enumerate(case.example) if not isinstance(x, torch.Tensor)]

    # ------------------------------------------------------------------ what PyTorch says
    def want(self, values: Sequence[torch.Tensor], module: Any) -> tuple[list[torch.Tensor], dict[int, torch.Tensor]]:
        """Results of these arguments, and the new content of those that change."""
        args: list[Any] = [x.clone() for x in values]
        for k in self.ints:
            args[k] = int(args[k])
        with torch.no_grad():
            out = [x if isinstance(x, torch.Tensor) else torch.tensor(x) for x in tree_leaves(module(*args))]
        new = {k: args[k] for k in self.updates if k not in self.case.grows}
        if self.case.grows:  # joined caches are results of the function; the binary gives their new sizes
            lengths = []
            for k, t in zip(sorted(self.case.grows), out[-len(self.case.grows) :], strict=True):
                new[k] = t
                lengths.append(torch.tensor(t.shape[self.case.grows[k]]))
            out[-len(lengths) :] = lengths
        return out, new

    # ------------------------------------------------------------------ one call
    def legal(self, rng: random.Random) -> Call:
        leaves = numbers(self.case.draw(Values(rng)))
        return Call([self._lay_out(rng, k, x) for k, x in enumerate(leaves)])

    def _lay_out(self, rng: random.Random, k: int, x: torch.Tensor) -> Given:
        """Dense, permuted, or with gaps; sizes of 1 with any stride."""
        at_end = rng.random() < 0.6
        way = rng.choice(["none", "dense", "dense", "permuted", "gaps"])
        if k in self.case.grows:
            d = self.case.grows[k]
            room = list(x.shape)
            room[d] += rng.choice([33, 40, 64])
            return Given(x, dense_strides(room), at_end=at_end)
        if way == "none":
            return Given(x, dense=True, at_end=at_end)
        order = rng.sample(range(x.dim()), x.dim()) if way == "permuted" else list(range(x.dim()))
        strides, step = [0] * x.dim(), 1 + (way == "gaps") * rng.randrange(1, 4)
        for d in reversed(order):
            strides[d] = step
            step *= max(x.shape[d], 1) + (way == "gaps") * rng.randrange(3)
        if way == "gaps" and x.numel() * 4 > 1 << 20:
            strides = dense_strides(x.shape)
        for d, n in enumerate(x.shape):
            if (n == 1 or x.numel() == 0) and rng.random() < 0.3:
                strides[d] = rng.choice(NUMBERS)
        return Given(x, strides, at_end=at_end)

    def run(self, call: Call, rng: random.Random) -> str:
        """Makes the call and checks it; returns the status. Raises Failure."""
        placed = self._place(call)
        made = [self._describe(g, p) for g, p in zip(call.given, placed, strict=True)]
        if call.defined:
            values = [p.value() for p in placed]  # what the memory holds: elements may share it
        before = {k: bytes(placed[k].memory.array()) for k in self.updates if k < len(placed)}
        written = {id(placed[k].memory) for k in self.updates if k < len(placed)}
        for p in placed:
            if id(p.memory) not in written:
                p.freeze()
        if rng.random() < 0.5:
            self.host.trim()
        self.host.place(at_end=rng.random() < 0.7, alignment=rng.choice([0, 0, 64]))
        bound = self._bind(call, placed)
        planned = self._plan(made, call) if rng.random() < 0.2 else None
        given = None if call.null else [t for t, _ in made]
        states = self._states()
        status = self.host.run(given, call.count)
        if status == "out of memory" and call.legal and all(bytes(placed[k].memory.array()) == x for k, x in before.items()):
            # Blocks as large as earlier calls made them were in use; the session has let go of them now.
            status = self.host.run(given, call.count)
        if status == "internal":
            raise Failure(f"internal: {self.host.error()}")
        if status != "ok":
            if status not in CLEAN or not self.host.error():
                raise Failure(f"{status}: {self.host.error() or 'no text'}")
            if call.legal:
                self._may_refuse(values, status)
            self._keep_state(states)
        else:
            if call.refused or call.empty is not None and self.host.output(call.empty).numel():
                raise Failure("accepted")
            if planned in ("contract", "invalid argument"):
                raise Failure(f"ran, but the plan says {planned}")
            if call.defined:
                self._compare(call, placed, values, before)
            else:
                self._restart()
        for k in bound:
            library().dhlo_session_bind_output(self.host.session, k, None, 0)
        for m in {id(m): m for m in [*(p.memory for p in placed), *bound.values()]}.values():
            m.close()
        return status

    def _place(self, call: Call) -> list[Placed]:
        placed: list[Placed] = []
        for k, g in enumerate(call.given):
            x = g.value
            if g.share is not None:
                placed.append(_shared(x, placed[g.share[0]], g.share[1]))
                continue
            if k in self.case.grows and g.strides is not None and len(g.strides) > self.case.grows[k]:
                p = _roomy(x, g, self.case.grows[k], f"input {k}")
            else:
                p = Placed.of(x, g.strides, at_end=g.at_end, label=f"input {k}", dense=g.dense)
            if g.sizes is not None:
                p.sizes = g.sizes
                p.strides = None if g.dense else [0] * len(g.sizes)
            placed.append(p)
        return placed

    @staticmethod
    def _describe(g: Given, p: Placed) -> tuple[Any, Any]:
        t, keep = describe(p)
        for name, value in g.lies.items():
            if name == "strides":
                keep[1][:] = value
            else:
                setattr(t, name, value)
        return t, keep

    def _bind(self, call: Call, placed: list[Placed]) -> dict[int, Memory]:
        bound = {}
        for k, (way, nbytes) in call.bound.items():
            if way == "own":
                width = DTYPE_BYTES[str(self.model.outputs[k])[6:]]
                bound[k] = Memory(nbytes // width * width, width, label=f"bound output {k}")
                at = bound[k].address
            else:
                at, nbytes = placed[nbytes].memory.address, placed[nbytes].memory.nbytes
                bound[k] = placed[call.bound[k][1]].memory
            library().dhlo_session_bind_output(self.host.session, k, at, nbytes)
        return bound

    def _plan(self, made: list[Any], call: Call) -> str:
        from tests.fuzz.guarded import STATUS, Tensor

        array = None if call.null else (Tensor * len(made))(*[t for t, _ in made])
        room = Memory(PLAN_BYTES, label="plan")
        ctypes.c_uint32.from_address(room.address).value = PLAN_BYTES  # struct_bytes
        status = STATUS[
            library().dhlo_model_plan(self.model.handle, array, len(made) if call.count is None else call.count, None, room.address)
        ]
        room.close()
        if status not in ("ok", *CLEAN):
            raise Failure(f"plan: {status}: {library().dhlo_last_error()}")
        return status

    def _may_refuse(self, values: Sequence[torch.Tensor], status: str) -> None:
        """A legal call may fail where PyTorch fails, where torch.export made its program narrower, or where its arguments and
        results take much of what a session may have."""
        if status == "out of memory":
            results = tree_leaves(self.want(values, copy.deepcopy(self.module)))
            if 4 * sum(v.nbytes for v in (*values, *results) if isinstance(v, torch.Tensor)) > CAP:
                return
            raise Failure(f"out of memory: {self.host.error()}")
        for module in (copy.deepcopy(self.module), self.exported.module()):
            try:
                self.want(values, module)
            except Exception:
                return
        if any(n < 2 for x in values for n in x.shape):
            return  # conditions that the trace met may leave out 0 and 1
        raise Failure(f"{status}: {self.host.error()}")

    def _compare(self, call: Call, placed: list[Placed], values: list[torch.Tensor], before: dict[int, bytes]) -> None:
        got = self.host.outputs()
        module = copy.deepcopy(self.module) if self.case.states else self.module
        try:
            want, new = self.want(values, module)
        except Exception as e:
            if call.legal or self.case.program is not None or any(n == 0 for x in values for n in x.shape):
                return  # an empty maximum, or a bad index in a statement that no result needs
            raise Failure(f"accepted, but PyTorch says {type(e).__name__}: {e}") from None
        if len(got) != len(want):
            raise Failure(f"{len(got)} results, {len(want)} wanted")
        for k, (g, w) in enumerate(zip(got, want, strict=True)):
            self._close(g, w, f"result {k}", k if call.kind not in ("repeated", "shared") else None)
        for k, w in new.items():
            d = self.case.grows.get(k)
            if d is not None:  # the cache and what was joined to it
                whole = placed[k].whole
                assert whole is not None
                self._close(torch.from_numpy(whole.copy()).narrow(d, 0, w.shape[d]), w, f"grown argument {k}")
                if not np.isnan(whole[(slice(None),) * d + (slice(w.shape[d], None),)]).all():
                    raise Failure(f"argument {k} was written behind what was joined to it")
                continue
            self._close(placed[k].value(), w, f"updated argument {k}")
            after = np.frombuffer(before[k], np.uint8).copy()
            if placed[k].memory.nbytes and not call.given[k].share:
                _same_view(placed[k], after)[...] = placed[k].view
                if bytes(after) != bytes(placed[k].memory.array()):
                    raise Failure(f"gaps of argument {k} were written")
        if self.case.states:
            self.module = module
            for name in self.case.states:
                w = getattr(module, name)
                self._close(self.host.read_state(name, w), w, f"state {name}")

    def _states(self) -> dict[str, torch.Tensor]:
        return {name: self.host.read_state(name, getattr(self.module, name)) for name in self.case.states}

    def _keep_state(self, before: dict[str, torch.Tensor]) -> None:
        """A failed call leaves state alone, except where it writes parts."""
        for name, now in self._states().items():
            if self.case.parts:
                getattr(self.module, name).copy_(now)
            elif now.numpy().tobytes() != before[name].numpy().tobytes():
                raise Failure(f"a failed call changed state {name}")

    def _restart(self) -> None:
        """Puts state back where nobody can say what it should be."""
        library().dhlo_session_reset_state(self.host.session)
        if self.case.states:
            self.module = copy.deepcopy(self.case.module)

    def _close(self, got: torch.Tensor, want: torch.Tensor, what: str, result: int | None = None) -> None:
        if (got.dtype, got.shape) != (want.dtype, want.shape):
            raise Failure(f"{what}: {got.dtype}{list(got.shape)}, want {want.dtype}{list(want.shape)}")
        tolerance = 0.03 if want.dtype in (torch.bfloat16, torch.float16) else self.case.tolerance
        if self.case.program is not None and result is not None:
            from tests.fuzz.test_fuzz import compare

            compare(got, want, self.case.program.results[result], what)
            return
        if self.case.program is not None:
            tolerance = 0.03  # rows of equal elements, of which a norm is mere rounding
        try:
            torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance, equal_nan=True)
        except AssertionError as e:
            raise Failure(f"{what}: {e}") from None

    # ------------------------------------------------------------------ hostile calls
    def hostile(self, rng: random.Random) -> Call:
        """A legal call with one thing changed."""
        call = self.legal(rng)
        call.legal = False
        ways: list[Callable[[random.Random, Call, int], bool]] = [
            self._size,
            self._size,
            self._rank,
            self._dtype,
            self._null,
            self._strides,
            self._strides,
            self._alias,
            self._bound,
            self._number,
            self._number,
            self._position,
            self._count,
            self._room,
        ]
        while True:
            k = rng.randrange(len(call.given))
            if rng.choice(ways)(rng, call, k):
                return call

    def _size(self, rng: random.Random, call: Call, k: int) -> bool:
        """Another size: real memory behind small ones, one element behind huge ones."""
        g = call.given[k]
        if not g.value.dim():
            return False
        sizes = list(g.value.shape)
        for _ in range(rng.choice([1, 1, 2])):
            sizes[rng.randrange(len(sizes))] = rng.choice([0, 1, 2, 3, 17, 63, 129, 1000, *HUGE, *NEGATIVE])
        call.what = f"input {k} has sizes {sizes}"
        call.kind = "limit" if max(sizes) >= LIMIT else "size"
        count = 1
        for n in sizes:
            count *= n
        if all(0 <= n < 1 << 20 for n in sizes) and count * g.value.element_size() <= 1 << 21:
            if k in self.case.indices or not g.value.dtype.is_floating_point:
                pool = g.value.reshape(-1) if g.value.numel() else torch.zeros(1, dtype=g.value.dtype)
                value = pool[torch.arange(count) % pool.numel()].reshape(sizes)
            else:
                value = Values(rng).floats(*sizes).to(g.value.dtype)
            if k in self.case.grows:
                return self._room(rng, call, k, value)
            call.given[k] = Given(value, at_end=g.at_end, dense=rng.random() < 0.5)
            return True
        call.defined = False
        call.refused = any(n < 0 or n >= LIMIT for n in sizes)
        g.sizes, g.value, g.strides = sizes, torch.zeros([1] * len(sizes), dtype=g.value.dtype), None
        g.dense = call.refused and rng.random() < 0.5
        return True

    def _room(self, rng: random.Random, call: Call, k: int, value: torch.Tensor | None = None) -> bool:
        """A buffer with little room behind the argument."""
        value = call.given[k].value if value is None else value
        if k not in self.case.grows or value.dim() <= self.case.grows[k]:
            return False
        room = list(value.shape)
        room[self.case.grows[k]] += rng.choice([0, 1, 2, 5])
        call.given[k] = Given(value, dense_strides(room), at_end=rng.random() < 0.5)
        call.what = call.what if call.kind else f"argument {k} has little room"
        return True

    def _rank(self, rng: random.Random, call: Call, k: int) -> bool:
        g = call.given[k]
        rank = rng.choice([r for r in (-1, 0, 1, 2, 3, 4, 5, 8, 9, (1 << 31) - 1, -(1 << 31)) if r != g.value.dim()])
        call.what, call.refused, call.defined = f"input {k} has rank {rank}", True, False
        if 0 <= rank <= 8:
            call.given[k] = Given(torch.zeros([*g.value.shape, *[1] * 8][:rank], dtype=g.value.dtype), dense=rng.random() < 0.5)
        else:
            g.lies["rank"] = rank
        return True

    def _dtype(self, rng: random.Random, call: Call, k: int) -> bool:
        g = call.given[k]
        code = rng.choice([c for c in (*DTYPES.values(), -1, 12, 99, (1 << 31) - 1) if c != DTYPES[str(g.value.dtype)[6:]]])
        g.lies["dtype"] = code
        call.what, call.refused, call.defined = f"input {k} has dtype {code}", True, False
        return True

    def _null(self, rng: random.Random, call: Call, k: int) -> bool:
        g = call.given[k]
        name = rng.choice(["data", "sizes"])
        if name == "data" and not g.value.numel() or name == "sizes" and not g.value.dim():
            return False
        g.lies[name] = None
        call.what, call.refused, call.defined = f"input {k} has no {name}", True, False
        return True

    def _count(self, rng: random.Random, call: Call, k: int) -> bool:
        n = len(call.given)
        call.null = rng.random() < 0.3
        if not call.null:
            call.count = rng.choice([c for c in (n - 1, n + 1, 0, -1, 1 << 40, -(1 << 63)) if c != n])
        call.what, call.refused, call.defined = f"{'no arguments' if call.null else f'{call.count} arguments'}", True, False
        return True

    def _strides(self, rng: random.Random, call: Call, k: int) -> bool:
        """Negative, zero, overlapping; or so long that they lead out of the address space."""
        g = call.given[k]
        dims = [d for d, n in enumerate(g.value.shape) if n > 1]
        if not dims or not g.value.numel() or k in self.case.grows:
            return False
        strides, way = dense_strides(g.value.shape), rng.choice(["negative", "zero", "overlapping", "endless"])
        d = rng.choice(dims)
        if way == "negative":
            strides[d] *= -1
        elif way == "zero":
            strides[d] = 0
        elif way == "overlapping":
            strides = [rng.randrange(1, 4) for _ in strides]
        call.what = f"input {k} has {way} strides"
        if way == "endless":
            call.kind = "endless strides"
            call.refused, call.defined = True, False
            given = list(strides)
            given[d] = rng.choice([1 << 61, 1 << 62, (1 << 63) - 1, -(1 << 62), -(1 << 63)])
            g.strides, g.dense, g.lies = strides, False, {"strides": given}
        else:
            g.strides, g.dense = strides, False
            call.kind = "repeated"
            if k in self.updates and way in ("zero", "overlapping"):
                call.kind, call.refused = "shared update", way == "zero"
                call.defined = call.defined and way == "zero"
        return True

    def _alias(self, rng: random.Random, call: Call, k: int) -> bool:
        """An argument in the memory of another: the same elements, or some of them."""
        g = call.given[k]
        others = [j for j in range(k) if call.given[j].value.dtype == g.value.dtype and j not in self.case.grows]
        if not others or k in self.case.grows:
            return False
        j = rng.choice(others)
        other = call.given[j]
        other.dense, other.strides = False, dense_strides(other.value.shape)
        width, room = g.value.element_size(), other.value.numel() - g.value.numel()
        if room < 0 or not g.value.numel():
            return False
        g.strides, g.share = dense_strides(g.value.shape), (j, width * rng.randrange(room + 1))
        call.what = f"input {k} lies in the memory of input {j}"
        call.refused = k in self.updates or j in self.updates
        call.kind = "shared update" if call.refused else "shared"
        call.legal = not call.refused and not {j, k} & set(self.case.indices) and not g.value.dtype == torch.int64
        return True

    def _bound(self, rng: random.Random, call: Call, k: int) -> bool:
        """Outputs in the caller's memory: enough of it, too little, or an argument's."""
        out = rng.randrange(len(self.model.outputs))
        way = rng.choice(["enough", "little", "input"])
        if way == "input":
            if not call.given[k].value.numel():
                return False
            call.bound[out] = ("input", k)
            call.kind, call.empty, call.defined = "bound input", out, False
        else:
            call.bound[out] = ("own", 1 << 17 if way == "enough" else rng.randrange(64))
        call.what = f"output {out} is bound to {way if way != 'input' else f'input {k}'}"
        return True

    def _number(self, rng: random.Random, call: Call, k: int) -> bool:
        """An integer argument, or a tensor of one, of any value."""
        g = call.given[k]
        if g.value.dim() or g.value.dtype != torch.int64 or self.case.turns:
            return False
        call.kind = "number"
        g.value = torch.tensor(rng.choice(NUMBERS))
        call.what = f"input {k} is {int(g.value)}"
        call.defined = abs(int(g.value)) < 1 << 21
        return True

    def _position(self, rng: random.Random, call: Call, k: int) -> bool:
        g = call.given[k]
        if k not in self.case.indices or not g.value.numel():
            return False
        flat = g.value.clone().reshape(-1)
        flat[rng.randrange(flat.numel())] = rng.choice(NUMBERS)
        g.value = flat.reshape(g.value.shape)
        call.what = f"input {k} holds {sorted({int(i) for i in flat if not 0 <= int(i) < 100})}"
        return True


def _shared(x: torch.Tensor, other: Placed, offset: int) -> Placed:
    strides = dense_strides(x.shape)
    width = other.view.itemsize
    view = np.ndarray(tuple(x.shape), other.view.dtype, other.memory.array().data, offset, tuple(s * width for s in strides))
    return Placed(other.memory, other.memory.address + offset, list(x.shape), strides, other.dtype, view, x.dtype)


def _roomy(x: torch.Tensor, g: Given, d: int, label: str) -> Placed:
    """The first part of a dense buffer; the rest of it belongs to the argument."""
    assert g.strides is not None
    room = list(x.shape)
    room[d] = g.strides[d - 1] // max(g.strides[d], 1)
    whole = torch.full(room, float("nan"), dtype=x.dtype)
    whole.narrow(d, 0, x.shape[d]).copy_(x)
    p = Placed.of(whole, at_end=g.at_end, label=label)
    p.sizes, p.strides, p.whole = list(x.shape), g.strides, p.view
    p.view = p.view[tuple(slice(0, n) for n in x.shape)]
    return p


def _same_view(p: Placed, memory: Any) -> Any:
    offset = p.view.__array_interface__["data"][0] - p.memory.address
    return np.ndarray(p.view.shape, p.view.dtype, memory.data, offset, p.view.strides)


# ---------------------------------------------------------------------------------------------------- many calls
def compiled(case: Case) -> tuple[Any, torch.export.ExportedProgram, list[int]] | None:
    """The case's artifact, its exported program and which arguments it changes; None where PyTorch doesn't take a random one."""
    try:
        if case.program is not None:
            case.module(*[x.clone() for x in case.example])
        exported = case.export()
    except Exception:
        if case.program is None:
            raise
        return None
    try:
        model = dhlo.compile(exported, **case.options)
    except dhlo.UnsupportedError:
        return None
    artifact = model._artifact
    assert artifact is not None
    updates = [k for k in case.grows] or model._updates
    return artifact, exported, updates


def fuzz(
    case: Case,
    made: tuple[Any, torch.export.ExportedProgram, list[int]],
    seed: int,
    first: int,
    last: int,
    seconds: float = float("inf"),
) -> dict[str, int]:
    """Calls `first` to `last` of a seed, in a process of their own; how many ended with each status. Raises AssertionError with
    what makes the call again."""

    def work(note: Callable[[str], None]) -> dict[str, int]:
        counts: dict[str, int] = {}
        rng = random.Random(f"{case.name}/{seed}")
        session = Session(case, *made, threads=rng.choice([1, 1, 2]), callback=rng.random() < 0.7)
        ends = time.monotonic() + seconds
        for number in range(first, last):
            if time.monotonic() > ends:
                break
            rng = random.Random(f"{case.name}/{seed}/{number}")
            call = session.legal(rng) if rng.random() < 0.4 else session.hostile(rng)
            shapes = [(g.sizes or list(g.value.shape), g.strides) for g in call.given]
            text = f"{call.what}, {shapes}\nagain: python -m tests.fuzz.calls '{case.name}' {seed} {number}"
            note(text)
            try:
                status = session.run(call, rng)
                counts[status] = counts.get(status, 0) + 1
                if status != "ok":
                    text += "\nthen a good call"
                    note(text)
                    session.run(session.legal(rng), rng)
            except AssertionError as e:
                raise Failure(f"{e}\nin: {text}\nof: {case.program.source if case.program else case.name}") from e
        session.host.close()
        session.model.close()
        return counts

    result: dict[str, int] = isolated(work)
    return result


def main() -> None:
    name, seed, *rest = sys.argv[1:]
    case = random_case(int(name.split()[1])) if name.startswith("random ") else CASES[name]
    made = compiled(case)
    assert made is not None
    first = int(rest[0]) if rest else 0
    print(fuzz(case, made, int(seed), first, int(rest[1]) if len(rest) > 1 else first + (1 if rest else 1000)))


if __name__ == "__main__":
    main()
