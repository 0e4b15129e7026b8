"""Source locations. They are carried by statements and graph nodes and ignored in comparisons."""

from __future__ import annotations

from dataclasses import dataclass


class Loc:
    """Base of all locations; `str(loc)` is what an error prints after `-->`."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Unknown(Loc):
    """An unknown origin."""

    def __str__(self) -> str:
        return "unknown"


@dataclass(frozen=True, slots=True)
class File(Loc):
    """A position in a text: the user's Python file, or a program in Tilewright's syntax."""

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
    """The merger of several nodes."""

    parts: tuple[Loc, ...]

    def __str__(self) -> str:
        return " + ".join(str(part) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Synthetic(Loc):
    """Created by a pass or primitive."""

    origin: str

    def __str__(self) -> str:
        return f"made by {self.origin}"


UNKNOWN = Unknown()


def fuse(*locs: Loc) -> Loc:
    """The location of a node merged from others, without duplicates and unknown locations."""
    parts: dict[Loc, None] = {}
    for loc in locs:
        for part in loc.parts if isinstance(loc, Fused) else (loc,):
            if not isinstance(part, Unknown):
                parts[part] = None
    if not parts:
        return UNKNOWN
    return next(iter(parts)) if len(parts) == 1 else Fused(tuple(parts))
