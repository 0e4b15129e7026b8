"""The table and what is made from it."""

import re
import subprocess
from pathlib import Path

import pytest

from tilewright.accel.isa import Instruction, MicroOp, from_bytes, parse, print_stream, to_bytes
from tilewright.accel.isa.encode import decode, encode, encode_micro_op, encode_microcode
from tilewright.accel.isa.manual import c_header, manual
from tilewright.accel.isa.table import OPCODE_BITS, OPCODES, QUEUES, widths, word_bytes
from tilewright.base.errors import ParseError, UserError
from tilewright.base.geometry import Geometry

ROOT = Path(__file__).parents[3]


def test_opcodes_and_their_fields_are_distinct():
    assert len({one.number for one in OPCODES}) == len({one.name for one in OPCODES}) == 6
    for one in OPCODES:
        names = [field.name for field in one.fields]
        assert len(names) == len(set(names))
        assert 0 < one.number < 1 << OPCODE_BITS
        assert one.queue in QUEUES
        assert names[:2] == ["pop", "push"]


def test_widths_follow_the_geometry():
    small = Geometry(1, 4, 4, inp_bytes=1024, wgt_bytes=4096, acc_bytes=4096, uop_bytes=512)
    assert widths(Geometry())["dst"] == 11
    assert widths(small)["dst"] == 8
    assert word_bytes(small) < word_bytes(Geometry())


def test_addresses_that_no_micro_operation_holds_are_refused():
    huge = Geometry(acc_bytes=1 << 30)
    with pytest.raises(UserError, match="do not fit 64 bits") as caught:
        widths(huge)
    assert caught.value.code == "TW7001"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sram": 1 << 12}, "sram = 4096 does not fit its 12 bits (0 to 4095)"),
        ({"x": -1}, "x = -1 does not fit its 13 bits (0 to 8191)"),
        ({"value": 1 << 31}, "value = 2147483648 does not fit"),
        ({"offset": 1 << 32}, "offset = 4294967296 does not fit its 32 bits"),
        ({"fmt": 3}, "fmt = 3 does not fit"),
    ],
)
def test_values_that_do_not_fit_are_never_cut_off(fields, message):
    with pytest.raises(UserError) as caught:
        encode(Instruction.make("load", **fields), Geometry())
    assert caught.value.code == "TW7001"
    assert message in caught.value.message


def test_micro_operations_that_do_not_fit_are_refused():
    with pytest.raises(UserError, match="dst = 2048 does not fit its 11 bits"):
        encode_micro_op(MicroOp(dst=2048), Geometry())
    with pytest.raises(UserError, match="dst = 2048 does not fit"):
        encode_microcode([MicroOp(), MicroOp(dst=2048)], Geometry())


def test_microcode_is_its_micro_operations():
    steps = [MicroOp(), MicroOp(2047, 1, 2), MicroOp(3, 2047, 1023)]
    apart = b"".join(encode_micro_op(one, Geometry()) for one in steps)
    assert encode_microcode(steps, Geometry()) == apart
    assert encode_microcode([], Geometry()) == b""


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Instruction.make("jump"), "there is no instruction 'jump'"),
        (lambda: Instruction.make("gemm", bias=1), "gemm has no field 'bias'"),
        (lambda: Instruction.make("load", fmt="acc"), "load: fmt cannot be 'acc'"),
        (lambda: Instruction.make("load", push=("load",)), "its own queue 'load'"),
    ],
)
def test_unknown_names_are_refused(make, message):
    with pytest.raises(UserError) as caught:
        make()
    assert caught.value.code == "TW7002"
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (b"\0" * 4, "bytes, not 4"),
        (b"\7".ljust(word_bytes(Geometry()), b"\0"), "there is no opcode 7"),
        (b"\6".ljust(word_bytes(Geometry()), b"\xff"), "bits that belong to no field are not 0"),
    ],
)
def test_bad_words_are_refused(word, message):
    with pytest.raises(UserError) as caught:
        decode(word, Geometry())
    assert caught.value.code == "TW7003"
    assert message in caught.value.message


