"""`torch.compile(model, backend="dhlo")`.

TorchDynamo hands over a graph of torch calls; AOTAutograd makes a functional ATen graph of it and takes care of what surrounds one
(inputs that overlap, changed inputs, results that are views of inputs). That graph becomes an exported program, with constants for
parameters where that can be, and is compiled at the first call, when their values are at hand.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch

from dhlo.errors import CompileError
from dhlo.integrations.captured import Captured, whole_operators
from dhlo.integrations.internals import aot_autograd, make_boxed_func, min_cut_rematerialization_partition
from dhlo.integrations.packed import PackedGraph
from dhlo.options import read_options

__all__ = ["backend"]

_LOG = logging.getLogger("dhlo")
_told: set[str] = set()


def backend(
    gm: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compiles a graph of TorchDynamo's; `options` are the fields of `dhlo.Options`, but for `grow` and `pages`.

    A graph that gradients are asked of isn't compiled: it is run as the backend "aot_eager" does, which the logger "dhlo" says once
    (WARNING). Raises CompileError for options that there aren't. What can't be compiled raises UnsupportedError at the first call.
    """
    chosen = dict(options or {})
    _check_options(mode, chosen)
    sources = [_source(n) for n in gm.graph.find_nodes(op="placeholder")]
    static = [bool(n.meta.get("tensor_dict", {}).get("_dynamo_static_input_type")) for n in gm.graph.find_nodes(op="placeholder")]

    def compiled(graph: torch.fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        return PackedGraph(Captured.of(graph, sources, static), chosen)

    through = aot_autograd(
        fw_compiler=_interpreted,
        inference_compiler=compiled,
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
        decompositions={},
    )
    asked = torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in inputs)
    with nullcontext() if asked or _enables_gradients(gm) else whole_operators():
        return through(gm, inputs)


def _enables_gradients(gm: torch.fx.GraphModule) -> bool:
    return any(n.args[0] for n in gm.graph.find_nodes(op="call_function", target=torch._C._set_grad_enabled))


def _check_options(mode: str | None, options: Mapping[str, Any]) -> None:
    if mode is not None:
        raise CompileError(f"mode={mode!r} is one of inductor's", hint="dhlo takes options={...}, the fields of dhlo.Options")
    given = read_options(options)
    for name in ("grow", "pages"):
        if getattr(given, name):
            raise CompileError(f"option '{name}' changes what a program takes and returns: torch.compile has no use for it")


def _interpreted(graph: torch.fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
    """One half of a graph that gradients are asked of."""
    _say_once(
        "a graph that gradients are asked of runs as with the backend 'aot_eager'; compiled are calls inside torch.no_grad() "
        "or torch.inference_mode()"
    )
    run: Callable[..., Any] = make_boxed_func(graph.forward)
    return run


def _say_once(text: str) -> None:
    if text not in _told:
        _told.add(text)
        _LOG.warning("%s", text)


def _source(node: Any) -> str:
    """What users call an input of the graph: `layers.0.weight` of a module, `x`, `past.layers[0].keys`."""
    source = getattr(node, "_dynamo_source", None)
    text = source.name if source is not None else ""
    if callable(text):  # until PyTorch 2.12
        text = text()
    text = re.sub(r"\._(?:modules|parameters|buffers)\['([^']+)'\]", r".\1", re.sub(r"^[LG]\['([^']+)'\]", r"\1", text))
    return re.sub(r"^(self|fn)\.", "", text) or str(node.name)  # `fn`: TorchDynamo's name of a module of PyTorch's own
