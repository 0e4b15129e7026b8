"""Warp roles of a kernel: one warpgroup copies tiles, the others multiply.

A schedule's `specialize` annotates the loop whose tiles become a ring of slots;
`passes/specialize_roles.py` generates the programs of both.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tilewright.base.dtype import BOOL
from tilewright.sym import Expr
from tilewright.tensor.ir import Call, Eval, For, Stmt, annotation
from tilewright.tensor.visit import walk

# Annotation of a loop: the slots of its ring, blocks that stay, tiles of those copied beside it.
SPECIALIZE = "specialize"
COPY, MULTICAST = "tma.load", "tma.multicast"
PREFETCH = "tma.prefetch"  # a copy to L2 alone
LAG = "role.lag"
TILE_SCOPE = "shared.b128"
GROUP_THREADS, GROUP_WARPS = 128, 4
SWIZZLED = 8  # rows after which a swizzle repeats
REGISTERS = 65536 // GROUP_THREADS  # of a multiprocessor, for each thread of a single warpgroup
PRODUCER_REGISTERS, LEAST_REGISTERS, MAX_REGISTERS = 40, 24, 240


class RolePlan(NamedTuple):
    """What the annotation of a loop asks for."""

    slots: int = 0  # of its ring; 0: it is not specialized
    blocks: int = 0  # that stay for all tiles; 0: each has one
    beside: int = 1  # of a tile that is copied beside the loop
    resident: int = 1  # blocks that a multiprocessor has at once
    stream_k: int = 0  # whether blocks that stay share the steps of all tiles evenly
    pingpong: int = 0  # whether two warpgroups take turns at the tiles of a block that stays


def role_plan(stmt: Stmt) -> RolePlan:
    found = annotation(stmt, SPECIALIZE) if isinstance(stmt, For) else None
    return RolePlan(*found) if isinstance(found, tuple) else RolePlan()


def rings(body: Stmt) -> list[For]:
    """The loops of a statement that are specialized."""
    return [stmt for stmt in walk(body) if isinstance(stmt, For) and role_plan(stmt).slots]


def producer_registers(resident: Any) -> Any:
    """Of the warpgroup that copies; fewer where a multiprocessor has several blocks at once."""
    some = (PRODUCER_REGISTERS + LEAST_REGISTERS) // 2
    return np.select([resident == 1, resident == 2], [PRODUCER_REGISTERS, some], LEAST_REGISTERS)


def consumer_registers(groups: Any, resident: Any) -> Any:
    """Of each thread that multiplies, out of what its block is given; of numbers, or of columns of
    them."""
    each = REGISTERS // resident // (groups + 1) // 8 * 8
    share = (each * (groups + 1) - producer_registers(resident)) // groups // 8 * 8
    return np.minimum(MAX_REGISTERS, share)


def effect(op: str, *args: Expr) -> Stmt:
    """A call for what it does alone."""
    return Eval(Call(op, args, BOOL))
