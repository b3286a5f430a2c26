"""Adapters (LoRA) from folders as PEFT writes them: adapter_config.json and adapter_model.safetensors."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dhlo.errors import ContractError, ModelFileError
from dhlo.ir.dtypes import DTYPES

__all__ = ["Adapter", "LoraPair", "read_adapter"]

_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_MOST_HEADER = 100 << 20  # bytes, as the format says
_DTYPES: Final = {"F32": DTYPES["f32"], "F16": DTYPES["f16"], "BF16": DTYPES["bf16"]}
_NAME: Final = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_([AB])\.weight")

# What a config may say. Whatever else it has is refused unless it says nothing (false, none, empty).
_READ: Final = {"peft_type", "r", "lora_alpha", "use_rslora", "alpha_pattern", "init_lora_weights", "bias"}
_SAID_BY_WEIGHTS: Final = {"target_modules", "exclude_modules", "rank_pattern", "layers_to_transform", "layers_pattern"}
_OF_TRAINING: Final = {
    "auto_mapping", "base_model_name_or_path", "corda_config", "ensure_weight_tying", "eva_config", "fan_in_fan_out",
    "inference_mode", "lora_dropout", "lora_ga_config", "megatron_core", "peft_version", "qalora_group_size", "revision",
    "runtime_config", "task_type",
}  # fmt: skip
_KINDS: Final = {"use_dora": "DoRA", "modules_to_save": "whole modules", "trainable_token_indices": "tokens' embeddings"}
_PLAIN_STARTS: Final = (True, False, None, "gaussian", "eva", "orthogonal")
"""`init_lora_weights` that leave the base's weights as they are."""


@dataclass(frozen=True)
class LoraPair:
    """What an adapter adds to the product of a module: scale * x A^T B^T, with A [rank, inputs] and B [outputs, rank]."""

    module: str
    dtype: int
    """By `dhlo_dtype`, of both matrices."""
    rank: int
    inputs: int
    outputs: int
    a: memoryview
    b: memoryview
    scale: float


@dataclass(frozen=True)
class Adapter:
    """The pairs of an adapter, by module."""

    pairs: tuple[LoraPair, ...]


def read_adapter(folder: str | Path) -> Adapter:
    """The adapter of a folder. Nothing in it is run, and nothing downloaded.

    Raises ModelFileError for a folder that has none, or a damaged one; ContractError, which names it, for what isn't plain LoRA
    of linear layers: DoRA, biases, whole modules, embeddings, other kinds of PEFT.
    """
    folder = Path(folder)
    config = _config_of(folder)
    tensors = _tensors_of(folder / _WEIGHTS)
    pairs: dict[str, dict[str, _Tensor]] = {}
    for name, tensor in tensors.items():
        found = _NAME.fullmatch(name)
        if found is None:
            raise ContractError(f"adapter '{folder}': '{name}' is no matrix of LoRA of a linear layer")
        of = pairs.setdefault(found[1], {})
        if found[2] in of:
            raise ContractError(f"adapter '{folder}' has module '{found[1]}' twice, with and without 'base_model.model.'")
        of[found[2]] = tensor
    if not pairs:
        raise ModelFileError(f"'{folder / _WEIGHTS}' has no tensors")
    return Adapter(tuple(_pair(folder, module, of, config) for module, of in pairs.items()))


