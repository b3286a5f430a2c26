"""Lets a decoder whose caches are joined to at every step take tokens of many sequences at once, over pools of blocks.

A program of a batch of sequences [batch, tokens], with caches [batch, heads, past, depth], becomes one of a single row of tokens,
one sequence behind the other. What computes token by token stays as it is; attention finds its sequence's keys and values by a
table of blocks; positions are an argument. What a step does is decided by its sizes: prompts, parts of prompts, single tokens and
drafts are the same program. Of a program that takes one token of each sequence, [batch, 1], the batch becomes the row.

Keys and values [batch, heads, source, depth] that attention reads and nothing is joined to, those of a source that a decoder's text
is about, become pools, too: another table has the blocks of each sequence, and a vector how many keys it has there.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import sympy

from dhlo.errors import CompileError
from dhlo.ir.dialect import attr, build, defining, exprs, number, to_attr
from dhlo.ir.function import (
    Target,
    argument_names,
    bodies,
    erase_argument,
    mark_argument,
    mark_results,
    ranges_of,
    renumber_results,
    requested_pages,
    set_ranges,
    set_type,
    set_user_names,
    updates_of,
    user_names,
)
from dhlo.ir.mlir import func, ir
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.ops.compute import Attention, extra
from dhlo.ir.ops.lookup import Scatter
from dhlo.ir.ops.movement import Concat, Full, Reshape, Slice, Transpose
from dhlo.ir.ops.paged import HIDDEN_KEYS, PagedAttention
from dhlo.ir.paging import mark_paging, paging_of
from dhlo.ir.places import place_of
from dhlo.ir.symbols import is_static, parse, show, symbol
from dhlo.ir.types import DTYPES, TensorType, from_mlir
from dhlo.passes.added_masks import parts_of, together
from dhlo.passes.attention_heads import attention_heads
from dhlo.passes.cache_heads import heads_in_order
from dhlo.passes.cse import cse, erase_dead
from dhlo.passes.page_positions import take_bounds, take_positions
from dhlo.passes.past_lengths import spread_past
from dhlo.passes.positions import Seen, end_of_positions, seen
from dhlo.passes.quantise_caches import FORMATS, Stored, stored_as, take_request
from dhlo.passes.simplify import simplify
from dhlo.passes.tokens import Tokens, check_tokens, take_row

__all__ = ["page_caches"]

_POSITIONS = "position_ids"  # an argument [1, T] of each token's position beside `positions`, as whoever feeds a step knows it


def page_caches(module: Any) -> None:
    """Turns caches marked `dhlo.page` (the slots of a block) into pools of blocks: what is joined to them is written to slots that
    an argument names, and attention over the joined whole reads the blocks of its sequence.

    Raises CompileError, by the user's source line, where tokens of a sequence meet in another way than by attention over a cache.
    """
    requested = [block for block in bodies(module) if requested_pages(block)]
    if requested:
        _tidy(module)
        attention_heads(module)
        _tidy(module)
    form = take_request(module) if requested else ""
    for block in requested:
        with ir.Location.unknown():
            _merge_columns(block)
            heads_in_order(block, [c.whole for c in _caches(block)])
            unused = _Paging(block).drop_masks()
            _tidy(module)
            _Paging(block, form).run(unused)
            _tidy(module)


def _tidy(module: Any) -> None:
    cse(module)
    simplify(module)
    cse(module)


@dataclass(frozen=True)
class _Cache:
    """An argument [batch, heads, past, depth] that holds keys or values, and the op that joins some [batch, heads, tokens, depth]
    to it."""

    name: str
    argument: Any
    join: Any

    @property
    def new(self) -> Any:
        return self.join.operands[1]

    @property
    def whole(self) -> Any:
        return self.join.results[0]


@dataclass(frozen=True)
class _Inputs:
    """The arguments that a program of many sequences has beside its own, for T tokens of B sequences with M blocks at most."""

    positions: Any  # i64 [T]: of each token in its sequence
    slots: Any  # i64 [T]: where in the pools its keys and values go
    tables: Any  # i32 [B, M]: the blocks of each sequence
    starts: Any  # i32 [B + 1]: its tokens are starts[b] to starts[b + 1] - 1
    lengths: Any  # i32 [B]: its keys, those of its tokens included
    cross_tables: Any = None  # i32 [B, N]: the blocks of its source, if the program has such
    cross_lengths: Any = None  # i32 [B]: the keys of that


@dataclass(frozen=True)
class _Pool:
    """What a cache became: an argument [heads, slots, depth], and one of scales [heads, slots, 1] if rows have such; and what they
    hold once what is new is written."""

    arguments: list[Any]
    content: Stored

    def written(self) -> list[tuple[Any, Any]]:
        return list(zip(self.arguments, (self.content.values, self.content.scale), strict=False))


class _Paging:
    """The rewriting of one function, whose pools hold elements in a format (`quantise_caches.FORMATS`), or as they are ("")."""

    def __init__(self, block: Any, form: str = "") -> None:
        self.form = form
        self.block, self.names = block, argument_names(block)
        self.page, *others = set(requested_pages(block).values())
        if others or self.page < 1:
            raise CompileError("pages: caches of a program have blocks of one size, of a slot or more")
        self.caches = _caches(block)
        self.tokens = _sizes(self.caches)
        self.cross = [block.arguments[k] for k in _sources(block)]
        """Keys and values of sources."""
        first = len(block.arguments)  # what grows has names of sizes below this
        sizes = [symbol(f"cap{first + i}") for i in range(5)]
        self.slots, self.sequences, self.blocks, self.cross_slots, self.cross_blocks = sizes
        self.states = paging_of(block)
        """What is kept of sequences in states of fixed size, besides: their starts and lengths are those of tokens, too."""
        if self.states is not None and not self.tokens.single:
            raise CompileError("pages: states are of steps of one token of each sequence, and caches are joined with several")
        if self.states is not None:
            self.sequences = from_mlir(block.arguments[self.states.lengths]).shape[0]
        self.context = self.blocks * self.page
        self.pairs = list[tuple[_Pool, _Pool]]()  # of keys and values that attention reads together
        self.longest = 0
        """How many positions what the program requires of its sizes lets a sequence have; 0 for any number."""
        self.hidden: Any = None
        """i32 [T]: which keys before its own each token doesn't see; None where tokens of a sequence follow one another."""

    def run(self, masks: Iterable[Any]) -> None:
        """Rewrites all; `masks` are what `drop_masks` gave."""
        check_tokens(self.block, self.tokens, [c.join for c in self.caches])
        self.longest = take_bounds(self.block, self.tokens)
        inputs = self._add_inputs()
        row: dict[Any, sympy.Expr] = {self.tokens.past: self.context - self.tokens.new}
        if self.tokens.single:
            take_row(self.block, self.tokens.batch, {*(c.argument for c in self.caches), *self.cross})
            spread_past(self.block, self.tokens, inputs.positions)
        else:
            take_positions(self.block, self.tokens, inputs.positions)
            row |= {self.tokens.batch: sympy.Integer(1)} if self.tokens.batch.is_Symbol else {}
        self._substitute(row)
        pools = {c.whole: self._write(c, inputs.slots) for c in self.caches}
        for op in list(self.block.operations)[:-1]:
            if isinstance(op, Attention) and _whole(op.operands[1]) in pools:
                self._attend(op, pools, inputs)
        self._attend_sources(inputs)
        self._let_tokens_branch()
        for c in self.caches:
            _check_unread(c.whole, c.name)
        self._return(pools, masks, inputs)

    # ------------------------------------------------------------------ arguments
    def drop_masks(self) -> list[Any]:
        """Puts ones in the place of masks of padding, which are arguments as long as the keys: no sequence is padded. Gives these
        arguments."""
        long = [a for a in self.block.arguments if a not in self.cross]
        masks = [a for a in long if any(self.tokens.in_context(s) or s in self._sources for s in from_mlir(a).shape)]
        others = {s for a in self.block.arguments if a not in masks for e in from_mlir(a).shape for s in e.free_symbols}
        for mask in masks:
            t = from_mlir(mask)
            if not (t.dtype.is_int or t.dtype.is_bool):
                name = self.names[mask.arg_number]
                raise CompileError(f"pages: argument '{name}' of {t} is as long as the keys, and no mask of padding")
            self._substitute({s: self.tokens.batch for e in t.shape for s in e.free_symbols - others})  # the batch by another name
            with ir.InsertionPoint.at_block_begin(self.block):
                ones = build(Full, [], {"value": "True" if t.dtype.is_bool else "1"}, results=[from_mlir(mask)]).results[0]
            mask.replace_all_uses_with(ones)
        set_type(self.block)
        return masks

    @property
    def _sources(self) -> set[sympy.Expr]:
        """Dynamic lengths of sources."""
        return {s for a in self.cross if (s := from_mlir(a).shape[2]).is_Symbol}

    def _add(self, name: str, dtype: str, shape: list[sympy.Expr]) -> Any:
        """A new argument."""
        if name in self.names:
            raise CompileError(f"pages: the program has an argument '{name}' of its own", hint="give it another name")
        argument = self.block.add_argument(TensorType.of(dtype, shape).mlir(), ir.Location.unknown())
        mark_argument(self.block, argument.arg_number, {"dhlo.name": ir.StringAttr.get(name)})
        return argument

    def _add_inputs(self) -> _Inputs:
        row = self.tokens.row
        positions, slots = (self._add(name, "i64", [row]) for name in ("positions", "slots"))
        tables = self._add("tables", "i32", [self.sequences, self.blocks])
        if self.states is not None:
            starts, lengths = (self.block.arguments[k] for k in (self.states.starts, self.states.lengths))
        else:
            starts, lengths = self._add("starts", "i32", [self.sequences + 1]), self._add("lengths", "i32", [self.sequences])
        if not self.cross:
            return _Inputs(positions, slots, tables, starts, lengths)
        cross_tables = self._add("cross_tables", "i32", [self.sequences, self.cross_blocks])
        return _Inputs(positions, slots, tables, starts, lengths, cross_tables, self._add("cross_lengths", "i32", [self.sequences]))

    # ------------------------------------------------------------------ sizes
    def _substitute(self, sizes: dict[Any, sympy.Expr]) -> None:
        """Writes sizes for symbols, everywhere."""
        names = {s.name for s in sizes}

        def of(e: sympy.Expr) -> sympy.Expr:
            return e.xreplace(sizes).expand() if e.free_symbols & sizes.keys() else e

        for v in [*self.block.arguments, *(v for op in list(self.block.operations)[:-1] for v in op.results)]:
            t = from_mlir(v)
            v.set_type(t.with_shape([of(s) for s in t.shape]).mlir())
        for op in list(self.block.operations)[:-1]:
            for name in op.size_attributes() if op.mentions() & names else ():
                given = attr(op, name)
                texts = [given] if isinstance(given, str) else given
                new = [show(of(parse(text))) if number(text) is None else text for text in texts]
                op.operation.attributes[name] = to_attr(new[0] if isinstance(given, str) else new)

    # ------------------------------------------------------------------ caches and attention
    def _write(self, c: _Cache, slots: Any) -> _Pool:
        """The cache becomes a pool, and one of scales if its rows have such, which what is new is written to; gives them."""
        with ir.InsertionPoint(c.join.operation), c.join.location:
            new = self._packed(c.new)
            t = from_mlir(new)
            _, heads, _, depth = t.shape
            rows = Stored(build(Reshape, [new], results=[t.with_shape(t.shape[1:])]).results[0])
            if self.form:
                _check_form(c, self.form)
                rows = stored_as(self.form, rows.values)
            c.argument.set_type(from_mlir(rows.values).with_shape([heads, self.slots, depth]).mlir())
            arguments = [c.argument]
            if rows.scale is not None:
                arguments.append(self._add(f"{c.name}.scale", "f32", [heads, self.slots, 1]))
            where = {"dims": [1], "at": 1, "how": "set", "wrap": False}
            both = zip(arguments, (rows.values, rows.scale), strict=False)
            return _Pool(arguments, Stored(*(build(Scatter, [a, slots, x], where).results[0] for a, x in both)))

    def _packed(self, v: Any) -> Any:
        """A value [batch, heads, new, ...] as [1, heads, tokens, ...], or one [1, heads, tokens, ...] as it came."""
        return build(Transpose, [v], {"perm": [2, 1, 0, 3]}).results[0] if self.tokens.single else v

    def _attend(self, op: Any, pools: dict[Any, _Pool], inputs: _Inputs) -> None:
        """Attention over two joined wholes reads their pools."""
        q, k, v = list(op.operands)[:3]
        with ir.InsertionPoint(op.operation), op.location:
            found, mask = self._masked(extra(op, 4), inputs.positions)
            causal = found.past == 0 or self.tokens.single  # whose keys end with the token's own
            if not causal:
                raise CompileError(
                    "pages: attention isn't known to hide the keys of tokens that come later",
                    where=str(place_of(op)),
                    hint="what a token sees would depend on how many come at once: hide keys behind it by comparing positions",
                )
            more = [x for x in (None if mask is None else self._packed(mask), extra(op, 1)) if x is not None]
            keys, values = _read(k, pools), _read(v, pools)
            if _whole(k) != _whole(v):
                self.pairs.append((pools[_whole(k)], pools[_whole(v)]))
            dtype = from_mlir(q).dtype.name
            pooled = (keys.decoded(dtype), values.decoded(dtype))
            operands = [self._packed(q), *pooled, inputs.tables, inputs.starts, inputs.lengths, *more]
            attrs = {"block": self.page, "window": found.window, "causal": causal}
            attrs |= {name: attr(op, name) for name in ("scale", "softcap")}
            y = self._packed(build(PagedAttention, operands, attrs).results[0])
        op.results[0].replace_all_uses_with(y)
        op.operation.erase()

    def _attend_sources(self, inputs: _Inputs) -> None:
        """Keys and values of sources become pools, that attention over them reads."""
        readers = [op for op in self.block.operations if isinstance(op, Attention) and op.operands[1] in self.cross]
        for a in self.cross:
            _, heads, _, depth = from_mlir(a).shape
            a.set_type(from_mlir(a).with_shape([heads, self.cross_slots, depth]).mlir())
        for op in readers:
            q, keys, values = list(op.operands)[:3]
            with ir.InsertionPoint(op.operation), op.location:
                found, mask = self._masked(extra(op, 4), inputs.positions)
                if mask is not None or found != Seen() or attr(op, "causal"):
                    raise CompileError(
                        "pages: attention over a source hides some of its keys",
                        where=str(place_of(op)),
                        hint="each token sees all keys of its sequence's source, of which there are as many as there are",
                    )
                where = [inputs.cross_tables, inputs.starts, inputs.cross_lengths, *(x for x in (extra(op, 1),) if x is not None)]
                attrs = {"block": self.page, "window": 0, "causal": False}
                attrs |= {name: attr(op, name) for name in ("scale", "softcap")}
                y = self._packed(build(PagedAttention, [self._packed(q), keys, values, *where], attrs).results[0])
            op.results[0].replace_all_uses_with(y)
            op.operation.erase()

    def _attends(self) -> list[PagedAttention]:
        """Attention over the pools that a call writes to."""
        return [op for op in self.block.operations if isinstance(op, PagedAttention) and op.operands[1] not in self.cross]

    def _let_tokens_branch(self) -> None:
        """Tokens of a sequence may be a tree, where nothing but attention tells what a token sees of those before it. Windows reach
        behind a tree's root: those on a token's way to it are all seen."""
        attends = self._attends()

        def branches(op: PagedAttention) -> bool:
            return extra(op, 4) is None and attr(op, "causal") and (attr(op, "window") == 0 or attr(op, "window") > HIDDEN_KEYS)

        if self.states is not None or not all(map(branches, attends)):
            return
        self.hidden = self._add("hidden", "i32", [self.tokens.row])
        for op in attends:
            attrs = {name: attr(op, name) for name in ("block", "window", "scale", "softcap", "causal")}
            with ir.InsertionPoint(op.operation), op.location:
                op.results[0].replace_all_uses_with(build(PagedAttention, [*op.operands, self.hidden], attrs).results[0])
            op.operation.erase()

    def _masked(self, mask: Any, positions: Any) -> tuple[Seen, Any]:
        """What a mask, if there is one, says by comparing positions, and what of it is left to say, None if that is nothing. Each
        token sees itself, so that what hides keys may be left out of what is added to scores."""
        if mask is None:
            return Seen(), None
        bools, added = parts_of(mask)
        found = functools.reduce(operator.and_, (seen(v, positions, self.tokens.single) for v in bools), Seen())
        if not found.whole or found.past not in (None, 0):
            return found, mask
        return found, together([], added, from_mlir(mask)) if added else None

    # ------------------------------------------------------------------ the function
    def _say(self, inputs: _Inputs, pools: dict[Any, _Pool]) -> None:
        """Marks what each argument is, for whoever feeds it."""
        attends = self._attends()
        windows = [attr(op, "window") for op in attends if attr(op, "causal")]
        all_see = len(windows) < len(attends) or 0 in windows
        plain = all(extra(op, 4) is None for op in attends)
        of_keys, of_scales = self._partners(pools)
        roles: dict[Any, str | tuple[str | int, ...]] = {
            inputs.positions: "positions",
            inputs.starts: "starts",
            inputs.lengths: "lengths",
            inputs.slots: ("slots", 0),
            inputs.tables: ("tables", 0),
            **{a: ("pool", 0, of_keys.get(a, -1), of_scales.get(a, -1)) for pool in pools.values() for a in pool.arguments},
            **dict.fromkeys(self.cross, "cross"),
        }
        if self.hidden is not None:
            roles[self.hidden] = "hidden"
        if self.cross:
            roles |= {inputs.cross_tables: "cross_tables", inputs.cross_lengths: "cross_lengths"}
        numbered = {v.arg_number: role for v, role in roles.items()}
        named = zip(argument_names(self.block), self.block.arguments, strict=True)
        counted = [inputs.positions, *(a for name, a in named if name == _POSITIONS)]
        ends = (self.longest, end_of_positions(self.block, counted))
        longest = min((n for n in ends if n), default=0)
        group = [0 if all_see else max(windows, default=0)]
        mark_paging(self.block, self.page, group, numbered, longest, by_order=plain and windows == [0] * len(attends))

    def _partners(self, pools: Mapping[Any, _Pool]) -> tuple[dict[Any, int], dict[Any, int]]:
        """Of pools of values, which one, in the order of arguments, has their keys; and of pools, which one has their scales."""
        order = sorted((a for p in pools.values() for a in p.arguments), key=lambda a: a.arg_number)
        number = {a: i for i, a in enumerate(order)}
        keys = {v.arguments[0]: number[k.arguments[0]] for k, v in self.pairs if v is not k}
        return keys, {p.arguments[0]: number[p.arguments[1]] for p in pools.values() if len(p.arguments) > 1}

    def _return(self, pools: dict[Any, _Pool], masks: Iterable[Any], inputs: _Inputs) -> None:
        """Gives the pools' new content in place of the joined wholes; takes arguments away that nothing reads any more."""
        end, updates = list(self.block.operations)[-1], updates_of(self.block)
        kept = [(i, v, updates.get(i)) for i, v in enumerate(end.operands) if _through_views(v) not in pools]
        with ir.InsertionPoint(end.operation), end.location:
            written = [pair for c in self.caches for pair in pools[c.whole].written()]
            func.ReturnOp([*(v for _, v, _ in kept), *(v for _, v in written)])
        end.operation.erase()
        erase_dead(self.block)
        set_type(self.block)
        marks: dict[int, Target] = {i: target for i, (_, _, target) in enumerate(kept) if target is not None}
        renumber_results(self.block, [i for i, _, _ in kept])
        mark_results(self.block, marks | {len(kept) + i: a.arg_number for i, (a, _) in enumerate(written)})
        for k in sorted((m.arg_number for m in masks), reverse=True):
            erase_argument(self.block, k)
        self._say(inputs, pools)
        module = self.block.owner.parent.opview
        used = {s.name for v in self.block.arguments for e in from_mlir(v).shape for s in e.free_symbols}
        sizes = (self.slots, self.sequences, self.blocks, self.cross_slots, self.cross_blocks)
        called = ("slots", "sequences", "blocks", "cross_slots", "cross_blocks")
        named = [(s, name) for s, name in zip(sizes, called, strict=True) if self.cross or s not in sizes[3:]]
        ranges = {n: r for n, r in ranges_of(module).items() if n in used}
        if self.longest and not self.tokens.single and (row := self.tokens.row.name) in ranges:
            ranges[row] = (ranges[row][0], None)  # the most was of one sequence
        set_ranges(module, ranges)
        set_user_names(module, {n: x for n, x in user_names(module).items() if n in used} | {s.name: x for s, x in named})


