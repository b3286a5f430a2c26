"""Blocks in stores of objects: what one engine kept another finds; stores that are slow, broken or lie cost time alone."""

from __future__ import annotations

import logging
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

import dhlo
from dhlo.errors import ContractError
from dhlo.integrations.decoder import step_program
from dhlo.model import CompiledModel
from dhlo.serve.engine import Engine
from dhlo.serve.stores import open_store
from dhlo.serve.types import EngineOptions, SamplingParams
from tests.sequences import PAGE

VOCABULARY = 64
BLOCK_BYTES = 2 * 1 * 8 * 4 * PAGE  # keys and values of a layer with a head of 8 floats
PARAMS = SamplingParams(temperature=0.0, max_tokens=4)
PROMPT = [random.Random(5).randrange(VOCABULARY) for _ in range(1000)]
KNOWN = 999 // PAGE * PAGE


@pytest.fixture(scope="module")
def step() -> CompiledModel:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    return dhlo.compile(step_program(AutoModelForCausalLM.from_config(config).eval()), pages={"keys*": PAGE, "values*": PAGE})


class Objects:
    """A store in memory, that may go wrong."""

    def __init__(self) -> None:
        self.objects = dict[str, bytes]()
        self.fails: BaseException | None = None
        self.threads = set[int]()
        self.removed = list[str]()

    def put(self, name: str, data: bytes) -> None:
        self.threads.add(threading.get_ident())
        if self.fails is not None:
            raise self.fails
        self.objects[name] = data

    def get(self, name: str) -> Any:
        self.threads.add(threading.get_ident())
        if self.fails is not None:
            raise self.fails
        return self.objects.get(name)

    def remove(self, name: str) -> None:
        self.removed.append(name)


def options(store: Any, **more: Any) -> EngineOptions:
    return EngineOptions(cache_bytes=90 * BLOCK_BYTES, cache_store=store, **more)


def serve(step: CompiledModel, how: EngineOptions) -> tuple[tuple[int, ...], int, dict[str, int]]:
    """Tokens behind PROMPT, how many of it were known, and what is counted of the store once the engine is closed."""
    with Engine(step, how) as engine:
        [output] = engine.generate([PROMPT], PARAMS)
    return output.choices[0].tokens, output.cached_tokens, dict(engine.stats().tiers["store"])


def test_the_next_engine_finds_what_the_store_has(step: CompiledModel, tmp_path: Path) -> None:
    store = Objects()
    tokens, known, stats = serve(step, options(store))
    blocks = (1000 + 3) // PAGE
    assert (known, stats["blocks"], stats["failures"], len(store.objects)) == (0, blocks, 0, blocks)
    assert serve(step, options(store))[:2] == (tokens, KNOWN)
    # Behind a folder, which has the blocks from then on.
    both = options(store, cache_folder=str(tmp_path / "blocks"), cache_folder_bytes=1 << 24)
    assert serve(step, both)[:2] == (tokens, KNOWN)
    store.objects.clear()
    assert serve(step, both)[:2] == (tokens, KNOWN)
    assert threading.get_ident() not in store.threads
    # What isn't right is computed.
    serve(step, options(store))
    for lie in (b"", bytes(100), bytes(10**6), 7, "text"):
        store.objects = dict.fromkeys(store.objects, lie)
        assert serve(step, options(store))[:2] == (tokens, 0)
    names = sorted(store.objects)
    serve(step, options(store))
    store.objects = dict(zip(names, [*(store.objects[n] for n in names[1:]), b""], strict=True))
    assert serve(step, options(store))[:2] == (tokens, 0) and store.removed


def test_stores_that_fail(step: CompiledModel, caplog: pytest.LogCaptureFixture) -> None:
    store = Objects()
    tokens = serve(step, options(store))[0]
    for error in (OSError("gone"), KeyboardInterrupt(), SystemExit(1)):
        store.fails = error
        with caplog.at_level(logging.WARNING):
            said, known, stats = serve(step, options(store))
        assert (said, known) == (tokens, 0) and stats["failures"] > 0 and stats["hits"] == 0
    assert "the store of blocks fails" in caplog.text and "gone" in caplog.text
    store.fails = None
    assert serve(step, options(store))[:2] == (tokens, KNOWN)
    for wrong, message in (
        ({"cache_store": object()}, "put, get and remove"),
        ({"cache_store_threads": 0}, "from 1 to 64"),
        ({"cache_store_threads": "2"}, "from 1 to 64, got '2'"),
        ({"model_digest": b"x"}, "32 bytes"),
        ({"prefix_cache": False}, "nothing without `prefix`"),
    ):
        with pytest.raises(ContractError, match=message):
            Engine(step, replace(options(store), **wrong))
    with pytest.raises(ContractError, match="cache_store needs model_digest"):
        Engine(step.native, options(store))


