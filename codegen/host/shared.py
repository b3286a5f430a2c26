"""One host program for several levels: what their host programs have in common, given what depends on the level in a table.

The host programs of levels are the same arithmetic, checks and launches, with other kernels and other numbers: lanes, tiles, shares
of caches. Where they differ in nothing but constants and addresses, they are one function with one more argument, an array of what
differs; each level keeps a function that fills it. So nothing that a level computes changes, whatever its families wrote. Where
they differ in structure, as where one target's kernels choose among other variants, each level has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from dhlo.codegen.host.program import HostProgram
from dhlo.codegen.kernel_ir.builder import I32, I64, PTR, Fn, KernelModule, Linkage, Symbol
from dhlo.codegen.target import Target
from dhlo.ir import mlir

__all__ = ["share_host_program"]

_ADDRESS, _INDEX = "llvm.mlir.addressof", "llvm.getelementptr"
_VARIES: Final = {_ADDRESS: "global_name", _INDEX: "rawConstantIndices"}
"""By op: the attribute whose value may depend on the level."""
_OPERAND: Final = -(1 << 31)
"""A constant index of an address that is an operand instead (`GEPOp::kDynamicIndex`)."""

_Value = int | str
"""What a level has at a place where others may have something else: an i64, or the symbol whose address it is."""
_Row = tuple[_Value, ...]


def share_host_program(programs: Sequence[HostProgram]) -> tuple[KernelModule, Target] | None:
    """The host program of all levels in a module of its own, and the target that it is to be compiled for; `programs` then call it.
    None, and nothing is changed, where they differ in more than constants and addresses, or no level's features are a part of all
    others'."""
    targets = [p.module.target for p in programs]
    least = next((t for t in targets if all(set(t.features) <= set(other.features) for other in targets)), None)
    if len(programs) < 2 or least is None:
        return None
    first = programs[0].module
    elsewhere = {name for name, symbol in first.functions.items() if symbol.linkage is Linkage.DECLARED}
    with mlir.ir.Context(), mlir.ir.Location.unknown():
        modules = [mlir.ir.Module.parse(_text(p.module, p.fn.name)) for p in programs]
        merge = _Merge([list(m.body.operations)[-1].operation for m in modules], elsewhere, programs[0].symbol)
        if not merge.found():
            return None
        function = merge.function()
        modules[0].operation.verify()
        body = str(function).removeprefix("llvm.func ")
    shared = KernelModule(least)
    for name in sorted(merge.symbols):
        shared.functions[name] = first.functions[name]
    symbol = programs[0].symbol
    declaration = f"@{symbol}({PTR}, {PTR}, {PTR}) -> {I32}"
    shared.functions[symbol] = Symbol("llvm.func", body, declaration, Linkage.EXPORTED)
    for n, program in enumerate(programs):
        _call_shared(program, [row[n] for row in merge.rows])
    return shared, least


def _text(module: KernelModule, name: str) -> str:
    """MLIR of a module whose last function is the one of that name; what it names stands before it, functions without bodies."""
    seen, work, out = {name}, [name], list[str]()
    while work:
        n = work.pop()
        function = module.functions.get(n)
        symbol = function or module.globals[n]
        whole = n == name or function is None
        out.append(symbol.text() if whole else symbol.declared())
        new = symbol.uses - seen if whole else frozenset[str]()
        seen |= new
        work += sorted(new)
    return "module {\n" + "\n".join(reversed(out)) + "\n}\n"


