"""Insert tokens that order tasks by their accesses, and assign their banks of `acc`.

This is native code (runtime/native/accel/make.c, which has the algorithm): at compile time for
streams of static sizes, and in the call for others. Those are rounds of the same tasks, each with
its part of the buffers that are `per_round`; tokens order rounds only where necessary.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tilewright.accel.device import describe
from tilewright.accel.isa.encode import decode_all, encode_all, encode_microcode
from tilewright.accel.isa.stream import Stream
from tilewright.runtime.accel import make_stream

NOTHING: frozenset[str] = frozenset()


def insert_tokens(stream: Stream, rounds: int = 1, per_round: Collection[str] = NOTHING) -> Stream:
    """The same tasks, ordered where necessary; earlier tokens and banks are dropped."""
    g = stream.geometry
    code = encode_microcode(stream.microcode, g)
    regions = [
        (one.size_bytes, one.role in ("out", "temp"), one.name in per_round,
         code if one.role == "uop" else None)
        for one in stream.buffers
    ]  # fmt: skip
    words = encode_all(stream.instructions, g)
    made = make_stream(describe(g), words, len(stream.instructions), rounds, regions)
    buffers = [
        replace(one, size_bytes=one.size_bytes * rounds) if one.name in per_round else one
        for one in stream.buffers
    ]
    return replace(stream, buffers=tuple(buffers), instructions=decode_all(made, g))
