"""Steps declared as tensor functions do what the simulators' NumPy does."""

from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
from tilewright.accel.banks import assign_banks
from tilewright.accel.behaviour import Machine
from tilewright.accel.build import Builder
from tilewright.accel.declared import STEPS, step_function
from tilewright.accel.device import run_on
from tilewright.accel.isa import MicroOp
from tilewright.accel.isa import parse as parse_stream
from tilewright.accel.isa.table import REQUANTIZING
from tilewright.accel.simulate import prepare
from tilewright.base.errors import UserError
from tilewright.base.geometry import Geometry
from tilewright.tensor import parse

G = Geometry(2, 4, 8, inp_bytes=2048, wgt_bytes=4096, acc_bytes=8192, uop_bytes=512)
FOUR_TAPS = replace(G, taps=4)
LIMITS = {"zero": 5, "low": -100, "high": 90}

EXTREMES = (-(1 << 31), 1 - (1 << 31), -33, -32, -31, -1, 0, 1, 31, 32, (1 << 31) - 1)


def machine_for(name, geometry):
    """A machine in front of one step: dst 0, src 1, aux 2."""
    builder = Builder(geometry)
    builder.microcode([MicroOp(0, 1, 2)])
    builder.load_microcode(push=())
    if name == "gemm":
        builder.task("gemm", uend=1, init=1)
    else:
        fields = LIMITS if name in REQUANTIZING else {}
        builder.task("alu", uend=1, fn=name, **fields)
    stream = builder.finish()
    machine = Machine(stream, prepare(stream, {}))
    machine.execute(0)
    return machine


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("bits", [6, 31, 0])
@pytest.mark.parametrize("geometry", [G, FOUR_TAPS], ids=["one tap", "four taps"])
def test_a_step_is_what_was_declared(name, bits, geometry):
    random = np.random.default_rng(bits)
    machine = machine_for(name, geometry)
    for memory, values in machine.scratch.items():
        kind = np.iinfo(values.dtype)
        low, high = max(kind.min, -(1 << bits)), min(kind.max, (1 << bits) - 1)
        values[:16] = random.integers(low, high, values[:16].shape, endpoint=True)
        if not bits:
            values[:16] = random.choice(np.clip(EXTREMES, kind.min, kind.max), values[:16].shape)
        machine.written[memory][:16] = True
    before = {memory: values.copy() for memory, values in machine.scratch.items()}
    machine.execute(1)
    acc = before["acc"]
    operands = [acc[1], acc[2], acc[0]] if name == "mac" else [acc[1], acc[2]]
    made = machine.scratch["acc"][0]
    if name == "gemm":
        operands = [before["inp"][1], before["wgt"][2]]
    elif name in REQUANTIZING:
        limits = [np.array([value], np.int32) for value in LIMITS.values()]
        operands = [acc[1], acc[2], acc[3], acc[4], *limits]
        made = machine.scratch["out"][0] if name == "requant" else made
    want = np.zeros_like(made)
    step = step_function(name, geometry)
    tw.interpret(step, *(np.ascontiguousarray(one) for one in operands), want)
    np.testing.assert_array_equal(made, want)


def one_step(name, g):
    """A stream of one step into entry 5 of acc, or of out: operands loaded, the result stored."""
    unit, form = "gemm" if name == "gemm" else "alu", "out" if name == "requant" else "acc"
    limits = LIMITS if name in REQUANTIZING else {}
    fields = " ".join(f"{field}={value}" for field, value in limits.items())
    does = "init=1" if name == "gemm" else f"fn={name} aux0=1 {fields}"
    sizes, vector = g.entry_bytes(), g.batch * g.block_out
    text = f"""target "vta-sim {g.options}"
        buffer x: in {6 * 4 * vector} buffer y: out {vector if form == "out" else 4 * vector}
        buffer inp: in {sizes["inp"]} buffer wgt: in {sizes["wgt"]} buffer code: uop 8 uop
        aux fmt=acc base=x x=6 aux push={unit} fmt=uop base=code
        load fmt=inp base=inp load push={unit} fmt=wgt base=wgt
        {unit} pop=aux,load push=store {does} dst0=5 uend=1
        store pop={unit} fmt={form} base=y sram=5 finish"""
    return assign_banks(parse_stream(text))


@pytest.mark.parametrize("geometry", [G, FOUR_TAPS, Geometry()], ids=["small", "taps", "default"])
@pytest.mark.parametrize("name", STEPS)
def test_the_simulator_in_c_does_what_was_declared_and_compiled(name, geometry):
    """By our own code generator: whoever changes one of the two is told."""
    g, random = geometry, np.random.default_rng(0)
    acc = random.integers(-(1 << 31), 1 << 31, (6, g.batch, g.block_out)).astype(np.int32)
    inp = random.integers(-128, 128, (g.batch, g.block_in)).astype(np.int8)
    wgt = random.integers(-128, 128, (g.block_out, g.block_in)).astype(np.int8)
    got = run_on("functional", one_step(name, g), {"x": acc, "inp": inp, "wgt": wgt}).outputs["y"]
    operands = [acc[0], acc[1], acc[5]] if name == "mac" else [acc[0], acc[1]]
    if name == "gemm":
        operands = [inp, wgt]
    elif name in REQUANTIZING:
        operands = [*acc[:4], *[np.array([value], np.int32) for value in LIMITS.values()]]
    want = np.zeros((g.batch, g.block_out), np.int8 if name == "requant" else np.int32)
    tw.build(step_function(name, g))(*operands, want)
    np.testing.assert_array_equal(got.view(want.dtype), want.reshape(-1))


@pytest.mark.parametrize("name", STEPS)
def test_declarations_are_text(name):
    fn = step_function(name, G)
    assert parse(str(fn)) == fn


def test_unknown_steps_are_refused():
    with pytest.raises(UserError) as caught:
        step_function("sqrt", G)
    assert caught.value.code == "TW7002"
