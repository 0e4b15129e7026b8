"""Instructions as text and as bits: both ways, for any instruction that fits."""

from hypothesis import given
from hypothesis import strategies as st

from tilewright.accel.isa import Buffer, Instruction, MicroOp, Stream, parse, print_stream
from tilewright.accel.isa.encode import decode, decode_micro_op, encode, encode_micro_op
from tilewright.accel.isa.table import MICRO_OP, OPCODES, QUEUES, widths
from tilewright.base.geometry import Geometry

GEOMETRIES = st.sampled_from(
    [
        Geometry(),
        Geometry(1, 4, 4, inp_bytes=1024, wgt_bytes=4096, acc_bytes=4096, uop_bytes=512),
        Geometry(2, 8, 16, inp_bytes=1 << 20, acc_bytes=1 << 22, bus_bits=128),
    ]
)


def values(field, bits, buffers=None):
    if field.names and not field.is_set:
        return st.integers(0, len(field.names) - 1)
    if buffers is not None and field.name == "base":
        return st.integers(0, buffers - 1)
    if field.is_signed:
        return st.integers(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    return st.integers(0, (1 << bits) - 1)


@st.composite
def instructions(draw, geometry, buffers=None):
    opcode = draw(st.sampled_from(OPCODES))
    drawn = [draw(values(one, widths(geometry)[one.width], buffers)) for one in opcode.fields]
    own = ~(1 << QUEUES.index(opcode.queue))
    drawn[0] &= own  # pop
    drawn[1] &= own  # push
    return Instruction(opcode.name, tuple(drawn))


@st.composite
def micro_ops(draw, geometry):
    return MicroOp(*(draw(values(one, widths(geometry)[one.width])) for one in MICRO_OP))


@given(st.data())
def test_words_decode_to_what_was_encoded(data):
    geometry = data.draw(GEOMETRIES)
    one = data.draw(instructions(geometry))
    assert decode(encode(one, geometry), geometry) == one
    step = data.draw(micro_ops(geometry))
    assert decode_micro_op(encode_micro_op(step, geometry), geometry) == step


@given(st.data())
def test_text_parses_to_what_was_printed(data):
    geometry = data.draw(GEOMETRIES)
    names = data.draw(st.lists(st.sampled_from(["x", "w", "y", "z"]), min_size=1, unique=True))
    buffers = tuple(Buffer(name, "in", 64 * at) for at, name in enumerate(names))
    stream = Stream(
        geometry,
        buffers,
        tuple(data.draw(st.lists(micro_ops(geometry), max_size=3))),
        tuple(data.draw(st.lists(instructions(geometry, len(buffers)), max_size=4))),
    )
    assert parse(print_stream(stream)) == stream
