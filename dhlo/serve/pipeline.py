"""How a folder turns texts into vectors, as sentence-transformers writes it down; nothing of it is run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from dhlo.errors import CompileError, ModelFileError
from dhlo.serve.folder import config_of, read_object, read_value, weight_files

__all__ = ["POOLING", "Dense", "Pipeline", "is_embedder", "read_pipeline"]

POOLING: Final = ("cls", "max", "mean_tokens", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
"""Ways to make one vector of those of all tokens, in the order in which several stand behind each other."""

_SHORT: Final = {"mean": "mean_tokens", "mean_sqrt_len": "mean_sqrt_len_tokens", "last": "lasttoken", "cls_token": "cls"}
_MODULES: Final = "modules.json"
_PROMPTS: Final = "config_sentence_transformers.json"
_SENTENCES: Final = "sentence_bert_config.json"
_ACTIVATIONS: Final = ("Identity", "Tanh", "ReLU", "GELU")
_GENERATE: Final = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
_EMBED: Final = ("Model", "ForMaskedLM", "ForPreTraining")
_POSITIONS: Final = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")
# Their tables of positions begin behind the number of the pad token.
_BEHIND_PAD: Final = {
    "camembert",
    "data2vec-text",
    "mpnet",
    "roberta",
    "roberta-prelayernorm",
    "xlm-roberta",
    "xlm-roberta-xl",
    "xmod",
}
_MOST: Final = 1 << 20  # tokens of a text: numbers above say that there is no limit


@dataclass(frozen=True)
class Dense:
    """A layer behind the pooling."""

    folder: Path
    inputs: int
    outputs: int
    bias: bool
    activation: str

    @property
    def file(self) -> Path:
        """Of its weights."""
        return self.folder / "model.safetensors"


@dataclass(frozen=True)
class Pipeline:
    """A model, and what is done with the vectors of its tokens."""

    folder: Path
    """Of the model and its tokenizer."""
    config: Mapping[str, Any]
    pooling: tuple[str, ...]
    behind: tuple[Dense | None, ...]
    """Layers, and where there is None, vectors become of length 1."""
    max_tokens: int | None
    lower_case: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None

    @property
    def normalized(self) -> bool:
        """Whether vectors are of length 1."""
        return bool(self.behind) and self.behind[-1] is None

    def files(self) -> list[Path]:
        """That decide what is compiled."""
        return [*weight_files(self.folder), *(d.file for d in self.behind if d is not None)]


def is_embedder(folder: Path) -> bool:
    """Whether a folder's model makes vectors of texts: it has modules.json, or its architecture has no head, or one that such
    models are trained with. Raises CompileError, ModelFileError."""
    if (folder / _MODULES).is_file():
        return True
    names = config_of(folder).get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else ""
    return name.endswith(_EMBED) and not name.endswith(_GENERATE)


def read_pipeline(folder: Path, pooling: str | None = None, normalize: bool | None = None) -> Pipeline:
    """What a folder says, or `pooling` (a name of POOLING, or mean or last) and `normalize`. A folder without modules.json takes
    the last token if its model is a decoder, else the mean, and makes vectors of length 1. Raises CompileError, ModelFileError."""
    if not folder.is_dir():
        hint = f"'{folder}' is a name on the Hub? Download it, and name the folder" if not folder.exists() else None
        raise CompileError(f"'{folder}' is not a folder", hint=hint)
    stages = _stages(folder)
    model = stages[0][1] if stages else folder
    config = config_of(model)
    said = read_object(folder / _PROMPTS)
    kinds, behind = list[str](), list[Dense | None]()
    for kind, path in stages[1:]:
        match kind:
            case "Pooling" if not kinds:
                if behind:
                    raise CompileError(f"'{folder / _MODULES}' has other modules before its Pooling, which isn't supported")
                kinds = _pooling_of(path / "config.json", bool(said.get("prompts")))
            case "Normalize":
                behind.append(None)
            case "Dense":
                behind.append(_dense_of(path))
            case "Dropout":
                pass
            case _:
                raise CompileError(f"'{folder / _MODULES}' has a {kind}, which isn't supported: Pooling, Dense and Normalize are")
    if not stages:
        behind = [None]
    elif not kinds and pooling is None:
        hint = "name the pooling that it is meant to have (--pooling)"
        raise CompileError(f"'{folder / _MODULES}' has no Pooling, and so gives no vector of a text", hint=hint)
    if pooling is not None:
        kinds = [_SHORT.get(pooling, pooling)]
        if kinds[0] not in POOLING:
            raise CompileError(f"pooling: '{pooling}' is none of {', '.join(POOLING)}")
    if normalize is not None:
        while behind and behind[-1] is None:
            behind.pop()
        behind += [None] if normalize else []
    sentences = read_object(model / _SENTENCES)
    prompts, default = _prompts_of(folder / _PROMPTS, said)
    return Pipeline(
        folder=model,
        config=config,
        pooling=tuple(kinds) or ("lasttoken" if _is_decoder(config) else "mean_tokens",),
        behind=tuple(behind),
        max_tokens=_longest(model, config, sentences),
        lower_case=sentences.get("do_lower_case") is True,
        prompts=prompts,
        default_prompt=default,
    )


def _stages(folder: Path) -> list[tuple[str, Path]]:
    """Kinds and folders of modules.json, of which the first is the model; none where there is no such file."""
    path = folder / _MODULES
    value = read_value(path)
    if value is None:
        return []
    stages = list[tuple[str, Path]]()
    for stage in value if isinstance(value, list) else [None]:
        kind, name = (stage.get(k) for k in ("type", "path")) if isinstance(stage, dict) else (None, None)
        if not isinstance(kind, str) or not isinstance(name, str) or ".." in Path(name).parts or Path(name).is_absolute():
            raise ModelFileError(f"'{path}' is no list of modules with a type and a path inside of the folder")
        stages.append((kind.rpartition(".")[2], folder / name))
    if not stages or stages[0][0] != "Transformer":
        raise CompileError(f"'{path}' doesn't begin with a Transformer: {', '.join(k for k, _ in stages) or 'it is empty'}")
    return stages


def _pooling_of(path: Path, has_prompts: bool) -> list[str]:
    config = read_object(path)
    mode = config.get("pooling_mode")
    if isinstance(mode, str | list):
        found = [_SHORT.get(str(m), str(m)) for m in ([mode] if isinstance(mode, str) else mode)]
    else:
        found = [k for k in POOLING if config.get("pooling_mode_cls_token" if k == "cls" else _key_of(k))]
    if not found or not set(found) <= set(POOLING):
        raise ModelFileError(f"'{path}' names no way of pooling that there is: {', '.join(POOLING)}")
    if config.get("include_prompt") is False and has_prompts:
        raise CompileError(f"'{path}' leaves prompts out of the pooling (include_prompt), which isn't supported")
    return [k for k in POOLING if k in found]


def _key_of(kind: str) -> str:
    return f"pooling_mode_{kind}_tokens" if kind in ("max", "weightedmean") else f"pooling_mode_{kind}"


def _dense_of(folder: Path) -> Dense:
    config = read_object(folder / "config.json")
    sizes = [config.get(k) for k in ("in_features", "out_features")]
    if not all(type(n) is int and 0 < n < _MOST for n in sizes):
        raise ModelFileError(f"'{folder / 'config.json'}' doesn't say in_features and out_features")
    activation = str(config.get("activation_function", "torch.nn.modules.activation.Tanh")).rpartition(".")[2]
    if activation not in _ACTIVATIONS:
        raise CompileError(f"'{folder / 'config.json'}' has the activation {activation}: {', '.join(_ACTIVATIONS)} are supported")
    dense = Dense(folder, int(config["in_features"]), int(config["out_features"]), config.get("bias") is not False, activation)
    if not dense.file.is_file():
        raise CompileError(f"'{folder}' has no {dense.file.name}")
    return dense


def _prompts_of(path: Path, said: Mapping[str, Any]) -> tuple[dict[str, str], str | None]:
    prompts, default = said.get("prompts") or {}, said.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(x, str) for x in prompts.values()):
        raise ModelFileError(f"'{path}': prompts are texts by names")
    if default is not None and default not in prompts:
        raise ModelFileError(f"'{path}': default_prompt_name is none of prompts")
    return prompts, default


def _is_decoder(config: Mapping[str, Any]) -> bool:
    return any(str(name).endswith(_GENERATE) for name in config.get("architectures") or ()) or "num_key_value_heads" in config


def _longest(folder: Path, config: Mapping[str, Any], sentences: Mapping[str, Any]) -> int | None:
    """Tokens that a text may have, those that the tokenizer adds among them; None: any number."""
    text = config.get("text_config")  # of models that take more than texts
    levels = (config, text) if isinstance(text, dict) else (config,)
    positions = next((c[n] for c in levels for n in _POSITIONS if type(c.get(n)) is int), None)
    if positions is not None and config.get("model_type") in _BEHIND_PAD:
        pad = 1 if config["model_type"] == "mpnet" else config.get("pad_token_id")  # MPNet's is always 1
        positions -= (pad if type(pad) is int else 1) + 1
    tokenizer = read_object(folder / "tokenizer_config.json").get("model_max_length")
    given = (positions, tokenizer, sentences.get("max_seq_length"))
    return min((int(n) for n in given if isinstance(n, int | float) and 0 < n <= _MOST), default=None)
