"""Peers with constants of products as int8 or int4: this compiler with `weights=`, OpenVINO, ONNX Runtime and llama.cpp."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.models import Decoder
from dhlo.bench.peers import PEERS, Dhlo, Eager, OpenVino, Ort, Peer
from dhlo.bench.subject import Arguments, Subject
from dhlo.errors import CompileError

__all__ = ["GROUP", "Several"]

GROUP = 64
"""Elements along k that share a scale of int4."""

_LONGEST = 1280  # positions of a decoder that is measured
_LEAST = 1 << 12  # elements of constants that are worth codes
Matrix = npt.NDArray[np.float32]


def _rounded(w: Matrix, bits: int, group: int) -> tuple[npt.NDArray[np.int8], Matrix]:
    """Symmetric codes of [n, k] by groups along k, and their scales [n, k / group]."""
    n, k = w.shape
    blocks = w.reshape(n, k // group, group)
    most = (1 << bits - 1) - 1
    scale = np.maximum(np.abs(blocks).max(-1) / most, 1e-12).astype(np.float32)
    codes = np.clip(np.rint(blocks / scale[..., None]), -most - 1, most).astype(np.int8)
    return codes.reshape(n, k), scale


def _group_of(bits: int, k: int) -> int:
    """One group for int8, which has a scale a row; the largest that divides k for int4."""
    return k if bits == 8 else next(g for g in range(min(GROUP, k), 0, -1) if k % g == 0)


class DhloInt8(Dhlo, peer="dhlo_int8"):
    """This compiler, the constants of products as int8."""

    weights: ClassVar[str] = "int8"
    activations: ClassVar[str] = ""

    def build(self) -> None:
        os.environ["DHLO_NUM_THREADS"] = str(self.threads)
        import dhlo

        self.fn = dhlo.compile(self._exported(), cache="", grow=self.grow(), weights=self.weights, activations=self.activations)


class DhloInt4(DhloInt8, peer="dhlo_int4"):
    """This compiler, the constants of products as int4."""

    weights: ClassVar[str] = f"int4:{GROUP}"


class DhloInt4Fine(DhloInt8, peer="dhlo_g32_int4"):
    """The same in groups of 32, as llama.cpp's."""

    weights = "int4:32"


class DhloInt4FineRounded(DhloInt4Fine, peer="dhlo_a8_g32_int4"):
    """The same, and rows rounded to int8."""

    activations = "int8"


class DhloInt8Rounded(DhloInt8, peer="dhlo_a8_int8"):
    """The same, and rows rounded to int8."""

    activations = "int8"


class DhloInt4Rounded(DhloInt4, peer="dhlo_a8_int4"):
    """The same, and rows rounded to int8."""

    activations = "int8"


