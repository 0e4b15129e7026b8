"""Binary format of streams: a line of JSON, microcode, instructions.

The first line contains the target, the buffers, and the numbers of micro-operations and
instructions.
"""

from __future__ import annotations

import json

from tilewright.accel.isa.encode import decode, decode_micro_op, encode, encode_micro_op
from tilewright.accel.isa.stream import Buffer, Stream, check_stream
from tilewright.accel.isa.table import MICRO_OP_BITS, word_bytes
from tilewright.base.errors import UserError
from tilewright.base.target import Target

MAGIC = "tilewright-stream"


def to_bytes(stream: Stream) -> bytes:
    check_stream(stream)
    head = {
        "magic": MAGIC,
        "target": f"vta-sim {stream.geometry.options}",
        "buffers": [[one.name, one.role, one.size_bytes] for one in stream.buffers],
        "microcode": len(stream.microcode),
        "instructions": len(stream.instructions),
    }
    steps = b"".join(encode_micro_op(step, stream.geometry) for step in stream.microcode)
    words = b"".join(encode(one, stream.geometry) for one in stream.instructions)
    return json.dumps(head).encode() + b"\n" + steps + words


def from_bytes(data: bytes) -> Stream:
    first, _, rest = data.partition(b"\n")
    try:
        head = json.loads(first)
        geometry = Target.parse(head["target"]).geometry
        buffers = tuple(Buffer(str(n), str(r), int(size)) for n, r, size in head["buffers"])
        steps, words = int(head["microcode"]), int(head["instructions"])
    except (ValueError, KeyError, TypeError) as error:
        raise UserError("TW7003", f"this is not a stream: {error}") from error
    if geometry is None or head.get("magic") != MAGIC:
        raise UserError("TW7003", "this is not a stream of an accelerator")
    step_bytes, word = MICRO_OP_BITS // 8, word_bytes(geometry)
    if len(rest) != steps * step_bytes + words * word:
        raise UserError("TW7003", f"{len(rest)} bytes are not {steps} and {words} words")
    code, tasks = rest[: steps * step_bytes], rest[steps * step_bytes :]
    stream = Stream(
        geometry,
        buffers,
        tuple(
            decode_micro_op(code[at : at + step_bytes], geometry)
            for at in range(0, len(code), step_bytes)
        ),
        tuple(decode(tasks[at : at + word], geometry) for at in range(0, len(tasks), word)),
    )
    check_stream(stream)
    return stream
