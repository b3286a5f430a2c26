"""Language models from folders of transformers, ready to serve: a compiled step, a tokenizer, a chat template, what ends a text.

The first start compiles, which takes transformers and PyTorch; with a cache, later ones only load what was compiled and import
neither.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from dhlo import _runtime
from dhlo.errors import CompileError, ContractError, ModelFileError
from dhlo.options import LoraOptions, Options, cache_dir
from dhlo.serve.chat import ChatTemplate
from dhlo.serve.compiling import FolderProgram, naming
from dhlo.serve.speech import Speech
from dhlo.serve.tokens import Tokenizer

if TYPE_CHECKING:
    from dhlo.codegen.backends.artifact import Artifact

__all__ = [
    "BLOCK_SLOTS",
    "Served",
    "StepProgram",
    "config_of",
    "hears",
    "need_decoder",
    "open_folder",
    "read_object",
    "read_value",
    "weight_files",
]

BLOCK_SLOTS: Final = 16
"""Tokens of a block of the caches' pools."""

ENCODER: Final = "encoder"  # an entry of the step's model

_CONFIG: Final = "config.json"
_TOKENIZER: Final = "tokenizer.json"
_TOKENIZER_CONFIG: Final = "tokenizer_config.json"
_GENERATION: Final = "generation_config.json"
_PREPROCESSOR: Final = "preprocessor_config.json"
_PROCESSOR: Final = "processor_config.json"  # transformers 5 writes that of features into it
_SOURCE: Final = 1024  # tokens of a source, where the config has no number of positions
_POSITIONS: Final = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")
_DEFAULTS: Final = {"temperature": float, "top_p": float, "top_k": int, "min_p": float, "repetition_penalty": float}


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
    encoder: _runtime.Model | None = None
    """Of an encoder-decoder: `EngineOptions.encoder`."""
    begin: tuple[int, ...] = ()
    """What texts of an encoder-decoder of texts begin with."""
    never: tuple[int, ...] = ()
    """Tokens that no text has, as generation_config.json says."""
    max_source_positions: int | None = None
    """Tokens of a source: `EngineOptions.max_source_positions`."""
    speech: Speech | None = None
    """Of a model that hears, whose sources are recordings."""

    def request(self, tokens: Sequence[int]) -> tuple[Sequence[int], dict[str, Any] | None]:
        """The prompt and inputs that an engine is asked with about a text: the text itself, which is continued, or for an
        encoder-decoder what its answer begins with, and the text for the encoder. Raises ContractError for models that read no
        texts."""
        if self.encoder is None:
            return tokens, None
        (name,) = (x["name"] for x in self.encoder.inputs)
        if name != "input_ids":
            raise ContractError(f"'{self.name}' has no {_PREPROCESSOR}, which says how recordings become {name}")
        return self.begin, {name: np.array([tokens], np.int64)}

    def example(self) -> tuple[Sequence[int], dict[str, Any] | None]:
        """The same of the least that can be asked."""
        if self.speech is not None:
            return [self.speech.begin], {"input_features": self.speech.features(np.zeros(0, np.float32))}
        return self.request([0])


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
    shard: tuple[int, int] | None = None,
) -> Served:
    """The model of a folder with config.json, weights in safetensors, tokenizer.json and, if it has them, a chat template and
    generation_config.json: a decoder, or an encoder-decoder of texts (T5, BART, ...) or of speech (Whisper).

    `weights`, `activations`, `kv_cache`, `lora` are as in `dhlo.Options`. `cache` is the folder where the compiled step is kept
    (DHLO_CACHE_DIR by default; "" for nowhere): it is found again as long as the model's files, the options, the compiler and the
    machine are the same. `threads` run each step (0: one per processor). `progress` is told what is being done.
    `apart`: what has to be compiled is compiled in a process of its own, so that this one doesn't keep PyTorch's memory; it is
    started by multiprocessing's "spawn", so the main module must be safe to import. `shard`: a process's number and how many there
    are: the step is that process's shard of the model (`dhlo.serve.shards`), in the process group "tp".

    Raises CompileError and ModelFileError, which name what the folder lacks or what isn't as it should be.
    """
    folder = Path(folder)
    progress("read the folder")
    config = config_of(folder)
    text = config.get("text_config") if isinstance(config.get("text_config"), dict) else config
    assert isinstance(text, dict)
    tokenizer = _tokenizer_of(folder, _positive(text, ("vocab_size",)))
    tokenizer_config = read_object(folder / _TOKENIZER_CONFIG)
    generation = read_object(folder / _GENERATION)
    chat = ChatTemplate.of_folder(folder, tokenizer_config)
    if chat is not None:
        tokenizer.show(chat.marks)
    eos = _eos(generation, text, tokenizer_config, tokenizer)
    formats: dict[str, Any] = {"weights": dict(weights or {}), "activations": activations, "kv_cache": kv_cache}
    program = StepProgram(folder=folder, threads=threads, progress=progress, apart=apart, lora=lora, shard=shard, **formats)
    features = _features(folder, config)
    speech = None if features is None else Speech.of(*features, text, generation, tokenizer)
    if speech is not None:
        tokenizer.empty(speech.times)
    of_texts = speech is None and config.get("is_encoder_decoder") is True
    step, digest = program.open(cache_dir() if cache is None else cache)
    return Served(
        name=folder.resolve().name,
        step=step,
        tokenizer=tokenizer,
        chat=chat,
        eos_tokens=eos,
        max_positions=_longest(step, text),
        defaults={k: kind(generation[k]) for k, kind in _DEFAULTS.items() if isinstance(generation.get(k), int | float)},
        digest=digest,
        encoder=step.entry(ENCODER) if ENCODER in step.entries else None,
        begin=_begin(generation, text, folder) if of_texts else (),
        never=_never(generation, len(tokenizer.vocabulary)) if speech is None else (),
        max_source_positions=(_positive(text, _POSITIONS) or _SOURCE) if of_texts else None,
        speech=speech,
    )


