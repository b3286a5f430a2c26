"""Graphs of AOTAutograd as exported programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch._export.verifier import TrainingIRVerifier
from torch._functorch._aot_autograd.descriptors import PlainAOTInput
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature, _override_composite_implicit_decomp
from torch.export.graph_signature import (
    ConstantArgument,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    SymFloatArgument,
    SymIntArgument,
    TensorArgument,
)
from torch.utils import _pytree as pytree

from dhlo.frontend.compat import aten
from dhlo.frontend.functionalize import shares_storage

__all__ = ["Captured", "Result", "whole_operators"]


@contextmanager
def whole_operators() -> Iterator[None]:
    """Graphs that are made inside keep attention as one operator, which PyTorch would compose of products where its own kernel for
    CPUs doesn't apply. Not for graphs that gradients are asked of."""
    with _override_composite_implicit_decomp({aten.scaled_dot_product_attention.default: lambda *_, **__: NotImplemented}):
        yield


@dataclass(frozen=True)
class Result:
    """Where a result of the graph comes from: number `index` of what the program returns, or of the views, or else `constant`."""

    kind: str
    index: int = 0
    constant: Any = None


class Captured:
    """A functional ATen graph that takes flat arguments, numbers of dynamic sizes among them, and changes some of them by a final
    `copy_`.

    Results that are views of arguments are no part of the program: `views` makes them of the arguments, after the call.
    """

    def __init__(self, gm: torch.fx.GraphModule, names: Sequence[str], static: Sequence[bool]) -> None:
        """`names` and `static` are of the graph's placeholders: what users call them, and whether they are a module's tensors."""
        self.gm = gm
        self.placeholders = gm.graph.find_nodes(op="placeholder")
        self.names = _distinct(names)
        self.new_content = {
            n.args[1]: n.args[0] for n in gm.graph.nodes if n.op == "call_function" and n.target is aten.copy_.default
        }
        self.random = any(_is_random(n) for m in gm.modules() if isinstance(m, torch.fx.GraphModule) for n in m.graph.nodes)
        written = set(self.new_content.values())
        self.constants = [
            i
            for i, (n, fixed) in enumerate(zip(self.placeholders, static, strict=True))
            if fixed and n not in written and _has_fixed_sizes(n.meta["val"])
        ]
        """Numbers of the arguments that may be constants of the program."""
        self.results, self.returned, viewed = self._split_results()
        self.views = self._views(viewed) if viewed else None
        self.computes = bool(self.returned or self.new_content)

    @staticmethod
    def of(gm: torch.fx.GraphModule, names: Sequence[str], static: Sequence[bool]) -> Captured:
        """The same, where `names` and `static` are of the inputs of the graph that AOTAutograd was given."""
        own_names, own_static = [], []
        for n in gm.graph.find_nodes(op="placeholder"):
            origin = n.meta.get("desc")
            number = origin.idx if isinstance(origin, PlainAOTInput) else None
            own_names.append(n.name if number is None else names[number])
            own_static.append(number is not None and static[number])
        return Captured(gm, own_names, own_static)

    def _split_results(self) -> tuple[list[Result], list[Any], list[Any]]:
        """Where the results come from; the nodes that the program returns; those that are views of arguments."""
        bases = [n.meta["val"] for n in (*self.placeholders, *self.new_content) if isinstance(n.meta["val"], torch.Tensor)]
        results: list[Result] = []
        nodes: dict[str, list[Any]] = {"program": [], "views": []}
        returned: Any = self.gm.graph.output_node().args[0]
        for x in returned:
            if not isinstance(x, torch.fx.Node):
                results.append(Result("constant", constant=x))
                continue
            value = x.meta["val"]
            own = isinstance(value, torch.Tensor) and not any(shares_storage(value, base) for base in bases)
            kind = "program" if own or (not isinstance(value, torch.Tensor) and x not in self.placeholders) else "views"
            results.append(Result(kind, len(nodes[kind])))
            nodes[kind].append(x)
        return results, nodes["program"], nodes["views"]

    def _views(self, outputs: Sequence[Any]) -> torch.fx.GraphModule:
        graph = torch.fx.Graph()
        known = {n: graph.placeholder(n.name) for n in self.placeholders}
        needed, queue = set[Any](), list(outputs)
        while queue:
            n = queue.pop()
            if n not in needed and n not in self.new_content:
                needed.add(n)
                queue += n.all_input_nodes
        for n in self.gm.graph.nodes:
            if n in self.new_content:
                known[n] = known[self.new_content[n]]
            elif n in needed and n not in known:
                known[n] = graph.node_copy(n, known.__getitem__)
        graph.output([known[n] for n in outputs])
        return torch.fx.GraphModule(self.gm, graph)

    def program(self, constants: Mapping[int, torch.Tensor]) -> tuple[ExportedProgram, list[int]]:
        """The graph as an exported program with some arguments, by number, as constants; and the numbers of the arguments that it
        takes. Sizes are arguments only where no tensor has them."""
        graph = torch.fx.Graph()
        known: dict[Any, Any] = {}
        inputs, taken, sized = list[InputSpec](), list[int](), list[tuple[Any, Any, int]]()
        sizes = self._sizes(constants)
        for i, n in enumerate(self.placeholders):
            value = n.meta["val"]
            if not isinstance(value, torch.Tensor):
                value = _number(value)
                if not isinstance(value, torch.SymInt | torch.SymFloat):
                    known[n] = value
                    continue
                if value.node.expr in sizes:
                    sized.append((n, *sizes[value.node.expr]))
                    continue
            known[n] = graph.node_copy(n)
            if i in constants:
                inputs.append(InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(known[n].name), self.names[i]))
                continue
            inputs.append(InputSpec(InputKind.USER_INPUT, _argument(known[n]), None))
            taken.append(i)
        lifted = {n.target: n for n in self.gm.graph.find_nodes(op="get_attr") if isinstance(n.meta.get("val"), torch.Tensor)}
        for name, n in lifted.items():
            lifted[name] = graph.placeholder(name)
            lifted[name].meta = n.meta
            inputs.append(InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(lifted[name].name), name))
        for n, tensor, dim in sized:
            known[n] = graph.call_function(aten.sym_size.int, (known[tensor], dim))
            known[n].meta["val"] = n.meta["val"]
        for n in self.gm.graph.nodes:
            if n.op == "get_attr" and n.target in lifted:
                known[n] = lifted[n.target]
            elif n.op not in ("placeholder", "output"):
                known[n] = graph.node_copy(n, known.__getitem__)
        graph.output(tuple(known[n] for n in self.returned))
        outputs = [OutputSpec(OutputKind.USER_OUTPUT, _argument(known[n]), None) for n in self.returned]
        tensors = {self.names[i]: t.detach() for i, t in constants.items()}
        tensors |= {name: attrgetter(name)(self.gm) for name in lifted}
        return self._exported(graph, inputs, outputs, [self.names[i] for i in taken], tensors), taken

    def _sizes(self, constants: Mapping[int, torch.Tensor]) -> dict[Any, tuple[Any, int]]:
        """Symbols that are a size of a tensor which stays an argument, with one such tensor and dim."""
        sizes: dict[Any, tuple[Any, int]] = {}
        for i, n in enumerate(self.placeholders):
            for dim, s in enumerate(n.meta["val"].shape if isinstance(n.meta["val"], torch.Tensor) and i not in constants else ()):
                if isinstance(s, torch.SymInt) and s.node.expr.is_Symbol:
                    sizes.setdefault(s.node.expr, (n, dim))
        return sizes

    def _exported(
        self,
        graph: torch.fx.Graph,
        inputs: list[InputSpec],
        outputs: list[OutputSpec],
        names: list[str],
        constants: dict[str, Any],
    ) -> ExportedProgram:
        def structure(n: int) -> Any:
            return pytree.tree_structure((0,) * n)

        in_spec = pytree.tree_structure(((0,) * len(names), {}))
        signature = ModuleCallSignature([], [], in_spec, structure(len(outputs)), names)
        program = ExportedProgram(
            root=self.gm,
            graph=graph,
            graph_signature=ExportGraphSignature(inputs, outputs),
            state_dict={},
            range_constraints=self._ranges(),
            module_call_graph=[ModuleCallEntry("", signature)],
            constants=constants,
            verifiers=[TrainingIRVerifier],
        )
        program._guards_code = []  # TorchDynamo checks its guards itself
        return program

    def _ranges(self) -> dict[Any, Any]:
        """The ranges of the symbols of sizes and of numbers."""
        ranges: dict[Any, Any] = {}
        for n in self.placeholders:
            value = n.meta["val"]
            for s in (*value.shape, *value.stride()) if isinstance(value, torch.Tensor) else (value,):
                if isinstance(s, torch.SymInt):
                    known = s.node.shape_env.var_to_range
                    ranges |= {x: known[x] for x in s.node.expr.free_symbols if x in known}
        return ranges


def _distinct(names: Sequence[str]) -> list[str]:
    """The names, those that occur again with a number."""
    taken, out = set[str](), list[str]()
    for name in names:
        free = next(x for k in range(len(names) + 1) if (x := f"{name}_{k}" if k else name) not in taken)
        taken.add(free)
        out.append(free)
    return out


def _number(x: Any) -> Any:
    """A symbolic number that is known by now as itself."""
    expr = x.node.expr if isinstance(x, torch.SymInt | torch.SymFloat) else None
    if expr is None or not expr.is_number:
        return x
    return int(expr) if isinstance(x, torch.SymInt) else float(expr)


def _argument(node: Any) -> Any:
    if not isinstance(node, torch.fx.Node):
        return ConstantArgument("", node)
    kinds: dict[Any, Any] = {torch.SymInt: SymIntArgument, torch.SymFloat: SymFloatArgument}
    return kinds.get(type(node.meta["val"]), TensorArgument)(node.name)


def _has_fixed_sizes(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and all(type(n) is int for n in x.shape)


def _is_random(node: Any) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags
