"""tilewright targets"""

from __future__ import annotations

from typing import Any

from rich.table import Table

from tilewright.base.target import EXAMPLES, Target
from tilewright.cli import common
from tilewright.cli.common import Json


@common.command
def targets(json: Json = False) -> None:
    """List the targets that can be written, and what is known of each."""
    found = [_described(text) for text in EXAMPLES]
    if json:
        common.print_json(found)
        return
    table = Table("target", "triple", "vectors", "L1d", "L2", "L3", "cores", "features")
    for one in found:
        table.add_row(
            one["target"],
            one["triple"],
            f"{one['vector_bits']} bits x {one['vector_registers']}",
            *(_size(one[level]) for level in ("l1d_bytes", "l2_bytes", "l3_bytes")),
            str(one["cores"]),
            ", ".join(one["notable"]),
        )
    common.output().print(table)
    common.output().print("More: -mcpu=NAME, -mattr=+FEATURE,-FEATURE; `cpu` is this machine.")


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
