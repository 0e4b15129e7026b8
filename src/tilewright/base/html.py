"""HTML for notebooks: programs and tables, for the `_repr_html_` of several classes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

_PRE = "max-height: 32em; overflow: auto; font-size: 85%; line-height: 1.4"


def program(title: str, text: str) -> str:
    """Format a program under a title, collapsed if long."""
    body = f'<pre style="{_PRE}">{escape(text)}</pre>'
    is_open = " open" if text.count("\n") <= 60 else ""
    return f"<details{is_open}><summary>{escape(title)}</summary>{body}</details>"


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Format a table of plain cells."""
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def bar(share: float) -> str:
    """A table cell with a bar of characters for a fraction of one."""
    return "█" * round(20 * max(0.0, min(1.0, share)))
