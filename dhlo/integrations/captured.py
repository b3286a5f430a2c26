"""Graphs of AOTAutograd as exported programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ConstantArgument,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    SymIntArgument,
    TensorArgument,
)
from torch.utils import _pytree as pytree

from dhlo.frontend.compat import aten
from dhlo.integrations.internals import (
    ModuleCallEntry,
    ModuleCallSignature,
    PlainAOTInput,
    PythonPrinter,
    SymFloatArgument,
    TrainingIRVerifier,
    override_composite_implicit_decomp,
)
from dhlo.integrations.results import Results
from dhlo.ir.symbols import as_expr

__all__ = ["Captured", "whole_operators"]


@contextmanager
def whole_operators() -> Iterator[None]:
    """Graphs that are made inside keep attention as one operator, which PyTorch would compose of products where its own kernel for
    CPUs doesn't apply. Not for graphs that gradients are asked of."""
    with override_composite_implicit_decomp({aten.scaled_dot_product_attention.default: lambda *_, **__: NotImplemented}):
        yield


class Captured:
    """A functional ATen graph that takes flat arguments, numbers of dynamic sizes among them, and changes some of them by a final
    `copy_`.

    Results that are views of arguments or of one another are no part of the program: `results.views` makes them after the call.
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
        self.guards = _guards(self.placeholders)
        self.results = Results(gm, self.placeholders, self.new_content)
        self.computes = bool(self.results.returned or self.new_content)

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

    def program(self, constants: Mapping[int, torch.Tensor]) -> tuple[ExportedProgram, list[int]]:
        """The graph as an exported program with some arguments, by number, as constants; and the numbers of the arguments that it
        takes. Numbers are arguments if something depends on them, but no tensor has them as a size; equal ones once."""
        graph = torch.fx.Graph()
        known: dict[Any, Any] = {}
        inputs, taken, sized = list[InputSpec](), list[int](), list[tuple[Any, Any, int]]()
        sizes, numbers = self._sizes(constants), dict[Any, Any]()
        in_sizes = self._symbols_of_sizes()
        for i, n in enumerate(self.placeholders):
            value, symbol = _number(n.meta["val"]), None
            if not isinstance(value, torch.Tensor):
                if not isinstance(value, torch.SymInt | torch.SymFloat):
                    known[n] = value
                    continue
                symbol = value.node.expr
                if symbol in sizes:
                    sized.append((n, *sizes[symbol]))
                    continue
                if not n.users and not symbol.free_symbols & in_sizes:
                    continue
                if symbol in numbers:
                    known[n] = numbers[symbol]
                    continue
            known[n] = graph.node_copy(n)
            if symbol is not None:
                numbers[symbol] = known[n]
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
        returned = [_permuted(graph, known[r.node], r.order) for r in self.results.returned]
        graph.output(tuple(returned))
        outputs = [OutputSpec(OutputKind.USER_OUTPUT, _argument(n), None) for n in returned]
        tensors = {self.names[i]: t.detach() for i, t in constants.items()}
        tensors |= {name: attrgetter(name)(self.gm) for name in lifted}
        program = self._exported(graph, inputs, outputs, [self.names[i] for i in taken], tensors)
        program._guards_code = self._fixed(taken)
        return program, taken

    def _sizes(self, constants: Mapping[int, torch.Tensor]) -> dict[Any, tuple[Any, int]]:
        """Symbols that are a size of a tensor which stays an argument, with one such tensor and dim."""
        sizes: dict[Any, tuple[Any, int]] = {}
        for i, n in enumerate(self.placeholders):
            for dim, s in enumerate(n.meta["val"].shape if isinstance(n.meta["val"], torch.Tensor) and i not in constants else ()):
                if isinstance(s, torch.SymInt) and s.node.expr.is_Symbol:
                    sizes.setdefault(s.node.expr, (n, dim))
        return sizes

    def _symbols_of_sizes(self) -> set[Any]:
        """All symbols that sizes of arguments are made of."""
        shapes = [n.meta["val"].shape for n in self.placeholders if isinstance(n.meta["val"], torch.Tensor)]
        return {x for shape in shapes for s in shape for x in as_expr(s).free_symbols}

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
        return ExportedProgram(
            root=self.gm,
            graph=graph,
            graph_signature=ExportGraphSignature(inputs, outputs),
            state_dict={},
            range_constraints=self._ranges(),
            module_call_graph=[ModuleCallEntry("", signature)],
            constants=constants,
            verifiers=[TrainingIRVerifier],
        )

    def _fixed(self, taken: Sequence[int]) -> list[str]:
        """The guards that fix what is computed of sizes, such as a size that is squeezed away, as torch.export writes them. The
        others are TorchDynamo's to check, and say nothing that a program needs to know."""
        texts: dict[Any, str] = {}
        for k, i in enumerate(taken):
            value, source = self.placeholders[i].meta["val"], f"L['flat_args'][{k}]"
            sizes = [(n, f"{source}.size()[{d}]") for d, n in enumerate(value.shape)] if isinstance(value, torch.Tensor) else []
            for n, text in sizes or [(value, source)]:
                if isinstance(n, torch.SymInt) and n.node.expr.is_Symbol:
                    texts.setdefault(n.node.expr, text)
        printer = _SizePrinter(texts)
        known = [g for g in self.guards if isinstance(g, sympy.Eq) and g.free_symbols and g.free_symbols <= texts.keys()]
        return [printer.doprint(g) for g in dict.fromkeys(known) if g.lhs.is_Integer or g.rhs.is_Integer]

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


class _SizePrinter(PythonPrinter):
    """Writes relations between sizes as code, with the given texts for symbols."""

    def __init__(self, texts: Mapping[Any, str]) -> None:
        super().__init__()
        self._texts = texts

    def _print_Symbol(self, symbol: Any) -> str:
        return self._texts[symbol]


def _guards(placeholders: Sequence[Any]) -> list[Any]:
    """What tracing took for granted of sizes so far, which TorchDynamo checks at each call."""
    numbers = [n for p in placeholders for n in (*getattr(p.meta["val"], "shape", ()), p.meta["val"])]
    env = next((n.node.shape_env for n in numbers if isinstance(n, torch.SymInt)), None)
    return [] if env is None else [env.replace(g.expr) for g in env.guards]


def _distinct(names: Sequence[str]) -> list[str]:
    """The names, those that occur again with a number."""
    taken, out = set[str](), list[str]()
    for name in names:
        free = next(x for k in range(len(names) + 1) if (x := f"{name}_{k}" if k else name) not in taken)
        taken.add(free)
        out.append(free)
    return out


def _permuted(graph: torch.fx.Graph, node: Any, order: list[int] | None) -> Any:
    if order is None:
        return node
    moved = graph.call_function(aten.permute.default, (node, order))
    moved.meta = {**node.meta, "val": node.meta["val"].permute(order)}
    return moved


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
