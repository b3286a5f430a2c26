"""Texts from strangers: size expressions, modules, shapes and arrays on the command line, pytrees in model files."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import sympy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.export import Dim, export
from torch.utils import _pytree as pytree
from torch.utils._sympy import functions as tsf

from dhlo import callspec
from dhlo.commands.points import chosen_points, parse_range
from dhlo.commands.run import check_memory, read_tensor
from dhlo.commands.shapes import complete_shapes, parse_shape
from dhlo.errors import CompileError, ContractError, ModelFileError
from dhlo.frontend.guards import _Reader, read_guards
from dhlo.ir.context import context
from dhlo.ir.symbols import parse, show, symbol
from dhlo.passes.fold_weights import fold_weights
from dhlo.pipeline import PASSES, run_passes
from dhlo.texts import read_module

# ---------------------------------------------------------------------------------------------------- size expressions
SIZES = st.recursive(
    st.integers(-(10**9), 10**9).map(sympy.Integer) | st.sampled_from(["s0", "s1", "u0", "cap3"]).map(symbol),
    lambda e: (
        st.builds(lambda a, b: a + b, e, e)
        | st.builds(lambda a, b: a * b, e, e)
        | st.builds(lambda a, b: a - b, e, e)
        | st.builds(lambda a, n: tsf.FloorDiv(a, sympy.Integer(n)), e, st.integers(1, 9))
        | st.builds(lambda a, n: tsf.Mod(sympy.Abs(a), sympy.Integer(n)), e, st.integers(1, 9))
        | st.builds(lambda a, b: sympy.Max(a, b), e, e)
        | st.builds(lambda a, b: sympy.Piecewise((a, sympy.Lt(a, b)), (b, True)), e, e)
        | st.builds(lambda a: tsf.TruncToInt(tsf.IntTrueDiv(a, sympy.Integer(3))), e)
    ),
    max_leaves=6,
)


@given(SIZES)
@settings(max_examples=150, deadline=None, derandomize=True, database=None)
def test_what_is_shown_is_read_back(e: sympy.Expr) -> None:
    """What is read has the same values and stays as it is; reading may simplify, as sums in products or choices within choices."""
    read = parse(show(e))
    assert parse(show(read)) == read
    for s0, s1, u0, cap3 in ((1, 2, 3, 4), (0, 7, 1000, 2), (12345, 1, 0, 99)):
        values = {symbol("s0"): s0, symbol("s1"): s1, symbol("u0"): u0, symbol("cap3"): cap3}
        assert read.subs(values) == e.subs(values)


@pytest.mark.parametrize(
    "text",
    ["2*s0 + 3*s1", "floordiv(s0 - 1, 2) + 1", "s0**2", "s0/2", "1/s0", "Eq(mod(s0, 8), 0)", "And(s0 < 3, s1 >= 2)", "1 < s0",
     "ite(s0 < 3, 1, s0)", "max(1, s0, s1)", "pow(2, s0)", "-s0 - 1", "inf", "-inf", "0.5*zuf0", "Not(Eq(s0, 1))", "0.0",
     "abs(u0)"],
)  # fmt: skip
def test_forms(text: str) -> None:
    assert parse(show(parse(text))) == parse(text)
    assert parse("s0 // 2") == parse("floordiv(s0, 2)")


HOSTILE = [
    "[c for c in ().__class__.__base__.__subclasses__()]", "__import__('os').system('id')", "().__class__", "s0.free_symbols",
    "lambda: 1", "s0 if s0 else 1", "s0[0]", "f'{s0}'", "s0 := 3", "s0 s1", "", "(", "max(", "max()", "nosuch(1)",
    "floordiv(1)", "1 +",
    "9**9**9", "9**999999", "pow(2, 1000000000)", "shl(1, 1000000000)", "(s0 + 1)**1000000", "9" * 5000, "1_000", "٣", "s0 + true",
    "And(s0, s1)", "Not(3)", "mod(s0, 0)", "1/0", "0**(-1)", "sqrt(-1)", "inf - inf", "s0 < 3 < 4", "(" * 5000, "-" * 70000 + "1",
    "+".join(["s0"] * 5000), "floordiv(" * 500 + "s0" + ", 2)" * 500, "max(" + ", ".join(f"s{i}" for i in range(500)) + ")",
]  # fmt: skip


@contextmanager
def few_calls(most: int) -> Iterator[None]:
    """Fails once what is within has called functions more than `most` times: unlike seconds, the same on every machine."""
    calls = 0

    def count(_frame: object, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")
        if calls > most:
            sys.setprofile(None)
            pytest.fail(f"called functions more than {most} times")

    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("text", HOSTILE, ids=lambda t: t[:30])
def test_anything_else_is_refused_at_once(text: str) -> None:
    with pytest.raises(ValueError, match="not a size expression"), few_calls(1_000_000):
        parse(text)


def test_the_message_names_the_place() -> None:
    with pytest.raises(ValueError, match=r"unexpected '\.' at character 8"):
        parse("s0 + s1.x")


# ---------------------------------------------------------------------------------------------------- modules
N = 'tensor<?xf32, #dhlo.shape<["n"]>>'
SEGMENTS = "array<i32: 1" + ", 0" * 23 + ">"
REFUSED = {  # lines of a function of %x (n) and %m (4, 4): what the message says
    "code as a size": ('%y = "dhlo.full"() {value = "().__class__"} : () -> tensor<f32>', "'().__class__' is no value of f32"),
    "an attribute that is missing": (f'%y = "dhlo.transpose"(%x) : ({N}) -> {N}', "needs the attribute perm"),
    "an attribute of another type": (f'%y = "dhlo.transpose"(%x) {{perm = ["0"]}} : ({N}) -> {N}', "perm must be a list of whole"),
    "a flag that is a number": (f'%y = "dhlo.scan"(%x) {{how = "sum", dim = 3.5}} : ({N}) -> {N}', "dim must be a whole number"),
    "a dim that there isn't": (f'%y = "dhlo.scan"(%x) {{how = "sum", dim = 1}} : ({N}) -> {N}', "are not dims of"),
    "a negative dim": ('%y = "dhlo.reduce"(%m) {how = "sum", dims = [-1]} : (tensor<4x4xf32>) -> tensor<4xf32>', "are not dims of"),
    "a dim twice": (f'%y = "dhlo.reverse"(%x) {{dims = [0, 0]}} : ({N}) -> {N}', "are not dims of"),
    "a step of zero": (f'%y = "dhlo.slice"(%x) {{starts = ["0"], steps = [0]}} : ({N}) -> {N}', "steps must be positive"),
    "starts of another rank": (f'%y = "dhlo.slice"(%x) {{starts = [], steps = []}} : ({N}) -> {N}', "a start and a step for"),
    "a view of another dtype": (f'%y = "dhlo.reshape"(%x) : ({N}) -> tensor<?xi64, #dhlo.shape<["n"]>>', "can't become"),
    "a broadcast beyond the result": (
        f'%y = "dhlo.broadcast"(%m) {{dims = [0, 5]}} : (tensor<4x4xf32>) -> {N}', "must name a result dim"),
    "no operands": ('%y = "dhlo.exp"() : () -> tensor<f32>', "takes 1 operands, not 0"),
    "a product of other batches": (
        '%a = "dhlo.full"() {value = "0"} : () -> tensor<2x4x4xf32> %b = "dhlo.full"() {value = "0"} : () -> tensor<3x4x4xf32>\n'
        '%y = "dhlo.matmul"(%a, %b) : (tensor<2x4x4xf32>, tensor<3x4x4xf32>) -> tensor<2x4x4xf32>', "leading dims have different"),
    "an element type of no tensor": ('%y = "dhlo.full"() {value = "0"} : () -> tensor<4xi3>', "'i3' has no place"),
    "a dynamic dim without a size": ('%y = "dhlo.full"() {value = "0"} : () -> tensor<?xf32>', "needs #dhlo.shape"),
    "sizes that contradict the type": (
        '%y = "dhlo.full"() {value = "0"} : () -> tensor<4xf32, #dhlo.shape<["5"]>>', "contradicts"),
    "an encoding of its own": ('%y = "dhlo.full"() {value = "0"} : () -> tensor<4xf32, "a">', "the encoding of a tensor"),
    "a negative size": ('%y = "dhlo.full"() {value = "0"} : () -> tensor<?xf32, #dhlo.shape<["-1"]>>', "is not a size"),
    "a size that is a condition": ('%y = "dhlo.full"() {value = "0"} : () -> tensor<?xf32, #dhlo.shape<["n < 2"]>>', "not a size"),
    "an assertion that is a number": ('"dhlo.assert"() {condition = "n", message = ""} : () -> ()', "must be a relation of sizes"),
    "an op of another dialect": ('"llvm.unreachable"() : () -> ()', "is no op of this dialect"),
    "segments of other sizes": (f'"dhlo.cond"(%x) ({{}}, {{}}) {{resultSegmentSizes = {SEGMENTS}}} : ({N}) -> {N}', "no condition"),
    "a group without an end": (
        f'%y = "dhlo.group"() ({{\n%z = "dhlo.exp"(%x) : ({N}) -> {N}\n}}) {{anchor = "loops", resultSegmentSizes = {SEGMENTS}}} '
        f": () -> {N}", "block with no terminator"),
    "a group that gives something else": (
        f'%y = "dhlo.group"() ({{\n"dhlo.yield"(%m) {{operandSegmentSizes = {SEGMENTS}}} : (tensor<4x4xf32>) -> ()\n}}) '
        f'{{anchor = "loops", resultSegmentSizes = {SEGMENTS}}} : () -> {N}', "a region gives tensor<4x4xf32>, not"),
    "a symbol before it is defined": (
        '%y = "dhlo.full"() {value = "u0"} : () -> tensor<f32>\n%f = "dhlo.full"() {value = "1"} : () -> tensor<i64>\n'
        '"dhlo.item"(%f) {symbol = "u0"} : (tensor<i64>) -> ()', "u0 is used before it is defined"),
    "a number of many elements": ('"dhlo.item"(%m) {symbol = "u0"} : (tensor<4x4xf32>) -> ()', "doesn't have one element"),
}  # fmt: skip


def module(line: str) -> str:
    return f"module {{\nfunc.func @main(%x: {N}, %m: tensor<4x4xf32>) {{\n{line}\nreturn\n}}\n}}\n"


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_modules_are_refused_with_their_line(case: str) -> None:
    line, message = REFUSED[case]
    with context(), pytest.raises(CompileError) as error:
        read_module(module(line), "file.mlir")
    assert message in str(error.value)
    assert "file.mlir:" in str(error.value)


CRASHING = {  # what MLIR's own parser or printer dies of, or never ends with
    "deep attributes": "func.func @f() attributes {a = " + "[" * 100000 + "]" * 100000 + "} { return }",
    "deep types": "func.func private @f(" + "tuple<" * 100000 + "i1" + ">" * 100000 + ")",
    "deep locations": "func.func @f() { return } loc(" + '"a"(' * 100000 + '"b":1:1' + ")" * 100000 + ")",
    "a chain of locations": '#loc0 = loc("a")\n' + "".join(f'#loc{i + 1} = loc("a"(#loc{i}))\n' for i in range(100000)),
    "a long number": "func.func @f() attributes {a = " + "9" * 100000 + " : i64} { return }",
    "attributes that double": "#a0 = [1]\n" + "".join(f"#a{i + 1} = [#a{i}, #a{i}]\n" for i in range(64)),
    "types that double": "!a0 = i1\n" + "".join(f"!a{i + 1} = tuple<!a{i}, !a{i}>\n" for i in range(64)),
    "deep maps": "func.func @f() attributes {a = affine_map<(d0) -> (" + "-" * 100000 + "d0)>} { return }",
    "deep regions": '"builtin.module"() ({ ' * 100000 + "}) : () -> ()" * 100000,
    "deep sizes": 'func.func @f(%x: tensor<?xf32, #dhlo.shape<["' + "(" * 100000 + '"]>>) { return }',
}


@pytest.mark.parametrize("case", CRASHING)
def test_what_the_parser_cannot_stand_is_refused_before(case: str) -> None:
    with context(), pytest.raises(CompileError, match=r"f\.mlir:\d+:\d+: "):
        read_module(CRASHING[case], "f.mlir")


def test_infinities_are_numbers() -> None:
    line = '%y = "dhlo.pad"(%m) {low = ["1", "0"], value = 0xFFF0000000000000 : f64} : (tensor<4x4xf32>) -> tensor<6x4xf32>'
    with context():
        read_module(module(line), "f.mlir")


def test_functions_are_of_one_block_and_of_tensors() -> None:
    for text in ("func.func private @f(tensor<4xf32>)", "module { module { } }", "func.func @f(%x: i32) { return }"):
        with context(), pytest.raises(CompileError, match=r"f\.mlir:1:"):
            read_module(text, "f.mlir")


@pytest.mark.parametrize(
    ("said", "instead"),
    [("pool 0", "pool 1"), ("pool 0", "pool -1"), ("pool 0", "pool"),
     ('paged = "starts"', 'paged = "start"'), ("tables 0", "tables x"),
     ("array<i64: 16, 37>", "array<i64>"), ("array<i64: 16, 37>", "7 : i64"), ("array<i64: 16, 37>", "array<i64: 16, 37, 9>"),
     ('paged = "lengths"', "paged = 7 : i64")],
)  # fmt: skip
def test_what_is_said_of_pools_is_checked(said: str, instead: str) -> None:
    text = (Path(__file__).parent / "passes" / "page-caches.golden.mlir").read_text()
    with context():
        read_module(text, "f.mlir")
        with pytest.raises(CompileError, match=r"f\.mlir:2:.*pools of blocks"):
            read_module(text.replace(said, instead), "f.mlir")


@pytest.mark.parametrize("filled", ["s0 +", "'at' dim 0 must be 2", "n < 2", "3"])
def test_how_much_is_filled_is_a_size(filled: str) -> None:
    grows = f'tensor<2x?xf32, #dhlo.shape<["2", "n"]>> {{dhlo.filled = "{filled}", dhlo.grows = 1 : i64}}'
    text = f"func.func @main(%x: {N}, %c: {grows}) {{ return }}"
    with context():
        if filled == "3":
            read_module(text, "f.mlir")
            return
        with pytest.raises(CompileError, match=r"f\.mlir:1:.*(not a size expression|how much of it is filled)"):
            read_module(text, "f.mlir")


def test_a_long_chain_is_no_trouble() -> None:
    """Rules that follow what makes a value don't run out of stack, and visit what is shared once."""
    chain = ['%v0 = "dhlo.full"() {value = "1.0"} : () -> tensor<4xf32>']
    chain += [f'%v{i + 1} = "dhlo.mul"(%v{i}, %v{i}) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>' for i in range(1500)]
    body = "\n".join(chain)
    text = (
        "func.func @main(%x: tensor<1x4x8x8xf32>) -> tensor<1x4x8x8xf32> {\n"
        f'{body}\n%w = "dhlo.weight"() {{name_ = "w"}} : () -> tensor<4x4x1x1xf32>\n'
        '%c = "dhlo.conv"(%x, %w) {stride = [1, 1], padding = [0, 0], dilation = [1, 1], transposed = false, '
        "output_padding = [0, 0], groups = 1} : (tensor<1x4x8x8xf32>, tensor<4x4x1x1xf32>) -> tensor<1x4x8x8xf32>\n"
        '%b = "dhlo.broadcast"(%v1500) {dims = [1]} : (tensor<4xf32>) -> tensor<1x4x8x8xf32>\n'
        '%y = "dhlo.mul"(%c, %b) : (tensor<1x4x8x8xf32>, tensor<1x4x8x8xf32>) -> tensor<1x4x8x8xf32>\n'
        "return %y : tensor<1x4x8x8xf32>\n}\n"
    )
    with context():
        fold_weights(read_module(text, "f.mlir"), {})
        run_passes(read_module(text, "f.mlir"), {}, PASSES)


