"""Models with states on a GPU: kept there, updated in place, read by their names."""

import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright import graph
from tilewright.base.errors import TilewrightError
from tilewright.runtime import cuda
from tilewright.runtime.device_states import DeviceStates

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))
from host_gpu import fetched, on_host, view
from stateful_models import MEAN

ROTATED = (
    "module stage imported states (f32[2](1.0, 2.0), f32[2](3.0, 4.0), f32[2](5.0, 6.0)) {"
    " graph @main(%x: f32[2], %a: f32[2], %b: f32[2], %c: f32[2]) {"
    "  %y = add(%x, %a) return %y, %b, %c, %a } }"
)
RETURNED = (
    "module stage imported states (f32[2](1.0, 2.0)) {"
    " graph @main(%x: f32[2], %a: f32[2]) { %b = add(%x, %a) return %a, %b, %b } }"
)
BRANCHED = (
    "module stage imported states (f32[2](1.0, 1.0)) {"
    " graph @main(%x: f32[2], %a: f32[2]) {"
    "  %zero: f32[] = constant() {data = f32[](0.0)}"
    "  %s = reduce_sum(%x) {axes = (0,)} %up = less(%zero, %s)"
    "  %b: f32[2] = if(%up, %a) do {"
    "    graph (%p: f32[2]) { %q = add(%p, %p) return %q }"
    "    graph (%p: f32[2]) { %q = neg(%p) return %q } }"
    "  %c = add(%a, %b)"
    "  return %c, %b } }"
)
CACHE = (  # rows that are written one by one, and all read
    "module stage imported states (f32[3, 2](0.0, 0.0, 0.0, 0.0, 0.0, 0.0), i64[1](0)) {"
    " graph @main(%x: f32[1, 2], %rows: f32[3, 2], %at: i64[1]) {"
    "  %one: i64[] = constant() {data = i64[](1)}"
    "  %zeros: i64[2] = constant() {data = i64[2](0, 0)}"
    "  %both = add(%zeros, %at) %places = reshape(%both) {shape = (1, 2)}"
    "  %new = scatter_elements(%rows, %places, %x) {axis = 0}"
    "  %y = reduce_sum(%new) {axes = (0,)} %next = add(%at, %one) return %y, %new, %next } }"
)
FOUND = (  # what it launches depends on values
    "module stage imported states (f32[2](0.0, 0.0)) {"
    " graph @main(%x: f32[2], %sum: f32[2]) {"
    "  %y = nonzero(%x) %new = add(%sum, %x) return %y, %new } }"
)
PROGRAMS = {"mean": MEAN, "rotated": ROTATED, "returned": RETURNED, "branched": BRANCHED,
            "cache": CACHE, "found": FOUND}  # fmt: skip


def compiled(text):
    return on_host(tw.compile(graph.parse(text), target="cuda -arch=sm_90a"))


def inputs(text, count):
    of = graph.parse(text).given[0].tensor
    rng = np.random.default_rng(7)
    return [rng.standard_normal([int(d.value) for d in of.shape]).astype(np.float32)
            for _ in range(count)]  # fmt: skip


def kept(model):
    return dict(zip(model.states, fetched(model, model.states.values()), strict=True))


