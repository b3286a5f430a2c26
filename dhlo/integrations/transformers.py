"""transformers: an export backend named "dhlo", and `generate()` over a compiled decoder.

Importing this module registers the backend: `DhloExporter().export(model, inputs, DhloConfig())` compiles any model that
transformers exports, and `ExportedModel.from_pretrained` loads what its `save_pretrained` wrote (from 5.24 on with
`trust_remote_code=True`: model files are native code).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch.export import ExportedProgram
from transformers.exporters import DynamoConfig, ModelRunner, register_backend
from transformers.exporters.exporter_dynamo import DynamoExporter
from transformers.exporters.metadata import ExportMetadata, load_treespec

import dhlo
from dhlo.errors import CompileError, ContractError
from dhlo.integrations.caches import GROW
from dhlo.integrations.decoder import attach_decoder, decoder_programs, is_compiled_decoder, is_decoder
from dhlo.integrations.encoder_decoder import ENTRIES, attach_encoder_decoder, compile_encoder_decoder, is_encoder_decoder
from dhlo.model import CompiledModel

__all__ = [
    "DhloConfig",
    "DhloExporter",
    "DhloRunner",
    "attach",
    "compile_decoder",
    "compile_encoder_decoder",
]

FORMAT = "dhlo"


# ------------------------------------------------------------------------------------------------ transformers.exporters
@dataclass
class DhloConfig(DynamoConfig):  # type: ignore[misc]
    """How to export: as transformers' DynamoConfig says, with all sizes dynamic by default; `options` are the fields of
    `dhlo.Options`."""

    export_format: str = FORMAT
    dynamic: bool = True
    options: dict[str, Any] = field(default_factory=dict)


class DhloExporter(DynamoExporter):  # type: ignore[misc]
    """Compiles what torch.export makes of a model: components are `dhlo.CompiledModel`s, their files model files."""

    export_format = FORMAT
    config_class = DhloConfig
    program_suffix = ".so"
    requires_trust_remote_code = True  # model files are native code

    def export_program(self, model: Any, sample_inputs: Any, config: DhloConfig) -> tuple[CompiledModel, ExportMetadata]:
        """A graph's compiled model. Raises what torch.export and `dhlo.compile` raise."""
        program, metadata = self.exported_program(model, sample_inputs, config)
        return dhlo.compile(program, **config.options), metadata

    def exported_program(self, model: Any, sample_inputs: Any, config: DhloConfig) -> tuple[ExportedProgram, ExportMetadata]:
        """A graph as it is compiled. Raises what torch.export raises."""
        with _positions_of_any_sizes(model):
            program, metadata = super().export_program(model, sample_inputs, config)
        return program, metadata

    @classmethod
    def save_program(cls, program: CompiledModel, path: str | Path) -> None:
        """Writes the model file. Raises DhloError for a model that was loaded: copy its file."""
        program.save(path)

    @classmethod
    def load_program(cls, path: str | Path) -> CompiledModel:
        """Reads a model file. Raises the errors of `dhlo.load`."""
        return dhlo.load(path)


class DhloRunner(ModelRunner):  # type: ignore[misc]
    """Calls a compiled model as the model that was exported."""

    def __init__(self, model: CompiledModel, metadata: ExportMetadata) -> None:
        super().__init__(metadata)
        self.model = model
        self._order = load_treespec(metadata.in_spec).children()[1].context

    @classmethod
    def from_program(cls, program: CompiledModel, metadata: ExportMetadata, device: Any = None) -> DhloRunner:
        """Raises CompileError for a device other than the CPU."""
        if device is not None and torch.device(device).type != "cpu":
            raise CompileError(f"compiled models run on the CPU, not on '{device}'")
        return cls(program, metadata)

    @property
    def device(self) -> torch.device:
        """The CPU."""
        return torch.device("cpu")

    def __call__(self, share_inputs: bool = True, share_outputs: bool = False, **kwargs: Any) -> Any:
        """Runs the model. Raises ContractError for arguments that it wasn't exported for."""
        kwargs = {**self.metadata.in_constants, **kwargs}
        ordered = {name: kwargs.pop(name) for name in self._order if name in kwargs}
        return self.model(**ordered, **kwargs)


register_backend(DhloExporter, DhloRunner)

_INTERPOLATE = "interpolate_pos_encoding"


@contextmanager
def _positions_of_any_sizes(model: torch.nn.Module) -> Iterator[None]:
    """Programs that are exported inside interpolate the positions of patches whatever the size of the image. Models leave that out
    for the size that they were made for, except under torch.jit.trace; the example's size would decide for all."""

    def always(method: Callable[..., Any]) -> Callable[..., Any]:
        def interpolated(*args: Any, **kwargs: Any) -> Any:
            with patch.object(torch.jit, "is_tracing", lambda: True):
                return method(*args, **kwargs)

        return interpolated

    with ExitStack() as stack:
        for module in model.modules():
            if callable(method := getattr(module, _INTERPOLATE, None)):
                stack.enter_context(patch.object(module, _INTERPOLATE, always(method)))
        yield


# ------------------------------------------------------------------------------------------------ generate()
def compile_decoder(model: Any, **options: Any) -> CompiledModel:
    """Compiles a decoder of transformers (a causal language model), once for prompts and for decoding, any batch, any lengths, and
    lets `model.forward`, and so `model.generate()`, run it. Keys and values are written in place. What encodes images is another
    entry, `image`, beside `decoder`, where the model takes images of one size alone.

    `options` are the fields of `dhlo.Options`. The compiled model is returned: save it, and `attach` what `dhlo.load` makes of it.
    Raises CompileError for models that aren't decoders of this kind, and what torch.export and `dhlo.compile` raise.
    """
    programs = decoder_programs(model)
    compiled = dhlo.compile(programs if len(programs) > 1 else programs[""], **{"grow": GROW, **options})
    attach(model, compiled)
    return compiled


def attach(model: Any, compiled: CompiledModel) -> None:
    """Lets a model's `forward`, and so `generate()`, run what `compile_decoder` or `compile_encoder_decoder` compiled of such a
    model. `del model.forward` undoes that (and of the latter, `del model.get_encoder().forward`; of decoders that take images,
    `del model.base_model.get_image_features`). Raises ContractError for
    models that can't have been compiled to this."""
    if is_encoder_decoder(model) and set(compiled.entries) == set(ENTRIES):
        attach_encoder_decoder(model, compiled)
    elif is_decoder(model) and is_compiled_decoder(compiled):
        attach_decoder(model, compiled)
    else:
        raise ContractError(f"the compiled model isn't one of a {type(model).__name__} that generates")
