"""What compiled models of transformers that generate have in common: their call as `forward`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
from transformers.masking_utils import create_masks_for_generate

from dhlo.errors import ContractError

__all__ = ["evaluating", "image_sizes", "keep_masks", "refuse_others", "replace"]

_COMPILED = "runs_compiled"  # an attribute of methods that replace a module's own


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """The model in evaluation mode, without gradients, with its own methods where compiled ones replace them."""
    replaced = [(m, name, x) for m in model.modules() for name, x in vars(m).items() if hasattr(x, _COMPILED)]
    training = model.training
    model.eval()
    for module, name, _ in replaced:
        delattr(module, name)
    try:
        with torch.no_grad():
            yield
    finally:
        for module, name, method in replaced:
            setattr(module, name, method)
        model.train(training)


def replace(module: Any, run: Callable[..., Any], name: str = "forward") -> None:
    """Makes `run`, which takes keyword arguments, a method of a module in place of its own, with the signature of that."""

    def method(*args: Any, **kwargs: Any) -> Any:
        return run(**dict(zip(signature.parameters, args, strict=False)), **kwargs)

    signature = inspect.signature(getattr(type(module), name).__get__(module))
    method.__signature__ = signature  # type: ignore[attr-defined]
    setattr(method, _COMPILED, True)
    setattr(module, name, method)


def image_sizes(config: Any) -> Sequence[int]:
    """Channels, height and width of images that a model takes, or may take."""
    own = getattr(config, "vision_config", config)
    size = getattr(own, "image_size", None) or 224
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return getattr(own, "num_channels", 3), height, width


def keep_masks(model: Any) -> None:
    """Lets `generate()` leave masks as they are, [batch, positions], where it would make one for all of a static cache, as long as
    the model's `forward` is replaced."""
    model.create_masks_for_generate = MethodType(_masks_for_generate, model)


def _masks_for_generate(model: Any, **given: Any) -> Any:
    if "forward" in vars(model):
        return given["attention_mask"]
    return getattr(type(model), "create_masks_for_generate", create_masks_for_generate)(**given)


def refuse_others(others: Mapping[str, Any]) -> None:
    """Raises ContractError if there are arguments that ask for something."""
    strange = [n for n, x in others.items() if x is not None and x is not False and n not in ("cache_position", "return_dict")]
    if strange:
        raise ContractError(f"a compiled model that generates has no place for {', '.join(strange)}")
