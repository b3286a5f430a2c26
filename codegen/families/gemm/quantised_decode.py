"""Codes to numbers in registers, and panels of codes to panels of f32."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dhlo.codegen.families.gemm.quantised import COLUMNS, Coding, Form
from dhlo.codegen.kernel_ir.builder import BITS, F32, I8, I32, I64, PTR, Fn, KernelModule, V, vec

__all__ = [
    "SIGN_OF_BYTES",
    "bytes_of",
    "emit_decode_panel",
    "emit_number",
    "emit_unit",
    "emit_words",
    "load_parameter",
    "parameters",
    "scaled_by",
]

I16 = "i16"


def bytes_of(fn: Fn, words: V) -> V:
    """A vector of i32 as one of bytes."""
    ty = vec(I8, 4 * words.lanes)
    return words if words.elem == I8 else fn.op(ty, f"vector.bitcast {words.name} : {words.type} to {ty}")


def _words_of(fn: Fn, x: V) -> V:
    ty = vec(I32, x.lanes // 4)
    return fn.op(ty, f"vector.bitcast {x.name} : {x.type} to {ty}")


# Twice what codes stand for.
_E2M1 = (0, 1, 2, 3, 4, 6, 8, 12)


def _e2m1(fn: Fn, words: V, offset: int) -> V:
    """Twice what bytes below 16 stand for, and `offset` more, as bytes."""
    x = bytes_of(fn, words)
    table = fn.dense([offset + n for n in (*_E2M1, *(-n for n in _E2M1))] * (x.lanes // 16), I8)
    return _words_of(fn, fn.intrinsic(fn.target.byte_lookup, x.type, table, x))


def emit_words(fn: Fn, form: Form, unit: V, column: int, lanes: int, offset: int = 0) -> list[V]:
    """A unit of "lanes" for `lanes` columns: vectors of i32 that hold four successive steps of k a byte each; signed, but for
    integer nibbles, which are 0..15. To numbers of a table `offset` is added."""
    x = fn.load(fn.gep(unit, column * 4, I8), vec(I32, lanes))
    if not form.nibbles:
        return [x]
    low = fn.const(_LOW_NIBBLES, x.type)
    halves = [fn.and_(x, low), fn.and_(fn.shr(x, 4), low)]
    return [_e2m1(fn, h, offset) for h in halves] if form.name == "f4e2m1fn" else halves


def scaled_by(form: Form, *, shifts: bool = False) -> float:
    """By what power of two the numbers of `emit_unit` are larger than a form's: signed integers stay in a word's highest bits."""
    return 1.0 if shifts else 2.0 ** {"i4": 28, "i8": 24, "f4e2m1fn": 24}.get(form.name, 0)


def emit_unit(fn: Fn, form: Form, unit: V, lanes: int, vectors: Sequence[int], *, shifts: bool = False) -> Callable[[int, int], V]:
    """Loads some vectors of columns of a unit; gives codes (times the form's factor and `scaled_by`) at a step of k for one of
    them, as f32. Nibbles are taken apart by `shifts` rather than shuffles if so asked."""
    if form.kind == "rows":
        return _rows(fn, form, unit, lanes, vectors)
    if shifts:
        return _shifted(fn, form, unit, lanes, vectors)
    words = {v: _operands(fn, form, unit, v * lanes, lanes) for v in vectors}
    highest = scaled_by(form) > 1
    return lambda step, v: fn.cast(_byte(fn, words[v][step // 4], step % 4, highest=highest), F32)


def _shifted(fn: Fn, form: Form, unit: V, lanes: int, vectors: Sequence[int]) -> Callable[[int, int], V]:
    """`emit_unit` of nibbles by a shift in each direction."""
    if form.name == "f4e2m1fn":
        words = {v: emit_words(fn, form, unit, v * lanes, lanes) for v in vectors}
        return lambda step, v: _field(fn, words[v][step // 4], step % 4 * 8, 8, signed=True)
    raw = {v: fn.load(fn.gep(unit, v * lanes * 4, I8), vec(I32, lanes)) for v in vectors}
    if form.bias:
        raw = {v: fn.xor(x, _SIGN_OF_NIBBLES) for v, x in raw.items()}
    return lambda step, v: _field(fn, raw[v], step % 4 * 8 + step // 4 * 4, 4, signed=bool(form.bias))


def _field(fn: Fn, x: V, at: int, bits: int, *, signed: bool) -> V:
    """Some bits of each word, from bit `at` on, as f32."""
    if signed:
        up = 32 - bits - at
        return fn.cast(fn.shr(fn.shl(x, up) if up else x, 32 - bits), F32)
    return fn.cast(fn.and_(fn.shr(x, at) if at else x, (1 << bits) - 1), F32)


def _operands(fn: Fn, form: Form, unit: V, column: int, lanes: int) -> list[V]:
    """`emit_words` with integers without a bias: signed nibbles are in the high half of a byte, what has no sign in the low one."""
    if form.name == "f4e2m1fn":
        return emit_words(fn, form, unit, column, lanes)
    x = fn.load(fn.gep(unit, column * 4, I8), vec(I32, lanes))
    if not form.nibbles:
        return [x if form.name == "i8" else fn.xor(x, SIGN_OF_BYTES)]
    if form.bias:
        x = fn.xor(x, _SIGN_OF_NIBBLES)
        return [fn.and_(y, _HIGH_NIBBLES) for y in (fn.shl(x, 4), x)]
    return [fn.and_(y, _LOW_NIBBLES) for y in (x, fn.shr(x, 4))]


def _byte(fn: Fn, words: V, step: int, *, highest: bool) -> V:
    """A byte of each word, with zeros below it, as its highest, or above it: one instruction, where a shift in each direction is
    two."""
    x = bytes_of(fn, words)
    zero, n = fn.const(0, x.type), x.lanes
    order = [i for at in range(step, n, 4) for i in ((n, n, n, at) if highest else (at, n, n, n))]
    return _words_of(fn, fn.shuffle(x, zero, order))


def emit_number(fn: Fn, form: Form, unit: V, step: V, column: int, lanes: int) -> V:
    """Codes (times the form's factor) of `lanes` columns at a step of a unit of "lanes" that is known at run time, as f32."""
    x = fn.load(fn.gep(unit, column * 4, I8), vec(I32, lanes))
    if not form.nibbles:
        byte = fn.shr(fn.shl(fn.shr(x, fn.splat(fn.shl(step, 3), lanes)), 24), 24)
        return fn.cast(fn.sub(byte, form.bias), F32)
    at = fn.add(fn.shl(fn.and_(step, 3), 3), fn.and_(step, 4))
    nibble = fn.and_(fn.shr(x, fn.splat(at, lanes)), 15)
    if form.name == "f4e2m1fn":
        nibble = fn.shr(fn.shl(_e2m1(fn, nibble, 0), 24), 24)
    return fn.cast(fn.sub(nibble, form.bias), F32)


# As i32: 0x80, 0x88, 0xF0 and 0x0F in each byte.
SIGN_OF_BYTES, _SIGN_OF_NIBBLES, _HIGH_NIBBLES, _LOW_NIBBLES = -0x7F7F7F80, -0x77777778, -0x0F0F0F10, 0x0F0F0F0F


def _rows(fn: Fn, form: Form, unit: V, lanes: int, vectors: Sequence[int]) -> Callable[[int, int], V]:
    """`emit_unit` of "rows". Of float8 two short vectors that lie together become f16 as one; of long ones that takes more time."""
    whole: dict[tuple[int, int], V] = {}

    def number(step: int, v: int) -> V:
        at = step * COLUMNS + v * lanes
        if form.bytes == 256:
            return _row(fn, form, unit, at, lanes)
        first = v - v % 2
        if fn.target.repeats_memory or first not in vectors or first + 1 not in vectors:
            return fn.cast(fn.bitcast(_halves(fn, form, unit, at, lanes), "f16"), F32)
        if (step, first) not in whole:
            whole[step, first] = _halves(fn, form, unit, at - (v - first) * lanes, 2 * lanes)
        x, begin = whole[step, first], (v - first) * lanes
        return fn.cast(fn.bitcast(fn.shuffle(x, x, [*range(begin, begin + lanes)]), "f16"), F32)

    return number


def _halves(fn: Fn, form: Form, unit: V, at: int, lanes: int) -> V:
    """Float8 as the bits of f16, `at` so many numbers from the unit's start."""
    x = fn.load(fn.gep(unit, at, I8), vec(I8, lanes))
    if form.name == "f8e4m3fn":  # sign, four bits of exponent, three of mantissa: f16 has five of exponent
        return fn.and_(fn.shl(fn.cast(x, I16), 7), -0x4001)
    return fn.shl(fn.cast(x, I16, signed=False), 8)


def _row(fn: Fn, form: Form, unit: V, at: int, lanes: int) -> V:
    """Numbers of 16 bits."""
    if form.name == "f16":
        return fn.cast(fn.load(fn.gep(unit, 2 * at, I8), vec("f16", lanes)), F32)
    x = fn.load(fn.gep(unit, 2 * at, I8), vec(I16, lanes))
    return fn.bitcast(fn.shl(fn.cast(x, I32, signed=False), 16), F32)


def load_parameter(fn: Fn, at: V, elem: str, v: int, lanes: int) -> V:
    """Scales or zero points of a vector of columns, as f32."""
    if elem == "e8m0":
        exponents = fn.cast(fn.load(fn.gep(at, v * lanes, I8), vec(I8, lanes)), I32, signed=False)
        return fn.bitcast(fn.shl(exponents, 23), F32)
    p = fn.gep(at, v * lanes * BITS[elem] // 8, I8)
    if elem == "bf16":
        return fn.bitcast(fn.shl(fn.cast(fn.load(p, vec(I16, lanes)), I32, signed=False), 16), F32)
    return fn.cast(fn.load(p, vec(elem, lanes)), F32)


def parameters(fn: Fn, coding: Coding, head: V, v: int, lanes: int) -> tuple[V, V | None]:
    """Scale and zero point of a vector of columns of the group that begins at `head`."""
    scale = load_parameter(fn, head, coding.scale, v, lanes)
    if not coding.zero:
        return scale, None
    return scale, load_parameter(fn, fn.gep(head, coding.scale_bytes, I8), coding.zero, v, lanes)


def emit_decode_panel(module: KernelModule, coding: Coding, elem: str = F32) -> str:
    """Emits `decode_{coding}_{elem}(panel, units, first, count, dst)` once and returns its symbol.

    dst[count][32] = (what the codes stand for - zero point) * scale in f32, exactly as the op computes it, at `count` steps of k
    from `first`, a multiple of a unit's depth. `units` are those of a group. For bf16 they are rounded to it and lie in pairs,
    dst[ceil(count / 2)][32][2]; the target has conversions to it.
    """
    name = f"decode_{coding.name}_{elem}"
    if name in module.functions:
        return name
    form = coding.form
    fn = Fn(module, name, [("panel", PTR), ("units", I64), ("first", I64), ("count", I64), ("dst", PTR)], noinline=True)
    panel, units, first, count, dst = fn.args
    lanes, each = fn.lanes, 1 if elem == F32 else 2
    nv, down = COLUMNS // lanes, 1 / scaled_by(form)
    group = fn.max(fn.mul(units, form.depth), 1)
    group_bytes = fn.add(fn.mul(units, form.bytes), coding.header_bytes)
    end = fn.add(first, count)
    with fn.loop(fn.divu(first, group), fn.divu(fn.add(end, fn.sub(group, 1)), group)) as g:
        head, k0 = fn.gep(panel, fn.mul(g.iv, group_bytes), I8), fn.mul(g.iv, group)
        codes = fn.gep(head, coding.header_bytes, I8)
        scales, zeros = zip(*(parameters(fn, coding, head, v, lanes) for v in range(nv)), strict=True)
        begin, steps = fn.max(fn.sub(first, k0), 0), fn.min(fn.sub(end, k0), group)
        whole = fn.divu(steps, form.depth)

        def decode(unit: V, steps: V | None) -> None:
            number = emit_unit(fn, form, fn.gep(codes, fn.mul(unit, form.bytes), I8), lanes, range(nv))
            rows = fn.gep(dst, fn.mul(fn.sub(fn.add(k0, fn.mul(unit, form.depth)), first), COLUMNS), elem)

            def value(step: int, v: int) -> V:
                x, zero = number(step, v), zeros[v]
                if down < 1:
                    factor = fn.const(down, x.type)
                    x = fn.mul(x, factor) if zero is None else fn.fma(x, factor, fn.neg(zero))
                elif zero is not None:
                    x = fn.sub(x, zero)
                return fn.mul(x, scales[v])

            def store(step: int) -> None:
                for v in range(nv):
                    to = fn.gep(rows, step * COLUMNS + v * lanes * each, elem)
                    if each == 1:
                        fn.store(value(step, v), to)
                        continue
                    first, second = (fn.cast(value(step + i, v), elem) for i in range(each))
                    fn.store(fn.shuffle(first, second, [i for lane in range(lanes) for i in (lane, lanes + lane)]), to)

            for step in range(0, form.depth, each):
                if steps is None:
                    store(step)
                    continue
                with fn.when(fn.cmp("gt", steps, step)):
                    store(step)

        with fn.loop(fn.divu(begin, form.depth), whole) as u:
            decode(u.iv, None)
        rest = fn.sub(steps, fn.mul(whole, form.depth))
        with fn.when(fn.cmp("gt", rest, 0)):
            decode(whole, rest)
    fn.done()
    return name