def weight_files(folder: Path) -> list[Path]:
    """What decides of which weights, in which module, a program is compiled."""
    return [folder / _CONFIG, *folder.glob("*.safetensors"), *folder.glob("*.safetensors.index.json")]


def config_of(folder: Path) -> dict[str, Any]:
    """The folder's config. Raises CompileError, naming what the folder lacks."""
    if not folder.is_dir():
        hint = f"'{folder}' is a name on the Hub? Download it, and name the folder" if not folder.exists() else None
        raise CompileError(f"'{folder}' is not a folder", hint=hint)
    if not (folder / _CONFIG).is_file():
        raise CompileError(f"'{folder}' has no {_CONFIG}", hint="a folder that save_pretrained has written is what is wanted")
    return read_object(folder / _CONFIG)


def hears(folder: str | Path) -> bool:
    """Whether a folder holds an encoder-decoder of speech. Raises what `config_of` raises."""
    return _features(Path(folder), config_of(Path(folder))) is not None


def _features(folder: Path, config: Mapping[str, Any]) -> tuple[Mapping[str, Any], Path] | None:
    """What a folder says of how recordings become features, and the file; None unless it is an encoder-decoder that reads such."""
    if config.get("is_encoder_decoder") is not True:
        return None
    if (folder / _PREPROCESSOR).is_file():
        return read_object(folder / _PREPROCESSOR), folder / _PREPROCESSOR
    said = read_object(folder / _PROCESSOR).get("feature_extractor")
    return (said, folder / _PROCESSOR) if isinstance(said, Mapping) else None


def need_decoder(folder: str | Path) -> None:
    """Raises ContractError for the folder of an encoder-decoder, and what `config_of` raises: before anything is compiled."""
    if config_of(Path(folder)).get("is_encoder_decoder") is True:
        raise ContractError(f"'{folder}' holds an encoder-decoder, where a decoder is needed")


