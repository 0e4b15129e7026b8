"""Passes: pure functions `(program, PassContext) -> program`, run in the order of a tuple.

    CPU = (lower_inits, expand_updates, lower_blocks, ...)
    flat = run_passes(fn, CPU, PassContext(options={"unroll_loops.limit": 64}))

A pass is named by its function. It returns the same object if nothing changes. Its options are
`pass.option` in the context; in text, `pass{option = value}`. Every pass has the option `enabled`,
which turns it off.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tilewright.base.errors import CompilerBug, TilewrightError, UserError
from tilewright.base.text import Tokens

P = TypeVar("P")
Pass = Callable[[P, "PassContext"], P]
Option = int | float | str | bool


@dataclass(eq=False)
class PassContext:
    """The inputs of a pass besides its program, and records of a run."""

    target: Any = None
    costs: Any = None  # the cost table of choices, if there is one
    options: Mapping[str, Option] = field(default_factory=dict)
    # called after every pass with the pass's name, the program before and the program after
    observers: tuple[Callable[[str, Any, Any], None], ...] = ()
    # seconds per pass, summed over runs; in order of first run
    timings: dict[str, float] = field(default_factory=dict)
    # alternatives that passes chose between, with costs
    choices: list[Any] = field(default_factory=list)
    # why passes skipped nodes, by location
    reasons: dict[str, str] = field(default_factory=dict)

    def option(self, name: str, default: Any) -> Any:
        """The value given for `pass.option`, which must be of the default's type."""
        value = self.options.get(name, default)
        if type(value) is not type(default):
            raise UserError(
                "TW0501",
                f"option {name} is {value!r}, expected a value like {default!r}",
                help=f"write {name.replace('.', '{', 1)} = {default!r}}}",
            )
        return value


def run_passes(program: P, passes: Iterable[Pass[P]], ctx: PassContext | None = None) -> P:
    """Run passes in order. A crash becomes a `CompilerBug` with a reproducer."""
    ctx = PassContext() if ctx is None else ctx
    remaining = list(passes)
    while remaining:
        step = remaining[0]
        name = pass_name(step)
        if not ctx.option(f"{name}.enabled", True):
            remaining.pop(0)
            continue
        begin = time.perf_counter()
        try:
            result = step(program, ctx)
            for observe in ctx.observers:
                observe(name, program, result)
        except TilewrightError:
            raise
        except Exception as error:
            raise _bug(program, remaining, error) from error
        ctx.timings[name] = ctx.timings.get(name, 0.0) + time.perf_counter() - begin
        program = result
        remaining.pop(0)
    return program


def pass_name(step: Callable[..., Any]) -> str:
    name: str = step.__name__
    return name


def parse_passes(
    text: str, known: Mapping[str, Pass[P]]
) -> tuple[tuple[Pass[P], ...], dict[str, Option]]:
    """Parse `a, b{k = 1}` to the passes, and their options by `pass.option`."""
    tokens = Tokens(text, "<passes>")
    chosen: list[Pass[P]] = []
    options: dict[str, Option] = {}
    while tokens.current.kind != "end":
        token = tokens.expect_kind("name", "a pass")
        if token.text not in known:
            raise UserError(
                "TW0502", f"unknown pass {token.text}", help=f"known: {', '.join(known)}"
            )
        chosen.append(known[token.text])
        if tokens.accept("{"):
            while not tokens.accept("}"):
                key = tokens.expect_kind("name", "an option").text
                tokens.expect("=")
                options[f"{token.text}.{key}"] = _option(tokens)
                tokens.accept(",")
        tokens.accept(",")
    return tuple(chosen), options


def _option(tokens: Tokens) -> Option:
    negative = tokens.accept("-")
    token = tokens.next()
    if token.kind in ("int", "float"):
        number = int(token.text) if token.kind == "int" else float(token.text)
        return -number if negative else number
    if token.kind == "string":
        return token.text[1:-1]
    if token.text in ("true", "false"):
        return token.text == "true"
    tokens.fail("expected a number, a string, true or false", token)


def _bug(program: object, remaining: list[Any], error: Exception) -> CompilerBug:
    names = ",".join(pass_name(step) for step in remaining)
    text = f"// passes: {names}\n{program}"
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    path = Path(tempfile.gettempdir()) / f"tilewright-{digest}.tw"
    where = f"{path} (not written)"
    try:
        path.write_text(text)
        where = str(path)
    except OSError:
        pass
    return CompilerBug(
        "TW0503",
        f"pass {pass_name(remaining[0])} failed: {type(error).__name__}: {error}",
        help=f"replay it: tilewright opt {where} --passes={names}",
    )
