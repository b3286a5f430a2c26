"""`dhlo serve` and `dhlo generate`: a language model from a folder, for clients of OpenAI's interface or on the terminal."""

from __future__ import annotations

import importlib
import math
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

from dhlo.commands.console import console
from dhlo.commands.options import AdapterRoom, Model, Serving, Task, weight_formats
from dhlo.errors import ContractError, DhloError
from dhlo.options import LoraOptions
from dhlo.progress import reporter

if TYPE_CHECKING:
    from dhlo.distributed import Communicator
    from dhlo.serve.doors import ServerOptions
    from dhlo.serve.engine import Engine
    from dhlo.serve.folder import Served

__all__ = ["generate_text", "need_speech", "needing_extra", "serve_folder", "working"]

_FOLDER_BYTES: Final = 16 << 30  # of --cache-folder, where nothing else is said
_RECORDING_BYTES: Final = 26 << 20  # OpenAI's 25 MB, and what a form has around them
_ANY_POSITIONS: Final = 2**31 - 1  # as many as an engine takes whose pools aren't what bounds a sequence


def serve_folder(
    model: Model,
    load: Serving,
    task: Task,
    *,
    host: str,
    port: int,
    name: str | None,
    api_keys: Sequence[str],
    max_tokens: int | None,
    drain_seconds: float,
    room: AdapterRoom,
    load_adapters: bool,
) -> None:
    """Serves the model in a folder on `host` and `port` (0: any that is free) until it is told to end (SIGINT, SIGTERM).

    Raises DhloError, and OSError where the port isn't to be had.
    """
    with needing_extra():
        from dhlo.serve.folder import hears
        from dhlo.serve.pipeline import is_embedder
        from dhlo.serve.server import ServerOptions, make_app, run_server
    if any(not key.strip() for key in api_keys):
        raise DhloError("--api-key: an empty key guards nothing")
    if task.task not in ("auto", "generate", "embed"):
        raise DhloError(f"--task: '{task.task}' is none of auto, generate, embed")
    if task.task == "embed" or (task.task == "auto" and is_embedder(model.folder)):
        others = {"--max-tokens": max_tokens is not None, "--allow-lora-loading": load_adapters}
        _check_embedding(model, load, room, [option for option, given in others.items() if given])
        options = ServerOptions(name=name, api_keys=tuple(api_keys), drain_seconds=drain_seconds)
        _serve_embedder(model, load, task, host, port, options)
        return
    if task.pooling is not None or task.normalize is not None:
        option = "--pooling" if task.pooling is not None else "--normalize"
        raise DhloError(f"{option}: '{model.folder}' continues texts; --task embed, if it shall make vectors of them")
    if hears(model.folder):
        need_speech()
    adapters, lora = _adapters_of(room)
    if load_adapters and lora is None:
        raise DhloError("--allow-lora-loading: there is room for no adapter; --max-loras says for how many")
    with _listening(host, port) as listening, working(model, load, adapters, lora) as (served, engine, positions):
        options = ServerOptions(
            name=name,
            api_keys=tuple(api_keys),
            max_tokens=max_tokens,
            max_positions=positions,
            drain_seconds=drain_seconds,
            adapters=adapters,
            load_adapters=load_adapters,
            **({} if served.speech is None else {"max_body_bytes": _RECORDING_BYTES}),
        )
        if options.adapters.keys() & {name or served.name}:
            raise DhloError(f"--lora-modules: '{name or served.name}' is the model's own name")
        app = make_app(engine, served, options)
        blocks = engine.stats().blocks
        shown = f"[{host}]" if ":" in host else host
        console().print(f"{name or served.name}: {blocks} blocks of 16 tokens, up to {positions} tokens in a sequence")
        console().print(f"http://{shown}:{listening.getsockname()[1]}/v1", soft_wrap=True)
        run_server(app, listening, options)


