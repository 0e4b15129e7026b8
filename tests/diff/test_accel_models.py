"""Quantized models on the accelerator: the bits of the integer graph's interpreter, everywhere."""

import gc
import os
import shutil
import subprocess
import weakref
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest

import tilewright as tw
from tilewright.accel import device
from tilewright.accel.device import LIBRARY
from tilewright.accel.part import compile_part
from tilewright.accel.verify import verify
from tilewright.base.dtype import F32, I8, U8
from tilewright.base.errors import UserError
from tilewright.base.passes import PassContext
from tilewright.base.target import Target
from tilewright.driver.accelerate import AcceleratedModule, divide, integer_graph
from tilewright.graph import Module, TensorType, interpret
from tilewright.graph.build import Builder
from tilewright.graph.ir import Graph
from tilewright.graph.passes.decompose_quantized import decompose_quantized
from tilewright.sym import Const, const
from tilewright.sym import size as size_of

OPEN = device.Accelerator
TARGETS = [
    "vta-sim",
    "vta-sim -geometry=1x4x4 -inp=4K -wgt=16K -acc=8K",
    "vta-sim -geometry=1x8x16",
    "vta-cycle -geometry=2x16x16",
]


class Net:
    """A model as quantizers write it: bytes between float operators."""

    def __init__(self, channels=3, size=(20, 18), batch=1, of=np.uint8, shape=()):
        self.random = np.random.default_rng(0)
        self.builder = Builder()
        self.of = of
        first = size_of("n") if batch is None else const(batch)
        dims = shape or (first, *map(const, (channels, *size)))
        self.x = self.builder.param("x", TensorType(F32, dims))
        self.value = self.quantized(self.x, 0.03, 120)

    def constant(self, array):
        return self.builder.constant(np.asarray(array))

    def quantized(self, value, scale, zero):
        zero = self.of(zero if self.of is np.uint8 else zero - 128)
        given = [self.constant(np.float32(scale)), self.constant(zero)]
        to = U8 if self.of is np.uint8 else I8
        made = self.builder.add("quantize", value, *given, to=to)
        return self.builder.add("dequantize", made, *given, to=F32)

    def weights(self, shape):
        array = self.random.integers(-127, 128, shape).astype(np.int8)
        scale = self.random.uniform(0.001, 0.004, shape[0]).astype(np.float32)
        zero = np.zeros(shape[0], np.int8)
        given = [self.constant(one) for one in (array, scale, zero)]
        return self.builder.add("dequantize", *given, to=F32, axis=0), scale

    def conv(self, x, outs, kernel, stride=1, pad=0, groups=1, dilation=1):
        ins = int(x.tensor.shape[1].value)
        w, _ = self.weights((outs, ins // groups, kernel, kernel))
        bias = self.constant(self.random.uniform(-1, 1, outs).astype(np.float32))
        return self.builder.add(
            "conv", x, w, bias, strides=(stride,) * 2, pads=(pad,) * 4,
            dilations=(dilation,) * 2, groups=groups,
        )  # fmt: skip

    def done(self, value):
        return self.builder.module(value)


def residual_net(**given):
    """Strided first layer, pool, residual, groups, depthwise, mean, classifier."""
    net = Net(**given)
    add = net.builder.add
    x = net.quantized(add("relu", net.conv(net.value, 24, 7, 2, 3)), 0.02, 0)
    pool = add("max_pool", x, kernel=(3, 3), strides=(2, 2), pads=(1,) * 4, dilations=(1, 1))
    x = net.quantized(pool, 0.02, 0)
    y = net.quantized(net.conv(x, 24, 3, 1, 1), 0.05, 130)
    x = net.quantized(add("add", x, y), 0.06, 100)
    y = net.quantized(net.conv(x, 24, 3, 1, 2, 24, 2), 0.04, 90)
    z = net.quantized(net.conv(y, 36, 3, 2, 1, 4), 0.05, 128)
    mean = net.quantized(add("reduce_mean", z, axes=(2, 3), keepdims=True), 0.03, 110)
    flat = net.quantized(add("reshape", mean, shape=(-1, 36)), 0.03, 110)
    w, _ = net.weights((10, 36))
    bias = net.constant(net.random.uniform(-1, 1, 10).astype(np.float32))
    product = add("add", add("matmul", flat, add("transpose", w, perm=(1, 0))), bias)
    return net.done(net.quantized(product, 0.1, 128))


def inputs_of(module, seed=1, batch=1):
    """A batch of that size, where the model takes any."""
    dims = module.main.params[0].tensor.shape
    shape = [int(dim.value) if isinstance(dim, Const) else batch for dim in dims]
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("target", TARGETS)
def test_all_devices_give_the_same_bits(target):
    model = residual_net()
    x = inputs_of(model)
    whole = integer_graph(model, Target.parse(target))
    layers = [node.op for node in whole.main.nodes if node.op.startswith("quantized_")]
    assert len(layers) == 8
    (want,) = interpret(whole, x)
    on_cpu = decompose_quantized(whole, PassContext())
    np.testing.assert_array_equal(interpret(on_cpu, x)[0], want)
    np.testing.assert_array_equal(np.asarray(tw.compile(whole, target="cpu")(x)[0]), want)
    made = tw.compile(model, target=target)
    assert isinstance(made, AcceleratedModule)
    np.testing.assert_array_equal(np.asarray(made(x)[0]), want)
    assert made.placement.counts()["accel"] > 0
    assert "of peak" in str(made.placement)
    assert made.cycles > 0
    np.testing.assert_array_equal(on_accelerator_alone(whole, x, Target.parse(target)), want)
    (float_want,) = interpret(model, x)
    step = 0.1
    assert np.abs(want - float_want).max() <= 4 * step


def on_accelerator_alone(module, x, target):
    """Every layer there, whatever it costs; the host quantizes and dequantizes."""
    nodes = module.main.nodes
    first = next(node for node in nodes if node.op == "quantize")
    last = next(node for node in nodes if node.op == "dequantize")
    constants = {
        node.output: module.constants[node["data"]] for node in nodes if node.op == "constant"
    }
    layers = tuple(node for node in nodes if node.op.startswith("quantized_"))
    weights = dict.fromkeys(v for n in layers for v in n.inputs if v in constants)
    graph = Graph("part", (first.output, *weights), layers, (last.inputs[0],))
    part = compile_part(graph, constants, target)
    verify(part.stream)
    scale, zero = (constants[value] for value in first.inputs[1:])
    given = np.clip(np.rint(x / scale) + zero, -128, 127).astype(np.int8)
    scale, zero = (constants[value] for value in last.inputs[1:])
    return (part.run(given)[0].astype(np.float32) - zero) * scale


def branches_net(channels=16, batch=2):
    """Branches of different scales put together, in one scale of their own, and cut off."""
    net = Net(channels=channels, size=(13, 12), batch=batch)
    add = net.builder.add
    stem = net.quantized(net.conv(net.value, channels, 3, 1, 1), 0.04, 120)
    small = net.quantized(net.conv(stem, 2 * channels, 1), 0.05, 100)
    large = net.quantized(net.conv(stem, channels + 3, 3, 1, 1), 0.03, 140)
    pool = add("max_pool", stem, kernel=(3, 3), strides=(1, 1), pads=(1,) * 4, dilations=(1, 1))
    pool = net.quantized(pool, 0.04, 120)
    whole = net.quantized(add("concat", small, pool, large, axis=1), 0.06, 110)
    again = net.quantized(add("relu", whole), 0.05, 110)
    return net.done(net.quantized(net.conv(again, 24, 1), 0.1, 128))


@pytest.mark.parametrize("target", TARGETS)
def test_branches_are_put_together_there(target):
    model = branches_net()
    x, chosen = inputs_of(model, batch=2), Target.parse(target)
    whole = integer_graph(model, chosen)
    copies = [node for node in whole.main.nodes if node.op == "quantized_concat"]
    assert len(copies) == 2
    (want,) = interpret(whole, x)
    np.testing.assert_array_equal(on_accelerator_alone(whole, x, chosen), want)
    _, reasons = divide(whole, chosen)
    assert not reasons.keys() & {node.output.name for node in copies}
    np.testing.assert_array_equal(np.asarray(tw.compile(whole, target="cpu")(x)[0]), want)
    assert np.abs(want - interpret(model, x)[0]).max() <= 4 * 0.1


def test_branches_of_a_batch_that_a_call_tells(tmp_path):
    model = branches_net(batch=None)
    made = tw.compile(model, target="vta-sim")
    made.save(tmp_path / "model.so")
    saved = tw.load(tmp_path / "model.so")
    for batch in (1, 3):
        x = inputs_of(model, batch=batch)
        (want,) = interpret(integer_graph(model, Target.parse("vta-sim")), x)
        np.testing.assert_array_equal(np.asarray(made(x)[0]), want)
        np.testing.assert_array_equal(np.asarray(saved(x)[0]), want)


def test_more_results_than_there_are_base_registers(tmp_path):
    net = Net(channels=16, size=(6, 6), batch=None)
    stem = net.quantized(net.conv(net.value, 16, 3, 1, 1), 0.04, 120)
    heads = [net.quantized(net.conv(stem, 16, 1), 0.05, 100 + at) for at in range(16)]
    model = net.builder.module(*heads)
    made = tw.compile(model, target="vta-sim")
    assert sum(len(part.outputs) for part in made.streams) >= 16
    made.save(tmp_path / "model.so")
    saved = tw.load(tmp_path / "model.so")
    for batch in (1, 3):
        x = inputs_of(model, batch=batch)
        want = interpret(integer_graph(model, Target.parse("vta-sim")), x)
        for run in (made, saved):
            for one, result in zip(run(x), want, strict=True):
                np.testing.assert_array_equal(np.asarray(one), result)


def test_parts_of_blocks_are_put_together_on_the_host():
    whole = integer_graph(branches_net(channels=12), Target.parse("vta-sim"))
    _, reasons = divide(whole, Target.parse("vta-sim"))
    assert any("not multiples of 16" in why for why in reasons.values())


@pytest.mark.parametrize("of", [np.uint8, np.int8])
def test_bytes_with_and_without_a_sign(of):
    net = Net(channels=5, size=(9, 7), batch=2, of=of)
    add = net.builder.add
    ends = [net.constant(np.float32(end)) for end in (0, 1)]
    x = net.quantized(add("clip", net.conv(net.value, 20, 3, 1, 1), *ends), 0.01, 3)
    y = net.quantized(net.conv(x, 20, 1), 0.03, 140)
    model = net.done(net.quantized(add("add", x, y), 0.05, 100))
    x = inputs_of(model)
    (want,) = interpret(integer_graph(model, Target.parse("vta-sim")), x)
    for target in ("vta-sim", "vta-sim -geometry=2x16x16"):
        np.testing.assert_array_equal(np.asarray(tw.compile(model, target=target)(x)[0]), want)
    assert np.abs(want - interpret(model, x)[0]).max() <= 3 * 0.05


def test_what_stays_on_the_host_has_a_reason():
    net = Net(channels=4, size=(5, 5))
    x = net.quantized(net.conv(net.value, 4, 1), 0.02, 100)
    model = net.done(x)
    whole = integer_graph(model, Target.parse("vta-sim"))
    _, reasons = divide(whole, Target.parse("vta-sim"))
    assert "costs more than it gains" in reasons["layer0"]
    made = tw.compile(model, target="vta-sim")
    x = inputs_of(model)
    np.testing.assert_array_equal(np.asarray(made(x)[0]), interpret(whole, x)[0])


def attention(heads=2, size=10, rows=21, zeros=(128, 128, 128)):
    """One layer of attention as quantizers write it: bytes around every product."""
    net = Net(channels=rows, size=(1, heads * size))
    add, wide = net.builder.add, heads * size
    x = net.quantized(add("reshape", net.value, shape=(1, rows, wide)), 0.03, 120)
    found = []
    for at, zero in enumerate(zeros):
        w, _ = net.weights((wide, wide))
        bias = net.constant(net.random.uniform(-1, 1, wide).astype(np.float32))
        made = add("add", add("matmul", x, add("transpose", w, perm=(1, 0))), bias)
        split = add("reshape", net.quantized(made, 0.02, 127), shape=(1, rows, heads, size))
        perm = (0, 2, 3, 1) if at == 1 else (0, 2, 1, 3)
        found.append(net.quantized(add("transpose", split, perm=perm), 0.02, zero))
    q, k, v = found
    scores = net.quantized(add("matmul", q, k), 0.03, 100)
    shares = net.quantized(add("softmax", scores, axes=(3,)), 1 / 256, 0)
    mixed = net.quantized(add("matmul", shares, v), 0.02, 128)
    return net.done(add("reshape", add("transpose", mixed, perm=(0, 2, 1, 3)), shape=(rows, wide)))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("zeros", [(128, 128, 128), (100, 0, 255)])
@pytest.mark.sampled
def test_products_of_attention_run_there(target, zeros):
    model = attention(zeros=zeros)
    x = inputs_of(model)
    whole = integer_graph(model, Target.parse(target))
    layers = [node.op for node in whole.main.nodes if node.op.startswith("quantized_")]
    assert sorted(layers) == ["quantized_batch_matmul"] * 2 + ["quantized_matmul"] * 3
    (want,) = interpret(whole, x)
    on_cpu = decompose_quantized(whole, PassContext())
    np.testing.assert_array_equal(interpret(on_cpu, x)[0], want)
    assert np.abs(want - interpret(model, x)[0]).max() <= 0.1
    nodes = {node.op: node for node in whole.main.nodes}
    product = nodes["quantized_batch_matmul"]
    graph = Graph("part", product.inputs, (product,), product.outputs)
    part = compile_part(graph, {}, Target.parse(target))
    verify(part.stream)
    random = np.random.default_rng(2)
    given = [
        random.integers(-128, 128, value.tensor.static_shape).astype(np.int8)
        for value in product.inputs
    ]
    alone = Module({"main": replace(graph, name="main")})
    np.testing.assert_array_equal(part.run(*given)[0], interpret(alone, *given)[0])
    made = tw.compile(model, target=target)
    np.testing.assert_array_equal(np.asarray(made(x)[0]), want)


def test_a_batch_of_any_size_has_its_stream_made_in_the_call():
    model, target = residual_net(batch=None), "vta-cycle -geometry=2x16x16"
    made = tw.compile(model, target=target)
    assert made.placement.counts()["accel"] > 0
    whole = integer_graph(model, Target.parse(target))
    for batch in (5, 1, 2):
        x = inputs_of(model, batch=batch)
        np.testing.assert_array_equal(np.asarray(made(x)[0]), interpret(whole, x)[0])
    part = made.streams[0]
    assert part.round == 2
    assert sorted(part.runners) == [1, 3]
    tasks = len(part.stream.instructions) - 1  # behind which a finish comes
    for rounds, runner in part.runners.items():
        verify(runner.stream)
        assert len(runner.stream.instructions) == rounds * tasks + 1


@pytest.mark.parametrize("target", ["vta-sim", "vta-cycle"])
def test_cycles_are_those_of_all_rounds_of_the_last_call(target):
    model = residual_net(batch=None)
    made = tw.compile(model, target=target)
    one, rows = made.cycles, made.report()
    made(inputs_of(model, batch=3))
    assert 2 * one < made.cycles <= 3 * one  # the next round begins before one ends
    for before, after in zip(rows, made.report(), strict=True):
        assert after["bytes"] == 3 * before["bytes"]
    assert sum(row["cycles"] for row in made.report()) <= made.cycles
    made(inputs_of(model, batch=1))
    assert made.cycles == one


def test_a_device_stays_open_until_its_model_is_released(monkeypatch):
    opened = []
    monkeypatch.setattr(device, "Accelerator", lambda *given: opened.append(1) or OPEN(*given))
    made = tw.compile(residual_net(), target="vta-sim")
    x = inputs_of(residual_net())
    first = np.asarray(made(x)[0])
    for _ in range(3):
        np.testing.assert_array_equal(np.asarray(made(x)[0]), first)
    assert sum(opened) == len(made.streams)
    released = [weakref.ref(runner) for part in made.streams for runner in part.runners.values()]
    del made
    gc.collect()
    assert all(one() is None for one in released)


def test_a_call_that_is_interrupted_does_not_stop_the_next_ones(monkeypatch):
    made = tw.compile(residual_net(), target="vta-sim")
    x = inputs_of(residual_net())
    first = np.asarray(made(x)[0])
    with monkeypatch.context() as interrupted:
        interrupted.setattr(OPEN, "wait", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            made(x)
    np.testing.assert_array_equal(np.asarray(made(x)[0]), first)


def dense_net(rows=None, wide=48):
    """Two layers of a matrix whose rows only a call tells."""
    net = Net(channels=wide, size=(1, 1), batch=rows)
    add = net.builder.add
    x = net.quantized(add("reshape", net.value, shape=(-1, wide)), 0.03, 120)
    for _ in range(2):
        w, _ = net.weights((wide, wide))
        x = net.quantized(add("matmul", x, add("transpose", w, perm=(1, 0))), 0.1, 128)
    return net.done(x)


def test_a_matrix_of_any_number_of_rows():
    model = dense_net()
    made = tw.compile(model, target="vta-sim")
    assert made.placement.counts()["accel"] == 2
    whole = integer_graph(model, Target.parse("vta-sim"))
    for rows in (1, 64, 150):
        x = inputs_of(model, batch=rows)
        np.testing.assert_array_equal(np.asarray(made(x)[0]), interpret(whole, x)[0])


def test_rows_of_a_batch_and_of_a_length_that_a_call_tells(tmp_path):
    """(batch, length, size), both of them any: layers of a transformer beside its attention."""
    net = Net(shape=(size_of("batch"), size_of("length"), const(64)))
    x, add = net.value, net.builder.add
    for outs in (96, 64):
        w, _ = net.weights((outs, int(x.tensor.shape[-1].value)))
        bias = net.constant(net.random.uniform(-1, 1, outs).astype(np.float32))
        product = add("matmul", x, add("transpose", w, perm=(1, 0)))
        x = net.quantized(add("add", product, bias), 0.05, 128)
    model = net.done(x)
    made = tw.compile(model, target="vta-sim")
    assert sum(len(part.layers) for part in made.streams) == 2
    made.save(tmp_path / "net.so")
    loaded = tw.load(tmp_path / "net.so")
    for sizes in ((1, 9), (3, 50)):
        given = net.random.standard_normal((*sizes, 64)).astype(np.float32)
        (want,) = interpret(integer_graph(model, Target.parse("vta-sim")), given)
        for run in (made, loaded):
            np.testing.assert_array_equal(np.asarray(run(given)[0]), want)


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_a_saved_model_makes_streams_in_the_call(tmp_path):
    model = dense_net()
    made = tw.compile(model, target="vta-sim")
    made.save(tmp_path / "net.so")
    loaded = tw.load(tmp_path / "net.so")
    assert loaded.fallbacks == ()
    for rows in (150, 1, 64, 0, 150):
        x = inputs_of(model, batch=rows)
        np.testing.assert_array_equal(np.asarray(loaded(x)[0]), np.asarray(made(x)[0]))


MAIN = r"""
#include <pthread.h>
#include <stdio.h>
#include "net.h"
static float x[COUNT];
static void *run(void *given) {
  float *y = given;
  int64_t in[4] = {1, 3, 20, 18}, out[2] = {1, 10};
  DLTensor tx = {x, {1, 0}, 4, {2, 32, 1}, in, 0, 0};
  DLTensor ty = {y, {1, 0}, 2, {2, 32, 1}, out, 0, 0};
  const DLTensor *args[2] = {&tx, &ty};
  for (int i = 0; i < 2; ++i) {
    if (net(args, 2)) return puts(tw_last_error()), given;
  }
  return 0;
}
int main(void) {
  pthread_t threads[2];
  float y[2][10];
  void *failed = 0;
  FILE *file = fopen("x.bin", "rb");
  if (!file || fread(x, 4, COUNT, file) != COUNT) return 2;
  for (int i = 0; i < 2; ++i) pthread_create(&threads[i], 0, run, y[i]);
  for (int i = 0; i < 2; ++i) {
    void *told;
    pthread_join(threads[i], &told);
    if (told) failed = told;
  }
  if (failed) return 1;
  for (int i = 0; i < 20; ++i) printf("%a\n", y[i / 10][i % 10]);
  return 0;
}
"""


def run_c(folder, x):
    """The model `net.so` in a program without Python, by two threads, twice each."""
    x.tofile(folder / "x.bin")
    (folder / "main.c").write_text(MAIN.replace("COUNT", str(x.size)))
    command = ["cc", "-Wall", "-Werror", "main.c", "./net.so", "-lpthread", "-o", "main"]
    subprocess.run(command, cwd=folder, check=True)
    clean = {k: v for k, v in os.environ.items() if k != LIBRARY}
    return subprocess.run([folder / "main"], cwd=folder, env=clean, capture_output=True, text=True)


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
@pytest.mark.parametrize("target", ["vta-sim", "vta-cycle -geometry=2x16x16"])
def test_a_saved_model_carries_the_simulator(target, tmp_path):
    model = residual_net()
    x = inputs_of(model)
    made = tw.compile(model, target=target)
    want = np.asarray(made(x)[0])
    made.save(tmp_path / "net.so")
    done = run_c(tmp_path, x)
    assert done.returncode == 0, done.stdout
    got = np.array([float.fromhex(line) for line in done.stdout.split()], np.float32)
    np.testing.assert_array_equal(got, np.tile(want.reshape(-1), 2))
    loaded = tw.load(tmp_path / "net.so")
    assert loaded.fallbacks == ()
    np.testing.assert_array_equal(np.asarray(loaded(x)[0]), want)


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_a_saved_model_for_hardware_asks_the_environment_for_its_library(tmp_path, monkeypatch):
    model = residual_net()
    x = inputs_of(model)
    monkeypatch.setenv(LIBRARY, "/there/is/no/such.so")
    tw.compile(model, target="vta").save(tmp_path / "net.so")
    done = run_c(tmp_path, x)
    assert done.returncode == 1
    assert f"set {LIBRARY}" in done.stdout
    with pytest.raises(UserError, match="cannot load the accelerator /there") as caught:
        tw.load(tmp_path / "net.so")(x)
    assert caught.value.code == "TW7033"
