"""Writes a Llama or Qwen3 of transformers as llama.cpp's GGUF, without its tokenizer.

`python -m benchmarks.serving.gguf_file FOLDER FILE [--kind q4_0]`, with an interpreter that has gguf and safetensors. All matrices
are of that kind, the table of tokens too.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

__all__ = ["write"]

KINDS = {"f32": "ALL_F32", "bf16": "MOSTLY_BF16", "q8_0": "MOSTLY_Q8_0", "q4_0": "MOSTLY_Q4_0"}


def write(file: Path, weights: Mapping[str, npt.NDArray[np.float32]], config: Mapping[str, Any], kind: str = "f32") -> None:
    """Weights by transformers' names; of `config` what transformers' config.json has."""
    llama = config["model_type"] == "llama"
    architecture = gguf.MODEL_ARCH.LLAMA if llama else gguf.MODEL_ARCH.QWEN3
    layers, heads, kv_heads = (config[f"num_{n}"] for n in ("hidden_layers", "attention_heads", "key_value_heads"))
    out = gguf.GGUFWriter(file, gguf.MODEL_ARCH_NAMES[architecture])
    out.add_block_count(layers)
    out.add_context_length(config["max_position_embeddings"])
    out.add_embedding_length(config["hidden_size"])
    out.add_feed_forward_length(config["intermediate_size"])
    out.add_head_count(heads)
    out.add_head_count_kv(kv_heads)
    for add in (out.add_key_length, out.add_value_length, out.add_rope_dimension_count):
        add(config["head_dim"])
    out.add_layer_norm_rms_eps(config["rms_norm_eps"])
    out.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    out.add_vocab_size(config["vocab_size"])
    out.add_tokenizer_model("no_vocab")
    out.add_file_type(gguf.LlamaFileType[KINDS[kind]])
    names = gguf.get_tensor_name_map(architecture, layers)
    for name, value in weights.items():
        if llama and name.endswith(("q_proj.weight", "k_proj.weight")):
            value = _interleaved(value, heads if "q_proj" in name else kv_heads)
        form = gguf.GGMLQuantizationType[kind.upper() if value.ndim > 1 else "F32"]
        as_named = names.get_name(name, try_suffixes=(".weight",))
        if as_named is None:
            raise ValueError(f"{name} has no name in GGUF")
        out.add_tensor(as_named, gguf.quants.quantize(np.ascontiguousarray(value), form), raw_dtype=form)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def _interleaved(w: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """llama.cpp turns neighbours where transformers turns halves of a head of a Llama."""
    return w.reshape(heads, 2, -1, w.shape[1]).swapaxes(1, 2).reshape(w.shape)


def main() -> None:
    """Converts a folder."""
    from safetensors.numpy import load_file

    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving.gguf_file", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--kind", choices=list(KINDS), default="f32")
    given = parser.parse_args()
    weights: dict[str, Any] = {}
    for part in sorted(given.folder.glob("*.safetensors")):
        weights |= load_file(part)
    write(given.file, weights, json.loads((given.folder / "config.json").read_text()), given.kind)


if __name__ == "__main__":
    main()
