"""Report of all unsupported features of a model."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.base.errors import Unsupported

SHOWN = 4  # nodes named per reason; the others are counted


class Skip(Exception):
    """Raised by a rule for an unsupported feature, which the message describes."""


Problems = dict[str, list[str]]  # reason: nodes


def report(model: str, problems: Mapping[str, list[str]]) -> Unsupported:
    """An error with all reasons and their nodes."""
    lines = []
    for reason, nodes in problems.items():
        shown = ", ".join(nodes[:SHOWN])
        more = f" and {len(nodes) - SHOWN} more" if len(nodes) > SHOWN else ""
        lines.append(f"{reason} ({shown}{more})")
    return Unsupported("TW1101", f"{model} needs what is not supported: " + "; ".join(lines))
