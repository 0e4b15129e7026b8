"""ONNX Runtime's operators of linear attention, state-space models and hyper-connections."""

import numpy as np
import pytest
from one_node import model_of, onnxruntime_results

import tilewright as tw
from tilewright.base.errors import Unsupported
from tilewright.frontends.onnx import import_model
from tilewright.graph import interpret

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: bench)")


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def floats(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def check(op, *inputs, outputs=("y",), compiled=False, **attributes):
    """The reference, and native code if asked for, agree with ONNX Runtime."""
    model = model_of(op, inputs, list(outputs), **attributes)
    given, expected = onnxruntime_results(model, inputs)
    made = [interpret(import_model(model), *given, check=True)]
    if compiled:
        module = tw.compile(model, threads=1)
        assert not module.fallbacks
        made.append([np.asarray(one) for one in module(*given)])
    for results in made:
        for have, want in zip(results, expected, strict=True):
            assert have.shape == want.shape
            assert have.dtype == want.dtype
            np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
@pytest.mark.parametrize(("heads", "shared"), [(4, 4), (4, 2), (2, 4)])
@pytest.mark.parametrize("stateful", [False, True])
def test_linear_attention(rule, heads, shared, stateful, rng):
    batch, length, k, v = 2, 5, 8, 6
    query, key = floats(rng, batch, length, heads * k), floats(rng, batch, length, shared * k) / 3
    value = floats(rng, batch, length, shared * v)
    past = floats(rng, batch, shared, k, v) if stateful else None
    decay = -np.abs(floats(rng, batch, length, shared)) if "gated" in rule else None
    beta = np.abs(floats(rng, batch, length, shared)) / 4 if "delta" in rule else None
    check(
        "LinearAttention",
        *(query, key, value, past, decay, beta),
        outputs=("y", "state"),
        compiled=rule == "gated_delta" and stateful,
        q_num_heads=heads,
        kv_num_heads=shared,
        update_rule=rule,
    )


def test_states_with_an_axis_of_positions(rng):
    x, w, state = floats(rng, 1, 4, 6), floats(rng, 4, 1, 3), floats(rng, 1, 4, 2)
    made = []
    for window in (0, 1):
        past = state[None] if window else state
        inputs = (x, w, None, past)
        model = model_of("CausalConvWithState", inputs, ["y", "s"], state_window=window)
        made.append(interpret(import_model(model), x, w, past, check=True))
    (y, kept), (again, stacked) = made
    np.testing.assert_array_equal(again, y)
    np.testing.assert_array_equal(stacked, kept[None])


def test_states_of_several_positions_are_rejected(rng):
    x, w = floats(rng, 1, 4, 6), floats(rng, 4, 1, 3)
    model = model_of("CausalConvWithState", (x, w), ["y", "state"], state_window=2)
    with pytest.raises(Unsupported, match="the states of 2 positions"):
        import_model(model)


@pytest.mark.parametrize("update", [False, True])
def test_gates_of_linear_attention(update, rng):
    a, bias, scale = floats(rng, 2, 3, 4), floats(rng, 4), -np.abs(floats(rng, 4))
    more = (floats(rng, 2, 3, 4),) if update else ()
    check("LinearAttentionGate", a, bias, scale, *more, outputs=("y", "b") if update else ("y",))


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize(("taps", "dilation"), [(4, 1), (3, 2), (1, 1)])
def test_causal_convolution_with_a_state(last, past, taps, dilation, rng):
    batch, channels, length, kept = 2, 6, 5, (taps - 1) * dilation
    x, w, bias = floats(rng, batch, channels, length), floats(rng, channels, 1, taps), None
    state = floats(rng, batch, channels, kept) if past else None
    kinds = {"activation": "silu"} if past else {}
    if last:
        x, bias = x.transpose(0, 2, 1).reshape(batch, length, 2, 3), floats(rng, channels)
        if past:
            state = state.transpose(0, 2, 1).reshape(batch, kept, 2, 3)
    inputs = (x, w, bias, state)
    kinds |= {"dilation": dilation, "channels_last": int(last)}
    compiled = taps == 4
    check("CausalConvWithState", *inputs, outputs=("y", "s"), compiled=compiled, **kinds)


@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("part", [False, True])
@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotary_embedding_of_positions_in_images(layout, packed, part, interleaved, rng):
    batch, heads, length, half = 2, 3, 5, 8
    size = 2 * half + (4 if part else 0)
    x = floats(rng, batch, heads, length, size)
    if packed:
        x = x.transpose(0, 2, 1, 3).reshape(batch, length, heads * size)
    places = rng.integers(0, 12, (3, batch, length))
    tables = (floats(rng, 12, half), floats(rng, 12, half))
    kinds = {"mrope_section": [4, 2, 2], "mrope_layout": layout, "interleaved": interleaved}
    if part or packed:
        kinds["num_heads"] = heads
    if part:
        kinds["rotary_embedding_dim"] = 2 * half
    check("MRotaryEmbedding", x, places, *tables, **kinds)


@pytest.mark.parametrize("activation", ["silu", "swish", "sigmoid"])
@pytest.mark.parametrize("groups", [1, 3])
def test_norm_with_a_gate(activation, groups, rng):
    x, scale, gate = floats(rng, 2, 3, 8 * groups), floats(rng, 8), floats(rng, 2, 3, 8 * groups)
    check("GatedRMSNorm", x, scale, gate, activation=activation, epsilon=1e-3)


def test_gates(rng):
    x, y = floats(rng, 2, 3, 8), floats(rng, 2, 3, 8)
    check("ScaledSiLU", x, alpha=1.5)
    check("ScaledSiLU", x, np.array(0.5, np.float32))
    check("ScaledSiLU", x.astype(np.float16), alpha=2.0)
    check("GatedAdd", x, y, floats(rng, 2, 3, 1))


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("scale", [None, (4, 8), (32,), (8,)])
def test_norm_of_branches(flat, scale, rng):
    x = floats(rng, 2, 3, 32) if flat else floats(rng, 2, 3, 4, 8)
    weights = () if scale is None else (floats(rng, *scale),)
    check("BranchwiseRMSNorm", x, *weights, **({"num_branches": 4} if flat else {}))


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("gate", [(4,), (4, 1), (4, 8)])
def test_hyper_connections(flat, gate, rng):
    x = floats(rng, 2, 3, 32) if flat else floats(rng, 2, 3, 4, 8)
    kinds = {"num_branches": 4} if flat else {}
    check("HyperConnectionPreMix", x, floats(rng, 2, 3, *gate), reduction_scale=0.5, **kinds)
    inputs = (x, floats(rng, 2, 3, 8), floats(rng, 2, 3, *gate))
    check("HyperConnectionPostMix", *inputs, **kinds)
    check("HyperConnectionPostMix", *inputs, floats(rng, 2, 3, 4, 4), **kinds)
