"""The instruction set: `table` defines it; everything else is generated from it."""

from tilewright.accel.isa.binary import from_bytes, to_bytes
from tilewright.accel.isa.stream import Buffer, Instruction, MicroOp, Stream, check_stream
from tilewright.accel.isa.text import parse, print_instruction, print_stream
