"""Vectors of texts by a model of a folder: batches of texts of like lengths, of all who ask, through one compiled program."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import tokenizers

from dhlo import _runtime
from dhlo.errors import CompileError, ContractError, ModelFileError, translate
from dhlo.options import Options, cache_dir
from dhlo.serve.compiling import FolderProgram, naming
from dhlo.serve.pipeline import Pipeline, read_pipeline
from dhlo.serve.types import QueueFullError

if TYPE_CHECKING:
    from dhlo.codegen.backends.artifact import Artifact

__all__ = ["Embedder", "EmbedderStats", "Vectors", "batches_of", "open_embedder"]

_LOG = logging.getLogger("dhlo")

Vectors = npt.NDArray[np.float32]
_Tokens = npt.NDArray[np.int64]

_PADDED: Final = 32  # tokens of padding that a batch may have in any case: fewer cost less than a call
_PADDED_SHARE: Final = 8  # and beside them one in so many
_AHEAD: Final = 4  # so many batches' tokens are put together at a time: of more, those that came first would wait


@dataclass(frozen=True, kw_only=True)
class EmbeddingProgram(FolderProgram):
    """The model of a folder, its pooling and what stands behind it."""

    pipeline: Pipeline
    weights: dict[str, str]
    activations: str = ""

    def compile(self) -> Artifact:
        from dhlo.api import build_entries
        from dhlo.integrations.embedding import Normalize, dense, embedding_program
        from dhlo.integrations.pretrained import load_base

        self.progress("read the weights")
        model = load_base(self.pipeline.folder)
        behind = [
            Normalize() if d is None else dense(d.file, d.inputs, d.outputs, d.bias, d.activation) for d in self.pipeline.behind
        ]
        self.progress("export")
        with naming(self.folder, "an embedding"):
            program = embedding_program(model, self.pipeline.pooling, behind)
        options = Options(
            name=self.folder.resolve().name, cache="", weights=self.weights, activations=self.activations, updatable=False
        )
        return build_entries({"": program}, options, self.progress)[1]

    def about(self) -> Mapping[str, Any]:
        behind = ["normalize" if d is None else [d.inputs, d.outputs, d.bias, d.activation] for d in self.pipeline.behind]
        return {
            "weights": self.weights,
            "activations": self.activations,
            "pooling": list(self.pipeline.pooling),
            "behind": behind,
        }

    def files(self) -> list[Path]:
        return self.pipeline.files()


@dataclass(frozen=True)
class EmbedderStats:
    """What an embedder has done."""

    waiting: int
    """Texts."""
    batches: int
    tokens: int
    padded_tokens: int
    """Of batches, beside `tokens`."""
    seconds: float
    """In calls of the model."""
    failure: str = ""
    """Why there are no vectors to be had any more; empty as long as there are."""


@dataclass
class _Request:
    """Texts whose vectors come together."""

    texts: Sequence[Sequence[int]]
    future: Future[Vectors]
    vectors: Vectors
    left: int = field(init=False)

    def __post_init__(self) -> None:
        self.left = len(self.texts)


def batches_of(lengths: Sequence[int], most_tokens: int) -> list[list[int]]:
    """Numbers of texts that go together, of so many tokens, padding included, but for one text alone: texts of like lengths, so
    that padding costs less than more calls would."""
    order = sorted(range(len(lengths)), key=lambda k: -lengths[k])
    batches, real = list[list[int]](), 0
    for k in order:
        batch = batches[-1] if batches else []
        whole = lengths[batch[0]] * (len(batch) + 1) if batch else 0
        padding = whole - real - lengths[k]
        if batch and whole <= most_tokens and padding <= _PADDED + (real + lengths[k]) // _PADDED_SHARE:
            batch.append(k)
            real += lengths[k]
        else:
            batches.append([k])
            real = lengths[k]
    return batches


class Embedder:
    """Gives vectors of texts, to any threads at once. Their texts go in batches together."""

    def __init__(
        self,
        run: Callable[[_Tokens, _Tokens], Vectors],
        dimensions: int,
        pipeline: Pipeline,
        *,
        name: str = "model",
        max_tokens: int | None = None,
        max_waiting: int = 4096,
        batch_tokens: int = 2048,
    ) -> None:
        """`run` makes vectors [texts, dimensions] of tokens [texts, positions] and lengths [texts], on a thread of the embedder's.
        `max_tokens` of a text, those that the tokenizer adds among them, at most, as the folder says if it is less;
        `max_waiting` texts wait at most; a batch has `batch_tokens`, padding included, or one text. Raises ModelFileError for a
        folder without a tokenizer or a vocabulary's size; CompileError where neither says how long a text may be."""
        self.name, self.pipeline = name, pipeline
        text = pipeline.config.get("text_config")
        config = text if isinstance(text, dict) else pipeline.config
        size, pad = config.get("vocab_size"), pipeline.config.get("pad_token_id")
        if type(size) is not int or size < 1:
            raise ModelFileError(f"'{pipeline.folder / 'config.json'}' doesn't say vocab_size")
        self.vocabulary_size = size
        self._pad = pad if type(pad) is int and 0 <= pad < size else 0  # what is behind a text's end, which nothing looks at
        self.dimensions = dimensions
        """Features of a vector."""
        self.max_tokens = _longest(pipeline, max_tokens)
        """Of a text."""
        self._tokenizer = _tokenizer_of(pipeline.folder)
        self._behind = sum(itertools.takewhile(bool, reversed(self._tokenizer.encode("a").special_tokens_mask)))
        self._call = run
        self._most, self._max_waiting = max(batch_tokens, 1), max_waiting
        self._requests: deque[tuple[_Request, int]] = deque()  # texts that wait, and their requests
        self._taken: list[tuple[_Request, int]] = []  # that the thread has
        self._changed = threading.Condition()
        self._closed = False
        self._stats = EmbedderStats(0, 0, 0, 0, 0.0)
        self._thread = threading.Thread(target=self._work, name="dhlo-embedder", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------ texts to tokens
    def encode(self, text: str, prompt: str | None = None) -> list[int]:
        """The tokens of a text behind the prompt of this name, with those that the tokenizer adds; without a name, behind the
        folder's default one, if it has one. Raises ContractError for prompts that there aren't, and text that isn't Unicode."""
        name = self.pipeline.default_prompt if prompt is None else prompt
        if name is not None and name not in self.pipeline.prompts:
            known = ", ".join(self.pipeline.prompts) or "there are none"
            raise ContractError(f"there is no prompt '{name[:80]}'; prompts: {known}")
        whole = ((self.pipeline.prompts[name] if name is not None else "") + text).strip()  # as sentence-transformers does
        try:
            ids: list[int] = self._tokenizer.encode(whole.lower() if self.pipeline.lower_case else whole).ids
        except (UnicodeError, TypeError) as e:
            raise ContractError(f"the text can't be encoded: {e}") from None
        return ids

    def check(self, tokens: Sequence[int]) -> None:
        """Raises ContractError for tokens of which no vector is to be had."""
        if not len(tokens):
            raise ContractError("a text without tokens has no vector")
        if len(tokens) > self.max_tokens:
            raise ContractError(f"this model's maximum context length is {self.max_tokens} tokens; a text has {len(tokens)}")
        if not all(isinstance(t, int | np.integer) and not isinstance(t, bool) for t in tokens):
            raise ContractError("tokens are integers")
        for token in (min(tokens), max(tokens)):
            if not 0 <= token < self.vocabulary_size:
                raise ContractError(f"{token} is no token: these are 0 to {self.vocabulary_size - 1}")

    # ------------------------------------------------------------------ tokens to vectors
    def embed(
        self,
        texts: str | Sequence[str] | Sequence[Sequence[int]],
        *,
        prompt: str | None = None,
        dimensions: int | None = None,
        truncate: bool = False,
    ) -> Vectors:
        """Vectors [texts, features] of texts, or of the tokens of such. `prompt` names one of the folder's, which texts stand
        behind. `dimensions`: so many features, of a model that was trained for that (Matryoshka, Kusupati et al. 2022), and of
        length 1 if the whole ones are. `truncate`: of longer texts the beginning, and what the tokenizer puts behind
        them. Raises ContractError for what can't be, and
        QueueFullError."""
        many: Sequence[str | Sequence[int]] = [texts] if isinstance(texts, str) else texts
        tokens: list[Sequence[int]] = [self.encode(t, prompt) if isinstance(t, str) else t for t in many]
        if truncate:
            behind = [self._behind if isinstance(t, str) else 0 for t in many]
            tokens = [_beginning(t, self.max_tokens, n) for t, n in zip(tokens, behind, strict=True)]
        self.check_dimensions(dimensions)
        return self.cut(self.submit(tokens).result(), dimensions)

    def check_dimensions(self, dimensions: int | None) -> None:
        """Raises ContractError for more than there are, or none."""
        if dimensions is not None and not 1 <= dimensions <= self.dimensions:
            raise ContractError(f"dimensions: a vector has 1 to {self.dimensions} features, not {dimensions}")

    def cut(self, vectors: Vectors, dimensions: int | None) -> Vectors:
        """The first features, of length 1 if the whole vectors are."""
        if dimensions is None or dimensions == self.dimensions:
            return vectors
        first = vectors[:, :dimensions]
        if self.pipeline.normalized:
            first = first / np.maximum(np.linalg.norm(first, axis=1, keepdims=True), 1e-12)
        return np.ascontiguousarray(first, np.float32)

    def submit(self, texts: Sequence[Sequence[int]]) -> Future[Vectors]:
        """Vectors of texts that are tokens, as soon as they are there; a future that is cancelled is no work any more. Raises
        ContractError, and QueueFullError where as many wait as may, or the embedder is closed."""
        for tokens in texts:
            self.check(tokens)
        return self.enqueue(texts)

    def enqueue(self, texts: Sequence[Sequence[int]]) -> Future[Vectors]:
        """`submit` of texts that were checked. Raises QueueFullError."""
        request = _Request(texts, Future(), np.empty((len(texts), self.dimensions), np.float32))
        if not texts:
            request.future.set_result(request.vectors)
            return request.future
        with self._changed:
            if self._closed:
                raise QueueFullError(self._stats.failure or "the embedder is closed")
            if self._requests and len(self._requests) + len(texts) > self._max_waiting:
                self._requests = deque(x for x in self._requests if not x[0].future.done())
                if self._requests and len(self._requests) + len(texts) > self._max_waiting:
                    raise QueueFullError(f"{len(self._requests)} texts wait, of {self._max_waiting} that may")
            self._requests += [(request, k) for k in range(len(texts))]
            self._changed.notify()
        return request.future

    @property
    def stats(self) -> EmbedderStats:
        """As of now."""
        with self._changed:
            return replace(self._stats, waiting=sum(not r.future.cancelled() for r, _ in self._requests))

    def close(self) -> None:
        """Ends with the batch in work; futures of what waits fail with QueueFullError."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def __enter__(self) -> Embedder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------ the thread
    def _work(self) -> None:
        try:
            self._work_on()
        except Exception as e:  # MemoryError, say
            _LOG.exception("an embedder is closed: batches can't be made")
            with self._changed:
                self._closed = True
                self._stats = replace(self._stats, failure=f"batches can't be made: {type(e).__name__}: {e}")
                rest = [*self._taken, *self._requests]
                self._requests.clear()
            _fail([r for r, _ in rest], QueueFullError(self._stats.failure))

    def _work_on(self) -> None:
        while taken := self._take():
            self._taken = taken
            lengths = [len(request.texts[k]) for request, k in taken]
            for batch in batches_of(lengths, self._most):
                alive = [taken[i] for i in batch if not taken[i][0].future.done()]
                if alive and not self._closed:
                    self._run(alive)
                elif alive:
                    _fail([r for r, _ in alive], QueueFullError("the embedder is closed"))
        with self._changed:
            rest = [r for r, _ in self._requests]
            self._requests.clear()
        _fail(rest, QueueFullError("the embedder is closed"))

    def _take(self) -> list[tuple[_Request, int]]:
        """Those that came first, of some batches; none as soon as the embedder is closed."""
        taken, tokens = list[tuple[_Request, int]](), 0
        with self._changed:
            while not taken and not self._closed:
                self._changed.wait_for(lambda: self._requests or self._closed)
                while self._requests and (not taken or tokens < _AHEAD * self._most):
                    request, k = self._requests.popleft()
                    if not request.future.cancelled():
                        taken.append((request, k))
                        tokens += len(request.texts[k])
        return taken

    def _run(self, batch: Sequence[tuple[_Request, int]]) -> None:
        try:
            lengths = np.array([len(r.texts[k]) for r, k in batch], np.int64)
            ids = np.full((len(batch), int(lengths.max())), self._pad, np.int64)
            for row, (request, k) in zip(ids, batch, strict=True):
                row[: len(request.texts[k])] = request.texts[k]
            start = time.perf_counter()
            vectors = self._call(ids, lengths)
        except Exception as e:  # lists that their caller has changed, too
            _fail([r for r, _ in batch], translate(e))
            return
        seconds, whole, real = time.perf_counter() - start, ids.size, int(lengths.sum())
        with self._changed:
            s = self._stats
            counts = s.batches + 1, s.tokens + real, s.padded_tokens + whole - real, s.seconds + seconds
            self._stats = EmbedderStats(0, *counts, s.failure)
        for vector, (request, k) in zip(vectors, batch, strict=True):
            request.vectors[k] = vector
            request.left -= 1
            if not request.left and request.future.set_running_or_notify_cancel():
                request.future.set_result(request.vectors)


class _Compiled:
    """A compiled program as a function."""

    def __init__(self, model: _runtime.Model) -> None:
        self._session = _runtime.Session(model, capsules=True)
        self.dimensions = int(model.outputs[0]["dims"][1])

    def __call__(self, ids: _Tokens, lengths: _Tokens) -> Vectors:
        (out,) = self._session.run([ids, lengths])
        vectors: Vectors = np.from_dlpack(_Exported(out)).astype(np.float32, copy=False)
        return vectors


class _Exported:
    """A capsule as numpy takes it."""

    def __init__(self, capsule: object) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # the CPU


def _fail(requests: Sequence[_Request], error: Exception) -> None:
    for request in requests:
        if not request.future.done() and request.future.set_running_or_notify_cancel():
            request.future.set_exception(error)


def _beginning(tokens: Sequence[int], most: int, behind: int) -> Sequence[int]:
    """At most so many of them, the last `behind` among these."""
    if len(tokens) <= most:
        return tokens
    kept = min(behind, most)
    return [*tokens[: most - kept], *tokens[len(tokens) - kept :]]


def _longest(pipeline: Pipeline, given: int | None) -> int:
    """Tokens that a text may have. Raises CompileError where nobody says it: a text takes memory with each."""
    known = [n for n in (given, pipeline.max_tokens) if n is not None]
    if not known:
        hint = "say it (--max-positions, or max_tokens), or write model_max_length into tokenizer_config.json"
        raise CompileError(f"'{pipeline.folder}' doesn't say how many tokens a text may have", hint=hint)
    return min(known)


def _tokenizer_of(folder: Path) -> tokenizers.Tokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        hint = "AutoTokenizer.from_pretrained(folder).save_pretrained(folder) writes one where transformers can convert it"
        raise CompileError(f"'{folder}' has no {path.name}", hint=hint)
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as e:  # the library raises Exception itself
        raise ModelFileError(f"'{path}' can't be read as a tokenizer: {e}") from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def open_embedder(
    folder: str | Path,
    *,
    pooling: str | None = None,
    normalize: bool | None = None,
    weights: Mapping[str, str] | None = None,
    activations: str = "",
    cache: str | None = None,
    threads: int = 0,
    progress: Callable[[str], None] = lambda _: None,
    apart: bool = False,
    max_tokens: int | None = None,
    max_waiting: int = 4096,
    batch_tokens: int = 2048,
) -> Embedder:
    """An embedder over the model of a folder as sentence-transformers or transformers saves it: config.json, weights in
    safetensors, tokenizer.json; modules.json and the configs that it names, config_sentence_transformers.json.

    `pooling` and `normalize` stand in place of what the folder says; without modules.json it is the last token of decoders and
    the mean of encoders, of length 1. `weights`, `activations`, `cache`, `threads`, `progress` and `apart` are as in
    `open_folder`, the others as in `Embedder`. Raises CompileError and ModelFileError, which name what the folder lacks or what
    isn't as it should be.
    """
    folder = Path(folder)
    progress("read the folder")
    pipeline = read_pipeline(folder, pooling, normalize)
    _tokenizer_of(pipeline.folder)  # before the work that a folder without one would waste
    _longest(pipeline, max_tokens)
    program = EmbeddingProgram(
        folder=folder,
        threads=threads,
        progress=progress,
        apart=apart,
        pipeline=pipeline,
        weights=dict(weights or {}),
        activations=activations,
    )
    model, _ = program.open(cache_dir() if cache is None else cache)
    compiled = _Compiled(model)
    return Embedder(
        compiled,
        compiled.dimensions,
        pipeline,
        name=folder.resolve().name,
        max_tokens=max_tokens,
        max_waiting=max_waiting,
        batch_tokens=batch_tokens,
    )
