"""Language models from folders of transformers, ready to serve: a compiled step, a tokenizer, a chat template, what ends a text.

The first start compiles, which takes transformers and PyTorch; with a cache, later ones only load what was compiled and import
neither.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from dhlo import _runtime
from dhlo.cache import Cache, compiler_version
from dhlo.errors import CompileError, DhloError, ModelFileError
from dhlo.loading import digest_of, load_artifact, open_model
from dhlo.options import LoraOptions, Options, cache_dir, default_target
from dhlo.serve.chat import ChatTemplate
from dhlo.serve.tokens import Tokenizer

__all__ = ["BLOCK_SLOTS", "Served", "open_folder"]

BLOCK_SLOTS: Final = 16
"""Tokens of a block of the caches' pools."""

_END_SECONDS: Final = 10
_CONFIG: Final = "config.json"
_TOKENIZER: Final = "tokenizer.json"
_TOKENIZER_CONFIG: Final = "tokenizer_config.json"
_GENERATION: Final = "generation_config.json"
_POSITIONS: Final = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")
_DEFAULTS: Final = {"temperature": float, "top_p": float, "top_k": int, "min_p": float, "repetition_penalty": float}
_FORMAT: Final = 1  # of what a key stands for


@dataclass(frozen=True)
class Served:
    """A model of a folder with all that serving it takes."""

    name: str
    step: _runtime.Model
    tokenizer: Tokenizer
    chat: ChatTemplate | None
    """None: the folder has no template."""
    eos_tokens: tuple[int, ...]
    max_positions: int | None
    """Tokens that the model has positions for, as its config and its tables say."""
    defaults: Mapping[str, float] = field(default_factory=dict)
    """Of sampling, by the names of `SamplingParams`, as the folder's generation_config.json says."""
    digest: bytes = b""
    """32 bytes that stand for the step's code and weights: `EngineOptions.model_digest`."""


def open_folder(
    folder: str | Path,
    *,
    weights: Mapping[str, str] | None = None,
    activations: str = "",
    kv_cache: str = "",
    lora: LoraOptions | None = None,
    cache: str | None = None,
    threads: int = 0,
    progress: Callable[[str], None] = lambda _: None,
    apart: bool = False,
) -> Served:
    """The model of a folder with config.json, weights in safetensors, tokenizer.json and, if it has them, a chat template and
    generation_config.json.

    `weights`, `activations`, `kv_cache`, `lora` are as in `dhlo.Options`. `cache` is the folder where the compiled step is kept
    (DHLO_CACHE_DIR by default; "" for nowhere): it is found again as long as the model's files, the options, the compiler and the
    machine are the same. `threads` run each step (0: one per processor). `progress` is told what is being done.
    `apart`: what has to be compiled is compiled in a process of its own, so that this one doesn't keep PyTorch's memory; it is
    started by multiprocessing's "spawn", so the main module must be safe to import.

    Raises CompileError and ModelFileError, which name what the folder lacks or what isn't as it should be.
    """
    folder = Path(folder)
    progress("read the folder")
    config = _config_of(folder)
    text = config.get("text_config") if isinstance(config.get("text_config"), dict) else config
    assert isinstance(text, dict)
    tokenizer = _tokenizer_of(folder, _positive(text, ("vocab_size",)))
    tokenizer_config = _json(folder / _TOKENIZER_CONFIG)
    generation = _json(folder / _GENERATION)
    chat = ChatTemplate.of_folder(folder, tokenizer_config)
    eos = _eos(generation, text, tokenizer_config, tokenizer)
    compiling = _Compiling(folder, dict(weights or {}), activations, kv_cache, lora, threads, progress, apart)
    step, digest = compiling.step(cache_dir() if cache is None else cache)
    return Served(
        name=folder.resolve().name,
        step=step,
        tokenizer=tokenizer,
        chat=chat,
        eos_tokens=eos,
        max_positions=_longest(step, text),
        defaults={k: kind(generation[k]) for k, kind in _DEFAULTS.items() if isinstance(generation.get(k), int | float)},
        digest=digest,
    )


