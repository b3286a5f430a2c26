"""Models of transformers from folders: a config and weights in safetensors, as `save_pretrained` writes them.

Nothing is downloaded, and no code in the folder is run.
"""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from torch.export import ExportedProgram

from dhlo.errors import CompileError
from dhlo.integrations.caches import GROW
from dhlo.integrations.coded_weights import FORMATS, coded_names, keep_codes
from dhlo.integrations.decoder import decoder_programs, is_decoder
from dhlo.integrations.encoder_decoder import encoder_decoder_programs, is_encoder_decoder
from dhlo.integrations.generation import evaluating, image_sizes
from dhlo.integrations.recurrent import is_recurrent
from dhlo.integrations.transformers import DhloConfig, DhloExporter

__all__ = ["folder_programs", "load_base", "load_folder", "model_programs"]

_CONFIG = "config.json"
_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"


def folder_programs(folder: Path) -> tuple[dict[str, ExportedProgram], dict[str, int]]:
    """`model_programs` of the model in a folder. Raises CompileError."""
    return model_programs(load_folder(folder))


def load_base(folder: Path) -> Any:
    """The model in a folder without its head, in the dtype of the weights. Raises CompileError."""
    return load_folder(folder, transformers.AutoModel, ignored="pooler.")


def load_folder(folder: Path, kind: Any = None, *, ignored: str | None = None) -> Any:
    """The model in a folder, of the class that its config names or of `kind`, in the dtype of the weights, of which those whose
    names begin with `ignored` may lack. Raises CompileError."""
    _check_files(folder)
    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as e:  # whatever the config's class raises
        raise CompileError(f"'{folder / _CONFIG}' can't be read as a config of transformers: {e}") from None
    method, quantisation = _quantised(folder, config)
    kind = _class(folder, config) if kind is None else kind
    # "auto" is the dtype of the first weight where the config names none, which may be one of codes.
    dtype = (config.dtype or torch.bfloat16) if method else "auto"
    try:
        coded = coded_names(_weight_files(folder), method) if method else {}
    except SafetensorError as e:
        raise CompileError(f"the weights in '{folder}' can't be read: {e}") from None
    reports = list[str]()
    try:
        with _collecting(reports) if coded else nullcontext():
            model, loaded = kind.from_pretrained(
                folder, config=config, local_files_only=True, use_safetensors=True, dtype=dtype, output_loading_info=True
            )
    except Exception as e:  # the loader raises whatever its parts raise
        raise CompileError("\n".join([f"'{folder}' can't be loaded as {kind.__name__}: {e}", *reports])) from None
    missing = [name for name in loaded["missing_keys"] if ignored is None or not name.startswith(ignored)]
    if missing:
        raise CompileError(f"'{folder}' lacks weights of {type(model).__name__}: {_some(missing)}")
    if coded:
        keep_codes(model, coded, method, quantisation, loaded["unexpected_keys"])
    return model.eval()


def _quantised(folder: Path, config: Any) -> tuple[str, Mapping[str, Any]]:
    """How a config says that weights are coded, and all that it says; "" for those that aren't. Lets transformers decode them as it
    loads them, or load the codes as numbers. Raises CompileError for what `keep_codes` doesn't know."""
    given = getattr(config, "quantization_config", None)
    if given is None:
        return "", {}
    method = given.get("quant_method") if isinstance(given, dict) else None
    if not isinstance(method, str) or method not in FORMATS:
        raise CompileError(
            f"'{folder}' holds quantised weights ({method}); {', '.join(FORMATS)} are taken as they are",
            hint="take the model that they were made of, and --weights int8 or int4:64",
        )
    if FORMATS[method].decodes:
        config.quantization_config = given | {"dequantize": True}
    else:
        del config.quantization_config
    return method, given


@contextmanager
def _collecting(reports: list[str]) -> Iterator[None]:
    """Collects what transformers reports, which doesn't expect scales, instead of printing it."""

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            reports.append(record.getMessage())

    collector = Collector()
    transformers.logging.disable_default_handler()
    transformers.logging.add_handler(collector)
    try:
        yield
    finally:
        transformers.logging.remove_handler(collector)
        transformers.logging.enable_default_handler()


def _weight_files(folder: Path) -> list[Path]:
    """Of a folder that `_check_files` has seen."""
    if (folder / _WEIGHTS).is_file():
        return [folder / _WEIGHTS]
    return [folder / name for name in sorted(set(json.loads((folder / _INDEX).read_text(encoding="utf-8"))["weight_map"].values()))]