def check(model, text, given):
    """The model from its initial states on, against the interpreter."""
    program = graph.parse(text)
    states = [program.constants[name] for name in program.states]
    for x in given:
        results = graph.interpret(program, x, *states)
        count = len(program.made)
        states = results[count:]
        for got, want in zip(fetched(model, model(x)), results[:count], strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-6)
        for got, want in zip(kept(model).values(), states, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("name", PROGRAMS)
def test_states_are_updated_where_they_are(name):
    text = PROGRAMS[name]
    model, given = compiled(text), inputs(text, 3)
    addresses = [state.address for state in model.states.values()]
    check(model, text, given)
    model.reset()
    check(model, text, given)
    assert [state.address for state in model.states.values()] == addresses


@pytest.mark.parametrize("name", PROGRAMS)
def test_calls_with_the_same_arrays_are_one_graph(name):
    text = PROGRAMS[name]
    model, given = compiled(text), inputs(text, 1)[0]
    x = model.inner.empty(given.shape, model.inputs[0].dtype)
    model.memory.set(x, given)
    other = compiled(text)
    outputs = model(x)
    for _ in range(2):
        model(x, out=outputs)
    for _ in range(3):
        want = other(given)
    for got, expected in zip(fetched(model, outputs), fetched(other, want), strict=True):
        np.testing.assert_array_equal(got, expected)
    for state, expected in zip(kept(model).values(), kept(other).values(), strict=True):
        np.testing.assert_array_equal(state, expected)
    if name != "found":
        assert any(each.graph for each in model.inner._records.values())


def test_compiling_takes_no_memory_of_the_gpu():
    model = tw.compile(graph.parse(MEAN), target="cuda -arch=sm_90a")
    assert model._states is None
    assert isinstance(model.memory, DeviceStates)


def test_states_are_arrays_of_the_gpu():
    model = compiled(MEAN)
    assert list(model.states) == ["sum", "count", "last", "before"]
    state = model.states["last"]
    assert isinstance(state, cuda.DeviceArray)
    assert (state.shape, state.device, state.stream) == ((4,), cuda.DEVICE, 0)
    model(np.ones(4, np.float32), stream=5)
    assert {each.stream for each in model.states.values()} == {5}


def test_a_model_is_saved_with_its_current_states(tmp_path):
    model = compiled(MEAN)
    given = inputs(MEAN, 2)
    check(model, MEAN, given)
    states = [np.array(state) for state in kept(model).values()]
    saved = tw.load(model.save(tmp_path / "mean.so", states="current"))
    for got, want in zip(saved.states.values(), states, strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_fork_begins_with_the_states_that_there_are():
    model, given = compiled(MEAN), inputs(MEAN, 4)
    check(model, MEAN, given[:2])
    other = model.fork()
    (one,) = fetched(model, model(given[2]))
    (same,) = fetched(other, other(given[2]))
    np.testing.assert_array_equal(one, same)
    model(given[3])
    assert kept(model)["count"] == 4
    assert kept(other)["count"] == 3


def test_calls_on_many_threads_lose_nothing():
    model, one = compiled(MEAN), np.ones(4, np.float32)

    def work():
        for _ in range(5):
            model(one)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert kept(model)["count"] == 20
    assert kept(model)["sum"].tolist() == [20.0] * 4


def test_a_capture_records_what_changes_the_states():
    """Once the model has run, a caller's capture takes a call, states included."""
    model, x = compiled(MEAN), np.ones(4, np.float32)
    given = model.inner.empty(x.shape, model.inputs[0].dtype)
    model.memory.set(given, x)
    outputs = model(given)
    model.inner._gpu.is_capturing = lambda stream: True
    model(given, out=outputs)
    assert kept(model)["count"] == 2  # here capture runs what it records
    with pytest.raises(TilewrightError) as caught:
        model(x)
    assert caught.value.code == "TW4024"


def test_a_profile_leaves_the_states_as_they_are():
    model, x = compiled(MEAN), np.ones(4, np.float32)
    model(x)
    record = model.profile(x)
    assert record.events
    assert kept(model)["count"] == 1


def test_the_caller_may_keep_the_states():
    """On the host, where they are copied back, or on the GPU."""
    model, x = compiled(MEAN), np.ones(4, np.float32)
    states = [np.array(begin) for begin in model.begins]
    for _ in range(2):
        model.call_on(states, [x])
    assert states[1] == 2
    assert states[0].tolist() == [2.0] * 4
    on_gpu = [model.memory.copy_of(state) for state in states]
    model.call_on(on_gpu, [x])
    assert fetched(model, on_gpu)[1] == 3
    assert states[1] == 2
    states[0].flags.writeable = False
    with pytest.raises(TilewrightError) as caught:
        model.call_on(states, [x])
    assert caught.value.code == "TW4006"


@pytest.mark.parametrize("given", [(), (np.ones(4, np.float32),) * 2])
def test_inputs_are_counted_without_states(given):
    with pytest.raises(TilewrightError) as caught:
        compiled(MEAN)(*given)
    assert caught.value.code == "TW4009"
    assert "takes 1 inputs" in caught.value.message


def test_outputs_of_the_caller_are_checked_without_states():
    model = compiled(MEAN)
    with pytest.raises(TilewrightError) as caught:
        model(np.ones(4, np.float32), out=[])
    assert caught.value.code == "TW4042"


def test_new_states_do_not_depend_on_the_order_of_a_graph():
    """The pretended GPU runs what may run concurrently in reverse."""
    model = compiled(ROTATED)
    x = model.inner.empty((2,), model.inputs[0].dtype)
    model.memory.set(x, np.zeros(2, np.float32))
    outputs = model(x)
    seen = []
    for _ in range(4):
        model(x, out=outputs)
        seen.append(fetched(model, outputs)[0].tolist())
    assert seen == [[3.0, 4.0], [5.0, 6.0], [1.0, 2.0], [3.0, 4.0]]
    assert view(x.address, (2,), model.inputs[0].dtype).tolist() == [0.0, 0.0]
