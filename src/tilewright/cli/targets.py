"""tilewright targets [TARGET] [--calibrate] [--forget]"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table

from tilewright.base.machine import unit_of
from tilewright.base.target import EXAMPLES, Target
from tilewright.cli import common
from tilewright.cli.common import Json


@common.command
def targets(
    target: Annotated[
        str,
        typer.Argument(help="Show its machine model: `x86_64-linux-gnu -mcpu=haswell`."),
    ] = "",
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Measure this machine, in half a minute.")
    ] = False,
    forget: Annotated[
        bool, typer.Option("--forget", help="Remove the measurements of this machine.")
    ] = False,
    json: Json = False,
) -> None:
    """List the available targets and their properties."""
    if forget:
        _forget(json)
    elif calibrate:
        _calibrate(json)
    elif target:
        _model(_described(target), json)
    else:
        _list([_described(text) for text in EXAMPLES], json)


def _list(found: list[dict[str, Any]], json: bool) -> None:
    if json:
        common.print_json(found)
        return
    table = Table("target", "triple", "vectors", "L1d", "L2", "L3", "cores", "model", "features")
    for one in found:
        table.add_row(
            one["target"],
            one["triple"],
            f"{one['vector_bits']} bits x {one['vector_registers']}",
            *(_size(one[level]) for level in ("l1d_bytes", "l2_bytes", "l3_bytes")),
            str(one["cores"]),
            one["machine"]["source"],
            ", ".join(one["notable"]),
        )
    common.output().print(table)
    common.output().print(
        "More: -mcpu=NAME, -mattr=+FEATURE,-FEATURE; `cpu` is this machine. "
        "`tilewright targets TARGET` shows a machine model, --calibrate measures this machine."
    )


def _model(one: dict[str, Any], json: bool) -> None:
    """Print the machine model of a target."""
    if json:
        common.print_json(one)
        return
    source, numbers = one["machine"]["source"], dict(one["machine"])
    del numbers["source"]
    table = Table("number", "value", "unit", title=f"{one['target']}: {source}")
    for name, value in numbers.items():
        table.add_row(name, f"{value:g}" if isinstance(value, float) else str(value), unit_of(name))
    common.output().print(table)
    common.output().print("Each can be set in a target's text: cpu -l2=1M -l2-bytes-per-cycle=24")


def _calibrate(json: bool) -> None:
    from tilewright.driver import calibrate as measuring  # lazy: the compiler loads slowly

    with common.progress("measuring") as move:
        found = measuring.calibrate(progress=move)
    path = measuring.keep(found)
    if json:
        numbers = [
            {
                "name": each.name,
                "value": each.value if each.is_number else None,
                "unit": each.unit,
                "known": each.known,
                "refused": each.refused,
            }
            for each in found
        ]
        common.print_json({"file": str(path), "numbers": numbers})
        return
    table = Table("number", "measured", "known", "unit", "")
    for each in found:
        shown = f"{each.value:g}" if each.is_number else "?"
        mark = f"[red]not kept: {each.refused}" if each.refused else "[green]kept"
        table.add_row(each.name, shown, f"{each.known:g}", each.unit, mark)
    common.output().print(table)
    common.output().print(f"`cpu` means these numbers from now on: {path}")


def _forget(json: bool) -> None:
    from tilewright.driver.calibrate import forget

    removed = forget()
    if json:
        common.print_json({"removed": removed})
    else:
        common.output().print("removed" if removed else "nothing was measured here")


NOTABLE = ("avx2", "avx512f", "vnni", "bf16", "amx", "neon", "dotprod", "sve", "v", "simd128")


def _described(text: str) -> dict[str, Any]:
    target = Target.parse(text)
    return {
        "target": text,
        "kind": target.kind,
        "triple": target.triple,
        "vector_bits": target.vector_bits,
        "vector_registers": target.vector_registers,
        "l1d_bytes": target.l1d_bytes,
        "l2_bytes": target.l2_bytes,
        "l3_bytes": target.machine.l3.size_bytes,
        "cores": target.cores,
        "machine": {"source": target.machine.source, **target.machine.numbers()},
        "features": sorted(target.features),
        "notable": [name for name in NOTABLE if target.has(name)],
    }


def _size(size_bytes: int) -> str:
    if not size_bytes:
        return ""
    return f"{size_bytes >> 20} MB" if size_bytes >= 1 << 20 else f"{size_bytes >> 10} KB"
