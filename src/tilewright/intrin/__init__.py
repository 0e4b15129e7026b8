"""Tensor intrinsics of real hardware: declared behaviour, and the instruction behind it.

Importing this package declares all of them, and the memory scopes of their units.
"""

from tilewright.intrin import ampere, amx, cluster, dot, hopper, taps, wgmma
