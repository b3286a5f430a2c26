"""Checkpoints as they are published, whose weights are codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Mxfp4Config

__all__ = ["change_weights", "decoded_by_transformers", "to_fp8", "to_mxfp4"]

_EXPERTS = (".experts.gate_up_proj", ".experts.down_proj")


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Lets `change` have the tensors of a folder by their names, to change them in place."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, {"format": "pt"})


def to_mxfp4(folder: Path) -> int:
    """Makes a folder of gpt-oss one whose experts are MXFP4 of random codes, as OpenAI's are; how many numbers they are."""
    g, numbers = torch.Generator().manual_seed(0), 0

    def code(tensors: dict[str, torch.Tensor]) -> None:
        nonlocal numbers
        for name in [n for n in tensors if n.endswith(_EXPERTS)]:
            experts, rows, columns = tensors.pop(name).shape
            shape = experts, columns, rows // 32
            tensors[f"{name}_blocks"] = torch.randint(0, 256, (*shape, 16), generator=g, dtype=torch.uint8)
            tensors[f"{name}_scales"] = torch.randint(122, 126, shape, generator=g, dtype=torch.uint8)
            numbers += experts * rows * columns

    change_weights(folder, code)
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    others = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": others}
    (folder / "config.json").write_text(json.dumps(config))
    return numbers


def to_fp8(folder: Path, block: int = 128) -> tuple[int, dict[str, torch.Tensor]]:
    """Makes a folder one whose projections are float8 with a scale for each block, as DeepSeek's and Qwen's are; how many numbers
    they are, and what the codes stand for, by the checkpoint's names."""
    numbers, decoded = 0, dict[str, torch.Tensor]()

    def code(tensors: dict[str, torch.Tensor]) -> None:
        nonlocal numbers
        for name in [n for n in tensors if n.endswith("proj.weight")]:
            w = tensors[name].float()
            rows, columns = w.shape
            padded = torch.zeros(-(-rows // block) * block, -(-columns // block) * block)
            padded[:rows, :columns] = w
            blocks = padded.reshape(padded.shape[0] // block, block, -1, block)
            scales = blocks.abs().amax((1, 3)).clamp_min(1e-4) / 448
            factors = scales.repeat_interleave(block, 0)[:rows].repeat_interleave(block, 1)[:, :columns]
            codes = (w / factors).to(torch.float8_e4m3fn)
            decoded[name] = (codes.float() * factors).to(tensors[name].dtype)
            tensors[name], tensors[f"{name}_scale_inv"] = codes, scales
            numbers += codes.numel()

    change_weights(folder, code)
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [block, block], "activation_scheme": "dynamic"}
    (folder / "config.json").write_text(json.dumps(config))
    return numbers, decoded


def decoded_by_transformers(folder: Path) -> Any:
    """The model of a folder of MXFP4, with floats in place of codes."""
    return AutoModelForCausalLM.from_pretrained(folder, quantization_config=Mxfp4Config(dequantize=True)).eval()