def _config_of(folder: Path) -> dict[str, Any]:
    """The folder's config. Raises CompileError, naming what the folder lacks."""
    if not folder.is_dir():
        hint = f"'{folder}' is a name on the Hub? Download it, and name the folder" if not folder.exists() else None
        raise CompileError(f"'{folder}' is not a folder", hint=hint)
    if not (folder / _CONFIG).is_file():
        raise CompileError(f"'{folder}' has no {_CONFIG}", hint="a folder that save_pretrained has written is what is wanted")
    return _json(folder / _CONFIG)


def _tokenizer_of(folder: Path, size: int | None) -> Tokenizer:
    if not (folder / _TOKENIZER).is_file():
        hint = "AutoTokenizer.from_pretrained(folder).save_pretrained(folder) writes one where transformers can convert it"
        raise CompileError(f"'{folder}' has no {_TOKENIZER}", hint=hint)
    if size is None:
        raise ModelFileError(f"'{folder / _CONFIG}' doesn't say vocab_size")
    return Tokenizer(folder / _TOKENIZER, size)


def _json(path: Path) -> dict[str, Any]:
    """An object of JSON; an empty one where there is no file. Raises ModelFileError."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as e:
        raise ModelFileError(f"'{path}' is no JSON: {e}") from None
    if not isinstance(value, dict):
        raise ModelFileError(f"'{path}' is no object of JSON")
    return value


def _positive(config: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    return next((config[n] for n in names if type(config.get(n)) is int and config[n] > 0), None)


def _longest(step: _runtime.Model, config: Mapping[str, Any]) -> int | None:
    """The positions that there are, as the config and tables of the step say."""
    ends = (_positive(config, _POSITIONS), _positive(json.loads(step.metadata)["paging"], ("max_positions",)))
    return min((n for n in ends if n is not None), default=None)


def _eos(
    generation: Mapping[str, Any], config: Mapping[str, Any], tokenizer_config: Mapping[str, Any], tokenizer: Tokenizer
) -> tuple[int, ...]:
    """What ends a text: the tokens that generation_config.json says, else those of the config; and the tokenizer's."""
    given = generation.get("eos_token_id", config.get("eos_token_id"))
    tokens = [t for t in (given if isinstance(given, list) else [given]) if type(t) is int]
    word = tokenizer_config.get("eos_token")
    number = tokenizer.number_of(word.get("content", "") if isinstance(word, dict) else word) if word else None
    wrong = [t for t in tokens if not 0 <= t < len(tokenizer.vocabulary)]
    if wrong:
        raise ModelFileError(f"eos_token_id {wrong[0]} is no token of a vocabulary of {len(tokenizer.vocabulary)}")
    return tuple(dict.fromkeys([*tokens, *([] if number is None else [number])]))