def _check_files(folder: Path) -> None:
    """Raises CompileError for a folder that doesn't hold a model as a whole."""
    if not folder.is_dir():
        hint = f"'{folder}' is a name on the Hub? Download it, and name the folder" if not folder.exists() else None
        raise CompileError(f"'{folder}' is not a folder", hint=hint)
    if not (folder / _CONFIG).is_file():
        raise CompileError(f"'{folder}' has no {_CONFIG}", hint="a folder that save_pretrained has written is what is wanted")
    if (folder / "adapter_config.json").exists():
        raise CompileError(f"'{folder}' holds an adapter", hint="merge it into its model first (merge_and_unload), and save that")
    if (folder / _WEIGHTS).is_file():
        return
    if not (folder / _INDEX).is_file():
        raise CompileError(f"'{folder}' has no weights: neither {_WEIGHTS} nor {_INDEX}")
    try:
        files = set(json.loads((folder / _INDEX).read_text(encoding="utf-8"))["weight_map"].values())
        lacking = sorted(f for f in files if not (folder / f).is_file())
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as e:
        raise CompileError(f"'{folder / _INDEX}' is not an index of weights: {type(e).__name__}: {e}") from None
    if lacking:
        raise CompileError(f"'{folder}' lacks files of weights: {_some(lacking)}")


def _some(names: Iterable[str]) -> str:
    """The first names of many."""
    ordered = sorted(names)
    return ", ".join(ordered[:5]) + (f" and {len(ordered) - 5} more" if len(ordered) > 5 else "")


def _class(folder: Path, config: Any) -> Any:
    """The class that a config names first; without any, the one of its type without a head."""
    names = config.architectures
    if not names:
        return transformers.AutoModel
    kind = getattr(transformers, str(names[0]), None)
    if not inspect.isclass(kind) or not issubclass(kind, transformers.PreTrainedModel):
        raise CompileError(f"'{folder}' holds a '{names[0]}', which transformers {transformers.__version__} doesn't have")
    return kind


def model_programs(model: Any) -> tuple[dict[str, ExportedProgram], dict[str, int]]:
    """A model's programs by entry (the only one is called ""), with all sizes dynamic that can be, and the option `grow` that goes
    with them. Decoders that keep keys and values, and encoder-decoders that generate, become what `attach` takes, others a program
    that takes what the model's tokenizer or processor makes.

    Raises CompileError for models that take something else, and what torch.export raises.
    """
    if is_decoder(model) and not is_recurrent(model):
        return decoder_programs(model), GROW
    if is_encoder_decoder(model):
        return encoder_decoder_programs(model), GROW
    inputs = _example(model)
    try:
        with evaluating(model):
            model(**inputs)
    except Exception as e:  # whatever the model raises
        raise CompileError(
            f"{type(model).__name__} can't be called with {', '.join(inputs)} alone: {e}",
            hint="export it with arguments of yours (torch.export.export, or DhloExporter) and compile that",
        ) from None
    with evaluating(model):
        program, _ = DhloExporter().exported_program(model, inputs, DhloConfig())
    return {"": program}, {}


def _example(model: Any) -> dict[str, torch.Tensor]:
    """Arguments of the model's forward as tokenizers and processors make them. Raises CompileError if it has none of these."""
    config, batch, length = model.config, 2, 7
    names = inspect.signature(model.forward).parameters
    ids = torch.ones(batch, length, dtype=torch.int64)
    inputs: dict[str, torch.Tensor] = {}
    if "input_ids" in names:
        inputs |= {"input_ids": ids} | ({"attention_mask": ids.clone()} if "attention_mask" in names else {})
        if "token_type_ids" in names and getattr(config, "type_vocab_size", 0) > 1:
            inputs["token_type_ids"] = torch.zeros_like(ids)
    if "pixel_values" in names:
        channels, height, width = image_sizes(config)
        inputs["pixel_values"] = torch.zeros(batch, channels, height, width, dtype=model.dtype)
        if "pixel_mask" in names:
            inputs["pixel_mask"] = torch.ones(batch, height, width, dtype=torch.int64)
    if "input_values" in names:  # samples, or a spectrogram
        sizes = (config.max_length, config.num_mel_bins) if hasattr(config, "num_mel_bins") else (16000,)
        inputs["input_values"] = torch.zeros(batch, *sizes, dtype=model.dtype)
    if not inputs:
        raise CompileError(
            f"{type(model).__name__} takes none of input_ids, pixel_values and input_values",
            hint="export it with arguments of yours (torch.export.export, or DhloExporter) and compile that",
        )
    return inputs
