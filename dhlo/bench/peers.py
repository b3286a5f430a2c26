"""Adapters of what a model can run on: each compiles one subject and calls it with arguments converted beforehand."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten
from torch.utils.dlpack import from_dlpack

from dhlo.bench.subject import Arguments, Subject
from dhlo.errors import CompileError
from dhlo.options import Range

__all__ = ["PEERS", "Peer", "installed"]

PEERS: dict[str, type[Peer]] = {}
_ROOM = 64  # positions that a growing cache has left


class Peer:
    """One way to run a subject on `threads` threads. Construction compiles; it raises whatever the peer raises.

    native = peer.prepare(arguments)   # outside the timed region
    result = peer.call(native)         # timed
    peer.tensors(result)               # for checking
    """

    needs: ClassVar[tuple[str, ...]] = ()  # modules that must be installed
    from_file: ClassVar[bool] = False  # works where only a compiled model is at hand
    specialised: ClassVar[bool] = False  # compiles each shape for itself, outside the timed region
    compared: ClassVar[bool] = True  # its results with those of the subject; others see to it as they are built
    ours: ClassVar[bool] = False  # a way to use this compiler: nothing to compare it with

    def __init_subclass__(cls, peer: str) -> None:
        PEERS[peer] = cls

    def __init__(self, subject: Subject, threads: int) -> None:
        self.subject, self.threads = subject, threads
        self.build()

    def build(self) -> None:
        raise NotImplementedError

    def prepare(self, arguments: Arguments) -> Any:
        return arguments

    def call(self, native: Any) -> Any:
        raise NotImplementedError

    def tensors(self, result: Any) -> list[torch.Tensor]:
        return [t for t in tree_leaves(result) if isinstance(t, torch.Tensor)]

    def code_bytes(self) -> int | None:
        """Size of the generated code without weights, where the peer says."""
        return None

    def _exported(self) -> torch.export.ExportedProgram:
        if self.subject.exported is None:
            raise CompileError("this peer needs an exported program (.pt2), not a compiled model")
        return self.subject.exported()

    def _module(self) -> torch.nn.Module:
        if self.subject.module is None:
            raise CompileError("this peer needs an exported program (.pt2), not a compiled model")
        return self.subject.module()


def installed() -> list[str]:
    """Peers whose packages are installed, in the order of this file."""
    return [n for n, p in PEERS.items() if all(importlib.util.find_spec(m) is not None for m in p.needs)]


# ---------------------------------------------------------------------- torch
class Eager(Peer, peer="eager"):
    """PyTorch, operator by operator."""

    def build(self) -> None:
        self.fn: Any = self._module()

    def call(self, native: Arguments) -> Any:
        return self.fn(*native[0], **native[1])


class Inductor(Eager, peer="inductor"):
    """torch.compile(dynamic=True), compiled at the example shape and again when a guard fails."""

    config: ClassVar[Mapping[str, bool]] = {}
    dynamic: ClassVar[bool] = True

    def build(self) -> None:
        import torch._dynamo.config
        import torch._inductor.config as config

        for name, value in {"force_disable_caches": True, **self.config}.items():
            setattr(config, name, value)
        torch._dynamo.config.capture_dynamic_output_shape_ops = True
        torch._dynamo.config.recompile_limit = max(64, len(self.subject.labels) + 1)
        self.fn = torch.compile(self._module(), dynamic=self.dynamic)
        args, kwargs = self.subject.arguments(self.subject.example)
        self.fn(*args, **kwargs)


class InductorFreeze(Inductor, peer="inductor_freeze"):
    """Inductor with the weights as constants."""

    config: ClassVar[Mapping[str, bool]] = {"freezing": True}


class InductorStatic(Inductor, peer="inductor_static"):
    """Inductor for each shape by itself, with constant weights and its autotuned products."""

    config: ClassVar[Mapping[str, bool]] = {"freezing": True, "max_autotune": True}
    dynamic: ClassVar[bool] = False
    specialised: ClassVar[bool] = True


class Aoti(Eager, peer="aoti"):
    """AOTInductor with the weights as constants."""

    def build(self) -> None:
        import torch._inductor
        import torch._inductor.config as config

        config.force_disable_caches = True
        self.folder = tempfile.TemporaryDirectory(prefix="dhlo-bench-")
        path = str(Path(self.folder.name) / "model.pt2")
        torch._inductor.aoti_compile_and_package(self._exported(), package_path=path, inductor_configs={"freezing": True})
        self.fn = torch._inductor.aoti_load_package(path)


class Dhlo(Eager, peer="dhlo"):
    """This compiler."""

    from_file: ClassVar[bool] = True
    ours: ClassVar[bool] = True

    def build(self) -> None:
        os.environ["DHLO_NUM_THREADS"] = str(self.threads)
        import dhlo

        if self.subject.model_file is not None:
            model = dhlo.load(self.subject.model_file)
            self.fn = model if self.subject.entry is None else model[self.subject.entry]
        else:
            self.fn = dhlo.compile(self._exported(), cache="", grow=self.grow(), shapes=self.shapes())

    def shapes(self) -> Mapping[str, Range]:
        return self.subject.shapes

    def grow(self) -> Mapping[str, int]:
        return {}

    def code_bytes(self) -> int | None:
        return None if self.subject.model_file is not None else int(self.fn._compiled().code_bytes)


class DhloUnhinted(Dhlo, peer="dhlo_unhinted"):
    """This compiler, without being told of usual sizes."""

    from_file: ClassVar[bool] = False

    def shapes(self) -> Mapping[str, Range]:
        return {name: replace(r, opt=None) for name, r in self.subject.shapes.items()}


class DhloGrow(Dhlo, peer="dhlo_grow"):
    """This compiler, with caches that grow in buffers of the caller: each call writes its rows behind the filled ones."""

    from_file: ClassVar[bool] = False

    def grow(self) -> Mapping[str, int]:
        if not self.subject.grow:
            raise CompileError("no argument of this program is a cache that grows")
        return self.subject.grow

    def prepare(self, arguments: Arguments) -> Any:
        leaves, spec = tree_flatten(arguments)
        for i, dim, _ in self.fn._grown:
            filled = leaves[i].shape[dim]
            room = leaves[i].new_empty([n + _ROOM * (d == dim) for d, n in enumerate(leaves[i].shape)])
            leaves[i] = room.narrow(dim, 0, filled).copy_(leaves[i])
        return tree_unflatten(leaves, spec)


# ---------------------------------------------------------------------- others
def _leaves(arguments: Arguments) -> list[torch.Tensor]:
    return [t for t in tree_leaves(arguments) if isinstance(t, torch.Tensor)]


class Ort(Peer, peer="ort"):
    """ONNX Runtime on torch's ONNX export."""

    needs: ClassVar[tuple[str, ...]] = ("onnxruntime", "onnx", "onnxscript")

    def build(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="dhlo-bench-")
        path = str(Path(self.folder.name) / "model.onnx")
        converted = torch.onnx.export(self._exported(), dynamo=True, optimize=True, external_data=True, verbose=False)
        assert converted is not None
        converted.save(path, external_data=True)
        self._open(path)

    def _open(self, path: str) -> None:
        onnxruntime: Any = import_module("onnxruntime")
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.intra_op_num_threads, options.inter_op_num_threads = self.threads, 1
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.names = [i.name for i in self.session.get_inputs()]

    def prepare(self, arguments: Arguments) -> Any:
        leaves = _leaves(arguments)
        if all(t.dtype != torch.bfloat16 for t in leaves):
            return dict(zip(self.names, [t.numpy() for t in leaves], strict=True))
        binding = self.session.io_binding()  # numpy has no bf16
        for name, t in zip(self.names, leaves, strict=True):
            if t.dtype == torch.bfloat16:
                binding.bind_input(name, "cpu", 0, 16, tuple(t.shape), t.data_ptr())
            else:
                binding.bind_cpu_input(name, t.numpy())
        for o in self.session.get_outputs():
            binding.bind_output(o.name)
        return binding, leaves  # the binding has only addresses

    def call(self, native: Any) -> Any:
        if isinstance(native, dict):
            return self.session.run(None, native)
        self.session.run_with_iobinding(native[0])
        return native[0].get_outputs()

    def tensors(self, result: Any) -> list[torch.Tensor]:
        import numpy as np

        return [torch.from_numpy(r) if isinstance(r, np.ndarray) else from_dlpack(r._ortvalue.to_dlpack()) for r in result]


