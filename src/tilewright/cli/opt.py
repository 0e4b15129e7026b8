"""tilewright opt FILE.tw --passes=a,b{k=1}"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from tilewright.base.passes import parse_passes, run_passes
from tilewright.base.target import Target
from tilewright.cli import common

MODEL = re.compile(r"(?m)^(graph|module)\b")


@common.command
def opt(
    file: Annotated[Path, typer.Argument(help="A .tw program: graphs or tensor functions.")],
    passes: Annotated[str, typer.Option(help="For example canonicalize,fuse{limit = 4}")] = "",
    target: common.Target = "cpu",
    dump_after: Annotated[str, typer.Option(help="Print after this pass, or `all`.")] = "",
    time_passes: Annotated[bool, typer.Option("--time-passes", help="Print pass times.")] = False,
    verify_each: Annotated[bool, typer.Option("--verify-each", help="Verify each pass.")] = False,
    json: common.Json = False,
) -> None:
    """Run passes on a program and print it."""
    from tilewright.driver.optimize import pass_context
    from tilewright.driver.options import Options

    text = common.read_text(file)
    programs, known, verify = _language(text, str(file))
    chosen, options = parse_passes(passes, known)
    dumps: list[dict[str, Any]] = []

    def observe(name: str, before: Any, after: Any) -> None:
        if verify_each:
            verify(after)
        if dump_after in ("all", name):
            dumps.append({"pass": name, "changed": after is not before, "program": str(after)})

    ctx = pass_context(Target.parse(target), Options(), options=options, observers=(observe,))
    begun = time.perf_counter()
    with common.progress(f"running passes on {file.name}"):
        results = [run_passes(program, chosen, ctx) for program in programs]
    total = time.perf_counter() - begun
    if json:
        printed = [str(result) for result in results]
        common.print_json({"programs": printed, "timings_s": ctx.timings, "dumps": dumps})
        return
    for dump in dumps:
        print(f"// after {dump['pass']}" + ("" if dump["changed"] else " (unchanged)"))
        if dump["changed"]:
            print(dump["program"])
    for result in results:
        print(result)
    if time_passes:
        table = Table("pass", "ms")
        for name, seconds in ctx.timings.items():
            table.add_row(name, f"{seconds * 1e3:.2f}")
        table.add_row("total", f"{total * 1e3:.2f}")
        common.console.print(table)


def _language(text: str, path: str) -> tuple[list[Any], dict[str, Any], Any]:
    """The programs in a text, the passes for their language, and its verifier."""
    if MODEL.search(text):
        from tilewright.graph import passes as graph_passes
        from tilewright.graph.parser import parse
        from tilewright.graph.verify import verify

        known = {name: step for name, step in vars(graph_passes).items() if callable(step)}
        return [parse(text, path=path)], known, verify
    import tilewright.intrin  # noqa: F401  # registers the hardware intrinsics
    from tilewright.tensor import parse_all
    from tilewright.tensor import verify as verify_function
    from tilewright.tensor.passes import PASSES

    return list(parse_all(text)), dict(PASSES), verify_function
