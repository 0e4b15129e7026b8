"""tilewright accel asm | dis | verify | trace | header | rtl | report | explore

The accelerator loads slowly: each command imports what it needs of it.
"""

from __future__ import annotations

import json as json_module
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.base.errors import UserError
from tilewright.base.target import Target, geometry_of
from tilewright.cli import common

if TYPE_CHECKING:
    from tilewright.accel.isa import Stream

File = Annotated[Path, typer.Argument(help="A stream: assembly, or output of `asm`.")]
Output = Annotated[Path | None, typer.Option("-o", "--output", help="Output file; default: print.")]

app = typer.Typer(
    help="Streams of the accelerator: assemble, disassemble, verify, time.", no_args_is_help=True
)


def _read(path: Path) -> Stream:
    """Read a stream from assembly text or instruction words."""
    from tilewright.accel.isa import from_bytes, parse

    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError("TW6030", f"cannot read {path}: {error}") from error
    if data.startswith(b"{"):
        return from_bytes(data)
    return parse(common.read_text(path), str(path))


def _verified(path: Path) -> Stream:
    """Verify a stream; a whole model's takes seconds."""
    from tilewright.accel.verify import verify

    with common.progress(f"verifying {path.name}"):
        stream = _read(path)
        verify(stream)
    return stream


def _write(text: str, output: Path | None) -> None:
    if output is None:
        print(text, end="")
        return
    with common.writing(output):
        output.write_text(text)


@app.command()
@common.command
def asm(
    file: File,
    output: Annotated[Path, typer.Option("-o", "--output", help="The file to write.")],
) -> None:
    """Assemble text to instruction words."""
    from tilewright.accel.isa import to_bytes

    words = to_bytes(_read(file))
    with common.writing(output):
        output.write_bytes(words)


@app.command()
@common.command
def dis(file: File, output: Output = None) -> None:
    """Disassemble instruction words."""
    from tilewright.accel.isa import print_stream

    _write(print_stream(_read(file)), output)


@app.command("verify")
@common.command
def verify_stream(file: File, json: common.Json = False) -> None:
    """Check a stream for races, deadlocks, overflows, uninitialized memory and invalid
    addresses."""
    stream = _verified(file)
    if json:
        common.print_json({"ok": True, "tasks": len(stream.instructions)})
    else:
        print(f"{len(stream.instructions)} tasks: no fault found")


@app.command()
@common.command
def trace(file: File, output: Output = None, json: common.Json = False) -> None:
    """Simulate a stream cycle by cycle; -o writes a trace for chrome://tracing or Perfetto."""
    from tilewright.accel.device import time_on
    from tilewright.accel.trace import chrome_trace

    stream = _verified(file)
    with common.progress(f"timing {len(stream.instructions)} tasks"):
        timing = time_on("timing", stream)
    if output is not None:
        _write(json_module.dumps(chrome_trace(stream, timing)), output)
    found = {
        "cycles": timing.total,
        "gemm_steps": timing.gemm_steps,
        "share_of_peak": round(timing.share_of_peak, 4),
        "read_beats": timing.read_beats,
        "write_beats": timing.write_beats,
    }
    if json:
        common.print_json(found)
        return
    for name, value in found.items():
        print(f"{name.replace('_', ' ')}: {value}")


@app.command()
@common.command
def header(target: common.Target = "vta-sim", output: Output = None) -> None:
    """Print the instruction encoding as a C header."""
    from tilewright.accel.isa.manual import c_header

    _write(c_header(geometry_of(target)), output)


@app.command()
@common.command
def rtl(
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder to write.")],
    target: common.Target = "vta-rtl",
) -> None:
    """Generate the accelerator in SystemVerilog: a package with the geometry, and the modules."""
    from tilewright.accel.hardware import write_rtl

    geometry = geometry_of(target)
    with common.writing(output):
        written = write_rtl(geometry, output)
    for path in written:
        print(path)


@app.command()
@common.command
def report(
    target: common.Target = "vta-rtl",
    chip: Annotated[str, typer.Option(help="The chip; an unknown name lists them.")] = "xc7z020",
    json: common.Json = False,
) -> None:
    """Synthesize the RTL with yosys, and compare its resources to those of a chip."""
    from tilewright.accel.synthesis import chip_of, synthesize

    geometry, of = geometry_of(target), chip_of(chip)
    with common.progress("synthesizing by yosys"):
        found = synthesize(geometry, of)
    if json:
        common.print_json({"chip": chip, **found})
        return
    for name, (used, there) in found.items():
        print(f"{name}: {used} of {there}")


@app.command()
@common.command
def explore(
    models: Annotated[list[Path], typer.Argument(help="Quantized models: .onnx or .tw files.")],
    dsp: Annotated[int, typer.Option(min=0, help="Available DSP48; 0: unlimited.")] = 220,
    bram: Annotated[int, typer.Option(min=0, help="Available RAMB36; 0: unlimited.")] = 140,
    designs: Annotated[int, typer.Option(min=1, help="Designs to evaluate.")] = 200,
    confirm: Annotated[int, typer.Option(min=0, help="Designs of the front to simulate.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Number of processes.")] = 1,
    plot: Annotated[Path | None, typer.Option(help="SVG file of the designs.")] = None,
    json: common.Json = False,
) -> None:
    """Explore designs within a chip's resources: the Pareto front of cycles and area."""
    from tilewright.accel import explore as exploring
    from tilewright.driver.accelerate import layers_of

    target = Target.parse("vta-sim")
    nets = {path.stem: layers_of(common.read_graph(path), target) for path in models}
    limits = exploring.Limits(dsp, bram)
    found: list[exploring.Design] = []
    with ProcessPoolExecutor(jobs) as pool, common.progress("exploring") as move:
        for one in exploring.explore(nets, limits, designs, run=pool.map):
            found.append(one)
            move("designs", len(found), designs)
    best = exploring.front(found)
    with common.progress("confirming") as move:
        for at, one in enumerate(best[:confirm]):
            move("designs", at, min(confirm, len(best)))
            best[at] = exploring.confirm(nets, one)
    if plot is not None:
        _write(exploring.plot(found), plot)
    if json:
        rows = [{"design": d.geometry.options, "cycles": d.cycles, **d.area} for d in best]
        common.print_json({"designs": len(found), "front": rows})
        return
    print(f"{len(found)} designs, the front of them:")
    print(exploring.table(best), end="")