class OpenVino(Peer, peer="openvino"):
    """OpenVINO on the exported program, with the precision that the program states."""

    needs: ClassVar[tuple[str, ...]] = ("openvino",)
    config: ClassVar[Mapping[str, str]] = {}  # properties of the compiled model beside those of `_compile`

    def build(self) -> None:
        openvino: Any = import_module("openvino")
        leaves = _leaves(self.subject.arguments(self.subject.example))
        self.bf16 = any(t.dtype == torch.bfloat16 for t in leaves)
        self.model = openvino.convert_model(self._exported())
        self._compile(self.model)

    def _compile(self, model: Any) -> None:
        openvino: Any = import_module("openvino")
        self.compiled = openvino.Core().compile_model(
            model,
            "CPU",
            {
                "PERFORMANCE_HINT": "LATENCY",
                "INFERENCE_NUM_THREADS": self.threads,
                "INFERENCE_PRECISION_HINT": "bf16" if self.bf16 else "f32",
                **self.config,
            },
        )
        self.request = self.compiled.create_infer_request()

    def prepare(self, arguments: Arguments) -> Any:
        openvino: Any = import_module("openvino")

        def tensor(t: torch.Tensor) -> Any:
            if t.dtype == torch.bfloat16:
                return openvino.Tensor(t.view(torch.int16).numpy(), tuple(t.shape), openvino.Type.bf16)
            return openvino.Tensor(t.numpy(), shared_memory=True)

        return dict(enumerate(map(tensor, _leaves(arguments))))

    def call(self, native: Any) -> Any:
        return self.request.infer(native, share_inputs=True, share_outputs=True)

    def tensors(self, result: Any) -> list[torch.Tensor]:
        if not self.bf16:
            return [torch.from_numpy(v.copy()) for v in result.to_tuple()]
        out = []
        for i in range(len(self.compiled.outputs)):
            t = self.request.get_output_tensor(i)
            data = bytearray(t.data.tobytes())
            is_bf16 = str(t.element_type) == "<Type: 'bfloat16'>"
            x = torch.frombuffer(data, dtype=torch.bfloat16) if is_bf16 else torch.from_numpy(t.data.copy())
            out.append(x.view(tuple(t.shape)))
        return out


class OpenVinoStatic(OpenVino, peer="openvino_static"):
    """OpenVINO for each shape by itself."""

    specialised: ClassVar[bool] = True

    def prepare(self, arguments: Arguments) -> Any:
        model = self.model.clone()
        model.reshape({i: list(t.shape) for i, t in enumerate(_leaves(arguments))})
        self._compile(model)
        return self.request, super().prepare(arguments)

    def call(self, native: Any) -> Any:
        request, inputs = native
        return request.infer(inputs, share_inputs=True, share_outputs=True)