class _Merge:
    """Walks the levels' host programs side by side. `rows` are what depends on the level, each with a value for every level;
    `symbols` are the functions that all call by the same name, which others than the program define (`elsewhere`)."""

    def __init__(self, functions: Sequence[Any], elsewhere: set[str], symbol: str) -> None:
        self.rows: list[_Row] = []
        self.symbols: set[str] = set()
        self._functions, self._elsewhere, self._symbol = functions, elsewhere, symbol
        self._constants = [_constants(f) for f in functions]
        self._numbers: list[dict[Any, int]] = [{} for _ in functions]  # of values and blocks, as they come
        self._changes: list[Callable[[], None]] = []  # of the first function, made when the others are known to fit
        self._places: dict[_Row, int] = {}
        self._loaded: dict[int, Any] = {}

    def found(self) -> bool:
        """Whether the programs differ in nothing but `rows`. Changes none of them."""
        return self._region([f.regions[0] for f in self._functions])

    def function(self) -> Any:
        """The first function as that of all levels, whose last argument is a table with an 8-byte entry for each of `rows`."""
        ir, function = mlir.ir, self._functions[0]
        entry = function.regions[0].blocks[0]
        self._table = entry.add_argument(ir.Type.parse(PTR), ir.Location.unknown())
        self._start = ir.InsertionPoint(entry.operations[0])
        for change in self._changes:
            change()
        function.attributes["sym_name"] = ir.StringAttr.get(self._symbol)
        function.attributes["function_type"] = ir.TypeAttr.get(ir.Type.parse("!llvm.func<i32 (ptr, ptr, ptr)>"))
        return function

    # ------------------------------------------------------------------ comparing
    def _region(self, regions: Sequence[Any]) -> bool:
        blocks = [list(r.blocks) for r in regions]
        return _equal([len(b) for b in blocks]) and all(self._block(row) for row in zip(*blocks, strict=True))

    def _block(self, blocks: Sequence[Any]) -> bool:
        """Constants aren't compared where they are defined: two may be one number at another level."""
        arguments = [list(b.arguments) for b in blocks]
        ops = [[op.operation for op in b.operations if _number(op.operation) is None] for b in blocks]
        return (
            self._same(blocks)
            and self._same_values(arguments)
            and _equal([len(x) for x in ops])
            and all(self._operation(row) for row in zip(*ops, strict=True))
        )

    def _operation(self, ops: Sequence[Any]) -> bool:
        first = ops[0]
        name = first.name
        attributes = [dict(op.attributes.items()) for op in ops]
        if not _equal([op.name for op in ops]) or not _equal([a.keys() for a in attributes]):
            return False
        varies = [a.pop(_VARIES[name]) for a in attributes] if name in _VARIES else []
        regions, successors = [list(op.regions) for op in ops], [list(op.successors) for op in ops]
        called = {a.value for a in attributes[0].values() if isinstance(a, mlir.ir.FlatSymbolRefAttr)}
        self.symbols |= called
        return (
            _equal(attributes)
            and called <= self._elsewhere
            and _equal([len(r) for r in regions])
            and _equal([len(s) for s in successors])
            and all(self._same(row) for row in zip(*successors, strict=True))
            and self._operands(ops)
            and (name != _ADDRESS or self._address(first, tuple(a.value for a in varies)))
            and (name != _INDEX or self._indices(first, [list(a) for a in varies]))
            and self._same_values([list(op.results) for op in ops])
            and all(self._region(row) for row in zip(*regions, strict=True))
        )

    def _operands(self, ops: Sequence[Any]) -> bool:
        operands = [list(op.operands) for op in ops]
        if not _equal([len(x) for x in operands]):
            return False
        for i, row in enumerate(zip(*operands, strict=True)):
            numbers = [known[v] for known, v in zip(self._constants, row, strict=True) if v in known]
            if not numbers:
                if not self._same(row):
                    return False
            elif len(numbers) < len(row):
                return False
            elif not _equal(numbers):
                if ops[0].name == "llvm.alloca":  # the stack's layout is fixed
                    return False
                self._change(self._replace_operand, ops[0], i, self._place(tuple(numbers)))
        return True

    def _address(self, op: Any, row: _Row) -> bool:
        if _equal(row) and row[0] in self._elsewhere:
            self.symbols.add(str(row[0]))
        else:
            self._change(self._replace_address, op, self._place(row))
        return True

    def _indices(self, op: Any, levels: Sequence[list[int]]) -> bool:
        """Constant indices of an address. Which indices are constant is structure."""
        if not _equal([[i == _OPERAND for i in indices] for indices in levels]):
            return False
        rows = list(zip(*levels, strict=True))
        places = {n: self._place(row) for n, row in enumerate(rows) if not _equal(row)}
        if places:
            self._change(self._replace_indices, op, levels[0], places)
        return True

    def _same_values(self, values: Sequence[list[Any]]) -> bool:
        """Whether new values are of the same types; they are each other's from here on."""
        return _equal([[v.type for v in vs] for vs in values]) and all(self._same(row) for row in zip(*values, strict=True))

    def _same(self, row: Sequence[Any]) -> bool:
        """Whether values or blocks of the levels are each other's: what is met for the first time is."""
        return _equal([known.setdefault(x, len(known)) for known, x in zip(self._numbers, row, strict=True)])

    def _place(self, row: _Row) -> int:
        """Where the table has these values."""
        if row not in self._places:
            self._places[row] = len(self.rows)
            self.rows.append(row)
        return self._places[row]

    # ------------------------------------------------------------------ changing
    def _change(self, how: Callable[..., None], *args: Any) -> None:
        self._changes.append(lambda: how(*args))

    def _replace_operand(self, op: Any, i: int, place: int) -> None:
        op.operands[i] = self._number(place)

    def _replace_address(self, op: Any, place: int) -> None:
        _replace(op, self._load(place, PTR, mlir.ir.InsertionPoint(op)))

    def _replace_indices(self, op: Any, indices: list[int], places: dict[int, int]) -> None:
        base, *rest = op.operands
        operands = [base]
        for n, index in enumerate(indices):
            if n in places:
                operands.append(self._number(places[n]))
            elif index == _OPERAND:
                operands.append(rest.pop(0))
        new = [_OPERAND if n in places else index for n, index in enumerate(indices)]
        attributes = {**dict(op.attributes.items()), _VARIES[_INDEX]: mlir.ir.DenseI32ArrayAttr.get(new)}
        types = [r.type for r in op.results]
        _replace(op, mlir.ir.Operation.create(_INDEX, types, operands, attributes, ip=mlir.ir.InsertionPoint(op)).result)

    def _number(self, place: int) -> Any:
        """A number of the table, loaded at the entry, so that it dominates all uses. Addresses have one use each, before which they
        are loaded."""
        if place not in self._loaded:
            self._loaded[place] = self._load(place, I64, self._start)
        return self._loaded[place]

    def _load(self, place: int, ty: str, where: Any) -> Any:
        """An entry of the table."""
        ir = mlir.ir
        at = {
            "elem_type": ir.TypeAttr.get(ir.Type.parse(I64)),
            _VARIES[_INDEX]: ir.DenseI32ArrayAttr.get([place]),
        }
        p = ir.Operation.create(_INDEX, [self._table.type], [self._table], at, ip=where).result
        aligned = {"alignment": ir.IntegerAttr.get(ir.Type.parse(I64), 8)}
        return ir.Operation.create("llvm.load", [ir.Type.parse(ty)], [p], aligned, ip=where).result


