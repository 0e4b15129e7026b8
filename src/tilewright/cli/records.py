"""tilewright records"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from tilewright.base.errors import UserError
from tilewright.base.version import VERSION
from tilewright.cli import common
from tilewright.cli.common import Json

if TYPE_CHECKING:  # imported lazily: loading the tuner would slow down every command
    from tilewright.tune.database import Database, Taken

SQLITE = b"SQLite format 3\0"  # how every such file begins


@common.command
def records(
    db: Annotated[
        Path | None, typer.Option("--db", help="The database file; default: the user's.")
    ] = None,
    merge: Annotated[
        list[Path] | None,
        typer.Option("--merge", help="Add the records of another database, or of JSON lines."),
    ] = None,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove the records of other versions.")
    ] = False,
    export: Annotated[
        Path | None, typer.Option("--export", help="Write the records as JSON lines.")
    ] = None,
    json: Json = False,
) -> None:
    """Show the records of tuning; merge, prune and export them, in this order."""
    from tilewright.tune.database import Database, default_path

    path = db if db is not None else default_path()
    if path is None:
        raise typer.BadParameter("TILEWRIGHT_TUNING_DB is empty: name a file", param_hint="--db")
    report: dict[str, Any] = {"database": str(path)}
    is_there = path.exists() or merge
    with Database(path if is_there else ":memory:") as database:
        for other in merge or ():
            taken = merged(database, other)
            report.setdefault("merged", []).append({"from": str(other), **vars(taken)})
        if prune:
            report["pruned_kernels"] = database.prune()
        if export is not None:
            report["exported"] = database.export(export)
        report["trials"] = database.versions
    if json:
        common.print_json(report)
    else:
        _show(report)


def merged(database: Database, other: Path) -> Taken:
    """Add the records of a file: another database, or JSON lines."""
    from tilewright.tune.database import Database

    with contextlib.suppress(OSError), other.open("rb") as file:
        if file.read(len(SQLITE)) == SQLITE:
            with Database(other) as source:
                return database.merge(source)
    return database.load(other)


def skipped_note(path: Path | None) -> str:
    """That a database has records which no compilation uses; "" where it has none."""
    from tilewright.tune.database import Database

    if path is None or not path.exists():
        return ""
    try:
        with Database(path) as database:
            count = sum(each for of, each in database.versions.items() if of != VERSION)
    except UserError:  # said where it matters
        return ""
    some = f"{count:,} trials of other versions in {path} are not used"
    return f"{some}; `tilewright records --prune` removes them" if count else ""


def _show(report: dict[str, Any]) -> None:
    out = common.output()
    for each in report.get("merged", ()):
        skipped = {
            "of another version": each["other_version"],
            "unreadable": each["unreadable"],
        }
        some = "".join(f", {count:,} {why} skipped" for why, count in skipped.items() if count)
        out.print(f"{each['records']:,} records from {each['from']}{some}", markup=False)
    if "pruned_kernels" in report:
        out.print(f"records of {report['pruned_kernels']:,} kernels removed")
    if "exported" in report:
        out.print(f"{report['exported']:,} records written")
    table = Table(show_header=False, box=None)
    table.add_row("database", report["database"])
    table.add_row("trials", f"{report['trials'].get(VERSION, 0):,}")
    for version, count in report["trials"].items():
        if version != VERSION:
            table.add_row(f"of {version}", f"{count:,}, not used (--prune removes them)")
    out.print(table)