def _tokenizer_of(folder: Path, size: int | None) -> Tokenizer:
    if not (folder / _TOKENIZER).is_file():
        hint = "AutoTokenizer.from_pretrained(folder).save_pretrained(folder) writes one where transformers can convert it"
        raise CompileError(f"'{folder}' has no {_TOKENIZER}", hint=hint)
    if size is None:
        raise ModelFileError(f"'{folder / _CONFIG}' doesn't say vocab_size")
    return Tokenizer(folder / _TOKENIZER, size)


def read_object(path: Path) -> dict[str, Any]:
    """An object of JSON; an empty one where there is no file. Raises ModelFileError."""
    value = read_value(path)
    if value is not None and not isinstance(value, dict):
        raise ModelFileError(f"'{path}' is no object of JSON")
    return value or {}


def read_value(path: Path) -> Any:
    """What a file of JSON says; None where there is none. Raises ModelFileError."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as e:
        raise ModelFileError(f"'{path}' is no JSON: {e}") from None


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


def _begin(generation: Mapping[str, Any], config: Mapping[str, Any], folder: Path) -> tuple[int, ...]:
    """What an encoder-decoder's texts begin with. Raises ModelFileError where nothing says so."""
    start = generation.get("decoder_start_token_id", config.get("decoder_start_token_id"))
    if type(start) is not int:
        raise ModelFileError(f"'{folder}': neither {_GENERATION} nor {_CONFIG} says decoder_start_token_id")
    forced = generation.get("forced_bos_token_id", config.get("forced_bos_token_id"))
    return (start, forced) if type(forced) is int else (start,)


def _never(generation: Mapping[str, Any], size: int) -> tuple[int, ...]:
    """Tokens that are suppressed, or bad words of one token."""
    words = [w[0] for w in generation.get("bad_words_ids") or [] if isinstance(w, list) and len(w) == 1]
    tokens = [*(generation.get("suppress_tokens") or []), *words]
    return tuple(dict.fromkeys(t for t in tokens if type(t) is int and 0 <= t < size))


@dataclass(frozen=True, kw_only=True)
class StepProgram(FolderProgram):
    """The step of a decoder over pools of blocks."""

    weights: dict[str, str]
    activations: str = ""
    kv_cache: str = ""
    lora: LoraOptions | None = None
    shard: tuple[int, int] | None = None

    def compile(self) -> Artifact:
        from dhlo.api import build_entries
        from dhlo.integrations.decoder import step_pages, step_program
        from dhlo.integrations.encoder_decoder import cross_step_pages, cross_step_program, is_encoder_decoder, source_program
        from dhlo.integrations.pretrained import load_folder

        self.progress("read the weights")
        model = load_folder(self.folder)
        if self.shard is not None:
            from dhlo.integrations.shards import shard_decoder

            model = shard_decoder(model, *self.shard)
        self.progress("export")
        with naming(self.folder, "a step"):
            if is_encoder_decoder(model):
                if self.lora is not None:
                    raise CompileError(f"lora: '{self.folder}' holds an encoder-decoder, which has no room for adapters")
                programs = {"decoder": cross_step_program(model), ENCODER: source_program(model)}
                pages = cross_step_pages(BLOCK_SLOTS)
            else:
                programs, pages = {"": step_program(model)}, step_pages(model, BLOCK_SLOTS)
            options = Options(
                name=self.folder.resolve().name,
                cache="",  # the model file is what is kept
                pages=pages,
                **self._formats,
                lora=self.lora,
                updatable=False,
            )
            _, artifact = build_entries(programs, options, self.progress)
        return artifact

    @property
    def _formats(self) -> dict[str, Any]:
        """Options of the compiler that say in what form numbers are kept and multiplied."""
        return {"weights": self.weights, "activations": self.activations, "kv_cache": self.kv_cache}

    def about(self) -> dict[str, Any]:
        lora = self.lora
        room = {} if lora is None else {"lora": [lora.max_rank, lora.max_adapters, *lora.targets]}
        shard = {} if self.shard is None else {"shard": list(self.shard)}
        return self._formats | room | shard

    def files(self) -> list[Path]:
        return weight_files(self.folder)