def _equal(values: Sequence[Any]) -> bool:
    """Are all the same?"""
    return all(v == values[0] for v in values[1:])


def _number(op: Any) -> int | None:
    """The i64 that an op says is its result."""
    if op.name != "arith.constant":
        return None
    value = op.attributes["value"]
    return int(value.value) if isinstance(value, mlir.ir.IntegerAttr) and str(value.type) == I64 else None


def _constants(function: Any) -> dict[Any, int]:
    """The numbers of a function by value."""
    found: dict[Any, int] = {}

    def visit(op: Any) -> Any:
        if (number := _number(op)) is not None:
            found[op.result] = number
        return mlir.ir.WalkResult.ADVANCE

    function.walk(visit)
    return found


def _replace(op: Any, value: Any) -> None:
    op.result.replace_all_uses_with(value)
    op.erase()


def _call_shared(program: HostProgram, values: Sequence[_Value]) -> None:
    """Makes a level's host program fill the table and call the one of all levels."""
    module, name = program.module, program.fn.name
    plain = {module.tagged(used): used for used in module.functions[name].uses}
    del module.functions[name]
    module.declare(program.symbol, [PTR, PTR, PTR], I32)
    fn = Fn(module, name, [("call", PTR), ("inputs", PTR)], I32, internal=False)
    table = fn.alloca(max(1, len(values)), I64, 8)
    for i, value in enumerate(values):
        x = fn.i64(value) if isinstance(value, int) else fn.address_of(plain[value])
        fn.store(x, fn.gep(table, i, I64), 8)
    fn.ret(fn.call(program.symbol, [*fn.args, table], I32))
    fn.done()
