"""A small model and its step, which tests of the serving engine share."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

import dhlo
from dhlo.integrations.decoder import step_program
from dhlo.model import CompiledModel
from tests.sequences import PAGE


@pytest.fixture(scope="session")
def model() -> Any:
    """A decoder whose weights are large enough that it says more than one token over and over."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    made = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for p in made.parameters():
            p.mul_(4)
    return made


@pytest.fixture(scope="session")
def step(model: Any) -> CompiledModel:
    return dhlo.compile(step_program(model), pages={"keys*": PAGE, "values*": PAGE})