def _merge_columns(block: Any) -> None:
    """Caches whose joined wholes are columns of one tensor (latents and what is rotated, say) become one, in place of the first."""
    wholes = {c.whole: c for c in _caches(block)}
    for op in list(block.operations):
        if not isinstance(op, Concat) or attr(op, "dim") != 3 or any(v not in wholes for v in op.operands):
            continue
        parts = [wholes[v] for v in op.operands]
        first, t = parts[0].argument, from_mlir(op.results[0])
        with ir.InsertionPoint(op.operation), op.location:
            new = build(Concat, [c.new for c in parts], {"dim": 3}).results[0]
            held = from_mlir(first)
            first.set_type(held.with_shape([*held.shape[:3], t.shape[3]]).mlir())
            whole = build(Concat, [first, new], {"dim": 2}, results=[t]).results[0]
        op.results[0].replace_all_uses_with(whole)
        op.operation.erase()
        for c in parts:
            c.whole.replace_all_uses_with(whole)  # where it is given back, which `_return` takes away
            c.join.operation.erase()
        for k in sorted((c.argument.arg_number for c in parts[1:]), reverse=True):
            erase_argument(block, k)


def _check_form(c: _Cache, form: str) -> None:
    """Raises CompileError where a cache takes no less in that format."""
    t = from_mlir(c.new)
    depth = int(t.shape[3]) if is_static(t.shape[3]) else 0
    bits = depth * DTYPES[FORMATS[form]].bits + 32 * (form == "int8")
    if not t.dtype.is_float or not depth or bits >= depth * t.dtype.bits:
        raise CompileError(
            f"kv_cache: '{c.name}' of {t} takes no less as {form}", hint="leave out kv_cache, which changes what pools hold"
        )