@dataclass(frozen=True)
class _Compiling:
    """How the step of a folder comes about."""

    folder: Path
    weights: dict[str, str]
    activations: str
    kv_cache: str
    lora: LoraOptions | None
    threads: int
    progress: Callable[[str], None]
    apart: bool = False

    def step(self, cache: str | None) -> tuple[_runtime.Model, bytes]:
        """From the cache, or compiled, and kept there if there is one; and its digest."""
        if self.apart and not cache:
            with tempfile.TemporaryDirectory(prefix="dhlo-") as folder:  # what is open stays
                return self.step(folder)
        kept, key = (Cache(cache), self._key()) if cache else (None, "")
        found = self._find(kept, key)
        if found is None and self.apart and kept is not None and key:
            self._compile_apart(str(cache))
            found = self._find(kept, key)
        if found is not None:
            return found
        artifact = self._compile()
        if kept is not None and key:
            from dhlo.codegen.backends.cpu import link

            self.progress("keep the compiled step")
            about = {"folder": str(self.folder.resolve()), **self._formats}
            path = kept.put_model(key, lambda p: link.write_model(artifact, p), about)
            if path is not None:
                return open_model(path, self.threads), digest_of(path)
        self.progress("pack weights")
        return load_artifact(artifact, self.threads), artifact.digest()

    def _find(self, kept: Cache | None, key: str) -> tuple[_runtime.Model, bytes] | None:
        path = kept.find_model(key) if kept is not None and key else None
        if path is None:
            return None
        try:
            self.progress("load the compiled step")
            return open_model(path, self.threads), digest_of(path)
        except ModelFileError:  # damaged: made anew
            return None

    def _compile_apart(self, cache: str) -> None:
        """Has another process do all of `step`, which leaves its result in the cache. Raises what that raises."""
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe(duplex=False)
        told = replace(self, progress=there.send, apart=False)
        process = context.Process(target=_compile_for, args=(told, cache, there), daemon=True)
        try:
            process.start()
            there.close()
            while (said := here.recv()) is not None:
                if isinstance(said, BaseException):
                    raise said
                self.progress(said)
            process.join(_END_SECONDS)  # or its libraries leave semaphores behind
        except EOFError:
            process.join()
            why = "killed, perhaps for want of memory" if process.exitcode == -9 else f"exit code {process.exitcode}"
            raise CompileError(f"the process that compiles '{self.folder}' has ended: {why}") from None
        finally:
            if process.pid is not None:
                process.terminate()
                process.join()
            here.close()

    def _compile(self) -> Any:
        """The step's code and constants. Raises CompileError and UnsupportedError."""
        self.progress("import PyTorch and transformers")
        try:
            from dhlo.integrations.decoder import step_pages, step_program
            from dhlo.integrations.pretrained import load_folder
        except ImportError as e:
            raise CompileError(
                f"compiling a folder needs the library transformers: {e}", hint="pip install 'dhlo[serve]'"
            ) from None
        from dhlo.api import build_entries

        self.progress("read the weights")
        model = load_folder(self.folder)
        self.progress("export")
        with _naming(self.folder):
            program = step_program(model)
            options = Options(
                name=self.folder.resolve().name,
                cache="",  # the model file is what is kept
                pages=step_pages(model, BLOCK_SLOTS),
                **self._formats,
                lora=self.lora,
                updatable=False,
            )
            _, artifact = build_entries({"": program}, options, self.progress)
        return artifact

    @property
    def _formats(self) -> dict[str, Any]:
        """Options of the compiler that say in what form numbers are kept and multiplied."""
        return {"weights": self.weights, "activations": self.activations, "kv_cache": self.kv_cache}

    def _key(self) -> str:
        """SHA-256 of what the compiled step depends on; the files of the model by what tells them from changed ones. "" where that
        can't be read."""
        formats = self._formats | {"weights": list(self.weights.items())}
        parts = [_FORMAT, compiler_version(), default_target(), _machine(), formats]
        if self.lora is not None:
            parts.append((self.lora.max_rank, self.lora.max_adapters, *self.lora.targets))
        try:
            files = sorted(
                [self.folder / _CONFIG, *self.folder.glob("*.safetensors"), *self.folder.glob("*.safetensors.index.json")]
            )
            parts += [str(self.folder.resolve()), [(f.name, *_mark(f)) for f in files]]
        except OSError:
            return ""
        return hashlib.sha256(repr(parts).encode()).hexdigest() if parts[1] else ""


def _compile_for(compiling: _Compiling, cache: str, parent: Connection) -> None:
    """Of a process that compiles for another one: sends what is being done, and last None, or the error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # which the other one gets, too, and ends this one
    try:
        compiling.step(cache)
    except BrokenPipeError:  # nobody waits for it
        return
    except DhloError as e:
        parent.send(e)
    else:
        parent.send(None)


def _mark(path: Path) -> tuple[int, ...]:
    info = path.stat()
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns


def _machine() -> str:
    """What the processor is and can do, as the system says: `native` code is made for it."""
    names = {"vendor_id", "cpu family", "model", "flags", "CPU implementer", "CPU part", "Features"}
    try:
        first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    except OSError:
        return ""
    return "\n".join(line for line in first.splitlines() if line.partition(":")[0].strip() in names)


@contextmanager
def _naming(folder: Path) -> Iterator[None]:
    """What the model itself raises as it is exported becomes an error that says so."""
    try:
        yield
    except DhloError:
        raise
    except Exception as e:  # whatever torch.export raises
        raise CompileError(f"the model in '{folder}' can't be exported as a step: {type(e).__name__}: {e}") from e