def _config_of(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / _CONFIG).read_text())
    except (OSError, ValueError, RecursionError) as e:
        raise ModelFileError(f"'{folder}' has no {_CONFIG} that can be read: {e}") from None
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        kind = config.get("peft_type") if isinstance(config, dict) else config
        raise ContractError(f"adapter '{folder}' is of kind {kind!r}: LORA is what there is")
    for name, value in config.items():
        if value and name not in _READ | _SAID_BY_WEIGHTS | _OF_TRAINING:
            what = f"{_KINDS[name]} ({name})" if name in _KINDS else f"'{name}'"
            raise ContractError(f"adapter '{folder}' has {what}, which isn't supported")
    if config.get("bias", "none") != "none":
        raise ContractError(f"adapter '{folder}' has biases (bias = {config['bias']!r}), which isn't supported")
    if config.get("init_lora_weights", True) not in _PLAIN_STARTS:
        raise ContractError(
            f"adapter '{folder}' began as {config['init_lora_weights']!r}, which changes the base's weights: PEFT converts it "
            "(save_pretrained with path_initial_model_for_weight_conversion)"
        )
    alphas, alpha = config.get("alpha_pattern") or {}, config.get("lora_alpha")
    good = isinstance(alphas, dict) and all(_is_number(x) for x in (alpha, *alphas.values()))
    if not good or not isinstance(config.get("use_rslora", False), bool):
        raise ModelFileError(f"'{folder / _CONFIG}': lora_alpha, alpha_pattern and use_rslora are numbers by modules, and a truth")
    return config


def _is_number(x: object) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool) and abs(x) < 1e38


def _alpha(folder: Path, module: str, config: Mapping[str, Any]) -> float:
    """As PEFT chooses it: the first pattern that the end of the name matches."""
    for pattern, alpha in (config.get("alpha_pattern") or {}).items():
        if not re.fullmatch(r"[\w.-]+", pattern):  # others can take for ever, which is whoever wrote the folder's choice
            raise ContractError(f"adapter '{folder}': alpha_pattern '{pattern[:80]}' is more than a name, which isn't supported")
        if re.match(rf"(.*\.)?({pattern})$", module):
            return float(alpha)
    return float(config["lora_alpha"])


@dataclass(frozen=True)
class _Tensor:
    dtype: str
    shape: tuple[int, ...]
    data: memoryview


def _pair(folder: Path, module: str, of: Mapping[str, _Tensor], config: Mapping[str, Any]) -> LoraPair:
    a, b = of.get("A"), of.get("B")
    if a is None or b is None:
        raise ModelFileError(f"'{folder / _WEIGHTS}': module '{module}' has one matrix of two")
    if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[0] != b.shape[1] or a.shape[0] < 1 or a.dtype != b.dtype:
        raise ContractError(f"adapter '{folder}': module '{module}' has matrices {a.dtype}{[*a.shape]} and {b.dtype}{[*b.shape]}")
    if a.dtype not in _DTYPES:
        raise ContractError(f"adapter '{folder}': module '{module}' is of {a.dtype}: {', '.join(_DTYPES)} are read")
    rank = a.shape[0]
    divisor = math.sqrt(rank) if config.get("use_rslora", False) else rank
    scale = _alpha(folder, module, config) / divisor
    return LoraPair(module, _DTYPES[a.dtype].code, rank, a.shape[1], b.shape[0], a.data, b.data, scale)


def _tensors_of(file: Path) -> dict[str, _Tensor]:
    """What a .safetensors file has. Raises ModelFileError if it isn't whole."""
    try:
        data = memoryview(file.read_bytes())
        size = int.from_bytes(data[:8], "little")
        if len(data) < 8 or size > min(_MOST_HEADER, len(data) - 8):
            raise ValueError("it is cut off")
        header, content = json.loads(bytes(data[8 : 8 + size])), data[8 + size :]
        if not isinstance(header, dict):
            raise TypeError("it has no header")
        return {name: _tensor(told, content) for name, told in header.items() if name != "__metadata__"}
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as e:
        raise ModelFileError(f"'{file}' can't be read as safetensors: {e}") from None


def _tensor(told: Mapping[str, Any], content: memoryview) -> _Tensor:
    dtype, shape, (begin, end) = told["dtype"], tuple(told["shape"]), told["data_offsets"]
    if not all(type(n) is int and n >= 0 for n in (*shape, begin, end)) or not begin <= end <= len(content):
        raise ValueError("a tensor lies outside of it")
    if dtype in _DTYPES and math.prod(shape) * _DTYPES[dtype].bytes != end - begin:
        raise ValueError("a tensor has other bytes than its shape")
    return _Tensor(str(dtype), shape, content[begin:end])
