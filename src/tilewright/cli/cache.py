"""tilewright cache"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from tilewright.cli import common
from tilewright.cli.common import Json
from tilewright.codegen.cache import allowed_bytes, cache_folder


@dataclass(frozen=True)
class Summary:
    """The contents of the cache of compiled kernels."""

    folder: Path | None
    entries: int
    size_bytes: int
    limit_bytes: int


def summary() -> Summary:
    folder = cache_folder()
    sizes = [] if folder is None else [size for _, size in _entries(folder)]
    return Summary(folder, len(sizes), sum(sizes), allowed_bytes())


def _entries(folder: Path) -> list[tuple[Path, int]]:
    found = []
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            with contextlib.suppress(OSError):  # another process may remove it
                found.append((path, path.stat().st_size))
    return found


@common.command
def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Remove every entry.")] = False,
    json: Json = False,
) -> None:
    """Show or clear the cache of compiled kernels."""
    found = summary()
    if clear:
        _clear(found.folder)
        found = summary()
    if json:
        common.print_json(
            {
                "folder": None if found.folder is None else str(found.folder),
                "entries": found.entries,
                "bytes": found.size_bytes,
                "limit_bytes": found.limit_bytes,
            }
        )
        return
    table = Table(show_header=False, box=None)
    table.add_row("folder", str(found.folder or "none: TILEWRIGHT_CACHE_DIR is empty"))
    table.add_row("kernels", f"{found.entries:,}")
    table.add_row("size", f"{found.size_bytes / 1e6:.1f} MB")
    table.add_row("limit", f"{found.limit_bytes / 1e6:.0f} MB (TILEWRIGHT_CACHE_MB)")
    common.output().print(table)


def _clear(folder: Path | None) -> None:
    """Remove the entries that can be removed; the rest is counted afterwards."""
    for path, _ in [] if folder is None else _entries(folder):
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
