"""Caches of keys and values in bf16, f16 and int8: which are found, what they hold, and that attention reads them right."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim, export

import dhlo
from dhlo.codegen.target import parse_target
from dhlo.frontend import import_program
from dhlo.integrations.caches import CACHE
from dhlo.passes.quantise_caches import quantise_rows

FORMATS = ("bf16", "f16", "int8")
STORED = {"bf16": torch.bfloat16, "f16": torch.float16}
HEADS, GROUP, DEPTH, ROOM = 2, 3, 20, 40
D = Dim.DYNAMIC


class Attends(nn.Module):
    """Writes keys and values [B, S, H, D] to its buffers from a position on, and attends to what was written up to then. Memory is
    in one of several orders of dims, written to in one of several ways."""

    def __init__(self, order: str = "bhsd", write: str = "index_copy", batch: int = 2, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.order, self.write = order, write
        shape = {"bhsd": (HEADS, ROOM, DEPTH), "bshd": (ROOM, HEADS, DEPTH), "flat": (ROOM, HEADS * DEPTH)}[order]
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(batch, *shape, dtype=dtype))

    def store(self, cache: torch.Tensor, new: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        """The cache as [B, H, S, D], after new rows were written to it."""
        new = new.transpose(1, 2) if self.order == "bhsd" else new.flatten(2) if self.order == "flat" else new
        dim = 2 if self.order == "bhsd" else 1
        if self.write == "index_copy":
            cache.index_copy_(dim, at, new)
        elif self.write == "index_put":
            cache[(slice(None),) * dim + (at,)] = new
        else:
            start, n = at[0].item(), at.shape[0]
            torch._check(start >= 0)
            torch._check(start + n <= ROOM)
            cache.narrow(dim, start, n).copy_(new)
        if self.order == "bhsd":
            return cache
        return cache.unflatten(-1, (-1, DEPTH)).view(cache.shape[0], ROOM, HEADS, DEPTH).transpose(1, 2)

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        keys, values = self.store(self.keys, k, at), self.store(self.values, v, at)
        seen = torch.arange(ROOM) <= at[:, None]
        return F.scaled_dot_product_attention(q.transpose(1, 2), keys, values, seen, enable_gqa=True)


def arguments(n: int, first: int, batch: int = 2, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    """Queries, keys and values of n positions."""
    q = torch.randn(batch, n, HEADS * GROUP, DEPTH)
    k, v = torch.randn(batch, n, HEADS, DEPTH) * 3, torch.randn(batch, n, HEADS, DEPTH)
    return q.to(dtype), k.to(dtype), v.to(dtype), torch.arange(first, first + n)


def program(module: nn.Module, dtype: torch.dtype = torch.float32, batch: int = 2) -> torch.export.ExportedProgram:
    """Exported with any number of new positions."""
    with torch.no_grad():
        return export(module, arguments(3, 0, batch, dtype), dynamic_shapes=({1: D}, {1: D}, {1: D}, {0: D}))


def as_stored(x: torch.Tensor, kind: str) -> torch.Tensor:
    """What rows read as once they were stored."""
    if kind in STORED:
        return x.to(STORED[kind]).to(x.dtype)
    codes, scale = quantise_rows(x, x.shape[-1])
    return (codes.float() * scale).to(x.dtype)


def compare(module: Attends, run: Callable[..., Any], kind: str, tolerance: float = 1e-5) -> None:
    """A prompt and single steps against the module itself, in whose place the rows are stored as the format says."""
    first = 0
    for n in (5, 1, 1, 14, 2, 1, 16):
        q, k, v, at = arguments(n, first, dtype=module.keys.dtype)
        want = module(q, as_stored(k, kind), as_stored(v, kind), at)
        torch.testing.assert_close(run(q, k, v, at), want, rtol=tolerance, atol=tolerance)
        first += n


def caches(model: dhlo.CompiledModel) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in json.loads(model.metadata)["caches"]}


WRITES = ("index_copy", "index_put", "slice")


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(
    "order,write", [("bhsd", w) for w in WRITES] + [("bshd", "index_copy"), ("bshd", "slice"), ("flat", "slice")]
)
def test_equals_its_own_reference(order: str, write: str, kind: str) -> None:
    torch.manual_seed(0)
    module = Attends(order, write)
    model = dhlo.compile(program(module), kv_cache=kind)
    compare(module, model, kind)
    found = caches(model)
    assert [found[n]["format"] for n in ("keys", "values")] == [kind, kind]
    state = model.session().state
    assert state["keys"].dtype == STORED.get(kind, torch.int8) and state["keys"].shape == module.keys.shape
    elements = 2 * ROOM * HEADS
    assert found["keys"]["after"] == (elements * (DEPTH + 4) if kind == "int8" else elements * DEPTH * 2)
    arena = [b["bytes"] for level in json.loads(model.metadata)["levels"] for b in level["arena"]]
    assert str(module.keys.nbytes) not in map(str, arena)  # nothing holds the cache as f32


@pytest.mark.parametrize("dtype,tolerance", [(torch.bfloat16, 2e-2), (torch.float16, 3e-3)])
def test_codes_beside_narrow_floats(dtype: torch.dtype, tolerance: float) -> None:
    torch.manual_seed(0)
    module = Attends(dtype=dtype)
    compare(module, dhlo.compile(program(module, dtype), kv_cache="int8"), "int8", tolerance)
    with pytest.raises(dhlo.CompileError, match="kv_cache: nothing to store as bf16") as error:
        dhlo.compile(program(module, dtype), kv_cache="bf16")
    assert "takes no more" in str(error.value)


def test_what_codes_hold() -> None:
    """Codes and scales of the rows as `quantise_rows` gives them: zeros, subnormals, the largest numbers, what is no number."""
    module = Attends(batch=1)
    model = dhlo.compile(program(module, batch=1), kv_cache="int8")
    for scale in (1.0, 0.0, 1e-40, 1e-44, 1e-30, 3e38, float("inf"), float("nan")):
        session = model.session()
        q, k, v, at = arguments(7, 2, 1)
        k[:, 3] = k[:, 3].clamp(-1, 1) * scale
        got = session(q, k, v, at)
        codes, scales = quantise_rows(k.transpose(1, 2), DEPTH)
        kept = session.read_state("keys"), session.read_state("keys.scale")
        usual = scale < float("inf")
        torch.testing.assert_close(kept[1][:, :, 2:9], scales, rtol=1e-6, atol=0, equal_nan=True)
        if usual:
            assert (kept[0][:, :, 2:9].int() - codes.int()).abs().max() <= 1  # where rounding is a tie but for the last bit
            assert got.isfinite().all() or scale > 1e38
        else:
            assert got[:, :, 3:].isnan().all() and got[:, :, :3].isfinite().all()
        assert (kept[0][:, :, :2] == 0).all() and (kept[0][:, :, 9:] == 0).all()


def test_other_readers_and_initial_content() -> None:
    """What isn't attention reads numbers, the result that shows the cache is of its own dtype, and content is quantised."""

    class Reads(Attends):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, at: torch.Tensor) -> Any:
            before = self.keys.abs().sum()
            y = super().forward(q, k, v, at)
            return y, before, self.keys[:, :, 1].clone(), self.values

    torch.manual_seed(0)
    module = Reads()
    module.keys += torch.randn_like(module.keys)
    kept = module.keys.clone()
    for kind in FORMATS:
        module.keys.copy_(kept)
        module.values.zero_()
        model = dhlo.compile(program(module), kv_cache=kind)
        module.keys.copy_(as_stored(kept, kind))
        for first in (3, 9):
            q, k, v, at = arguments(6, first)
            want = module(q, as_stored(k, kind), as_stored(v, kind), at)
            for x, y in zip(model(q, k, v, at), want, strict=True):
                torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-5)


