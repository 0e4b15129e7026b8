"""The geometry of an accelerator: the shape of its GEMM array and the sizes of its memories.

    vta-sim -geometry=1x16x16 -inp=32K -wgt=256K -acc=128K -uop=32K -bus=64 -latency=64

Every cycle the array multiplies a `batch x block_in` vector of activations with a `block_out x
block_in` tile of weights; an entry of a memory is what one cycle takes from it. With `-taps=4` a
lane of the ALU accumulates four products of bytes per cycle, for depthwise convolutions. Widths of
instruction fields, depths of memories and cycles of transfers all follow from these numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from tilewright.base.errors import UserError

ACC_BYTES = 4  # an accumulator is i32; operands and results are i8
# Multiply-adds per cycle of a small host processor beside the accelerator: a Cortex-A9 ran
# convolutions 40 times slower than 256 multipliers at 70% (OSDI'18, section 6.4).
HOST_MACS_PER_CYCLE = 4


@dataclass(frozen=True, slots=True)
class Geometry:
    """Shape and memory sizes of an accelerator; rejected (TW0307) if not implementable."""

    batch: int = 1
    block_in: int = 16
    block_out: int = 16
    inp_bytes: int = 32 << 10
    wgt_bytes: int = 256 << 10
    acc_bytes: int = 128 << 10
    uop_bytes: int = 32 << 10
    bus_bits: int = 64
    latency_cycles: int = 64  # from a read request to its first data
    taps: int = 1  # products of bytes that a lane of the ALU adds per cycle

    def __post_init__(self) -> None:
        for name in ("batch", "block_in", "block_out", "bus_bits", "taps"):
            value = getattr(self, name)
            if value < 1 or value & (value - 1):
                raise _refused(f"{name} = {value} is not a power of two")
        if not 32 <= self.bus_bits <= 1024:
            raise _refused(f"a bus of {self.bus_bits} bits is not between 32 and 1024")
        if self.block_in < 2:  # two int4 weights share a byte
            raise _refused("block_in is less than 2")
        if self.taps > ACC_BYTES:
            raise _refused(f"an accumulator does not hold {self.taps} bytes")
        if self.latency_cycles < 1:
            raise _refused("the memory latency is 0 cycles")
        for name, depth in self.depths().items():
            size, entry = getattr(self, f"{name}_bytes"), self.entry_bytes()[name]
            if size % entry or depth < 16:
                raise _refused(
                    f"{name} = {size} bytes is not a whole number, at least 16, of entries of "
                    f"{entry} bytes"
                )

    @property
    def bus_bytes(self) -> int:
        return self.bus_bits // 8

    @property
    def macs_per_cycle(self) -> int:
        return self.batch * self.block_in * self.block_out

    @property
    def array(self) -> Geometry:
        """The same units with default memories and bus: what the set of operators depends on."""
        return Geometry(self.batch, self.block_in, self.block_out, taps=self.taps)

    def entry_bytes(self) -> dict[str, int]:
        """Bytes per entry of each memory whose size is given."""
        return {
            "inp": self.batch * self.block_in,
            "wgt": self.block_out * self.block_in,
            "acc": self.batch * self.block_out * ACC_BYTES,
            "uop": 8,
        }

    def depths(self) -> dict[str, int]:
        """Number of entries of each memory whose size is given."""
        entry = self.entry_bytes()
        return {name: getattr(self, f"{name}_bytes") // entry[name] for name in entry}

    @property
    def options(self) -> str:
        """As options of a target's text."""
        shape = f"{self.batch}x{self.block_in}x{self.block_out}"
        sizes = (f"-{name}={_size(getattr(self, f'{name}_bytes'))}" for name in self.depths())
        return " ".join(
            (
                f"-geometry={shape}",
                *sizes,
                f"-bus={self.bus_bits}",
                f"-latency={self.latency_cycles}",
                *([f"-taps={self.taps}"] if self.taps > 1 else []),
            )
        )


# Options of a target's text, by the field that each sets; `-geometry` sets three.
SIZES = {f"-{name}": f"{name}_bytes" for name in ("inp", "wgt", "acc", "uop")}
NUMBERS = {"-bus": "bus_bits", "-latency": "latency_cycles", "-taps": "taps"}
OPTIONS = ("-geometry", *SIZES, *NUMBERS)


def read_shape(value: str) -> dict[str, int] | None:
    """Parse `1x16x16` to batch, block_in and block_out; None if malformed."""
    parts = value.split("x")
    if len(parts) != 3 or not all(part.isdecimal() for part in parts):
        return None
    names = [field.name for field in fields(Geometry)][:3]
    return dict(zip(names, map(int, parts), strict=True))


def _size(size_bytes: int) -> str:
    return f"{size_bytes >> 10}K" if size_bytes % 1024 == 0 else str(size_bytes)


def _refused(why: str) -> UserError:
    return UserError(
        "TW0307",
        f"the accelerator's geometry cannot be built: {why}",
        help="such as -geometry=1x16x16 -inp=32K -wgt=256K -acc=128K -uop=32K -bus=64",
    )