def _serve_embedder(model: Model, load: Serving, task: Task, host: str, port: int, options: ServerOptions) -> None:
    with needing_extra():
        from dhlo.serve.doors import run_server
        from dhlo.serve.embed import open_embedder
        from dhlo.serve.embedding_server import make_embedding_app
    with _listening(host, port) as listening:
        with reporter(bool(model.progress), "ready") as tell, needing_extra():
            embedder = open_embedder(
                model.folder,
                pooling=task.pooling,
                normalize=task.normalize,
                weights=weight_formats(model.weights),
                activations=model.activations,
                cache=model.cache,
                threads=model.threads,
                progress=tell,
                apart=True,
                max_tokens=model.max_positions,
                max_waiting=load.max_waiting,
            )
        with embedder:
            name = options.name or embedder.name
            console().print(f"{name}: vectors of {embedder.dimensions} features, up to {embedder.max_tokens} tokens in a text")
            shown = f"[{host}]" if ":" in host else host
            console().print(f"http://{shown}:{listening.getsockname()[1]}/v1", soft_wrap=True)
            run_server(make_embedding_app(embedder, options), listening, options)


_OF_EMBEDDERS: Final = {"folder", "weights", "activations", "cache", "max_positions", "threads", "progress", "max_waiting"}


def _check_embedding(model: Model, load: Serving, room: AdapterRoom, others: Sequence[str]) -> None:
    """Raises DhloError for options of models that continue texts."""
    given = [
        f"--{f.name.replace('_', '-')}"
        for group in (model, load, room)
        for f in fields(group)
        if f.name not in _OF_EMBEDDERS and getattr(group, f.name) != f.default
    ]
    for option in (*others, *given):
        raise DhloError(f"{option}: '{model.folder}' makes vectors of texts; --task generate, if it can continue them, too")


def generate_text(
    model: Model,
    text: str,
    *,
    chat: bool,
    max_tokens: int,
    temperature: float | None,
    seed: int | None,
    stop: Sequence[str],
    room: AdapterRoom,
    adapter: str | None,
    beams: int = 0,
) -> None:
    """Writes what follows a text, or with `chat` the answer to it, as it comes, by an adapter if there is one. Raises DhloError."""
    with needing_extra():
        from dhlo.serve.tokens import TextStream
        from dhlo.serve.types import FinishReason, SamplingParams
    adapters, lora = _adapters_of(room)
    chosen_adapter = _choose(adapter, adapters)
    with working(model, Serving(), adapters, lora) as (served, engine, positions):
        if served.speech is not None:
            raise ContractError(f"'{model.folder}' reads recordings: dhlo transcribe")
        if chat and served.chat is None:
            raise ContractError(f"'{model.folder}' has no chat template: leave out --chat")
        if chat and served.chat is not None:
            prompt = served.tokenizer.encode(served.chat.render([{"role": "user", "content": text}]), special=False)
        else:
            prompt = served.tokenizer.encode(text)
        begin, inputs = served.request(prompt)
        if not (prompt and 0 < len(begin) < positions):
            raise ContractError(f"the text has {len(prompt)} tokens; 1 to {positions - 1} are taken")
        given: dict[str, Any] = {"temperature": temperature, "seed": seed, "adapter": chosen_adapter}
        kept = ("repetition_penalty",) if beams else tuple(served.defaults)  # what draws nothing
        chosen = {k: v for k, v in served.defaults.items() if k in kept} | {k: v for k, v in given.items() if v is not None}
        params = SamplingParams(
            **{**chosen, "max_tokens": min(max_tokens, positions - len(begin)), "stop": tuple(stop), "beam_width": beams},
            logit_bias=dict.fromkeys(served.never, -math.inf),
        )
        stream = TextStream(served.tokenizer.vocabulary, served.eos_tokens)
        request = engine.submit(begin, params, inputs)
        try:
            for event in request:
                if event.finish is FinishReason.ERROR:
                    raise DhloError(event.error or "the step failed")
                print(stream.read(event), end="", flush=True)
        finally:
            request.cancel()
            print()


