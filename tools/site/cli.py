"""The manual of the command line, from the commands themselves."""

from __future__ import annotations

from typing import Any

import typer.main

from tilewright.cli.app import app

EXIT = """
Tables for people go to the standard output, or one JSON document with `--json`; progress and errors
go to the standard error. Exit codes: 0 done, 1 failed, 2 wrong usage. `TILEWRIGHT_TRACEBACK=full`
shows the whole traceback of an error.
"""


def page() -> str:
    group: Any = typer.main.get_command(app)
    parts = ["# The command line\n", EXIT]
    rows = [f"| [`{name}`](#{name}) | {_help(each)} |" for name, each in group.commands.items()]
    parts.append("| command | |\n|---|---|\n" + "\n".join(rows) + "\n")
    for name, each in group.commands.items():
        parts.append(_command(f"tilewright {name}", name, each))
    return "\n".join(parts)


def _help(command: Any) -> str:
    return str(command.help or "").strip().splitlines()[0].replace("|", "\\|")


def _command(path: str, title: str, command: Any, level: int = 2) -> str:
    inner = getattr(command, "commands", None)
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    usage = " ".join([path, *(_metavar(each) for each in arguments)])
    lines = [f"{'#' * level} {title}\n", f"```text\n{usage} [OPTIONS]\n```\n", str(command.help)]
    rows = [_row(param) for param in command.params]
    if rows:
        lines.append("\n| | | default |\n|---|---|---|\n" + "\n".join(rows) + "\n")
    for name, each in (inner or {}).items():
        lines.append(_command(f"{path} {name}", f"{title} {name}", each, level + 1))
    return "\n".join(lines)


def _row(param: Any) -> str:
    if param.param_type_name == "argument":
        names = f"`{_metavar(param)}`"
    else:
        names = ", ".join(f"`{option}`" for option in param.opts)
        if not param.is_flag:
            names += f" {_metavar(param)}"
        if param.multiple:
            names += " (may be repeated)"
    text = str(getattr(param, "help", "") or "").replace("|", "\\|")
    default = "" if param.required else _default(param)
    return f"| {names} | {text} | {default} |"


def _metavar(param: Any) -> str:
    return str(param.metavar or param.name.replace("_", "-").upper())


def _default(param: Any) -> str:
    value = param.default
    if value in (None, "", False) or callable(value) or not isinstance(value, (str, int, float)):
        return ""
    return f"`{value}`"