# ---------------------------------------------------------------------------------------------------- the command line
def test_shapes_of_absurd_size() -> None:
    value = {"name": "x", "dtype": "float32", "sizes": (), "dims": ("s0", "6")}
    for text in ("281474976710656x6", "9" * 5000, "٣x6", "99999999999999999999x6"):
        with pytest.raises(ContractError, match="is not a shape"):
            parse_shape(text)
    with pytest.raises(ContractError, match="is no size for 's0'"):
        complete_shapes([value], {"s0": "9" * 5000})
    with pytest.raises(ContractError, match="is no shape"):
        complete_shapes([{**value, "dims": ("s0", "s0 - 5")}], {"s0": "3"})
    with pytest.raises(ContractError, match="don't fit this machine's memory"):
        check_memory([((99999999999, 9999), torch.float32)])
    with pytest.raises(ContractError, match="is not a range"):
        parse_range("s0=1:" + "9" * 5000)
    with pytest.raises(ContractError, match="can be measured together"):
        chosen_points([value], [], [f"s{i}=1:150" for i in range(9)])


def test_arrays(tmp_path: Path) -> None:
    x, path = np.arange(18, dtype=np.float32).reshape(3, 6), tmp_path / "x.npy"
    for good in (x, np.asfortranarray(x), x.astype(">f4"), x[::-1], x[:0], np.float32(3)):
        np.save(path, good)
        assert torch.equal(read_tensor(str(path), torch.float32), torch.tensor(np.array(good, np.float32)))
    objects = np.empty(1, object)
    for bad in (objects, x.astype("S3"), np.zeros(3, dtype=[("a", "i4")])):
        np.save(path, bad)
        with pytest.raises(ContractError, match="can't be read"):
            read_tensor(str(path), torch.float32)
    np.save(path, np.zeros(8, np.float32))
    claims = path.read_bytes().replace(b"(8,), }" + b" " * 18, b"(1152921504606846976,), }")
    assert b"1152921504606846976" in claims
    path.write_bytes(claims)
    with pytest.raises(ContractError, match="can't be read"):
        read_tensor(str(path), torch.float32)
    (tmp_path / "x.pt").write_bytes(b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R.")
    (tmp_path / "folder.npy").mkdir()
    for name in ("x.pt", "folder.npy", "none.npy", "none.pt"):
        with pytest.raises(ContractError, match="can't be read"):
            read_tensor(str(tmp_path / name), torch.float32)


def test_numbers() -> None:
    assert read_tensor("2", torch.int64).item() == 2
    for text, dtype in (("9" * 50, torch.int64), ("300", torch.uint8), ("x", torch.float32), ("9" * 5000, torch.int64)):
        with pytest.raises(ContractError):
            read_tensor(text, dtype)


# ---------------------------------------------------------------------------------------------------- pytrees in model files
def spec(kind: str, context: object) -> str:
    return json.dumps([1, {"type": kind, "context": context, "children_spec": []}])


def test_pytrees_import_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "planted.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.syspath_prepend(tmp_path)
    enum = json.dumps([{"__enum__": True, "fqn": "planted:Color", "name": "RED"}])
    factory = {"default_factory_module": "planted", "default_factory_name": "f", "dict_context": []}
    call = {"default_factory_module": "os", "default_factory_name": "getpid", "dict_context": []}
    value = {"name": "x", "dtype": "float32", "sizes": (), "dims": ("s0",)}
    for text in (spec("builtins.dict", enum), spec("collections.defaultdict", factory), spec("collections.defaultdict", call)):
        one = {"name": "x", "tensor": True, "scalar": None, "constant": None}
        data = {"format": 2, "inputs": [one], "outputs": [], "in_spec": text, "out_spec": None, "updates": []}
        assert callspec.read_call(data, [value], []).in_spec is None
    assert not (tmp_path / "ran").exists()
    tree = pytree.tree_structure({"a": [1, (2, None)], "b": 3})
    data = {"format": 2, "inputs": [], "outputs": [], "in_spec": pytree.treespec_dumps(tree), "out_spec": None, "updates": []}
    assert callspec.read_call(data, [], []).in_spec == tree


# ---------------------------------------------------------------------------------------------------- guards of programs
def test_guards_call_nothing_but_expressions() -> None:
    assert _Reader({}).parse("Max(3, 5)") == 5
    for code in ("preview(3)", "sympify('3')", "make_opaque_unary_fn('x')", "lambdify(3, 3)", "__import__('os')", "os.getpid()"):
        with pytest.raises((KeyError, ValueError)):
            _Reader({}).parse(code)


def test_guards_of_no_input_are_refused() -> None:
    exported = export(torch.nn.ReLU(), (torch.randn(3, 4),), dynamic_shapes=({0: Dim("n", min=2)},))
    x = exported.graph_signature.user_inputs[0]
    value = next(n.meta["val"] for n in exported.graph.nodes if n.name == x)
    (size,) = (s for s in value.shape if not isinstance(s, int))
    for code in ("L['gone'].size()[0] == 3", "L['input'].size()[0] + os.getpid() == 3", "L['input'].size()[0] =="):
        exported._guards_code = [code]
        with pytest.raises(CompileError, match="can't read the program's guard"):
            read_guards(exported, ["input"], [value])
    exported._guards_code = ["L['input'].size()[0] != 7"]
    assert list(map(str, read_guards(exported, ["input"], [value]))) == [f"Ne({size}, 7)"]


@pytest.mark.parametrize("change", [
    {"format": "2"}, {"updates": None}, {"updates": [7]}, {"inputs": []}, {"inputs": 3}, {"in_spec": 5},
    {"outputs": [{"name": "y", "index": 9, "scalar": None, "constant": None, "grown": None}]},
    {"outputs": [{"name": "y", "index": [], "scalar": None, "constant": None, "grown": None}]},
    {"outputs": [{"name": "y", "index": 0, "scalar": None, "constant": None, "grown": [1]}]},
])  # fmt: skip
def test_calls_that_no_model_has_are_refused(change: dict[str, object]) -> None:
    call = {
        "format": 2, "inputs": [{"name": "x", "tensor": True, "scalar": None, "constant": None}],
        "outputs": [{"name": "y", "index": 0, "scalar": None, "constant": None, "grown": None}],
        "in_spec": None, "out_spec": None, "updates": [],
    }  # fmt: skip
    value = {"name": "x", "dtype": "float32", "sizes": (-1,), "dims": ("s0",)}
    assert len(callspec.read_call(call, [value], [value]).inputs) == 1
    with pytest.raises(ModelFileError, match="the model's metadata is malformed: call"):
        callspec.read_call(call | change, [value], [value])


def test_a_blank_before_a_context_hides_nothing() -> None:
    context = ' {"__enum__": true, "fqn": "nosuchmodule_x:E", "name": "A"}'
    spec = [1, {"type": "builtins.dict", "context": context, "children_spec": []}]
    with pytest.raises(NotImplementedError, match="nosuchmodule_x"):
        callspec._read_spec(json.dumps(spec))