def _adapters_of(room: AdapterRoom) -> tuple[dict[str, str], LoraOptions | None]:
    """The folders of adapters by name, and the room that the step is to have. Raises DhloError."""
    given = room.lora_modules or []
    pairs = [text.partition("=") for text in given]
    adapters = {name: folder for name, _, folder in pairs}
    if len(adapters) < len(pairs) or not all(name and folder for name, _, folder in pairs):
        raise DhloError(f"--lora-modules: each is NAME=FOLDER, with a name of its own, got {', '.join(given)}")
    most = room.max_loras or len(adapters)
    if len(adapters) > most:
        raise DhloError(f"--max-loras: there is room for {most} adapters, and --lora-modules names {len(adapters)}")
    if not most:
        if room.max_lora_rank is not None:
            raise DhloError("--max-lora-rank: there are no adapters; --lora-modules names some, --max-loras makes room for some")
        return adapters, None
    return adapters, LoraOptions(max_rank=room.max_lora_rank or LoraOptions.max_rank, max_adapters=most)


def _choose(name: str | None, adapters: Mapping[str, str]) -> str:
    """The adapter that `--adapter` names, or the only one; "" if there is none. Raises DhloError."""
    if name is None and len(adapters) > 1:
        raise DhloError(f"--adapter: which one of {', '.join(adapters)}?")
    if name is not None and name not in adapters:
        raise DhloError(f"--adapter: '{name}' is none of --lora-modules ({', '.join(adapters) or 'there are none'})")
    return name or next(iter(adapters), "")


def _check_alone(model: Model, load: Serving) -> None:
    """Raises DhloError for options that have no effect without others."""
    if load.preemption not in ("recompute", "swap"):
        raise DhloError(f"--preemption: '{load.preemption}' is neither recompute nor swap")
    if model.evict_by not in (None, "recent", "norms"):
        raise DhloError(f"--evict-by: '{model.evict_by}' is neither recent nor norms")
    for name, given, without, needed in (
        ("--draft-tokens", model.draft_tokens, model.draft_model is None, "--draft-model"),
        ("--draft-branches", model.draft_branches, model.draft_model is None, "--draft-model"),
        ("--cache-folder-gb", model.cache_folder_gb, model.cache_folder is None, "--cache-folder"),
        ("--swap-gb", load.swap_gb, load.preemption != "swap", "--preemption swap"),
        ("--evict-sinks", model.evict_sinks, model.evict_to is None, "--evict-to"),
        ("--evict-recent", model.evict_recent, model.evict_to is None, "--evict-to"),
        ("--evict-by", model.evict_by, model.evict_to is None, "--evict-to"),
    ):
        if given is not None and without:
            raise DhloError(f"{name}: does nothing without {needed}")


@contextmanager
def needing_extra(extra: str = "serve") -> Iterator[None]:
    """A library that isn't there becomes an error that says what to install."""
    try:
        yield
    except ImportError as e:
        if e.name is None or e.name.startswith("dhlo"):
            raise
        doing = "serving" if extra == "serve" else extra
        raise DhloError(f"{doing} needs the library {e.name.partition('.')[0]}: pip install 'dhlo[{extra}]'") from None


