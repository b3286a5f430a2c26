"""One round of importing: an exported graph, interpreted node by node, builds a module."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import sympy
import torch
from torch.export.graph_signature import InputKind, OutputKind, TensorArgument
from torch.utils import _pytree as pytree

from dhlo.errors import CompileError, UnsupportedError
from dhlo.frontend.aten.complex import Complex
from dhlo.frontend.builder import OpBuilder, Value
from dhlo.frontend.calls import Calls, read, wrap
from dhlo.frontend.decompose import Decompositions, all_nodes
from dhlo.frontend.dims import Dims, static_value
from dhlo.frontend.functionalize import Ref
from dhlo.frontend.guards import bounds_of, dim_names, input_names, input_values, only_two, read_guards
from dhlo.frontend.locations import location, source_line
from dhlo.frontend.program import GRADIENTS, InputSpec, Mutation, OutputSpec, Program, Range, output_structure
from dhlo.frontend.promotion import scalar_dtype
from dhlo.frontend.state import Parts, has_parts, state_names, storage_span, tensor_of
from dhlo.ir.dialect import TypeError_
from dhlo.ir.function import mark_results, set_ranges, set_user_names
from dhlo.ir.mlir import func, ir
from dhlo.ir.ops import complexes, control, movement
from dhlo.ir.ops.control import CONDITION
from dhlo.ir.solve import solve_sizes
from dhlo.ir.symbols import as_expr, show, symbol, symbols_of
from dhlo.ir.types import DTYPES, TensorType, from_torch_dtype

__all__ = ["Importer"]


class Importer:
    """One round of importing: interprets the graph node by node and builds ops as it goes."""

    def __init__(
        self,
        ep: Any,
        dims: Dims,
        names: list[str],
        guards: list[Any],
        context: Any,
        decompositions: Decompositions,
    ) -> None:
        self.ep, self.dims, self.names, self.guards, self.context = ep, dims, names, guards, context
        self.decompositions = decompositions
        self.b = OpBuilder(dims)
        self.b.importer = self
        self.calls = Calls(self, self.b)
        self.env: dict[Any, Any] = {}
        self.weights: dict[str, torch.Tensor] = {}
        self.spans: dict[str, tuple[int, int]] = {}  # see Program
        self.states: dict[str, Ref] = {}  # the module's tensors, by the names of weights
        self.parts: dict[str, Ref] = {}  # those inside tensor subclasses
        self.entry: Any = None
        self.owners: list[tuple[str, str, Ref]] = []  # (kind, target, base) of what can be mutated
        self.fresh = 0
        self.sizes: set[str] = set()  # symbols that arguments' sizes define
        self.sizes_apart: list[tuple[sympy.Symbol, sympy.Expr]] = []  # arguments' sizes that numbers say, and what they say
        self.apart: dict[str, TensorType] = {}  # types of arguments by these numbers
        self.numbers: set[str] = set()  # symbols that numbers among the arguments define
        self.read = 0  # how many ops read these
        self.items: set[str] = set()  # symbols that tensors' values have defined
        self.autocast: torch.dtype | None = None  # what operators' arguments are converted to, inside torch.autocast
        self.depth = 0  # how many regions deep ops are being built
        bindings = (n.meta.get("unbacked_bindings") or {} for n in all_nodes(ep.graph_module))
        self.bound = Counter(as_expr(s) for symbols in bindings for s in symbols)  # by how many nodes
        self.inlined: dict[Any, Any] = {}  # symbols of the decomposition being built, if any
        self.scope: dict[Any, Any] = {}  # values of the graph being interpreted

    # ------------------------------------------------------------------------------------------------ the function
    def run(self) -> Program:
        """Builds the module and describes its interface."""
        module = ir.Module.create()
        inputs, types = self._inputs()
        self.sizes = {s for t in types for s in t.symbols}
        with ir.InsertionPoint(module.body):
            f = func.FuncOp("main", ([t.mlir() for t in types], []))
        self.entry = block = f.add_entry_block()
        self.dims.check_here = self._check_here
        with ir.InsertionPoint(block):
            self._bind_inputs(inputs, list(block.arguments))
            self.read = len(list(block.operations))
            self._bind_state()
            for relation in self.guards:
                self.b.require(relation, f"the exported program requires {CONDITION}")
            result = self._graph(self.ep.graph_module, self.env)
            values, outputs, mutations = self._outputs(result)
            self._leftovers(block)
            func.ReturnOp(values)
        f.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get([t.mlir() for t in types], [v.type for v in values]))
        f.attributes["arg_attrs"] = ir.ArrayAttr.get(
            [ir.DictAttr.get({"dhlo.name": ir.StringAttr.get(s.name)}) for s in inputs if s.type is not None]
        )
        symbols = self._symbols(types)
        set_ranges(module, {n: (r.lo, r.hi) for n, r in symbols.items()})
        names = self._user_names(symbols)
        set_user_names(module, names)
        arguments = {s.name: k for k, s in enumerate(s for s in inputs if s.type is not None)}
        mark_results(block, {m.index: m.target if m.kind == "buffer" else arguments[m.target] for m in mutations})
        return Program(
            self.context,
            module,
            self.weights,
            inputs,
            outputs,
            self.ep.call_spec.in_spec,
            output_structure(self.ep),
            symbols,
            names,
            mutations,
            self.spans,
        )

    def _inputs(self) -> tuple[list[InputSpec], list[TensorType]]:
        specs: list[InputSpec] = []
        for name, value in zip(self.names, input_values(self.ep), strict=True):
            if isinstance(value, torch.Tensor):
                t = TensorType.of(from_torch_dtype(value.dtype), [self.dims.expr(s) for s in value.shape])
                specs.append(InputSpec(name, t))
            elif isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
                kind = {torch.SymInt: "int", torch.SymFloat: "float", torch.SymBool: "bool"}[type(value)]
                t = TensorType.of({"int": "i64", "float": "f64", "bool": "i1"}[kind], [])
                specs.append(InputSpec(name, t, scalar=kind))
            else:
                specs.append(InputSpec(name, None, constant=value))
        return self._apart(specs)

    def _apart(self, specs: list[InputSpec]) -> tuple[list[InputSpec], list[TensorType]]:
        """Sizes that no size tells the symbols of, but whole numbers among the inputs do (tokens of `h * w`), become symbols of
        their own: what they are equal to is checked behind the arguments. Returns the types of tensors and numbers, too."""
        whole = {str(v.node.expr) for v in input_values(self.ep) if isinstance(v, torch.SymInt)}
        told = {name for name, *_ in solve_sizes([e for s in specs if s.type is not None for e in s.type.shape])}
        out, types = list[InputSpec](), list[TensorType]()
        for spec in specs:
            if spec.type is not None:
                shape = [self._size_apart(e) if symbols_of(e) & (whole - told) else e for e in spec.type.shape]
                own = TensorType.of(spec.type.dtype, shape)
                if own != spec.type:
                    self.apart[spec.name] = spec.type
                    spec = replace(spec, type=own)
                types.append(own)
            out.append(spec)
        return out, types

    def _size_apart(self, e: sympy.Expr) -> sympy.Symbol:
        name = f"size_{len(self.sizes_apart)}"
        self.dims.declare(name, 0, None)
        self.sizes_apart.append((symbol(name), e))
        return symbol(name)

    def _bind_inputs(self, specs: Sequence[InputSpec], arguments: list[Value]) -> None:
        nodes = {n.name: n for n in self.ep.graph.nodes if n.op == "placeholder"}
        user = [s for s in self.ep.graph_signature.input_specs if s.kind == InputKind.USER_INPUT]
        rest = iter(arguments)
        checked: list[tuple[Value, Any]] = []
        tensors = list[tuple[Any, InputSpec, Value]]()
        for spec, inner in zip(specs, user, strict=True):
            node = nodes[inner.arg.name]
            if spec.type is None:
                self.env[node] = spec.constant
            elif spec.scalar:
                x, expr = next(rest), node.meta["val"].node.expr
                if spec.scalar == "int" and (not expr.is_Symbol or str(expr) in self.sizes):
                    checked.append((x, expr))
                else:
                    self._define(x, expr)
                self.env[node] = static_value(self.dims.expr(as_expr(expr)))
            else:
                tensors.append((node, spec, next(rest)))
        for x, expr in checked:
            self._check_number(x, expr)
        for own, e in self.sizes_apart:
            same = show(sympy.Eq(own, e, evaluate=False))
            self.b.op(control.Assert, [], {"condition": same, "message": f"a size that follows from numbers requires {CONDITION}"})
        for node, spec, x in tensors:
            if spec.name in self.apart:
                x = self.b.op(movement.Reshape, [x], None, [self.apart[spec.name]])
            self.env[node] = self._content(x)
            self.owners.append(("input", spec.name, self.env[node]))

    def _bind_state(self) -> None:
        """Parameters, buffers and constants as `weight` ops; one for each distinct piece of memory, by its module's name."""
        nodes = {n.name: n for n in self.ep.graph.nodes if n.op == "placeholder"}
        names = state_names(self.ep)
        written = {s.target for s in self.ep.graph_signature.output_specs if s.kind == OutputKind.BUFFER_MUTATION}
        for spec in self.ep.graph_signature.input_specs:
            if spec.kind not in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
                continue
            node, name = nodes[spec.arg.name], names[spec.target]
            if not node.users and spec.target not in written:
                continue
            data = tensor_of(self.ep, spec.target)
            if has_parts(data) and spec.target not in written:
                self.env[node] = Parts(name, data)
                continue
            if name not in self.states:
                self.states[name] = self._content(self.weight(name, data))
                self.owners.append(("buffer", name, self.states[name]))
            self.env[node] = self.states[name]

    def part(self, whole: Any, attribute: str) -> Any:
        """A part of a constant that is a tensor subclass; one `weight` op for each distinct one."""
        if not isinstance(whole, Parts):
            raise CompileError("parts are read of a tensor that is no constant")
        name, data = f"{whole.name}.{attribute}", getattr(whole.tensor, attribute)
        if has_parts(data):
            return Parts(name, data)
        if name not in self.parts:
            with ir.InsertionPoint.at_block_begin(self.entry):
                self.parts[name] = self._content(self.weight(name, data))
            self.owners.append(("constant", name, self.parts[name]))
        return self.parts[name]

    def _check_aliases(self, mutations: Sequence[Mutation]) -> None:
        """State is memory of its own: raises CompileError where the module's other tensors lie in it, as part of it or by another
        view."""
        spans = {n: storage_span(self.weights[n]) for n in self.states if self.weights[n].numel()}
        for m in mutations:
            for other, span in spans.items():
                own = spans.get(m.target)
                if m.kind == "buffer" and other != m.target and own is not None and span[0] < own[1] and own[0] < span[1]:
                    raise CompileError(
                        f"'{m.target}', which the program changes, shares memory with '{other}'",
                        hint="register one of them as a buffer, and make the other of it inside forward",
                    )

    def _content(self, x: Value) -> Ref:
        """A tensor in memory: itself, or the two parts of a complex one."""
        return Ref(Complex(self.b.op(complexes.Real, [x]), self.b.op(complexes.Imag, [x])) if self.b.dtype(x).is_complex else x)

    def weight(self, name: str, data: torch.Tensor) -> Value:
        """A `weight` op for constant data."""
        data = data.detach().resolve_conj()
        self.weights[name] = data
        return self.b.op(movement.Weight, [], {"name_": name}, [TensorType.of(from_torch_dtype(data.dtype), list(data.shape))])

    def _check_here(self, a: sympy.Expr, b: sympy.Expr) -> bool:
        """Inside a region: checks an equality of what it may have defined. False elsewhere, and for what arguments decide."""
        if self.depth == 0 or not {s.name for s in (a - b).free_symbols} - self.sizes - self.numbers:
            return False
        self.b.op(control.Assert, [], {"condition": show(sympy.Eq(a, b)), "message": f"sizes must agree: {CONDITION}"})
        return True

    def _leftovers(self, block: Any) -> None:
        """Equalities that no renaming expresses are checked at run time: first thing if the arguments' sizes decide them, or after
        the numbers among the arguments if these do."""
        operations = list(block.operations)
        read = ir.InsertionPoint(operations[self.read]) if self.read < len(operations) else ir.InsertionPoint(block)
        for a, b in self.dims.unsolved:
            a, b = self.dims.expr(a), self.dims.expr(b)
            if self.dims.equal(a, b):
                continue
            late = {s.name for s in (a - b).free_symbols} - self.sizes
            at = ir.InsertionPoint(block) if late - self.numbers else read if late else ir.InsertionPoint.at_block_begin(block)
            with at:
                self.b.op(control.Assert, [], {"condition": show(sympy.Eq(a, b)), "message": f"sizes must agree: {CONDITION}"})

    # ------------------------------------------------------------------------------------------------ results
    def _outputs(self, result: Any) -> tuple[list[Value], list[OutputSpec], list[Mutation]]:
        values: list[Value] = []
        outputs: list[OutputSpec] = []
        mutations: list[Mutation] = []
        targets = {
            s.arg.name: n
            for s, n in zip(
                [s for s in self.ep.graph_signature.input_specs if s.kind == InputKind.USER_INPUT],
                self.names,
                strict=True,
            )
        }
        names = state_names(self.ep)
        for i, (spec, x) in enumerate(zip(self.ep.graph_signature.output_specs, result, strict=True)):
            if spec.kind == OutputKind.BUFFER_MUTATION:
                mutations.append(Mutation("buffer", names[spec.target], len(values)))
            elif spec.kind == OutputKind.USER_INPUT_MUTATION:
                mutations.append(Mutation("input", targets.get(spec.target, spec.target), len(values)))
            elif spec.kind not in (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT, *GRADIENTS):
                raise CompileError(f"outputs of kind {spec.kind.name} are not supported")
            else:
                name = spec.arg.name if isinstance(spec.arg, TensorArgument) else f"output{i}"
                name = f"{spec.target}.grad" if spec.kind in GRADIENTS else name
                outputs.append(self._output(name, x, len(values)))
                if outputs[-1].index is None:
                    continue
            values.append(self.tensor_of(x))
        for kind, target, ref in self.owners:
            if ref.version:
                if kind == "constant":
                    raise CompileError(f"the program changes its constant '{target}'", hint="register it as a buffer of the module")
                mutations.append(Mutation(kind, target, len(values)))
                values.append(self.tensor_of(ref))
        self._check_aliases(mutations)
        for m in mutations:
            if m.kind == "buffer":
                if self.weights[m.target].numel():
                    self.spans[m.target] = storage_span(self.weights[m.target])
                self.weights[m.target] = self.weights[m.target].clone()  # the state that calls start from
        return values, outputs, mutations

    def _output(self, name: str, x: Any, index: int) -> OutputSpec:
        if isinstance(x, Ref):
            return OutputSpec(name, index)
        if isinstance(x, sympy.Basic):
            kind = {torch.bool: "bool", torch.int64: "int", torch.float32: "float"}[scalar_dtype(x)]
            return OutputSpec(name, index, scalar=kind)
        return OutputSpec(name, None, constant=x)

    def tensor_of(self, x: Any) -> Value:
        """A graph value as an SSA value; numbers become rank-0 tensors of their widest dtype."""
        x = read(x)
        if self.b.is_tensor(x):
            return x
        if isinstance(x, Complex):
            return self.b.op(complexes.Interleave, [x.re, x.im])
        kind = scalar_dtype(x)
        if kind == torch.bool and isinstance(x, sympy.Basic):
            flag = sympy.Piecewise((1, x), (0, True))
            return self.b.convert(self.b.full([], flag, "i64"), "i1")
        return self.b.full([], x, DTYPES["f64"] if kind.is_floating_point else from_torch_dtype(kind))

    def _symbols(self, types: Sequence[TensorType]) -> dict[str, Range]:
        gone = {s.name for s in self.dims.substitution}
        names = {s.name for t in types for e in t.shape for s in e.free_symbols} | set(self.dims.ranges)
        return {n: self.dims.range_of(n) for n in sorted(names - gone, key=lambda n: (n[0], len(n), n))}

    def _user_names(self, symbols: dict[str, Range]) -> dict[str, str]:
        """The user's Dim names of the symbols that are left."""
        named = dim_names(self.names, input_values(self.ep))
        exprs = {self.dims.expr(e): name for e, name in named.items()}
        return {e.name: name for e, name in exprs.items() if e.is_Symbol and e.name in symbols}

    # ------------------------------------------------------------------------------------------------ nodes
    def _graph(self, gm: Any, env: dict[Any, Any]) -> Any:
        """Interprets a graph; returns what its output node returns."""
        for node in gm.graph.nodes:
            if node.op == "output":
                return pytree.tree_map_only(
                    torch.fx.Node, env.__getitem__, node.args[0], is_leaf=lambda x: isinstance(x, torch.fx.Node)
                )
            if node.op == "get_attr":
                env[node] = self._attribute(gm, node)
            elif node.op == "call_function":
                self.b.node, self.scope = node, env
                try:
                    with location(node):
                        env[node] = self.calls.call(node, env)
                except UnsupportedError:
                    raise
                except (TypeError_, CompileError) as e:
                    if isinstance(e, CompileError) and "\n  at " in str(e):
                        raise
                    raise CompileError(f"{node.target} ({node.name}): {e}", where=source_line(node)) from e
        return ()

    def subgraph(self, gm: Any, args: Sequence[Any]) -> Any:
        """Interprets a branch or body on values (SSA values or numbers); SSA values and numbers come back."""
        given = [wrap(a) for a in args]
        env = _bound(gm, given)
        outer, inlined, self.depth = self.b.node, self.inlined, self.depth + 1
        self.inlined = {**self._renamed(gm), **inlined}
        result = self._graph(gm, env)
        self.b.node, self.inlined, self.depth = outer, inlined, self.depth - 1
        if any(isinstance(r, Ref) and r.version for r in pytree.tree_leaves(given)):
            raise CompileError(f"{outer.target} changes a tensor that it is given", hint="change a copy, and return that")
        return pytree.tree_map_only(Ref, lambda r: r.read(), result)

    def inline(self, gm: Any, args: Sequence[Any]) -> Any:
        """Interprets a graph in the place of the node being lowered; references go in and come out."""
        outer = self.b.node, self.scope
        result = self._graph(gm, _bound(gm, args))
        self.b.node, self.scope = outer
        return result

    def _renamed(self, gm: Any) -> dict[Any, Any]:
        """Run-time symbols that a graph's nodes bind and others bind, too, as graphs may that were traced apart: each with another
        name."""
        bound = {as_expr(s) for n in gm.graph.nodes for s in n.meta.get("unbacked_bindings") or {}}
        often = sorted((s for s in bound if self.bound[s] > 1), key=str)
        return {s: symbol(self.fresh_symbol("u" if s.is_integer else "f")) for s in often}

    def inline_program(self, program: Any, values: Sequence[Any]) -> Any:
        """Interprets another exported program on values of this one; its guards become conditions of this one."""
        env: dict[Any, Any] = {}
        pairs: list[tuple[sympy.Expr, sympy.Expr]] = []
        nodes = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
        rest = iter(values)
        for spec in program.graph_signature.input_specs:
            node = nodes[spec.arg.name]
            if spec.kind == InputKind.USER_INPUT:
                env[node] = next(rest)
                pairs += self._sizes_of(node.meta["val"], env[node])
            else:
                data = program.constants[spec.target] if spec.target in program.constants else program.state_dict[spec.target]
                env[node] = self._content(self.weight(f"{self.b.node.name}.{spec.target}", data))
        own = self._own_symbols(program)
        sizes = self._match_sizes(pairs) | own
        examples = input_values(program)
        conditions = read_guards(program, input_names(program, examples), examples) + bounds_of(program)
        conditions = [r for r in conditions if not only_two(r, program.range_constraints, examples)]

        def require(of_own: bool) -> None:
            for relation in conditions:
                if of_own == bool(relation.free_symbols & own.keys()):
                    self.b.require(relation.xreplace(sizes), f"{self.b.node.target} requires {CONDITION}")

        require(False)
        outer = self.b.node, self.inlined, self.autocast
        self.inlined, self.autocast = sizes, None  # its own regions say where autocast acts inside
        result = self._graph(program.graph_module, env)
        self.b.node, self.inlined, self.autocast = outer
        require(True)
        results = pytree.tree_unflatten(list(result), program.call_spec.out_spec)
        self._name_results(results)
        return results

    def _own_symbols(self, program: Any) -> dict[Any, Any]:
        """Run-time symbols that another program's data decide, each with a name that this program doesn't have."""
        bound = {s for n in all_nodes(program.graph_module) for s in n.meta.get("unbacked_bindings") or {}}
        names = sorted((as_expr(s) for s in bound), key=str)
        return {s: symbol(self.fresh_symbol("u" if s.is_integer else "f")) for s in names}

    def _name_results(self, results: Any) -> None:
        """What the node being lowered calls the run-time sizes of its results, which another program has named otherwise."""
        bound = {as_expr(s) for s in self.b.node.meta.get("unbacked_bindings") or {}}
        stated = pytree.tree_leaves(self.b.node.meta.get("val"))
        for val, made in zip(stated, pytree.tree_leaves(results), strict=True) if bound else ():
            for s, own in self._sizes_of(val, made) if isinstance(val, torch.Tensor | torch.SymInt) else ():
                if s in bound:
                    self.dims.equate(self.size_of(s), own)

    def size_of(self, s: Any) -> Any:
        """A size or stride of an example tensor as a size of this program."""
        return self.dims.expr(as_expr(s).xreplace(self.inlined))

    def value_of(self, node: Any) -> Value:
        """The current value of an earlier node of the graph being interpreted."""
        return self.scope[node].read()

    def _sizes_of(self, traced: Any, value: Any) -> list[tuple[sympy.Expr, sympy.Expr]]:
        """The sizes of a traced argument, each with what it is here."""
        if isinstance(traced, torch.SymInt):
            return [(as_expr(traced), as_expr(value))]
        x = value.read()
        real = x.re if isinstance(x, Complex) else x
        return [(as_expr(s), as_expr(own)) for s, own in zip(traced.shape, self.b.shape(real), strict=True)]

    def _match_sizes(self, pairs: list[tuple[sympy.Expr, sympy.Expr]]) -> dict[Any, Any]:
        """What the symbols of traced sizes are here: bare symbols say it, then all else has to agree."""
        sizes: dict[Any, Any] = {}
        for s, own in pairs:
            if s.is_Symbol:
                sizes.setdefault(s, own)
        for s, own in pairs:
            if sizes.get(s) != own:
                self.dims.same(s.xreplace(sizes), own)
        return sizes

    def _attribute(self, gm: Any, node: Any) -> Any:
        value = operator.attrgetter(node.target)(gm)
        if not isinstance(value, torch.Tensor):
            return value
        name = f"{node.target}"
        while name in self.weights and self.weights[name].data_ptr() != value.data_ptr():
            name += "_"
        content = self._content(self.weight(name, value))
        self.owners.append(("constant", name, content))
        return content

    # ------------------------------------------------------------------------------------------------ run-time symbols
    def symbol_name(self) -> str:
        """The unbacked symbol that the node being lowered binds, or a fresh one."""
        bindings = self.b.node.meta.get("unbacked_bindings") or {}
        names = [str(self.inlined.get(as_expr(s), s)) for s in bindings]
        if not names:
            val = self.b.node.meta.get("val")
            expr = getattr(getattr(val, "node", None), "expr", None)
            names = [str(self.inlined.get(as_expr(s), s)) for s in expr.free_symbols] if isinstance(expr, sympy.Symbol) else []
        return names[0] if names else self.fresh_symbol()

    def fresh_symbol(self, kind: str = "u") -> str:
        """A run-time symbol of our own, `u` an integer or `f` a float; the same in every round."""
        self.fresh += 1
        return f"{kind}_{self.fresh}"

    def _define(self, x: Value, expr: Any) -> None:
        """Binds an expression that is a bare symbol to a one-element tensor's value."""
        name = str(next(iter(expr.free_symbols)))
        name = self.dims.signed.get(name, name)
        if self.b.dtype(x).is_bool:
            x = self.b.convert(x, "i64")
        self.b.op(control.Item, [x], {"symbol": name})
        self.numbers.add(name)
        self.check_symbol(name)

    def _check_number(self, x: Value, expr: Any) -> None:
        """Checks that a one-element tensor's value is what follows from the symbols."""
        self.fresh += 1
        own = symbol(f"u_{self.fresh}")
        self.b.op(control.Item, [x], {"symbol": own.name})
        same = show(sympy.Eq(own, self.dims.expr(as_expr(expr)), evaluate=False))
        self.b.op(control.Assert, [], {"condition": same, "message": f"a number that follows from others requires {CONDITION}"})

    def item(self, x: Value, *, fresh: bool = False) -> Any:
        """aten.item: the value of a one-element tensor as a symbolic number. `fresh`: one that the exported graph has no
        name for."""
        if self.b.dtype(x).is_float and self.b.dtype(x).bits == 8:
            x = self.b.convert(x, "f32")
        name = self.fresh_symbol() if fresh else self.symbol_name()
        flag = self.b.dtype(x).is_bool
        if self.b.dtype(x).is_float and not name.startswith(("zuf", "f_")):
            self.fresh += 1
            name = f"f_{self.fresh}"
        elif name in self.items:  # torch.export names one value twice where it is read twice
            self.fresh += 1
            name = f"{'f' if self.b.dtype(x).is_float else 'u'}_{self.fresh}"
        self.items.add(name)
        self.b.op(control.Item, [self.b.convert(x, "i64") if flag else x], {"symbol": name})
        self.check_symbol(name)
        s = self.dims.of(name)
        return static_value(sympy.Eq(s, 1) if flag else s)

    def check_symbol(self, name: str) -> None:
        """Where a run-time symbol was replaced by an equal expression, its definition checks that."""
        self.dims.define(name)
        s = symbol(name)
        value = self.dims.substitution.get(s)
        if value is not None:
            self.b.op(
                control.Assert,
                [],
                {"condition": show(sympy.Eq(s, value, evaluate=False)), "message": f"sizes must agree: {CONDITION}"},
            )


def _bound(gm: Any, args: Sequence[Any]) -> dict[Any, Any]:
    """A graph's inputs with their values."""
    return dict(zip([n for n in gm.graph.nodes if n.op == "placeholder"], args, strict=True))
