"""Whether a computation is what a tensor intrinsic declares: the same up to names and places.

The declared block `D[x] += W[x, k] * X[k]` matches `C[o * 8 + i] += A[o * 8 + i, p * 4 + r] * ...`
with x = i and k = r: iterators pair up one to one, and every index of the computation is the
declared one plus an offset which the tile's own iterators do not change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations, product

from tilewright import sym
from tilewright.sym import ONE, ZERO, Const, Expr, Var
from tilewright.tensor.ir import (
    REDUCE,
    SPATIAL,
    Block,
    Buffer,
    Iter,
    Load,
    Range,
    Reducer,
    Region,
    Seq,
    Stmt,
    Store,
    Update,
)
from tilewright.tensor.scopes import Owner

_COMMUTATIVE = (sym.Add, sym.Mul, sym.Min, sym.Max, sym.And, sym.Or, sym.Eq, sym.Ne)


EXTENTS, OPERATION, INDEX, TYPE, START = "TW2165", "TW2167", "TW2168", "TW2169", "TW2170"


class Mismatch(Exception):
    """What differs: a code for the kind of difference, and words."""

    def __init__(self, code: str, words: str) -> None:
        super().__init__(words)
        self.code = code


@dataclass(frozen=True, slots=True)
class Match:
    """Which region of the computation each declared buffer stands for."""

    tiles: dict[Buffer, Region]


def match_block(declared: Block, block: Block) -> Match:
    """The tiles of a computation that does what is declared, or `Mismatch` saying what differs.

    Both are blocks of one `Update` or `Store`. The iterators of `block` span the tile; whatever
    else its body speaks of is fixed inside it.
    """
    first: Mismatch | None = None
    for pairs in _pairings(declared.iters, block.iters):
        try:
            return _Matcher(pairs, block).stmts(declared.body, block.body)
        except Mismatch as mismatch:
            first = first or mismatch
    assert first is not None
    raise first


def match_init(declared: Block, init: Stmt, block: Block) -> Match:
    """The same for a statement that sets the tile to what the declared reduction starts from."""
    spatial = [it for it in declared.iters if it.kind == SPATIAL]
    assert declared.init is not None
    first: Mismatch | None = None
    for pairs in _pairings(spatial, block.iters):
        try:
            return _Matcher(pairs, block).stmts(declared.init, init)
        except Mismatch as mismatch:
            first = first or mismatch
    assert first is not None
    raise first


# --------------------------------------------------------------------------- iterators


def _pairings(declared: Sequence[Iter], found: Sequence[Iter]) -> Iterator[dict[Var, Expr]]:
    """Every way to pair iterators of one kind and extent, as they stand first."""
    alone: dict[Var, Expr] = {it.var: ZERO for it in declared if it.extent is ONE}
    choices = []
    for kind in (SPATIAL, REDUCE):
        want = [it for it in declared if it.kind == kind and it.extent is not ONE]
        have = [it for it in found if it.kind == kind and it.extent is not ONE]
        _check_extents(kind, want, have)
        choices.append(
            [
                list(zip(want, order, strict=True))
                for order in permutations(have)
                if all(a.extent is b.extent for a, b in zip(want, order, strict=True))
            ]
        )
    for spatial, reduce in product(*choices):
        yield {**alone, **{a.var: b.var for a, b in (*spatial, *reduce)}}


def _check_extents(kind: str, want: Sequence[Iter], have: Sequence[Iter]) -> None:
    if len(want) != len(have):
        shown = ", ".join(f"%{it.var.name}: {it.extent}" for it in have) or "none"
        wanted = ", ".join(f"%{it.var.name}: {it.extent}" for it in want) or "none"
        raise Mismatch(
            EXTENTS, f"its tile has the {kind} iterators ({shown}), the intrinsic has ({wanted})"
        )
    if sorted(str(it.extent) for it in want) == sorted(str(it.extent) for it in have):
        return
    for a, b in zip(want, have, strict=True):
        if a.extent is not b.extent:
            raise Mismatch(
                EXTENTS,
                f"its tile runs over {b.extent} along %{b.var.name}, the intrinsic over {a.extent} "
                f"along %{a.var.name}",
            )


# --------------------------------------------------------------------------- statements


class _Matcher:
    def __init__(self, pairs: dict[Var, Expr], block: Block) -> None:
        self.pairs = pairs
        self.inside = {it.var for it in block.iters}
        self.ctx = sym.EMPTY.bind_all({it.var: (ZERO, it.extent) for it in block.iters})
        self.tiles: dict[Buffer, Region] = {}

    def stmts(self, declared: Stmt, found: Stmt) -> Match:
        want = declared.stmts if isinstance(declared, Seq) else (declared,)
        have = found.stmts if isinstance(found, Seq) else (found,)
        if len(want) != len(have):
            raise Mismatch(OPERATION, f"it has {len(have)} statements, the intrinsic {len(want)}")
        for a, b in zip(want, have, strict=True):
            self._stmt(a, b)
        return Match(dict(self.tiles))

    def _stmt(self, declared: Stmt, found: Stmt) -> None:
        if isinstance(declared, Update) and isinstance(found, Update):
            if len(declared.buffers) != len(found.buffers):
                raise Mismatch(
                    OPERATION,
                    f"it reduces {len(found.buffers)} values at once, the intrinsic "
                    f"{len(declared.buffers)}",
                )
            for a, b in zip(declared.buffers, found.buffers, strict=True):
                self._access(a, declared.index, b, found.index)
            _check_reducer(declared.reducer, found.reducer)
            for x, y in zip(declared.values, found.values, strict=True):
                self._expr(x, y)
        elif isinstance(declared, Store) and isinstance(found, Store):
            self._access(declared.buffer, declared.index, found.buffer, found.index)
            self._expr(declared.value, found.value)
        else:
            raise Mismatch(OPERATION, f"it is {_kind(found)}, the intrinsic {_kind(declared)}")

    # ------------------------------------------------------------------ expressions

    def _expr(self, declared: Expr, found: Expr) -> None:
        """Recurses as deep as the declared expression, which is small."""
        if isinstance(declared, Load):
            if not isinstance(found, Load):
                raise Mismatch(OPERATION, f"it has {found} where the intrinsic reads {declared}")
            self._access(declared.buffer, declared.index, found.buffer, found.index)
            return
        if isinstance(declared, (Var, Const)):
            want = sym.substitute(declared, self.pairs)
            if want is not found and not sym.equal(want, found, self.ctx):
                raise Mismatch(OPERATION, f"it has {found} where the intrinsic has {declared}")
            return
        if type(declared) is not type(found):
            raise Mismatch(OPERATION, f"it has {found} where the intrinsic has {declared}")
        if declared.dtype is not found.dtype:
            raise Mismatch(
                TYPE,
                f"{found} is {found.dtype} where the intrinsic has {declared.dtype}: {declared}",
            )
        if getattr(declared, "op", None) != getattr(found, "op", None):
            raise Mismatch(OPERATION, f"it has {found} where the intrinsic has {declared}")
        wanted, have = declared.children(), found.children()
        if len(wanted) != len(have):
            raise Mismatch(OPERATION, f"it has {found} where the intrinsic has {declared}")
        before = dict(self.tiles)
        try:
            for a, b in zip(wanted, have, strict=True):
                self._expr(a, b)
        except Mismatch:
            if not isinstance(declared, _COMMUTATIVE):
                raise
            first = self.tiles
            self.tiles = before
            try:
                for a, b in zip(wanted, reversed(have), strict=True):
                    self._expr(a, b)
            except Mismatch:
                self.tiles = first
            else:
                return
            raise

    # ------------------------------------------------------------------ accesses

    def _access(
        self, want: Buffer, want_index: Sequence[Expr], have: Buffer, have_index: Sequence[Expr]
    ) -> None:
        if want.dtype is not have.dtype:
            raise Mismatch(
                TYPE,
                f"%{have.name} is {have.dtype}, the intrinsic takes {want.dtype} for %{want.name}",
            )
        is_pointer = want.memory.owner is Owner.DEVICE and have.memory.is_addressable
        if want.memory.seen != have.memory.seen and not is_pointer:
            raise Mismatch(
                TYPE,
                f"%{have.name} is in {have.scope} memory, the intrinsic takes %{want.name} in "
                f"{want.scope}",
            )
        region = self._tile(want, want_index, have, have_index)
        known = self.tiles.setdefault(want, region)
        same = known.buffer is have and all(
            sym.equal(a.start, b.start, self.ctx)
            for a, b in zip(known.ranges, region.ranges, strict=True)
        )
        if not same:
            raise Mismatch(
                INDEX,
                f"it touches both {_show(known)} and {_show(region)} where the intrinsic has one "
                f"tile %{want.name}",
            )

    def _tile(
        self, want: Buffer, want_index: Sequence[Expr], have: Buffer, have_index: Sequence[Expr]
    ) -> Region:
        """The region that the declared buffer stands for, dimension by dimension."""
        moving = [
            (axis, sym.substitute(at, self.pairs))
            for axis, at in enumerate(want_index)
            if sym.uses_var(sym.substitute(at, self.pairs), self.inside)
        ]
        shown = f"{have.name}[{', '.join(str(at) for at in have_index)}]"
        expected = f"{want.name}[{', '.join(str(at) for at in want_index)}]"
        left = list(moving)
        ranges: list[Range] = []
        for axis, at in enumerate(have_index):
            parts = sym.split_terms(sym.simplify(at, self.ctx), self.inside)
            if parts is None:
                raise Mismatch(INDEX, f"index {at} of %{shown} mixes the tile with what is outside")
            offset, inner = parts
            if not sym.uses_var(inner, self.inside):
                ranges.append(Range(sym.add(offset, inner), ONE))
                continue
            declared = None if not left else sym.split_terms(left[0][1], self.inside)
            if declared is None or not sym.equal(inner, declared[1], self.ctx):
                what = "none" if not left else str(want_index[left[0][0]])
                raise Mismatch(
                    INDEX,
                    f"index {axis} of %{shown} runs with {inner}, where the intrinsic has {what} "
                    f"in %{expected}",
                )
            start = sym.sub(offset, declared[0])
            ranges.append(Range(start, want.shape[left.pop(0)[0]]))
        if left:
            raise Mismatch(
                INDEX, f"%{shown} lacks the index {want_index[left[0][0]]} of %{expected}"
            )
        spare = len(ranges) - want.rank
        inner_ranges: list[Range] = []
        for r in ranges:
            if spare > 0 and r.extent is ONE:
                spare -= 1
            else:
                inner_ranges.append(r)
        if [r.extent for r in inner_ranges] != list(want.shape):
            dims = ", ".join(str(r.extent) for r in ranges)
            tile = ", ".join(str(dim) for dim in want.shape)
            raise Mismatch(
                EXTENTS,
                f"%{have.name} gives a tile of [{dims}], the intrinsic takes [{tile}] for "
                f"%{want.name}",
            )
        return Region(have, tuple(ranges))


def _check_reducer(want: Reducer, have: Reducer) -> None:
    if want is have:
        return
    renamed = dict(zip((*have.lhs, *have.rhs), (*want.lhs, *want.rhs), strict=False))
    mapping: dict[Var, Expr] = dict(renamed.items())
    same = (
        len(want.lhs) == len(have.lhs)
        and all(a.dtype is b.dtype for a, b in zip(want.lhs, have.lhs, strict=True))
        and want.identity == have.identity
        and all(
            a is sym.substitute(b, mapping) for a, b in zip(want.result, have.result, strict=True)
        )
    )
    if not same:
        kinds = ", ".join(str(x.dtype) for x in have.identity)
        expected = ", ".join(str(x.dtype) for x in want.identity)
        raise Mismatch(
            OPERATION,
            f"it reduces by {have.name} over {kinds}, the intrinsic by {want.name} over {expected}",
        )


def _kind(stmt: Stmt) -> str:
    if isinstance(stmt, Update):
        return "a reduction"
    return "a plain store" if isinstance(stmt, Store) else "no store"


def _show(region: Region) -> str:
    parts = [str(r.start) if r.extent is ONE else f"{r.start} +: {r.extent}" for r in region.ranges]
    return f"%{region.buffer.name}[{', '.join(parts)}]"