def _whole(v: Any) -> Any:
    """The joined whole that attention reads v of: itself, or what it is some heads or columns of."""
    op = defining(v)
    return op.operands[0] if isinstance(op, Slice) else v


def _read(v: Any, pools: Mapping[Any, _Pool]) -> Stored:
    """What a pool holds of keys or values [batch, heads, keys, depth], which are a joined whole or some heads or columns of it."""
    if v in pools:
        return pools[v].content
    content, op = pools[_whole(v)].content, defining(v)
    _, first, _, column = exprs(attr(op, "starts"))
    _, heads, _, depth = from_mlir(v).shape

    def part(pool: Any, column: sympy.Expr, depth: sympy.Expr) -> Any:
        t = from_mlir(pool)
        out = t.with_shape([heads, t.shape[1], depth])
        if out == t:
            return pool
        return build(Slice, [pool], {"starts": [show(first), "0", show(column)], "steps": [1] * 3}, results=[out]).results[0]

    scale = None if content.scale is None else part(content.scale, sympy.Integer(0), sympy.Integer(1))
    return Stored(part(content.values, column, depth), scale)


def _caches(block: Any) -> list[_Cache]:
    names = argument_names(block)
    sources = _sources(block)
    return [_cache(names[k], block.arguments[k]) for k in requested_pages(block) if k not in sources]


