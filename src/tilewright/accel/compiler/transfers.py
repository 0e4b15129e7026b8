"""Convert a loop nest around a load or store to the fields of one transfer."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.accel.compiler.nests import Box, Env, Linear, Nest, narrowed
from tilewright.accel.isa.stream import Instruction, Value
from tilewright.accel.isa.table import BY_NAME, dram_bytes, widths
from tilewright.base.geometry import Geometry

AXES = ("x", "y", "z")  # innermost first; the first two can be padded


@dataclass(slots=True)
class _Axis:
    """Entries along one loop: leading padding, from memory, trailing padding."""

    front: int
    count: int
    behind: int
    sram: int  # stride in the scratchpad
    dram: int

    @property
    def extent(self) -> int:
        return self.front + self.count + self.behind

    @property
    def is_padded(self) -> bool:
        return self.front > 0 or self.behind > 0


def transfer(
    nest: Nest, env: Env, box: Box, forms: tuple[Linear, ...], given: dict[str, Value], g: Geometry
) -> Instruction | None:
    """Make the task; None if its fields cannot express it."""
    read = narrowed(box, nest.inside, env)
    if read is None:
        return None
    op = str(given["op"])
    dram, sram = forms if op != "store" else (forms[1], forms[0])
    begin, at = sram.at(env), dram.at(env)
    axes = []
    for number, ((low, high), (first, last)) in enumerate(
        zip(box.ranges, read.ranges, strict=True)
    ):
        begin += sram.slopes[number] * low
        at += dram.slopes[number] * first
        axis = _Axis(
            first - low, last - first, high - last, sram.slopes[number], dram.slopes[number]
        )
        if axis.extent > 1:
            axes.append(axis)
    if read.is_empty:  # padding only
        axes = [_Axis(0, axis.extent, 0, axis.sram, 0) for axis in axes]
    axes = _merged(sorted(axes, key=lambda axis: axis.sram))
    if not axes or axes[0].sram != 1:
        axes.insert(0, _Axis(0, 1, 0, 1, 1))
    if read.is_empty:
        half = min(axes[0].extent, (1 << widths(g)["pad"]) - 1)
        axes[0] = _Axis(half, 0, axes[0].extent - half, 1, 1)
        at = 0
    if len(axes) > len(AXES) or not _is_dense(axes):
        return None
    if any(axis.is_padded for axis in axes[2:]) or any(axis.dram < 0 for axis in axes):
        return None
    kind = next(one for one in BY_NAME[op].formats if one.name == given["fmt"])
    offset = int(str(given["offset"])) + at * dram_bytes(kind, g)
    fields: dict[str, Value] = {"fmt": kind.name, "base": given["base"], "offset": offset}
    fields["sram"] = begin
    most = (1 << widths(g)["pad"]) - 1
    for name, axis in zip(AXES, axes, strict=False):
        fields |= {name: axis.count, f"{name}stride": axis.dram}
        if axis.is_padded:
            if max(axis.front, axis.behind) > most:
                return None
            fields |= {f"{name}0": axis.front, f"{name}1": axis.behind}
    if nest.value is not None and (read.is_empty or any(axis.is_padded for axis in axes)):
        fields["value"] = nest.value
    return Instruction.make(op, **fields)


def _merged(axes: list[_Axis]) -> list[_Axis]:
    """Axes, innermost first, merged where both memory and scratchpad have compatible strides."""
    made: list[_Axis] = []
    for axis in axes:
        near = made[-1] if made else None
        if (
            near is not None
            and not near.is_padded
            and not axis.is_padded
            and axis.sram == near.sram * near.count
            and axis.dram == near.dram * near.count
        ):
            near.count *= axis.count
        else:
            made.append(axis)
    return made


def _is_dense(axes: list[_Axis]) -> bool:
    """Whether the scratchpad is filled contiguously, as transfers require."""
    step = 1
    for axis in axes:
        if axis.sram != step:
            return False
        step *= axis.extent
    return True
