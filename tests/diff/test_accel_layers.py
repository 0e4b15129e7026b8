"""Layers of random shapes on the accelerator: the bits of the interpreter, on both simulators."""

from dataclasses import replace

import numpy as np
import pytest

from tilewright.accel.build.random_layers import random_layers
from tilewright.accel.device import run_on
from tilewright.accel.isa.steps import count_steps
from tilewright.accel.isa.table import ALU_FUNCTIONS
from tilewright.accel.part import compile_part
from tilewright.accel.verify import verify
from tilewright.base.dtype import I8
from tilewright.base.target import Target
from tilewright.graph import Builder, Graph, TensorType, interpret
from tilewright.sym import const

TARGETS = (
    "vta-sim",
    "vta-sim -geometry=1x4x4 -inp=512 -wgt=2K -acc=4K -uop=512 -bus=128",
    "vta-sim -geometry=1x8x16 -inp=1K -wgt=16K -acc=16K -uop=512",
    "vta-sim -geometry=2x16x16",
    "vta-sim -geometry=1x4x4 -inp=512 -wgt=2K -acc=4K -uop=512 -taps=4",
)


@pytest.mark.parametrize("seed", range(28))
def test_random_layers_give_the_bits_of_the_interpreter(seed):
    layers = random_layers(seed)
    (want,) = interpret(layers.module, *layers.inputs)
    target = Target.parse(TARGETS[seed % len(TARGETS)])
    part = compile_part(layers.graph, layers.constants, target)
    verify(part.stream)
    np.testing.assert_array_equal(part.run(*layers.inputs)[0], want)
    timed = run_on("cycle", part.stream, part.packed(*layers.inputs), stalls=seed)
    np.testing.assert_array_equal(part.unpacked(timed.outputs)[0], want)


@pytest.mark.parametrize(
    ("kernel", "stride", "dilation", "taps"),
    [(3, 1, 1, 4), (3, 2, 1, 4), (3, 1, 2, 4), (5, 2, 1, 4), (1, 1, 1, 4), (3, 2, 3, 2)],
)
def test_depthwise_windows_take_a_step_for_so_many_neighbours(kernel, stride, dilation, taps):
    builder = Builder()
    x = builder.param("x", TensorType(I8, tuple(map(const, (1, 20, 19, 17)))))
    random = np.random.default_rng(kernel)
    arrays = [random.integers(-128, 128, (20, 1, kernel, kernel)).astype(np.int8)]
    arrays += [np.full(20, number, np.int32) for number in (7, 1 << 30, 36)]
    weights = {builder.constant(array): array for array in arrays}
    y = builder.add(
        "quantized_conv", x, *weights, groups=20, strides=(stride,) * 2, pads=(1, 2, 2, 1),
        dilations=(dilation,) * 2, x_zero=9,
    )  # fmt: skip
    module = builder.module(y)
    layers = tuple(node for node in module.main.nodes if node.op != "constant")
    graph = Graph("part", (x, *weights), layers, (y,))
    image = random.integers(-128, 128, (1, 20, 19, 17)).astype(np.int8)
    (want,) = interpret(module, image)
    steps = []
    for target in ("vta-sim", f"vta-sim -taps={taps}"):
        part = compile_part(graph, weights, Target.parse(target))
        verify(part.stream)
        np.testing.assert_array_equal(part.run(image)[0], want)
        tasks = [one for one in part.stream.instructions if one.op == "alu"]
        fns = ("mul", "mac")
        steps.append(sum(count_steps(one) for one in tasks if ALU_FUNCTIONS[one["fn"]] in fns))
    reach = (kernel - 1) * dilation + 1
    assert steps[1] * kernel == steps[0] * -(-reach // taps)


def with_weights(layers, change):
    """The same layers with other weights."""
    value, array = next(iter(layers.constants.items()))
    constants = {**layers.constants, value: change(array)}
    nodes = {
        node["data"]: constants[node.output]
        for node in layers.module.main.nodes
        if node.op == "constant" and node.output is value
    }
    module = replace(layers.module, constants={**layers.module.constants, **nodes})
    return replace(layers, constants=constants, module=module)


def test_weights_of_four_bits_are_loaded_as_such():
    """They take half the memory, and give the same bits as those of eight."""
    layers = next(
        found
        for found in map(random_layers, range(0, 200, 7))
        if np.abs(next(iter(found.constants.values()))).max() > 8
    )
    target = Target.parse("vta-sim")
    streams = []
    for change in (lambda w: w, lambda w: w >> 4):
        some = with_weights(layers, change)
        part = compile_part(some.graph, some.constants, target)
        verify(part.stream)
        np.testing.assert_array_equal(
            part.run(*some.inputs)[0], interpret(some.module, *some.inputs)[0]
        )
        streams.append(part.stream)
    loads = [[t.format.name for t in one.instructions if t.op == "load"] for one in streams]
    assert "wgt" in loads[0]
    assert "wgt4" in loads[1]
    assert "wgt" not in loads[1]
    sizes = [one.buffers[0].size_bytes for one in streams]
    assert sizes[1] < sizes[0]


def test_a_residual_sum_joins_the_layer_before_it():
    joined = []
    for seed in range(5, 70, 7):
        layers = random_layers(seed)
        part = compile_part(layers.graph, layers.constants, Target.parse("vta-sim"))
        joined += [one for one in part.layers if one.fused]
    assert joined
    assert all(one.op == "quantized_add" for one in joined)


def test_a_layer_has_one_sum_at_most():
    builder = Builder()
    given = TensorType(I8, tuple(map(const, (1, 16, 8, 8))))
    x, z = (builder.param(name, given) for name in "xz")
    random = np.random.default_rng(0)
    arrays = [random.integers(-128, 128, (16, 16, 3, 3)).astype(np.int8)]
    arrays += [np.full(16, number, np.int32) for number in (7, 1 << 30, 38)]
    weights = {builder.constant(array): array for array in arrays}
    window = {"strides": (1, 1), "pads": (1,) * 4, "dilations": (1, 1)}
    y = builder.add("quantized_conv", x, *weights, groups=1, **window)
    for other in (x, z):
        y = builder.add(
            "quantized_add", y, other, a=5, b=4, bias=3, multiplier=1 << 30, shift=33
        )  # fmt: skip
    module = builder.module(y)
    layers = tuple(node for node in module.main.nodes if node.op != "constant")
    part = compile_part(
        Graph("part", (x, z, *weights), layers, (y,)), weights, Target.parse("vta-sim")
    )
    assert [len(one.fused) for one in part.layers] == [1, 0]
    inputs = [random.integers(-128, 128, (1, 16, 8, 8)).astype(np.int8) for _ in "xz"]
    np.testing.assert_array_equal(part.run(*inputs)[0], interpret(module, *inputs)[0])