class Mixed(Attends):
    """Beside its caches it keeps a count, a sum, and a buffer that nothing attends to."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.tensor(0))
        self.register_buffer("total", torch.zeros(DEPTH))
        self.register_buffer("rows", torch.zeros(ROOM, DEPTH))

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.total.add_(k.sum((0, 1, 2)))
        self.rows.index_copy_(0, at, v[0, :, 0])
        return super().forward(q, k, v, at) + self.rows.sum() + self.total.sum()


def test_other_states_stay_as_they_are() -> None:
    model = dhlo.compile(program(Mixed()), kv_cache="int8")
    found = caches(model)
    assert {n: r["format"] for n, r in found.items()} == {"keys": "int8", "values": "int8", "calls": "", "total": "", "rows": ""}
    assert found["calls"]["reason"] == "holds i64" and found["total"]["reason"] == "is written as a whole"
    assert found["rows"]["reason"] == "no attention reads it"
    session = model.session()
    session(*arguments(2, 0))
    state = session.state
    assert state["calls"] == 1 and state["rows"].dtype == torch.float32 and state["keys.scale"].shape == (2, HEADS, ROOM, 1)


def test_programs_without_a_cache_are_refused() -> None:
    class Plain(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    class Grown(nn.Module):
        def forward(self, q: torch.Tensor, past: torch.Tensor, new: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            k = torch.cat([past, new], 2)
            return F.scaled_dot_product_attention(q, k, k), k

    class ByHand(Attends):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
            keys, values = self.store(self.keys, k, at), self.store(self.values, v, at)
            q = q.transpose(1, 2).unflatten(1, (HEADS, GROUP)).flatten(2, 3)
            return (q @ keys.transpose(2, 3)).softmax(-1) @ values

    with pytest.raises(dhlo.CompileError) as error:
        dhlo.compile(program(ByHand()), kv_cache="int8")
    assert "'keys': is read by products, not by scaled_dot_product_attention" in str(error.value)
    for kind in FORMATS:
        with pytest.raises(dhlo.CompileError, match=f"kv_cache: nothing to store as {kind}: .* keys or values of attention"):
            dhlo.compile(export(Plain(), (torch.ones(3),)), kv_cache=kind)
    x, past = torch.randn(1, 2, 3, 8), torch.randn(1, 2, 5, 8)
    with pytest.raises(dhlo.CompileError, match="caches that are arguments have the dtype that the caller"):
        dhlo.compile(export(Grown(), (x, past, x), dynamic_shapes=({}, {2: D}, {})), kv_cache="int8")
    with pytest.raises(dhlo.CompileError, match="there is no format 'int4'"):
        dhlo.compile(export(Plain(), (torch.ones(3),)), kv_cache="int4")
    dhlo.compile(export(Plain(), (torch.ones(3),)), kv_cache="f32")


class Entry(nn.Module):
    """Does something else with the cache of another program."""

    def __init__(self, m: Attends, reads: bool) -> None:
        super().__init__()
        self.m, self.reads = m, reads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.reads:
            return self.m.keys.sum() + x
        self.m.keys.zero_()
        return x + 1


def test_entries_that_keep_a_cache_otherwise_are_refused() -> None:
    whole = nn.Module()
    whole.m = Attends()
    whole.forward = lambda *args: whole.m(*args)  # type: ignore[assignment]
    with torch.no_grad():
        step = export(whole, arguments(3, 0), dynamic_shapes=(({1: D}, {1: D}, {1: D}, {0: D}),))
    for reads, reason in ((False, "it is written as a whole"), (True, "it is read there, and not written")):
        other = export(Entry(whole.m, reads), (torch.ones(2),))
        with pytest.raises(dhlo.CompileError, match=f"kv_cache: 'm.keys' .* int8 in entry 'step', .* entry 'other': {reason}"):
            dhlo.compile({"step": step, "other": other}, kv_cache="int8")


def test_sessions_and_snapshots() -> None:
    """Copies and snapshots go on as they were; a snapshot of another format is refused, of equal size or not."""
    torch.manual_seed(0)
    models = {kind: dhlo.compile(program(Attends()), kv_cache=kind) for kind in ("f32", *FORMATS)}
    later = arguments(3, 6)
    first = arguments(6, 0)
    snapshots = {}
    for kind, model in models.items():
        session = model.session()
        session(*first)
        snapshots[kind] = session.snapshot()
        branch, restored = session.copy(), model.session()
        restored.restore(snapshots[kind])
        want = session(*later)
        assert torch.equal(branch(*later), want) and torch.equal(restored(*later), want)
        session.reset()
        assert not session.read_state("values").any()
    for a in models:
        for b, snapshot in snapshots.items():
            if a != b:
                with pytest.raises(dhlo.SessionError, match="the snapshot is of another model"):
                    models[a].session().restore(snapshot)
    with pytest.raises(
        dhlo.SessionError, match=r"'keys' of 6400 bytes \(float16\) where this model has 'keys' of 6400 bytes \(bfloat16\)"
    ):
        models["bf16"].session().restore(snapshots["f16"])
    with pytest.raises(dhlo.ContractError, match="state 'keys' is int8"):
        models["int8"].session().write_state("keys", torch.zeros(2, HEADS, ROOM, DEPTH))


def test_transformers_static_cache() -> None:
    """A small Llama with a StaticCache: prompt and steps, near those of f32 by what each format keeps."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    size = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(**size, vocab_size=100)
    cache = transformers.StaticCache(config=config, max_cache_len=32)
    cache.early_initialization(batch_size=1, num_heads=2, head_dim=16, dtype=torch.float32, device="cpu")

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lm = transformers.LlamaForCausalLM(config)
            for n, layer in enumerate(cache.layers):
                self.register_buffer(f"keys{n}", layer.keys)
                self.register_buffer(f"values{n}", layer.values)

        def forward(self, ids: torch.Tensor, position: torch.Tensor) -> Any:
            where = {"cache_position": position, "position_ids": position[None]}
            return self.lm(input_ids=ids, use_cache=True, **where, **{CACHE: cache}).logits

    with torch.no_grad():
        exported = export(Decoder().eval(), (torch.ones(1, 5).long(), torch.arange(5)), dynamic_shapes=({1: D}, {0: D}))
    ids = torch.randint(0, 100, (1, 20))
    results = {}
    for kind in ("f32", *FORMATS):
        session = dhlo.compile(exported, kv_cache=kind).session()
        parts = [session(ids[:, :7], torch.arange(7))] + [session(ids[:, t : t + 1], torch.tensor([t])) for t in range(7, 20)]
        results[kind] = torch.cat(parts, 1)
    norm = results["f32"].norm()
    for kind, most in (("bf16", 4e-3), ("f16", 5e-4), ("int8", 1e-2)):
        assert 0 < (results[kind] - results["f32"]).norm() / norm < most


def test_every_target_decodes() -> None:
    """Code for each architecture is made; that of others than this machine's is run by the tests in cross/."""
    from dhlo.compiler import compile_program
    from dhlo.options import Options
    from dhlo.passes.quantise_caches import request_caches

    for target in ("x86-64-v3", "x86-64-v4+bf16", "aarch64"):
        imported = import_program(program(Attends()))
        request_caches([imported.module], "int8")
        artifact = compile_program(imported, Options(target=target, kv_cache="int8"))
        assert parse_target(target).name in {level["name"] for level in artifact.metadata["levels"]}
        assert any("k_i8_scaled_v_i8_scaled" in n for level in artifact.metadata["levels"] for n in level["launches"])
