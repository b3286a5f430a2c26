"""Networks of bytes: as torchao's quantiser for x86 makes them, and for peers as ONNX Runtime's does."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from benchmarks.workloads import Workload
from dhlo.bench.peers import OpenVino, Ort
from dhlo.bench.subject import Subject

__all__ = ["quantised"]


def quantised(w: Workload) -> Subject:
    """The network with activations and weights of 8 bits, whose scales come from its arguments at all shapes."""
    steps: Any = import_module("torchao.quantization.pt2e.quantize_pt2e")
    x86: Any = import_module("torchao.quantization.pt2e.quantizer.x86_inductor_quantizer")
    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(x86.get_default_x86_inductor_quantization_config())
    subject = w.subject()
    assert subject.exported is not None
    prepared = steps.prepare_pt2e(subject.exported().module(check_guards=False), quantizer)
    with torch.no_grad():
        for i in range(len(w.shapes)):
            prepared(*subject.arguments(i)[0])
    converted = steps.convert_pt2e(prepared)
    exported = torch.export.export(converted, w.arguments(w.export_shape), dynamic_shapes=w.dynamic_shapes)
    return Subject(subject.labels, subject.arguments, lambda: converted, lambda: exported, example=subject.example)


class _Quantised(Ort, peer="ort_bytes"):
    """ONNX Runtime with activations and weights of 8 bits, a scale for each output channel."""

    needs = ("onnxruntime", "onnx", "onnxscript", "sympy")
    compared = False

    def build(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="dhlo-bench-")
        self._open(_quantise(self.subject, Path(self.folder.name)))


class _QuantisedOpenVino(OpenVino, peer="openvino_bytes"):
    """OpenVINO on the same file."""

    needs = ("openvino", *_Quantised.needs)
    compared = False

    def build(self) -> None:
        with tempfile.TemporaryDirectory(prefix="dhlo-bench-") as folder:
            self.bf16 = False
            self.model = import_module("openvino").Core().read_model(_quantise(self.subject, Path(folder)))
            self._compile(self.model)


def _quantise(subject: Subject, folder: Path) -> str:
    """The file of a program in ONNX whose operands are quantised and dequantised; those of transposed convolutions, which torchao's
    quantiser leaves as they are, aren't."""
    quantization: Any = import_module("onnxruntime.quantization")
    shapes: Any = import_module("onnxruntime.quantization.shape_inference")
    assert subject.exported is not None
    plain, prepared, made = (str(folder / name) for name in ("plain.onnx", "prepared.onnx", "bytes.onnx"))
    converted = torch.onnx.export(subject.exported(), dynamo=True, optimize=True, external_data=False, verbose=False)
    assert converted is not None
    converted.save(plain)
    shapes.quant_pre_process(plain, prepared, skip_symbolic_shape=True)
    names = [i.name for i in converted.model.graph.inputs]

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            given = (subject.arguments(i)[0] for i in range(len(subject.labels)))
            self.rows = iter([dict(zip(names, [t.numpy() for t in args], strict=True)) for args in given])

        def get_next(self) -> Mapping[str, Any] | None:
            return next(self.rows, None)

    kinds = quantization.QuantType
    nodes = import_module("onnx").load(prepared, load_external_data=False).graph.node
    plain_nodes = [n.name for n in nodes if n.op_type == "ConvTranspose"]
    how = {
        "per_channel": True,
        "activation_type": kinds.QUInt8,
        "weight_type": kinds.QInt8,
        "nodes_to_exclude": plain_nodes,
    }
    quantization.quantize_static(prepared, made, Reader(), quant_format=quantization.QuantFormat.QDQ, **how)
    return made