def _sources(block: Any) -> list[int]:
    """The numbers of the arguments that are keys or values of a source: attention alone reads them, beside others of that kind."""
    asked = {k: block.arguments[k] for k in requested_pages(block) if from_mlir(block.arguments[k]).rank == 4}
    read = {k: [use.owner.operation.opview for use in a.uses] for k, a in asked.items()}
    alone = {k: asked[k] for k, users in read.items() if users and all(isinstance(op, Attention) for op in users)}

    def beside(k: int) -> bool:
        return all(v in alone.values() for op in read[k] for v in list(op.operands)[1:3])

    return [k for k in alone if all(asked[k] not in [op.operands[0], *list(op.operands)[3:]] for op in read[k]) and beside(k)]


def _cache(name: str, argument: Any) -> _Cache:
    """Raises CompileError for an argument that isn't one half of keys and values that a step joins some to."""
    t = from_mlir(argument)
    users = [use.owner.operation.opview for use in argument.uses]
    if t.rank != 4 or len(users) != 1 or not _joins(users[0], argument):
        where = next((str(place_of(u)) for u in users if not _joins(u, argument)), None)
        raise CompileError(
            f"pages: '{name}' of {t} is no cache [batch, heads, past, depth] that is joined to along dim 2 and read no other way",
            where=where,
        )
    return _Cache(name, argument, users[0])


