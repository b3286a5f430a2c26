"""`dhlo serve` and `dhlo generate`: a language model from a folder, for clients of OpenAI's interface or on the terminal."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dhlo.commands.console import console
from dhlo.errors import ContractError, DhloError
from dhlo.progress import reporter

if TYPE_CHECKING:
    from dhlo.serve.engine import Engine
    from dhlo.serve.folder import Served

__all__ = ["Sizes", "generate_text", "serve_folder"]


@dataclass(frozen=True)
class Sizes:
    """How the model is compiled and the engine is made, as the command line says."""

    weights: Sequence[str] = ()
    """As [NAME=]FORMAT."""
    kv_cache: str = ""
    cache: str | None = None
    threads: int = 0
    cache_gb: float | None = None
    max_positions: int | None = None
    max_sequences: int | None = None
    max_waiting: int = 1024
    max_step_tokens: int = 512
    prompt_lookup: int = 0
    cache_folder: Path | None = None
    cache_folder_gb: float = 16


def serve_folder(
    folder: Path,
    sizes: Sizes,
    *,
    host: str,
    port: int,
    name: str | None,
    api_keys: Sequence[str],
    max_tokens: int | None,
    drain_seconds: float,
    progress: bool,
) -> None:
    """Serves the model in a folder on `host` and `port` (0: any that is free) until it is told to end (SIGINT, SIGTERM).

    Raises DhloError, and OSError where the port isn't to be had.
    """
    with _needing_extra():
        from dhlo.serve.server import ServerOptions, make_app, run_server
    if any(not key.strip() for key in api_keys):
        raise DhloError("--api-key: an empty key guards nothing")
    with _listening(host, port) as listening, _working(folder, sizes, progress) as (served, engine, positions):
        options = ServerOptions(
            name=name, api_keys=tuple(api_keys), max_tokens=max_tokens, max_positions=positions, drain_seconds=drain_seconds
        )
        app = make_app(engine, served, options)
        blocks = engine.stats().blocks
        shown = f"[{host}]" if ":" in host else host
        console().print(f"{name or served.name}: {blocks} blocks of 16 tokens, up to {positions} tokens in a sequence")
        console().print(f"http://{shown}:{listening.getsockname()[1]}/v1", soft_wrap=True)
        run_server(app, listening, options)


def generate_text(
    folder: Path,
    text: str,
    sizes: Sizes,
    *,
    chat: bool,
    max_tokens: int,
    temperature: float | None,
    seed: int | None,
    stop: Sequence[str],
    progress: bool,
) -> None:
    """Writes what follows a text, or with `chat` the answer to it, as it comes. Raises DhloError."""
    with _needing_extra():
        from dhlo.serve.tokens import TextStream
        from dhlo.serve.types import FinishReason, SamplingParams
    with _working(folder, sizes, progress) as (served, engine, positions):
        if chat and served.chat is None:
            raise ContractError(f"'{folder}' has no chat template: leave out --chat")
        if chat and served.chat is not None:
            prompt = served.tokenizer.encode(served.chat.render([{"role": "user", "content": text}]), special=False)
        else:
            prompt = served.tokenizer.encode(text)
        if not 0 < len(prompt) < positions:
            raise ContractError(f"the text has {len(prompt)} tokens; 1 to {positions - 1} are taken")
        given: dict[str, Any] = {"temperature": temperature, "seed": seed}
        chosen = {**served.defaults, **{k: v for k, v in given.items() if v is not None}}
        params = SamplingParams(**{**chosen, "max_tokens": min(max_tokens, positions - len(prompt)), "stop": tuple(stop)})
        stream = TextStream(served.tokenizer.vocabulary, served.eos_tokens)
        request = engine.submit(prompt, params)
        try:
            for event in request:
                if event.finish is FinishReason.ERROR:
                    raise DhloError(event.error or "the step failed")
                print(stream.read(event), end="", flush=True)
        finally:
            request.cancel()
            print()


@contextmanager
def _needing_extra() -> Iterator[None]:
    """A library that isn't there becomes an error that says what to install."""
    try:
        yield
    except ImportError as e:
        if e.name is None or e.name.startswith("dhlo"):
            raise
        raise DhloError(f"serving needs the library {e.name.partition('.')[0]}: pip install 'dhlo[serve]'") from None


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    """A socket for connections. Raises OSError, which names the address."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, UnicodeError) as e:
        raise OSError(f"can't listen on {host}:{port}: {e}") from None
    with listening:
        yield listening


@contextmanager
def _working(folder: Path, sizes: Sizes, progress: bool) -> Iterator[tuple[Served, Engine, int]]:
    """A folder's model, an engine over it, and how many tokens it takes in a sequence."""
    with _needing_extra():
        from dhlo.serve.engine import Engine
        from dhlo.serve.folder import BLOCK_SLOTS, open_folder
        from dhlo.serve.types import EngineOptions, SamplingParams
    weights = {name or "default": form for name, _, form in (w.rpartition("=") for w in sizes.weights)}
    with reporter(progress, "ready") as tell, _needing_extra():
        served = open_folder(
            folder, weights=weights, kv_cache=sizes.kv_cache, cache=sizes.cache, threads=sizes.threads, progress=tell
        )
    longest = min((n for n in (served.max_positions, sizes.max_positions) if n is not None), default=None)
    options = EngineOptions(
        cache_bytes=None if sizes.cache_gb is None else int(sizes.cache_gb * (1 << 30)),
        max_step_tokens=sizes.max_step_tokens,
        max_sequences=sizes.max_sequences,
        max_waiting=sizes.max_waiting,
        max_positions=longest,
        eos_tokens=served.eos_tokens,
        vocabulary=served.tokenizer.vocabulary,
        prompt_lookup=sizes.prompt_lookup,
        cache_folder=None if sizes.cache_folder is None else str(sizes.cache_folder),
        cache_folder_bytes=int(sizes.cache_folder_gb * (1 << 30)),
        model_digest=served.digest,
    )
    with Engine(served.step, options) as engine:
        # A first step reads the weights, says whether steps work here, and how many blocks there are.
        engine.generate([[0]], SamplingParams(max_tokens=1))
        room = engine.stats().blocks * BLOCK_SLOTS
        yield served, engine, min(room, longest or room)