def need_speech() -> None:
    """Raises DhloError where the libraries aren't there that recordings take."""
    with needing_extra("speech"):
        for name in ("python_multipart", "soundfile", "soxr"):
            importlib.import_module(name)


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
def working(
    model: Model, load: Serving, adapters: Mapping[str, str], lora: LoraOptions | None
) -> Iterator[tuple[Served, Engine, int]]:
    """A folder's model, an engine over it that has adapters, and how many tokens it takes in a sequence. Raises DhloError."""
    _check_alone(model, load)
    with needing_extra():
        from dhlo.serve.engine import Engine
        from dhlo.serve.folder import BLOCK_SLOTS, need_decoder
        from dhlo.serve.stores import open_store
        from dhlo.serve.types import EngineOptions, SamplingParams
    if model.draft_model is not None:
        need_decoder(model.draft_model)
    store = None if model.cache_store is None else open_store(model.cache_store)
    drafting = None
    if model.draft_model is not None:  # first: once other processes have their shards, they don't wait for what takes long
        with reporter(bool(model.progress), "draft model ready") as tell, needing_extra():
            drafting = _draft_model(model, tell)
    with _opened(model, load, lora) as (served, communicator):
        if drafting is not None and drafting.tokenizer.vocabulary != served.tokenizer.vocabulary:
            raise ContractError(f"--draft-model: '{model.draft_model}' has other tokens than '{model.folder}'")
        longest = min((n for n in (served.max_positions, model.max_positions) if n is not None), default=None)
        options = EngineOptions(
            cache_bytes=_bytes(model.cache_gb),
            max_step_tokens=load.max_step_tokens,
            max_sequences=load.max_sequences,
            max_waiting=load.max_waiting,
            max_positions=longest,
            eos_tokens=served.eos_tokens,
            vocabulary=served.tokenizer.vocabulary,
            prompt_lookup=model.prompt_lookup,
            cache_folder=None if model.cache_folder is None else str(model.cache_folder),
            cache_folder_bytes=_FOLDER_BYTES if model.cache_folder_gb is None else int(model.cache_folder_gb * (1 << 30)),
            model_digest=served.digest,
            draft_model=None if drafting is None else drafting.step,
            draft_tokens=min(model.draft_tokens or EngineOptions.draft_tokens, load.max_step_tokens),
            draft_branches=model.draft_branches or EngineOptions.draft_branches,
            draft_max_positions=None if drafting is None else drafting.max_positions,
            cache_store=store,
            preemption="swap" if load.preemption == "swap" else "recompute",
            swap_bytes=_bytes(load.swap_gb),
            communicator=communicator,
            evict_to=model.evict_to,
            evict_sinks=EngineOptions.evict_sinks if model.evict_sinks is None else model.evict_sinks,
            evict_recent=EngineOptions.evict_recent if model.evict_recent is None else model.evict_recent,
            evict_by="norms" if model.evict_by == "norms" else "recent",
            encoder=served.encoder,
            max_source_positions=served.max_source_positions,
        )
        with Engine(served.step, options) as engine:
            for name, folder in adapters.items():
                engine.load_adapter(name, folder)
            # A first step reads the weights, says whether steps work here, and how many blocks there are.
            prompt, inputs = served.example()
            engine.generate([prompt], SamplingParams(max_tokens=1), None if inputs is None else [inputs])
            room = engine.stats().blocks * BLOCK_SLOTS if model.evict_to is None else _ANY_POSITIONS
            yield served, engine, min(room, longest or room)


@contextmanager
def _opened(model: Model, load: Serving, lora: LoraOptions | None) -> Iterator[tuple[Served, Communicator | None]]:
    """A folder's model; where several processes share it, this one's shard, and what connects it to the others, which end with
    this."""
    from dhlo.serve.folder import open_folder

    how: dict[str, Any] = {
        "weights": weight_formats(model.weights),
        "activations": model.activations,
        "kv_cache": model.kv_cache,
        "lora": lora,
        "cache": model.cache,
        "apart": True,
    }
    if load.tensor_parallel == 1:
        with reporter(bool(model.progress), "ready") as tell, needing_extra():
            served = open_folder(model.folder, threads=model.threads, progress=tell, **how)
        yield served, None
        return
    from dhlo.serve.followers import Followers

    with Followers(model.folder, load.tensor_parallel, threads=model.threads, **how) as followers:
        with reporter(bool(model.progress), "ready") as tell, needing_extra():
            opened = followers.open(tell)
        yield opened


def _bytes(gigabytes: float | None) -> int | None:
    return None if gigabytes is None else int(gigabytes * (1 << 30))


def _draft_model(model: Model, tell: Callable[[str], None]) -> Served:
    """The model that drafts for another one."""
    from dhlo.serve.folder import open_folder

    assert model.draft_model is not None
    formats = {name: form for name, form in weight_formats(model.weights).items() if name == "default"}
    return open_folder(
        model.draft_model,
        weights=formats,
        activations=model.activations if formats else "",
        kv_cache=model.kv_cache,
        cache=model.cache,
        threads=model.threads,
        progress=lambda what: tell(f"draft model: {what}"),
        apart=True,
    )
