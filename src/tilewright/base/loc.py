"""Where a node came from. Locations travel with statements and graph nodes, never compare."""

from __future__ import annotations

from dataclasses import dataclass


class Loc:
    """Base of all locations; `str(loc)` is what an error shows after `-->`."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Unknown(Loc):
    """Nothing is known about the origin."""

    def __str__(self) -> str:
        return "unknown"


@dataclass(frozen=True, slots=True)
class File(Loc):
    """A place in a text: the user's Python file, or a program in our own syntax."""

    path: str
    line: int
    column: int = 0

    def __str__(self) -> str:
        return f"{self.path}:{self.line}" + (f":{self.column}" if self.column else "")


@dataclass(frozen=True, slots=True)
class ModelNode(Loc):
    """A node of an imported model."""

    model: str
    node: str

    def __str__(self) -> str:
        return f'node "{self.node}" in {self.model}'


@dataclass(frozen=True, slots=True)
class Fused(Loc):
    """Several nodes became one."""

    parts: tuple[Loc, ...]

    def __str__(self) -> str:
        return " + ".join(str(part) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Synthetic(Loc):
    """Invented by a pass or primitive."""

    origin: str

    def __str__(self) -> str:
        return f"made by {self.origin}"


UNKNOWN = Unknown()


def fuse(*locs: Loc) -> Loc:
    """The location of a node merged from others: duplicates and unknowns drop out."""
    parts: dict[Loc, None] = {}
    for loc in locs:
        for part in loc.parts if isinstance(loc, Fused) else (loc,):
            if not isinstance(part, Unknown):
                parts[part] = None
    if not parts:
        return UNKNOWN
    return next(iter(parts)) if len(parts) == 1 else Fused(tuple(parts))
