"""The two kinds of IR node. The test suite sets `TILEWRIGHT_CHECKED=1`, which freezes both.

`@interned` (with `metaclass=Interned`): equal fields give the same object, so equality is `is`,
hashing is free and memo tables are exact. Constructed positionally. Expressions are interned.

    @interned
    class Add(Expr):
        a: Expr
        b: Expr

`@node`: a value with its own identity. Statements, buffers and graph nodes are such.
"""

from __future__ import annotations

import dataclasses
import os
import weakref
from _weakref import _remove_dead_weakref as remove_dead  # type: ignore[attr-defined]
from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform

T = TypeVar("T")

CHECKED = os.environ.get("TILEWRIGHT_CHECKED", "0") == "1"


class _Entry(weakref.ref[Any]):
    """A weak reference to a live node, with the key it was constructed from."""

    __slots__ = ("key",)
    key: tuple[Any, ...]


# A WeakValueDictionary without its call overhead: every expression is looked up here.
_live: dict[tuple[Any, ...], _Entry] = {}


def _forget(entry: _Entry) -> None:
    remove_dead(_live, entry.key)  # atomic: another thread may construct the node again


class Interned(type):
    """Metaclass: a call with known arguments returns the live node constructed from them before."""

    if not TYPE_CHECKING:  # checkers see the dataclass __init__

        def __call__(cls, *args):
            key = (cls, *args)
            entry = _live.get(key)
            node = None if entry is None else entry()
            if node is None:  # never `or`: nodes have no truth value
                node = super().__call__(*args)
                entry = _Entry(node, _forget)
                entry.key = key
                # The entry is another thread's, or of a node that has just died.
                while (other := _live.setdefault(key, entry)) is not entry:
                    first = other()
                    if first is not None:
                        return first
                    remove_dead(_live, key)
            return node


@dataclass_transform(eq_default=False, frozen_default=True, field_specifiers=(dataclasses.field,))
def interned(cls: type[T]) -> type[T]:
    """Make a class frozen for the type checker, and at run time in the test suite only."""
    return dataclasses.dataclass(eq=False, repr=False, slots=True, frozen=CHECKED)(cls)


@dataclass_transform(eq_default=False, frozen_default=True, field_specifiers=(dataclasses.field,))
def node(cls: type[T]) -> type[T]:
    """Compare by identity; frozen for the type checker, and at run time in the test suite only."""
    made = dataclasses.dataclass(eq=False, repr=False, slots=True, frozen=CHECKED)
    return made(cls)


def set_once(node: object, name: str, value: Any) -> None:
    """Set a derived field in `__post_init__` of a frozen class."""
    object.__setattr__(node, name, value)
