"""All that a model needs and is not supported, in one report."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.base.errors import Unsupported

SHOWN = 4  # nodes named for each reason; the others are counted


class Skip(Exception):
    """Raised by a rule for what it does not support; the message says what."""


Problems = dict[str, list[str]]  # a reason, and the nodes that have it


def report(model: str, problems: Mapping[str, list[str]]) -> Unsupported:
    """The error that names every reason with its nodes."""
    lines = []
    for reason, nodes in problems.items():
        shown = ", ".join(nodes[:SHOWN])
        more = f" and {len(nodes) - SHOWN} more" if len(nodes) > SHOWN else ""
        lines.append(f"{reason} ({shown}{more})")
    return Unsupported("TW1101", f"{model} needs what is not supported: " + "; ".join(lines))
