"""Lanes of floats become integers as single floats do: truncated, saturated, NaN to 0."""

import numpy as np
import pytest

from tilewright.tensor import parse

EDGES = [float(2**power + step) for power in (7, 8, 15, 16, 31, 32, 63, 64) for step in (-1, 0)]
VALUES = [0.0, 1.5, 0.999, 2147483520.0, 1e30, np.inf, np.nan, *EDGES]
INTEGERS = ["i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64"]


@pytest.mark.parametrize("of", INTEGERS)
@pytest.mark.parametrize("source", ["f32", "f64"])
def test_lanes_saturate(source, of, agree):
    values = np.array([*VALUES, *[-x for x in VALUES]], np.float64)
    n = len(values)
    program = parse(
        f"func @f(%x: {source}[{n}], %y: {of}[{n}]) stage scheduled {{"
        f"  for %i in vector 0..{n} {{ block @y(%v: spatial {n} = %i) {{"
        f"    reads %x[%v] writes %y[%v] %y[%v] = {of}(%x[%v]) }} }} }}"
    )
    x = values.astype(np.float32 if source == "f32" else np.float64)
    agree(program, x, np.zeros(n, program.params[1].dtype.numpy))


# Ties of both parities, what rounds past an end, and what no integer comes near.
HALVES = [float(x) for x in np.arange(-140.5, 280, 3.5)]


@pytest.mark.parametrize("lanes", [4, 16, 64])
@pytest.mark.parametrize("of", ["i8", "u8", "i16"])
@pytest.mark.parametrize("added", ["", " + f32(%z[0])", " + -3.0"])
def test_lanes_are_rounded_and_saturate(added, of, lanes, agree):
    some = np.array([*VALUES, *[-x for x in VALUES], *HALVES], np.float32)
    x = np.resize(some, -(-len(some) // lanes) * lanes)
    n = len(x)
    program = parse(
        f"func @f(%x: f32[{n}], %z: {of}[1], %y: {of}[{n}], %r: f32[{n}]) stage scheduled {{"
        f"  for %o in 0..{n // lanes} {{ for %i in vector 0..{lanes} {{"
        f"    block @y(%v: spatial {n} = %o * {lanes} + %i) {{"
        f"      reads %x[%v], %z[0] writes %y[%v] %y[%v] = {of}(round(%x[%v]){added}) }} }} }}"
        f"  for %p in 0..{n // lanes} {{ for %j in vector 0..{lanes} {{"
        f"    block @r(%w: spatial {n} = %p * {lanes} + %j) {{"
        f"      reads %x[%w], %z[0] writes %r[%w]"
        f"      %r[%w] = f32({of}(round(%x[%w]){added})){added.replace('+', '-')} }} }} }} }}"
    )
    dtype = program.params[2].dtype.numpy
    agree(program, x, np.array([3], dtype), np.zeros(n, dtype), np.zeros(n, np.float32))