def _joins(op: Any, argument: Any) -> bool:
    return isinstance(op, Concat) and attr(op, "dim") == 2 and len(op.operands) == 2 and bool(op.operands[0] == argument)


def _sizes(caches: Iterable[_Cache]) -> Tokens:
    """The sizes that all caches share. Raises CompileError where they differ, or are static; one token may be new."""
    found = {(*(from_mlir(c.argument).shape[d] for d in (0, 2)), from_mlir(c.new).shape[2]) for c in caches}
    if len(found) != 1:
        raise CompileError(f"pages: caches are of several sizes: {', '.join(c.name for c in caches)}")
    batch, past, new = found.pop()
    several = new.is_Symbol and (batch.is_Symbol or batch == 1)
    if not (several or new == 1 and batch.is_Symbol) or not past.is_Symbol or len({batch, past, new}) != 3:
        raise CompileError(
            f"pages: caches of {batch} sequences with {past} keys and {new} new ones",
            hint="export with dynamic sizes of the batch and of the past, and of what is new, unless that is one token",
        )
    return Tokens(batch, past, new)


def _check_unread(whole: Any, name: str) -> None:
    """Raises CompileError for what reads a joined whole, or a view of it, and isn't attention: it may be returned."""
    for use in whole.uses:
        op = use.owner.operation
        if op.name == "func.return":
            continue
        if any(True for v in op.results for _ in v.uses) and not isinstance(op.opview, (Reshape, ew.Copy)):
            raise CompileError(f"pages: '{name}', with what is new, is read by {op.name}", where=str(place_of(op.opview)))
        for v in op.results:
            _check_unread(v, name)


def _through_views(v: Any) -> Any:
    while isinstance(op := defining(v), (Reshape, ew.Copy)):
        v = op.operands[0]
    return v
