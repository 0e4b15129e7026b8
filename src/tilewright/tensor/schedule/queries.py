"""get_block, get_loops and the like: queries that change nothing."""

from __future__ import annotations

from tilewright.sym import Var
from tilewright.tensor.ir import Function
from tilewright.tensor.schedule.analysis.refusal import path_to_block, path_to_loop
from tilewright.tensor.schedule.analysis.tree import (
    consumers,
    loops_on,
    producers,
    scope_blocks,
    scope_root,
    writes_of,
)


def get_block(fn: Function, name: str) -> str:
    """Checks that the block exists."""
    path_to_block(fn, name, "get the block")
    return name


def get_loops(fn: Function, block: str) -> list[Var]:
    """The loops around a block, outermost first, up to an enclosing block."""
    path, _ = path_to_block(fn, block, "get loops")
    return [loop.var for loop in loops_on(path)]


def get_child_blocks(fn: Function, loop: Var) -> list[str]:
    """The blocks under a loop, in program order."""
    _, found = path_to_loop(fn, loop, "get blocks")
    return [block.name for block in scope_blocks(found.body)]


def get_producers(fn: Function, block: str) -> list[str]:
    """The blocks that write what this one reads."""
    path, found = path_to_block(fn, block, "get producers")
    return [other.name for other in producers(scope_root(fn, path), found)]


def get_consumers(fn: Function, block: str) -> list[str]:
    """The blocks that read what this one writes."""
    path, found = path_to_block(fn, block, "get consumers")
    return [other.name for other in consumers(scope_root(fn, path), found)]


def get_output_blocks(fn: Function) -> list[str]:
    """The blocks that write a parameter of the function."""
    params = set(fn.buffers)
    return [
        block.name
        for block in scope_blocks(fn.body)
        if any(buffer in params for buffer in writes_of(block))
    ]
