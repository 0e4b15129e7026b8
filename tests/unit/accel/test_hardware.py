"""The package of the RTL, and what synthesis finds."""

import re
from collections import Counter

import pytest

from tilewright.accel.hardware import modules, package, write_rtl
from tilewright.accel.isa.encode import encode
from tilewright.accel.isa.stream import Instruction
from tilewright.accel.synthesis import chip_of, resources
from tilewright.base.errors import UserError
from tilewright.base.geometry import Geometry


def constants(geometry):
    found = re.findall(r"localparam int (\w+) = (\d+);", package(geometry))
    return {name: int(value) for name, value in found}


@pytest.mark.parametrize("geometry", [Geometry(), Geometry(1, 8, 16, bus_bits=128)])
def test_fields_lie_where_the_encoder_puts_them(geometry):
    found = constants(geometry)
    for op in ("load", "aux", "gemm", "alu", "store"):
        word = int.from_bytes(encode(Instruction.make(op, push=0, pop=0), geometry), "little")
        for field in ("pop", "push"):
            queue = "store" if op != "store" else "load"
            changed = encode(Instruction.make(op, **{field: (queue,)}), geometry)
            bit = (int.from_bytes(changed, "little") ^ word).bit_length() - 1
            assert bit == found[f"{op.upper()}_{field.upper()}_AT"] + (4 if op != "store" else 0)


def test_loads_and_aux_have_the_same_layout():
    """One writer serves both."""
    found = constants(Geometry())
    for name, value in found.items():
        if name.startswith("LOAD_") and name.endswith("_AT"):
            assert found[name.replace("LOAD_", "AUX_")] == value


def test_all_modules_are_written(tmp_path):
    written = write_rtl(Geometry(), tmp_path / "a/b")
    assert [one.name for one in written] == ["vta_pkg.sv", *(one.name for one in modules())]
    named = {
        match for one in written for match in re.findall(r"^module (\w+)", one.read_text(), re.M)
    }
    assert named == {one.stem for one in modules()}


@pytest.mark.parametrize(
    "geometry",
    [Geometry(inp_bytes=48 * 1024), Geometry(bus_bits=32), Geometry(1, 2, 16)],
)
def test_geometries_that_cannot_be_built_are_refused(geometry):
    with pytest.raises(UserError) as caught:
        package(geometry)
    assert caught.value.code == "TW7034"


def test_halves_of_memories_are_paired():
    cells = Counter({"DSP48E1": 3, "RAMB18E1": 3, "RAMB36E1": 2, "LUT6": 5, "RAM32M": 2, "FDRE": 9})
    assert resources(cells, chip_of("xc7z020")) == {
        "DSP48": (3, 220),
        "RAMB36": (4, 140),
        "LUT": (13, 53_200),
    }
