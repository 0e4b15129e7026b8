"""A transposed convolution is the plain ones of its phases."""

import itertools

import numpy as np
import pytest

from tilewright import sym
from tilewright.base.dtype import F32
from tilewright.base.passes import PassContext
from tilewright.base.target import Target
from tilewright.graph import Builder, TensorType, interpret
from tilewright.graph.passes.split_conv_transpose import split_conv_transpose
from tilewright.graph.verify import verify

CASES = [
    (stride, dilation, kernel, begin, end, more)
    for stride, dilation, kernel, begin, end, more in itertools.product(
        (1, 2, 3), (1, 2), (3, 4), (0, 2), (0, 1), (0, 1)
    )
    if more < max(stride, dilation)
]


TARGETS = [None, "x86_64-linux-gnu -mcpu=sapphirerapids", "cuda -arch=sm_90a"]


@pytest.mark.parametrize("target", [each and Target.parse(each) for each in TARGETS], ids=str)
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.sampled
def test_phases_give_the_same(count: int, groups: int, target: Target | None) -> None:
    rng = np.random.default_rng(count)
    for at, (stride, dilation, kernel, begin, end, more) in enumerate(CASES):
        reach = (count - 1) * stride + (kernel - 1) * dilation + 1
        if reach + more <= begin + end:
            continue
        b = Builder()
        size = sym.size("n") if at % 2 and count > 1 else sym.const(count)
        x = b.param("x", TensorType(F32, (sym.const(2), sym.const(4), size)))
        w = b.constant(rng.standard_normal((4, 3, kernel)).astype(np.float32))
        bias = [b.constant(rng.standard_normal(3 * groups).astype(np.float32))] * (at % 3 == 0)
        y = b.add(
            "conv_transpose",
            x,
            w,
            *bias,
            strides=(stride,),
            dilations=(dilation,),
            pads=(begin, end),
            groups=groups,
            output_padding=(more,),
        )
        module = b.module(y)
        split = split_conv_transpose(module, PassContext(target=target))
        verify(split)
        given = rng.standard_normal((2, 4, count)).astype(np.float32)
        (want,), (got,) = interpret(module, given), interpret(split, given, check=True)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
        if kernel >= stride and np.gcd(stride, dilation) == 1 and isinstance(size, sym.Const):
            assert all(node.op != "conv_transpose" for node in split.main.nodes)


def test_few_channels_share_vectors() -> None:
    rng = np.random.default_rng(0)
    for channels, convolutions in ((3, 1), (64, 4)):
        b = Builder()
        x = b.param("x", TensorType(F32, tuple(map(sym.const, (1, 4, 5, 6)))))
        w = b.constant(rng.standard_normal((4, channels, 4, 4)).astype(np.float32))
        window = {"strides": (2, 2), "dilations": (1, 1), "pads": (1,) * 4}
        y = b.add("conv_transpose", x, w, output_padding=(0, 0), **window)
        module = b.module(y)
        context = PassContext(target=Target.parse("x86_64-linux-gnu -mcpu=sapphirerapids"))
        split = split_conv_transpose(module, context)
        assert sum(node.op == "conv" for node in split.main.nodes) == convolutions
        given = rng.standard_normal((1, 4, 5, 6)).astype(np.float32)
        (want,), (got,) = interpret(module, given), interpret(split, given, check=True)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_on_a_gpu_one_element_is_a_product_and_what_follows() -> None:
    rng = np.random.default_rng(0)
    b = Builder()
    x = b.param("x", TensorType(F32, tuple(map(sym.const, (2, 5, 1, 1)))))
    w, bias = (rng.standard_normal(shape).astype(np.float32) for shape in ((5, 3, 4, 4), (3,)))
    window = {"strides": (1, 1), "dilations": (1, 1), "pads": (1, 0, 0, 1)}
    y = b.add("conv_transpose", x, b.constant(w), b.constant(bias), output_padding=(0, 0), **window)
    module = b.module(b.add("relu", y))
    split = split_conv_transpose(module, PassContext(target=Target.parse("cuda")))
    verify(split)
    made_by = {value: node for node in split.main.nodes for value in node.outputs}
    (relu,) = [node for node in split.main.nodes if node.op == "relu"]
    assert made_by[relu.inputs[0]].op == "add"
    given = rng.standard_normal((2, 5, 1, 1)).astype(np.float32)
    (want,), (got,) = interpret(module, given), interpret(split, given, check=True)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("is_known", [True, False])
def test_infinite_weights_do_not_meet_padding(groups: int, is_known: bool) -> None:
    rng = np.random.default_rng(groups)
    for at, (stride, dilation, kernel, begin, end, more) in enumerate(CASES[::3]):
        b = Builder()
        size = sym.size("n") if at % 2 else sym.const(4)
        x = b.param("x", TensorType(F32, (sym.const(2), sym.const(4), size)))
        weights = rng.standard_normal((4, 3, kernel)).astype(np.float32)
        weights[:, 1, 0], weights[:, 2, -1] = np.inf, -np.inf
        w = b.constant(weights)
        if not is_known:
            w = b.param("w", TensorType(F32, tuple(map(sym.const, weights.shape))))
        bias = [b.constant(rng.standard_normal(3 * groups).astype(np.float32))] * (at % 3 == 0)
        window = {"strides": (stride,), "dilations": (dilation,), "pads": (begin, end)}
        more_of = {"groups": groups, "output_padding": (more,)}
        module = b.module(b.add("conv_transpose", x, w, *bias, **window, **more_of))
        split = split_conv_transpose(module, PassContext())
        verify(split)
        given = [np.ones((2, 4, 4), np.float32), *([] if is_known else [weights])]
        (want,), (got,) = interpret(module, *given), interpret(split, *given, check=True)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
        plain = [node for node in split.main.nodes if node.op == "conv"]
        assert all(pad <= 0 for node in plain for pad in node["pads"])
