"""The loop of the workers that serve traces by other engines, and what llama.cpp is given."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.serving.stepping import answers


class _Counting:
    """A token a step for each request; requests wait a step for their first."""

    def __init__(self) -> None:
        self.left: dict[int, int] = {}
        self.most, self.room = 0, (0, 0)

    def begin(self, at_once: int, longest: int) -> None:
        self.room = (at_once, longest)

    def submit(self, key: int, prompt: list[int], tokens: int) -> None:
        self.left[key] = tokens

    def step(self) -> Iterator[tuple[int, list[int], bool]]:
        self.most = max(self.most, len(self.left))
        for key in list(self.left):
            self.left[key] -= 1
            yield key, [100 * key + self.left[key]], not self.left[key]
            if not self.left[key]:
                del self.left[key]


def test_requests_get_their_tokens_and_begin_as_others_end() -> None:
    engine = _Counting()
    requests = [{"at": 0.0, "prompt": [1] * n, "max_tokens": n} for n in (3, 1, 2)]
    found = answers(engine, {"requests": requests, "at_once": 2})
    assert [a["tokens"] for a in found] == [[2, 1, 0], [100], [201, 200]]
    assert engine.most == 2 and engine.room == (2, 6)
    assert all(a["asked"] <= a["times"][0] and a["times"] == sorted(a["times"]) for a in found)
    assert found[2]["asked"] >= found[1]["times"][0]


def test_requests_that_come_later() -> None:
    engine = _Counting()
    requests = [{"at": at, "prompt": [1], "max_tokens": 1} for at in (0.0, 0.02)]
    found = answers(engine, {"requests": requests, "at_once": 1 << 20})
    assert found[1]["asked"] == 0.02 and found[1]["times"][0] >= 0.02 and engine.most == 1
    assert answers(engine, {"requests": [], "at_once": 4}) == []


class _Batches:
    """Keeps the batches that it was given; the next token is the number of tokens of the sequence so far."""

    most = 4

    def __init__(self) -> None:
        self.batches: list[list[tuple[int, int, int, bool]]] = []
        self.seen: dict[int, list[int]] = {}

    def open(self, sequences: int, positions: int, cache: str) -> None:
        self.seen = {s: [] for s in range(sequences)}

    def decode(self, tokens: list[tuple[int, int, int, bool]]) -> list[np.ndarray]:
        assert 0 < len(tokens) <= self.most
        self.batches.append(tokens)
        rows = []
        for token, position, sequence, wanted in tokens:
            assert position == len(self.seen[sequence])
            self.seen[sequence].append(token)
            if wanted:
                rows.append(np.eye(1, 64, len(self.seen[sequence]))[0])
        return rows

    def forget(self, sequence: int) -> None:
        self.seen[sequence] = []


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The worker without llama.cpp; what was imported for it is forgotten."""
    api: Any = types.ModuleType("llama_cpp")
    api.GGML_TYPE_F32 = 0
    monkeypatch.setitem(sys.modules, "llama_cpp", api)
    names = [f"benchmarks.serving.{name}" for name in ("llamacpp", "worker_llamacpp")]
    before = {name: sys.modules.pop(name, None) for name in names}
    yield importlib.import_module(names[1])
    for name in names:
        del sys.modules[name]
        if kept := before[name]:
            sys.modules[name] = kept


def test_batches_of_llamacpp(worker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that decode come first, prompts fill what is left, and a slot is free for the next request when one is over."""
    model = _Batches()
    monkeypatch.setattr(worker, "LlamaCpp", lambda *_: model)
    engine = worker._Slots({"llamacpp": "", "threads": 1, "max_step_tokens": 4, "precision": "f32"})
    requests = [{"at": 0.0, "prompt": [50 + n] * n, "max_tokens": t} for n, t in ((3, 3), (5, 2), (1, 1))]
    found = answers(engine, {"requests": requests, "at_once": 2})
    assert [a["tokens"] for a in found] == [[3, 4, 5], [5, 6], [1]]
    ids = [[token for token, *_ in batch] for batch in model.batches]
    assert ids == [[53, 53, 53, 55], [3, 55, 55, 55], [4, 55], [5, 51]]
    assert [sum(wanted for *_, wanted in batch) for batch in model.batches] == [1, 1, 2, 2]


def test_model_as_gguf(tmp_path: Path) -> None:
    """Heads of a Llama are turned as llama.cpp turns them; matrices are quantised, vectors aren't."""
    gguf = pytest.importorskip("gguf")
    from benchmarks.serving.gguf_file import write

    config = {"model_type": "llama", "head_dim": 32, "hidden_size": 64, "intermediate_size": 96, "vocab_size": 40}
    config |= {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 128}
    config |= {"rms_norm_eps": 1e-6, "rope_parameters": {"rope_theta": 10000.0}}
    rng = np.random.default_rng(0)
    q, norm = rng.standard_normal((64, 64)).astype(np.float32), np.ones(64, np.float32)
    weights = {"model.layers.0.self_attn.q_proj.weight": q, "model.layers.0.input_layernorm.weight": norm}
    for kind, size in (("f32", 4.0), ("q8_0", 34 / 32), ("q4_0", 18 / 32)):
        write(tmp_path / kind, weights, config, kind)
        found = {t.name: t for t in gguf.GGUFReader(tmp_path / kind).tensors}
        assert set(found) == {"blk.0.attn_q.weight", "blk.0.attn_norm.weight"}
        assert found["blk.0.attn_q.weight"].n_bytes == size * q.size and found["blk.0.attn_norm.weight"].n_bytes == 256
    stored = gguf.GGUFReader(tmp_path / "f32").tensors[0].data.reshape(64, 64)
    np.testing.assert_array_equal(stored[:4], q[[0, 16, 1, 17]])
    with pytest.raises(ValueError, match="no name"):
        write(tmp_path / "x", {"nothing.weight": norm}, config)