TEXT = """\
target "vta-sim -geometry=1x16x16 -inp=32K -wgt=256K -acc=128K -uop=32K -bus=64 -latency=64"
buffer x: in 4096
buffer code: uop 16
uop
uop dst=1 src=2 aux=3
load push=gemm fmt=inp base=x x=16 y=2 ystride=20 x0=1 value=-7
aux push=gemm fmt=uop base=code x=2
gemm pop=load,aux push=alu uend=2 n0=3 dst_0=2 init=1 over=i0,u
alu pop=gemm push=store fn=requant imm=0 zero=3 low=0
finish pop=alu
"""


def test_text_is_printed_as_it_is_written():
    assert print_stream(parse(TEXT)) == TEXT.replace(" imm=0", "")


def test_a_stream_survives_as_bytes():
    stream = parse(TEXT)
    data = to_bytes(stream)
    assert from_bytes(data) == stream
    for bad in (data[:-1], data.replace(b"tilewright-stream", b"another"), b"{}\n", b""):
        with pytest.raises(UserError) as caught:
            from_bytes(bad)
        assert caught.value.code == "TW7003"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("jump", "there is no instruction 'jump'"),
        ("load speed=3", "there is no field 'speed'"),
        ("load x=1 x=2", "x is given twice"),
        ("load fmt=acc", "'acc' is not one of: inp, wgt, wgt4"),
        ("load base=y", "'y' is not one of: x, code"),
        ("load x=y", "'y' is not one of: no names"),
        ("gemm pop=gemm", "exchanges tokens with its own queue"),
        ("buffer y: inout 3", "a buffer is one of in, out, temp, uop"),
    ],
)
def test_errors_in_a_text_point_at_it(line, message):
    with pytest.raises(ParseError) as caught:
        parse(TEXT + line + "\n", "s.vta")
    assert message in caught.value.message
    assert "s.vta:11" in str(caught.value.loc)


def test_a_text_for_a_processor_is_refused():
    with pytest.raises(ParseError, match="not an accelerator"):
        parse('target "cpu" finish')


C_PROGRAM = """#include <stdio.h>
#include "isa.h"
#include "word.h"
static unsigned long field(int at, int bits) {
  unsigned long value = 0;
  for (int bit = 0; bit < bits; bit++)
    value |= (unsigned long)(word[(at + bit) / 8] >> ((at + bit) % 8) & 1) << bit;
  return value;
}
#define FIELD(name) field(VTA_ALU_##name##_AT, VTA_ALU_##name##_BITS)
int main(void) {
  printf("%lu %lu %lu ", field(0, VTA_OPCODE_BITS), FIELD(FN), FIELD(DST_3));
  printf("%lu %lu", FIELD(UEND), FIELD(VALUE));
}
"""


def test_c_reads_fields_where_the_header_says(tmp_path):
    geometry = Geometry()
    one = Instruction.make("alu", fn="requant", value=-3, uend=5, dst_3=77, push=("store",))
    data = ", ".join(str(byte) for byte in encode(one, geometry))
    (tmp_path / "isa.h").write_text(c_header(geometry))
    (tmp_path / "word.h").write_text(
        f"static const unsigned char word[VTA_WORD_BYTES] = {{{data}}};"
    )
    (tmp_path / "main.c").write_text(C_PROGRAM)
    subprocess.run(["cc", "main.c", "-o", "main"], cwd=tmp_path, check=True)
    out = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=True).stdout
    assert out == f"4 5 77 5 {(1 << 32) - 3}"


def test_the_manual_holds_the_table():
    page = (ROOT / "docs/internals/accelerators.md").read_text()
    found = re.search(r"<!-- table -->\n(.*)<!-- end of table -->", page, re.DOTALL)
    assert found is not None
    assert found.group(1) == manual(Geometry())
