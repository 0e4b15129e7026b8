"""Dot-product instructions of processors, as data: operand types, shapes, required features.

`intrin/dot.py` declares their behaviour; passes look up here which types a target multiplies.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.base.target import CPU, CUDA, Target
from tilewright.base.tiles import tile_product


@dataclass(frozen=True, slots=True)
class Dot:
    """An instruction that accumulates dot products of groups in the lanes of a register."""

    name: str  # of the intrinsic
    features: tuple[str, ...]  # required features of the target
    a: str  # types of the operands and of the sums
    b: str
    c: str
    lanes: int
    group: int  # products per lane
    llvm: str
    groups: int = 1  # groups of A per call, which is that many instructions
    adds: bool = True  # whether the instruction accumulates; otherwise a separate add does
    chain_cycles: int = 4  # latency of an accumulation
    shares: int = 0  # vector instructions to broadcast a group of A, besides its load
    takes: str = ""  # the type that operands are widened to first; "": none

    @property
    def steps(self) -> int:
        """Steps of k per call."""
        return self.group * self.groups


_U8, _I8, _I16, _BF16 = (
    ("u8", "i8", "i32"),
    ("i8", "i8", "i32"),
    ("i16", "i16", "i32"),
    ("bf16", "bf16", "f32"),
)
_UU, _SU = ("u8", "u8", "i32"), ("i8", "u8", "i32")
_VNNI = "llvm.x86.avx512.vpdpbusd"
_SDOT, _UDOT, _USDOT = (
    f"llvm.aarch64.neon.{name}.v4i32.v16i8" for name in ("sdot", "udot", "usdot")
)
_DPBF16 = "llvm.x86.avx512bf16.dpbf16ps.512"
_MADD, _MADD_256 = "llvm.x86.avx512.pmaddw.d.512", "llvm.x86.avx2.pmadd.wd"
_ARM, _I8MM = ("dotprod",), ("dotprod", "i8mm")

# In order of preference; by-element instructions come before those of one group.
DOTS: tuple[Dot, ...] = (
    Dot("vnni_u8_dot", ("avx512vnni",), *_U8, 16, 4, f"{_VNNI}.512", chain_cycles=5),
    Dot("vnni_u8_dot_256", ("avxvnni",), *_U8, 8, 4, f"{_VNNI}.256", chain_cycles=5),
    Dot("madd_i16_dot", ("avx512bw",), *_I16, 16, 2, _MADD, adds=False, chain_cycles=1),
    Dot("madd_i16_dot_256", ("avx2",), *_I16, 8, 2, _MADD_256, adds=False, chain_cycles=1),
    Dot("bf16_dot", ("avx512bf16",), *_BF16, 16, 2, _DPBF16, chain_cycles=6),
    Dot("neon_sdot_by_element", _ARM, *_I8, 4, 4, _SDOT, groups=4, chain_cycles=1),
    Dot("neon_udot_by_element", _ARM, *_UU, 4, 4, _UDOT, groups=4, chain_cycles=1),
    Dot("neon_usdot_by_element", _I8MM, *_U8, 4, 4, _USDOT, groups=4, chain_cycles=1),
    Dot("neon_sdot", _ARM, *_I8, 4, 4, _SDOT, chain_cycles=1, shares=1),
    Dot("neon_udot", _ARM, *_UU, 4, 4, _UDOT, chain_cycles=1, shares=1),
    Dot("neon_usdot", _I8MM, *_U8, 4, 4, _USDOT, chain_cycles=1, shares=1),
)

# Signed rows by unsigned sub-byte weights, for their own kernels: other GEMMs are converted to the
# signedness that AMX tiles also multiply.
CODE_DOTS: tuple[Dot, ...] = (
    Dot("vnni_i8_dot", ("avx512vnni",), *_SU, 16, 4, f"{_VNNI}.512", chain_cycles=5),
    Dot("vnni_i8_dot_256", ("avxvnni",), *_SU, 8, 4, f"{_VNNI}.256", chain_cycles=5),
)

# Dot products of two rows: each lane has its own group of A, too.
ROW_DOTS: tuple[Dot, ...] = (
    Dot("madd_i8_rows", ("avx2",), *_I8, 8, 2, _MADD_256, adds=False, chain_cycles=1, takes="i16"),
    Dot("neon_sdot_rows", _ARM, *_I8, 4, 4, _SDOT, chain_cycles=1),
)

# Dot products along columns: each lane reduces rows of A, with weights per lane.
TAP_DOTS: tuple[Dot, ...] = (
    Dot("vnni_u8_taps", ("avx512vnni",), *_U8, 16, 4, f"{_VNNI}.512", chain_cycles=5),
    Dot("vnni_u8_taps_256", ("avxvnni",), *_U8, 8, 4, f"{_VNNI}.256", chain_cycles=5),
    Dot("madd_u8_taps", ("avx512bw",), *_U8, 16, 2, _MADD, adds=False, chain_cycles=1, takes="i16"),
    Dot("madd_u8_taps_256", ("avx2",), *_U8, 8, 2, _MADD_256, adds=False, chain_cycles=1,
        takes="i16"),
    Dot("neon_usdot_taps", _I8MM, *_U8, 4, 4, _USDOT, chain_cycles=1),
    Dot("neon_sdot_taps", _ARM, *_I8, 4, 4, _SDOT, chain_cycles=1),
)  # fmt: skip


def tap_dot_of(target: Target, a: str, b: str) -> Dot | None:
    """The target's instruction for dot products along columns of bytes, if any."""
    if target.kind != CPU:
        return None
    found = (dot for dot in TAP_DOTS if (dot.a, dot.b) == (a, b))
    return next((dot for dot in found if all(map(target.has, dot.features))), None)


def row_dot_of(target: Target, length: int) -> Dot | None:
    """The target's instruction for dot products of two rows of `length` signed bytes, if any."""
    found = (dot for dot in ROW_DOTS if all(map(target.has, dot.features)))
    return next((dot for dot in found if length % (dot.lanes * dot.group) == 0), None)


def code_dots_of(target: Target, b: str) -> tuple[Dot, ...]:
    """The instructions for rows of i8 by sub-byte weights of this type."""
    return dots_of(target, "i8", b, "i32", among=(*DOTS, *CODE_DOTS))


def dots_of(
    target: Target, a: str, b: str, c: str, *, among: tuple[Dot, ...] = DOTS
) -> tuple[Dot, ...]:
    """The target's instructions for these types, the widest first."""
    if target.kind != CPU:
        return ()
    found = [
        dot
        for dot in among
        if (dot.a, dot.b, dot.c) == (a, b, c) and all(map(target.has, dot.features))
    ]
    widest = max((dot.lanes for dot in found), default=0)
    return tuple(dot for dot in found if dot.lanes == widest)


def multiplies(target: Target, a: str, b: str) -> bool:
    """Whether a target multiplies these integer types, by dot products or tiles."""
    if target.kind == CUDA:  # wgmma takes operands of equal signedness
        return target.has("wgmma") and a == b and a in ("i8", "u8")
    return tile_product(target, a, b) is not None or bool(dots_of(target, a, b, "i32"))


def multiplies_bytes(target: Target) -> bool:
    """Whether a target multiplies bytes of any signedness: signs can be converted and bytes
    widened, so any integer instruction suffices."""
    pairs = (("u8", "i8"), ("i8", "i8"), ("u8", "u8"), ("i16", "i16"))
    return any(multiplies(target, a, b) for a, b in pairs)