def test_a_store_that_hangs_holds_up_no_request(step: CompiledModel) -> None:
    store, free = Objects(), threading.Event()
    tokens = serve(step, options(store))[0]
    store.get = lambda name: free.wait(60) and None  # type: ignore[method-assign]
    try:
        with Engine(step, options(store)) as engine:
            for _ in range(3):
                assert engine.generate([PROMPT], PARAMS)[0].choices[0].tokens == tokens
            free.set()
    finally:
        free.set()


EXIT = """
import sys
from pathlib import Path
from dhlo.loading import digest_of, open_model
from dhlo.serve.engine import Engine
from dhlo.serve.stores import open_store
from dhlo.serve.types import EngineOptions, SamplingParams
path, url = sys.argv[1:]
options = EngineOptions(cache_bytes=1 << 20, model_digest=digest_of(Path(path)), cache_store=open_store(url))
engine = Engine(open_model(path), options)
print(engine.generate([list(range(60)) * 4], SamplingParams(temperature=0.0))[0].cached_tokens)
"""


def test_exit_of_the_interpreter(step: CompiledModel, tmp_path: Path) -> None:
    """An engine that nobody closes writes what it keeps."""
    pytest.importorskip("obstore")
    step.save(tmp_path / "step.so")
    command = [sys.executable, "-c", EXIT, str(tmp_path / "step.so"), f"file://{tmp_path}/blocks"]
    said = [subprocess.check_output(command, text=True, timeout=120).strip() for _ in range(2)]
    assert said == ["0", str(239 // PAGE * PAGE)]


def test_urls() -> None:
    pytest.importorskip("obstore")
    for url in ("", "s3://", "ftp://a/b", "nothing", "memory:///", "s3:/a"):
        with pytest.raises(ContractError, match="s3://BUCKET/PREFIX"):
            open_store(url)
    with pytest.raises(ContractError, match="timeout"):
        open_store("s3://bucket/prefix", timeout=0)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Any]]:
    """A bucket of S3 on this machine, and its server."""
    server_of = pytest.importorskip("moto.server").ThreadedMotoServer
    boto3 = pytest.importorskip("boto3")
    server = server_of(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in (
        ("AWS_ENDPOINT", f"http://{host}:{port}"),
        ("AWS_ALLOW_HTTP", "true"),
        ("AWS_ACCESS_KEY_ID", "a"),
        ("AWS_SECRET_ACCESS_KEY", "b"),
        ("AWS_REGION", "us-east-1"),
        ("NO_PROXY", "127.0.0.1"),
    ):
        monkeypatch.setenv(name, value)
    boto3.client("s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1").create_bucket(Bucket="blocks")
    try:
        yield "s3://blocks/some/prefix", server
    finally:
        server.stop()


@pytest.mark.slow
def test_s3(step: CompiledModel, bucket: tuple[str, Any]) -> None:
    """The second engine finds the prompt; a server that dies meanwhile costs its blocks."""
    pytest.importorskip("obstore")
    url, server = bucket
    tokens, _, stats = serve(step, options(open_store(url)))
    assert stats["failures"] == 0 and stats["blocks"] == 1003 // PAGE
    said, known, stats = serve(step, options(open_store(url)))
    assert (said, known) == (tokens, KNOWN) and stats["hits"] == KNOWN // PAGE
    with Engine(step, options(open_store(url, timeout=1.0))) as engine:
        assert engine.generate([PROMPT[:200]], PARAMS)[0].cached_tokens == 199 // PAGE * PAGE
        server.stop()
        [output] = engine.generate([PROMPT], PARAMS)
        assert output.choices[0].tokens == tokens and output.cached_tokens < KNOWN
    assert engine.stats().tiers["store"]["failures"] > 0
