"""Tensor intrinsics of real hardware: declared behaviour, and the instruction behind it."""

from tilewright.intrin import amx, dot, hopper, wgmma


def declare_by_name(name: str) -> None:
    """Declare an intrinsic of a family too large to be declared on import."""
    amx.declare_named(name)
    hopper.declare_named(name)