# ---------------------------------------------------------------------- OpenVINO
class OpenVinoInt8(OpenVino, peer="openvino_int8"):
    """OpenVINO with compressed weights, as nncf's `compress_weights` writes them: codes, converted and multiplied."""

    bits: ClassVar[int] = 8

    def _compile(self, model: Any) -> None:
        for op in model.get_ordered_ops():
            if op.get_type_name() == "MatMul":
                self._compress(op)
        model.validate_nodes_and_infer_types()
        super()._compile(model)

    def _compress(self, op: Any) -> None:
        ov: Any = import_module("openvino")
        ops: Any = import_module("openvino.opset13")
        w, transposed = _constant(op.input_value(1).get_node()), op.get_attributes()["transpose_b"]
        if w is None or w.ndim != 2 or w.size < _LEAST or w.dtype != np.float32:
            return
        w = w if transposed else w.T
        n, k = w.shape
        group = _group_of(self.bits, k)
        codes, scale = _rounded(w, self.bits, group)
        kind = ov.Type.i8 if self.bits == 8 else ov.Type.i4
        shape = [n, k] if group == k else [n, k // group, group]
        tensor = ov.Tensor(kind, shape)
        if self.bits == 8:
            tensor.data[...] = codes.reshape(shape)
        else:
            low, high = codes.reshape(-1, 2).T.astype(np.uint8)
            tensor.data.reshape(-1).view(np.uint8)[:] = (low & 15) | (high << 4)
        factor = scale if group == k else scale[..., None]
        wide = ops.convert(ov.op.Constant(tensor, True), "f16")
        made = ops.multiply(wide, ops.constant(factor.astype(np.float16)))
        if group != k:
            made = ops.reshape(made, np.array([n, k], np.int64), False)
        made = ops.convert(made, "f32")
        op.input(1).replace_source_output(made.output(0))
        op.set_attribute("transpose_b", True)


class OpenVinoInt4(OpenVinoInt8, peer="openvino_int4"):
    """The same as int4."""

    bits: ClassVar[int] = 4


def _constant(node: Any) -> Any:
    """The value of a constant, through transposes; None where it isn't one."""
    kind = node.get_type_name()
    if kind == "Constant":
        return node.get_data()
    if kind == "Transpose":
        inner, order = (_constant(node.input_value(i).get_node()) for i in (0, 1))
        return None if inner is None or order is None else np.ascontiguousarray(inner.transpose(order))
    return None


# ---------------------------------------------------------------------- ONNX Runtime
class OrtInt8(Ort, peer="ort_int8"):
    """ONNX Runtime with MatMulNBits, which multiplies integers (accuracy level 4)."""

    bits: ClassVar[int] = 8

    def build(self) -> None:
        onnx: Any = import_module("onnx")
        ort: Any = import_module("onnxruntime")
        self.folder = tempfile.TemporaryDirectory(prefix="dhlo-bench-")
        converted = torch.onnx.export(self._exported(), dynamo=True, optimize=True, verbose=False)
        assert converted is not None
        path = str(Path(self.folder.name) / "model.onnx")
        converted.save(path, external_data=True)
        model = onnx.load(path)
        self._rewrite(onnx, model.graph)
        model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
        onnx.save(model, path, save_as_external_data=True, location="weights.bin")
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.intra_op_num_threads, options.inter_op_num_threads = self.threads, 1
        options.log_severity_level = 3
        self.session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.names = [i.name for i in self.session.get_inputs()]

    def _rewrite(self, onnx: Any, graph: Any) -> None:
        values = {i.name: i for i in graph.initializer}
        makers = {o: n for n in graph.node for o in n.output}
        for node in graph.node:
            if node.op_type not in ("MatMul", "Gemm"):
                continue
            transposed = any(a.name == "transB" and a.i for a in node.attribute)
            name = node.input[1]
            maker = makers.get(name)
            if maker is not None and maker.op_type == "Transpose" and len(maker.input) == 1:
                name, transposed = maker.input[0], not transposed
            if name not in values:
                continue
            w = onnx.numpy_helper.to_array(values[name])
            if w.ndim == 2 and w.size >= _LEAST and w.dtype == np.float32:
                self._compress(onnx, graph, node, np.ascontiguousarray(w if transposed else w.T))

    def _compress(self, onnx: Any, graph: Any, node: Any, w: Matrix) -> None:
        """w is [n, k]; blocks are powers of two of at least 16, the last filled up."""
        n, k = w.shape
        block = 128 if self.bits == 8 else GROUP
        filled = np.pad(w, ((0, 0), (0, -k % block)))
        codes, scale = _rounded(filled, self.bits, block)
        stored = (codes.astype(np.int16) + (1 << self.bits - 1)).astype(np.uint8).reshape(n, -1, block)
        if self.bits == 4:
            stored = stored[..., ::2] | stored[..., 1::2] << 4
        for kind, data in (("codes", stored), ("scales", scale.reshape(-1))):
            graph.initializer.append(onnx.numpy_helper.from_array(np.ascontiguousarray(data), f"{node.name}_{kind}"))
        bias = list(node.input[2:])
        names = [node.input[0], f"{node.name}_codes", f"{node.name}_scales"]
        out = node.output[0] + "_product" if bias else node.output[0]
        sizes = {"K": k, "N": n, "bits": self.bits, "block_size": block, "accuracy_level": 4}
        made = onnx.helper.make_node("MatMulNBits", names, [out], domain="com.microsoft", name=node.name, **sizes)
        result = node.output[0]
        node.CopyFrom(made)
        if bias:
            at = list(graph.node).index(node)
            graph.node.insert(at + 1, onnx.helper.make_node("Add", [out, bias[0]], [result], name=f"{made.name}_bias"))


class OrtInt4(OrtInt8, peer="ort_int4"):
    """The same as int4."""

    bits: ClassVar[int] = 4


# ---------------------------------------------------------------------- llama.cpp
class LlamaCppInt8(Peer, peer="llamacpp_int8"):
    """llama.cpp on a decoding step of W2, written as GGUF: a Qwen3, whose program this is. It has caches of its own, so that its
    results are compared where it is built: with the module's, without caches."""

    needs: ClassVar[tuple[str, ...]] = ("llama_cpp", "gguf")
    compared: ClassVar[bool] = False
    kind: ClassVar[str] = "q8_0"
    error: ClassVar[float] = 0.05  # of the results' scale
    _NAMES: ClassVar[Mapping[str, str]] = {
        "embed": "embed_tokens",
        "n1": "input_layernorm",
        "q": "self_attn.q_proj",
        "k": "self_attn.k_proj",
        "v": "self_attn.v_proj",
        "qn": "self_attn.q_norm",
        "kn": "self_attn.k_norm",
        "o": "self_attn.o_proj",
        "n2": "post_attention_layernorm",
        "gate": "mlp.gate_proj",
        "up": "mlp.up_proj",
        "down": "mlp.down_proj",
    }

    def build(self) -> None:
        module = self._module()
        if not isinstance(module, Decoder):
            raise CompileError("this peer runs W2's decoding step alone")
        write = import_module("benchmarks.serving.gguf_file").write
        open_model = import_module("benchmarks.serving.llamacpp").LlamaCpp
        with tempfile.TemporaryDirectory(prefix="dhlo-bench-") as folder:
            path = Path(folder) / "model.gguf"
            write(path, self._weights(module), self._config(module), self.kind)
            self.model = open_model(str(path), self.threads, _LONGEST)
        self.model.open(len(self.subject.labels), _LONGEST)
        self.used, self.vocabulary = 0, len(module.embed.weight)
        self._compare(module)

    def _weights(self, module: Any) -> dict[str, Matrix]:
        found = {}
        for name, value in module.named_parameters():
            *path, last, _ = name.split(".")
            found[".".join(["model", *path, self._NAMES.get(last, last), "weight"])] = value.detach().numpy()
        return found

    def _config(self, module: Any) -> dict[str, Any]:
        vocabulary, width = module.embed.weight.shape
        return {
            "model_type": "qwen3",
            "num_hidden_layers": len(module.layers),
            "num_attention_heads": module.heads,
            "num_key_value_heads": module.kv_heads,
            "head_dim": module.depth,
            "hidden_size": width,
            "intermediate_size": module.layers[0]["gate"].out_features,
            "vocab_size": vocabulary,
            "max_position_embeddings": _LONGEST,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {"rope_theta": 10000.0},
        }

    def _compare(self, module: Any) -> None:
        ids = torch.randint(0, self.vocabulary, (1, 9))
        want = module(ids, torch.arange(9)[None])[0].flatten()
        (got,) = self.model.decode([(int(t), i, 0, i == 8) for i, t in enumerate(ids[0])])
        self.model.forget(0)
        error = float((torch.from_numpy(got) - want).abs().max() / want.abs().max())
        if error > self.error:
            raise ValueError(f"llama.cpp's results differ from the program's by {error:.2f} of their scale")

    def prepare(self, arguments: Arguments) -> Any:
        ids, positions, *_ = arguments[0]
        past, sequence = int(positions), self.used
        self.used += 1
        filled = torch.randint(0, self.vocabulary, (past,)).tolist()
        self.model.decode([(t, i, sequence, i + 1 == past) for i, t in enumerate(filled)])
        return int(ids), past, sequence

    def call(self, native: Any) -> Any:
        token, past, sequence = native
        self.model.forget(sequence, past)
        return self.model.decode([(token, past, sequence, True)])[0]


class LlamaCppInt4(LlamaCppInt8, peer="llamacpp_int4"):
    """The same as int4, in groups of 32."""

    kind = "q4_0"
    error = 0.5


# ---------------------------------------------------------------------- activations as int8, too
class DhloDynamic(Dhlo, peer="dhlo_dynamic"):
    """This compiler on torchao's int8 weights and activations, a scale for each row. Takes modules of one matrix of rows."""

    def _exported(self) -> torch.export.ExportedProgram:
        (x,), _ = self.subject.arguments(self.subject.example)
        rows = torch.export.Dim("rows", max=8192)
        return torch.export.export(_dynamic(self._module()), (x,), dynamic_shapes=({0: rows},))


class EagerDynamic(Eager, peer="eager_dynamic"):
    """torchao's int8 weights and activations, operator by operator."""

    def build(self) -> None:
        self.fn = _dynamic(self._module())


def _dynamic(module: torch.nn.Module) -> torch.nn.Module:
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

    quantize_(module, Int8DynamicActivationInt8WeightConfig())
    return module


class OpenVinoDynamic(OpenVinoInt8, peer="openvino_dynamic"):
    """OpenVINO with int8 weights, and activations quantised in groups of 128."""

    config: ClassVar[Mapping[str, str]] = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": "128"}


# ---------------------------------------------------------------------- several programs in a process
class Several(Subject):
    """Programs of one kind, measured in one process: shape by shape those of the first, then of the second. A call repeats as often
    as `repeats` says, so that what a program reads lies where it would by itself."""

    def __init__(self, parts: Sequence[Subject], repeats: Sequence[int]) -> None:
        shapes = [(k, i) for k, part in enumerate(parts) for i in range(len(part.labels))]

        def arguments(j: int) -> Arguments:
            k, i = shapes[j]
            return (k, repeats[j], parts[k].arguments(i)), {}

        super().__init__([parts[k].labels[i] for k, i in shapes], arguments)
        object.__setattr__(self, "parts", parts)


def _several(name: str, inner: type[Peer]) -> None:
    class _Several(Peer, peer=f"several_{name}"):
        __doc__ = inner.__doc__
        needs, compared = inner.needs, inner.compared

        def build(self) -> None:
            self.peers = [inner(part, self.threads) for part in self.subject.parts]  # type: ignore[attr-defined]

        def prepare(self, arguments: Arguments) -> Any:
            k, repeat, given = arguments[0]
            return self.peers[k], repeat, self.peers[k].prepare(given)

        def call(self, native: Any) -> Any:
            peer, repeat, given = native
            for _ in range(repeat):
                result = peer.call(given)
            return result

        def tensors(self, result: Any) -> list[torch.Tensor]:
            return self.peers[0].tensors(result)


for _name, _inner in list(PEERS.items()):
    _several(_name, _inner)
