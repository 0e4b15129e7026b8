"""Random streams, operators and damaged streams on all models of the accelerator.

    python tests/fuzz/accel.py [--streams 1000] [--operators 200] [--faults 1000] [--rtl]
                               [--only "1x4x4 bus 64"] [--jobs 2] [--seconds 600] [--first 0]
                               [--libraries DIR | --sources DIR]

Streams: the reference in Python (one in twenty), functional simulator, cycle model and, with --rtl,
the RTL leave the same memory; cycle model and RTL agree on begin and end of every task. Operators:
layers of random shapes compile to verified streams that give the interpreter's bits, and run alike.
Faults: flipped bits, streams that are cut off and memory that answers no more, or an error, end in
the same error or memory in functional simulator and RTL. Counts are divided over geometries; all of
them are run by so many processes, until the seconds are over; the counts that are printed did run.
Seeds begin at --first. --sources DIR, without anything else, writes what Verilator makes of the
RTL; a machine that has no Verilator runs with --libraries DIR.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np

from tilewright.accel.build import build_gemm
from tilewright.accel.build.random import random_stream
from tilewright.accel.build.random_layers import random_layers
from tilewright.accel.compare import damage, differences, outcome, random_inputs
from tilewright.accel.cycle import cycles
from tilewright.accel.device import run_on
from tilewright.accel.isa.encode import decode, encode_all
from tilewright.accel.isa.stream import Stream
from tilewright.accel.isa.table import word_bytes
from tilewright.accel.part import compile_part
from tilewright.accel.verify import verify
from tilewright.accel.verilate import compile_cpp, simulator, write_cpp
from tilewright.base.errors import TilewrightError
from tilewright.base.geometry import Geometry
from tilewright.base.target import Target
from tilewright.graph import interpret
from tilewright.runtime.accel import BACK_PRESSURE, BUS_ERROR, NO_STALLS

ENTRIES = {"inp": 128, "wgt": 128, "acc": 256, "uop": 64}


def geometry_of(batch: int, block_in: int, block_out: int, bus: int, taps: int = 1) -> Geometry:
    """Small memories: streams that fill them are short."""
    entry = Geometry(batch, block_in, block_out).entry_bytes()
    sizes = {f"{name}_bytes": count * entry[name] for name, count in ENTRIES.items()}
    return Geometry(batch, block_in, block_out, bus_bits=bus, taps=taps, **sizes)


GEOMETRIES = {
    f"{batch}x{block_in}x{block_out} bus {bus}": geometry_of(batch, block_in, block_out, bus)
    for batch, block_in, block_out in ((1, 4, 4), (1, 8, 16), (1, 16, 16), (2, 16, 16))
    for bus in (64, 128)
}
GEOMETRIES["1x4x4 taps 4 bus 64"] = geometry_of(1, 4, 4, 64, 4)
GEOMETRIES["1x8x16 taps 2 bus 128"] = geometry_of(1, 8, 16, 128, 2)
TIMEOUT_CYCLES = 20_000
LARGE_TIMEOUT_CYCLES = 1 << 20  # of operators
FAULTS_EACH = 10  # made of one stream
RACE, UNWRITTEN = "TW7010", "TW7013"
STALLED = 7  # of as many faults, one has memory that answers no more, one that answers an error


def models(library: str | None) -> list[str]:
    """The cycle model first: all others have to do as it does."""
    return ["cycle", "functional", *([library] if library else [])]


def stalls_of(seed: int) -> int | None:
    """Memory as fast as it can be, random latency, or handshakes that wait as well."""
    return (None, seed, BACK_PRESSURE + seed)[seed % 3]


def fuzz_stream(name: str, library: str | None, seed: int) -> list[str]:
    stream = random_stream(GEOMETRIES[name], seed)
    inputs, stalls = random_inputs(stream, seed), stalls_of(seed)
    told = differences(stream, inputs, models(library), stalls, TIMEOUT_CYCLES)
    if seed % 20 == 0:
        verify(stream)
        want, timed = cycles(stream, inputs, seed), run_on("cycle", stream, inputs, seed)
        if (want.begin, want.end) != (timed.begin, timed.end):
            told.append("reference: other times")
        if not np.array_equal(want.outputs["y"], timed.outputs["y"]):
            told.append("reference: other memory")
    return told


def fuzz_operator(name: str, library: str | None, seed: int) -> list[str]:
    """Layers against the interpreter, and their stream on all models."""
    geometry = GEOMETRIES[name]
    found = random_layers(seed)
    want = interpret(found.module, *found.inputs)[0]
    part = compile_part(found.graph, found.constants, Target.parse(f"vta-sim {geometry.options}"))
    verify(part.stream)
    told = []
    if not np.array_equal(part.run(*found.inputs)[0], want):
        told.append("functional: not what the interpreter gives")
    given = part.packed(*found.inputs)
    return told + differences(
        part.stream, given, models(library), stalls_of(seed), LARGE_TIMEOUT_CYCLES
    )


@cache
def undamaged(name: str, seed: int) -> tuple[Stream, bytes]:
    """A stream that faults are made of: GEMM with all that belongs to it, or anything."""
    geometry = GEOMETRIES[name]
    if seed % 2:
        stream = random_stream(geometry, seed)
    else:
        stream = build_gemm(geometry, (3, 2, 2), (2, 1, 1))
    return stream, encode_all(stream.instructions, geometry)


def fuzz_fault(name: str, library: str | None, seed: int) -> list[str]:
    random = np.random.default_rng(seed)
    assert library is not None
    stream, words = undamaged(name, seed // FAULTS_EACH)
    inputs = random_inputs(stream, 0)
    if seed % STALLED == 0:  # time-outs, whatever else
        answers = -2 - int(random.integers(0, 6))
        got = outcome(library, stream, inputs, words, TIMEOUT_CYCLES, answers)
        want = outcome("cycle", stream, inputs, words, TIMEOUT_CYCLES, answers)
        return [] if got.error == want.error == "TW7031" else [f"stalled: {got.error or 'memory'}"]
    if seed % STALLED == 1:
        got = outcome(library, stream, inputs, words, TIMEOUT_CYCLES, BUS_ERROR + seed % 6)
        return [] if got.error == "TW7032" else [f"bus error: {got.error or 'memory'}"]
    damaged = damage(words, stream, random)
    want = outcome("functional", stream, inputs, damaged, TIMEOUT_CYCLES, NO_STALLS)
    got = outcome(library, stream, inputs, damaged, TIMEOUT_CYCLES, NO_STALLS)
    if got != want and is_defined(want.error, verdict(stream, damaged)):
        return [f"{got.error or 'memory'}, not {want.error or 'memory'}"]
    return []


def verdict(stream: Stream, words: bytes) -> str:
    """The first error that the verifier finds in a damaged stream."""
    size = word_bytes(stream.geometry)
    try:
        tasks = [
            decode(words[at : at + size], stream.geometry) for at in range(0, len(words), size)
        ]
        verify(replace(stream, instructions=tuple(tasks)))
    except TilewrightError as error:
        return error.code
    return ""


def is_defined(outcome: str, verdict: str) -> bool:
    """Whether all models must end alike. Microcode that races may hold any address; where a stream
    is wrong otherwise, memory that the functional simulator leaves is not defined."""
    return not verdict or (verdict != RACE and outcome not in ("", UNWRITTEN))


KINDS: dict[str, Callable[[str, str | None, int], list[str]]] = {
    "streams": fuzz_stream,
    "operators": fuzz_operator,
    "faults": fuzz_fault,
}
CHUNK = 10  # seeds of one job


def run_chunk(end: float, job: tuple[str, str, str | None, range]) -> tuple[str, int, list[str]]:
    kind, name, library, seeds = job
    told, done = [], 0
    for seed in seeds:
        if time.time() > end:
            break
        try:
            found = KINDS[kind](name, library, seed)
        except Exception as error:  # one that fails must not hide the others
            found = [f"{type(error).__name__}: {error}"]
        told += [f"{kind}, {name}, seed {seed}: {one}" for one in found]
        done += 1
    return kind, done, told


def seeds_of(first: int, geometry: int, each: int, done: int) -> range:
    """A chunk of the seeds of a geometry, which are those of no other."""
    begin = first + geometry * each
    return range(begin + done, begin + min(done + CHUNK, each))


def library_of(name: str, folder: Path | None) -> str:
    """The RTL of a geometry as a library; from the folder if there is one."""
    if folder is None:
        return str(simulator(GEOMETRIES[name]))
    sources = folder / name.replace(" ", "-")
    library = sources.with_suffix(".so")
    if not library.exists():
        compile_cpp(sources, library)
    return str(library.resolve())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--operators", type=int, default=0)
    parser.add_argument("--faults", type=int, default=0)
    parser.add_argument("--rtl", action="store_true")
    parser.add_argument("--only", default="", help="geometries whose name contains this")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--first", type=int, default=0, help="seed")
    parser.add_argument("--libraries", type=Path, help="of the RTL, or its sources")
    parser.add_argument("--sources", type=Path, help="write these, and end")
    options = parser.parse_args()
    begun = time.time()
    names = [name for name in GEOMETRIES if options.only in name]
    if options.sources:
        for name in names:
            write_cpp(GEOMETRIES[name], options.sources / name.replace(" ", "-"))
        return 0
    found: dict[str, str | None] = dict.fromkeys(names)
    if options.rtl or options.faults:
        with ThreadPoolExecutor(options.jobs) as threads:
            found |= zip(
                names,
                threads.map(partial(library_of, folder=options.libraries), names),
                strict=True,
            )
    jobs = [
        (kind, name, found[name] if options.rtl or kind == "faults" else None, seeds)
        for done in range(0, max(getattr(options, kind) for kind in KINDS), CHUNK)
        for at, name in enumerate(names)
        for kind in KINDS
        if (seeds := seeds_of(options.first, at, -(-getattr(options, kind) // len(names)), done))
    ]
    done, wrong = Counter[str](), 0
    run = partial(run_chunk, begun + options.seconds)
    with ProcessPoolExecutor(options.jobs) as pool:
        for kind, count, told in pool.map(run, jobs):
            done[kind] += count
            wrong += len(told)
            for one in told:
                print(one, flush=True)
    counts = ", ".join(f"{done[kind]} {kind}" for kind in KINDS)
    print(
        f"{counts} on {len(names)} geometries, seeds from {options.first}, {wrong} wrong, "
        f"{time.time() - begun:.0f} s"
    )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
