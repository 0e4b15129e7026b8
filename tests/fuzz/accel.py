"""Random and damaged streams on all models of the accelerator.

    python tests/fuzz/accel.py [--streams 1000] [--rtl] [--faults 1000] [--only 1x4x4]

Streams: the reference in Python (one in twenty), functional simulator, cycle model and, with --rtl,
the RTL leave the same memory; cycle model and RTL agree on begin and end of every task. Faults:
flipped bits and streams that are cut off end in the same error or memory in functional simulator
and RTL.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

import numpy as np

from tilewright.accel.build import build_gemm
from tilewright.accel.build.random import random_stream
from tilewright.accel.compare import damage, differences, outcome, random_inputs
from tilewright.accel.cycle import cycles
from tilewright.accel.device import run_on
from tilewright.accel.isa.encode import decode, encode
from tilewright.accel.isa.stream import Stream
from tilewright.accel.isa.table import word_bytes
from tilewright.accel.verify import verify
from tilewright.accel.verilate import simulator
from tilewright.base.errors import TilewrightError
from tilewright.base.geometry import Geometry

TINY = {"inp_bytes": 256, "wgt_bytes": 1024, "acc_bytes": 1024, "uop_bytes": 512}
GEOMETRIES = {
    "1x4x4": Geometry(1, 4, 4, **TINY),
    "1x4x4 bus 128": Geometry(1, 4, 4, **TINY, bus_bits=128),
    "1x8x16 bus 128": Geometry(1, 8, 16, 512, 8192, 4096, 512, bus_bits=128),
    "1x16x16": Geometry(1, 16, 16, 1024, 16384, 4096, 512),
    "2x16x16": Geometry(2, 16, 16, 2048, 16384, 8192, 512),
}
TIMEOUT_CYCLES = 20_000


def fuzz_streams(name: str, geometry: Geometry, count: int, library: str | None) -> int:
    wrong = 0
    for seed in range(count):
        stream = random_stream(geometry, seed)
        inputs, stalls = random_inputs(stream, seed), None if seed % 2 else seed
        told = differences(
            stream, inputs, ["cycle", *([library] if library else [])], stalls, TIMEOUT_CYCLES
        )
        timed = run_on("cycle", stream, inputs, stalls)
        functional = run_on("functional", stream, inputs).outputs["y"]
        if not np.array_equal(timed.outputs["y"], functional):
            told.append("functional: other memory")
        if seed % 20 == 0:
            verify(stream)
            want = cycles(stream, inputs, stalls)
            if (want.begin, want.end) != (timed.begin, timed.end):
                told.append("reference: other times")
            if not np.array_equal(want.outputs["y"], functional):
                told.append("reference: other memory")
        wrong += bool(told)
        for one in told:
            print(f"{name}, seed {seed}: {one}")
    return wrong


def has_verdict(stream: Stream, words: bytes) -> bool:
    """Whether the result is defined: no race, nothing unwritten that is read."""
    size = word_bytes(stream.geometry)
    try:
        tasks = [
            decode(words[at : at + size], stream.geometry) for at in range(0, len(words), size)
        ]
        verify(replace(stream, instructions=tuple(tasks)))
    except TilewrightError:
        return False
    return True


def fuzz_faults(name: str, geometry: Geometry, count: int, library: str) -> int:
    stream = build_gemm(geometry, (3, 2, 2), (2, 1, 1))
    words = b"".join(encode(one, geometry) for one in stream.instructions)
    inputs = random_inputs(stream, 0)
    wrong = 0
    for seed in range(count):
        damaged = damage(words, stream, np.random.default_rng(seed))
        want = outcome("functional", stream, inputs, damaged, TIMEOUT_CYCLES)
        got = outcome(library, stream, inputs, damaged, TIMEOUT_CYCLES)
        if got != want and (want.error not in ("", "TW7013") or has_verdict(stream, damaged)):
            wrong += 1
            print(f"{name}, fault {seed}: {got.error or 'memory'}, not {want.error or 'memory'}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--faults", type=int, default=0)
    parser.add_argument("--rtl", action="store_true")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    wrong = 0
    for name, geometry in GEOMETRIES.items():
        if options.only and name != options.only:
            continue
        library = str(simulator(geometry)) if options.rtl or options.faults else None
        wrong += fuzz_streams(name, geometry, options.streams, library if options.rtl else None)
        if options.faults and library is not None:
            wrong += fuzz_faults(name, geometry, options.faults, library)
        print(f"{name}: {options.streams} streams, {options.faults} faults", flush=True)
    print(f"{wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
