"""Tensor intrinsics of real hardware: declared behaviour, and the instruction behind it."""

from tilewright.intrin import amx, dot, wgmma
