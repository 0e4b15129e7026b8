"""Whole models on an NVIDIA GPU: `make test-gpu`."""

import subprocess
import sys
import threading
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.base.errors import TilewrightError
from tilewright.runtime import cuda

sys.path.insert(0, str(Path(__file__).parent))
from test_cuda_models import CONTROL, DECIDED, MODELS, inputs_of, random
from test_cuda_states import MEAN, PROGRAMS
from test_cuda_states import inputs as stateful_inputs

from tilewright import graph

pytestmark = pytest.mark.gpu
SOME = ("conv", "conv_split", "conv_depthwise", "gemv", "softmax", "norm", "attention",
        "recurrent_step", "conv_transposed")  # fmt: skip


@pytest.fixture(autouse=True)
def _gpu():
    if not cuda.is_available():
        pytest.skip("no NVIDIA GPU can be reached")


def reference(name, inputs):
    return [np.asarray(y) for y in tw.compile(MODELS[name], target="cpu", threads=1)(*inputs)]


@pytest.mark.parametrize("name", SOME)
def test_a_model_answers_as_on_a_cpu(name):
    module = tw.compile(MODELS[name], target="cuda")
    inputs = inputs_of(module)
    given = [cuda.to_device(x) for x in inputs]
    for _ in range(4):  # launch by launch, then as a graph
        got = [cuda.to_host(y) for y in module(*given)]
        for a, b in zip(got, reference(name, inputs), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


def whole_numbers(*shape):
    """Of which many are the same, and whose sums are exact."""
    return np.random.default_rng(0).integers(-300, 300, shape).astype(np.float32)


IRREGULAR = {
    "sorted": (
        "%y, %at = top_k(%x, %k) {axis = 1} return %y, %at", "%x: f32[3, n], %k: i64[1]",
        [whole_numbers(3, 5000), np.array([4000])]),
    "distinct": (
        "%y, %a, %b, %c = unique(%x) return %y, %a, %b, %c", "%x: f32[n]", [whole_numbers(3000)]),
    "not zero": ("%y = nonzero(%x) return %y", "%x: f32[n, 7]", [whole_numbers(900, 7)]),
    "added": (
        '%y = scatter_nd(%x, %at, %u) {reduction = "add"} return %y',
        "%x: f32[100, 8], %at: i64[n, 1], %u: f32[n, 8]",
        [whole_numbers(100, 8), np.arange(1500).reshape(-1, 1) ** 2 % 90, whole_numbers(1500, 8)]),
}  # fmt: skip


@pytest.mark.parametrize("name", IRREGULAR)
def test_what_data_decides_is_as_the_operators_say(name):
    text, params, inputs = IRREGULAR[name]
    net = graph.parse(f"graph @main({params}) {{ {text} }}")
    module = tw.compile(net, target="cuda")
    wanted = graph.interpret(net, *inputs)
    for _ in range(3):
        got = module(*[cuda.to_device(x) for x in inputs])
        for a, b in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(cuda.to_host(a), b)


@pytest.fixture
def torch():
    found = pytest.importorskip("torch")
    if not found.cuda.is_available():
        pytest.skip("torch has no CUDA")
    return found


def test_tensors_of_torch_are_used_where_they_are(torch):
    module = tw.compile(MODELS["gemv"], target="cuda")
    (x,) = inputs_of(module)
    want = reference("gemv", [x])[0]
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            given = torch.from_numpy(x).cuda() * 2 / 2  # computed on the side stream
            (y,) = module(given, stream=side.cuda_stream)
            got = torch.from_dlpack(y).cpu().numpy()
            np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5)


def test_an_output_is_waited_for_on_the_stream_that_takes_it(torch):
    module = tw.compile(MODELS["gemv"], target="cuda")
    (x,) = inputs_of(module)
    want = reference("gemv", [x])[0]
    given, first, second = torch.from_numpy(x).cuda(), torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    for _ in range(3):
        with torch.cuda.stream(first):
            torch.cuda._sleep(10_000_000)  # what comes first takes long
        (y,) = module(given, stream=first.cuda_stream)
        with torch.cuda.stream(second):
            got = torch.from_dlpack(y).cpu().numpy()
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5)


def test_arrays_of_cupy_are_used_where_they_are():
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    module = tw.compile(MODELS["gemv"], target="cuda")
    (x,) = inputs_of(module)
    side = cupy.cuda.Stream(non_blocking=True)
    with side:
        for _ in range(3):
            given = cupy.asarray(x) * 2 / 2  # computed on the side stream
            (y,) = module(given, stream=side.ptr)
            got = cupy.asnumpy(cupy.from_dlpack(y))
            np.testing.assert_allclose(got, reference("gemv", [x])[0], rtol=2e-4, atol=2e-5)


def test_cupy_takes_outputs_by_the_array_interface():
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    module = tw.compile(MODELS["gemv"], target="cuda")
    (x,) = inputs_of(module)
    side = cupy.cuda.Stream(non_blocking=True)
    (y,) = module(cupy.asarray(x), stream=side.ptr)
    got = cupy.asnumpy(cupy.asarray(y))
    np.testing.assert_allclose(got, reference("gemv", [x])[0], rtol=2e-4, atol=2e-5)


def test_a_graph_of_the_caller_takes_a_call_whose_arrays_are_known(torch):
    module = tw.compile(MODELS["conv_split"], target="cuda")
    x = torch.from_numpy(inputs_of(module)[0]).cuda()
    side, recorded = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    (y,) = module(x, stream=side.cuda_stream)
    module(x, out=[y], stream=side.cuda_stream)
    torch.cuda.synchronize()
    with torch.cuda.graph(recorded, stream=side):
        module(x, out=[y], stream=side.cuda_stream)
    x.mul_(0.5)
    recorded.replay()
    torch.cuda.synchronize()
    want = reference("conv_split", [x.cpu().numpy()])[0]
    np.testing.assert_allclose(cuda.to_host(y), want, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", ["conv_split", "attention", "recurrent_step"])
def test_a_graph_of_the_caller_takes_arrays_that_are_new(torch, name):
    """On torch's own stream for captures, with results of the model's own; it runs beside calls."""
    module = tw.compile(MODELS[name], target="cuda")
    inputs = inputs_of(module)
    module(*inputs)
    given = [torch.from_numpy(x).cuda() for x in inputs]
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        outputs = module(*given, stream=torch.cuda.current_stream().cuda_stream)
    for factor in (1.0, 0.5):
        for x, host in zip(given, inputs, strict=True):
            x.copy_(torch.from_numpy(host * np.asarray(factor, host.dtype)))
        recorded.replay()
        module(*inputs)  # on the default stream, in other memory
        torch.cuda.synchronize()
        wanted = reference(name, [x.cpu().numpy() for x in given])
        for got, want in zip(outputs, wanted, strict=True):
            np.testing.assert_allclose(cuda.to_host(got), want, rtol=2e-4, atol=2e-5)


def test_an_empty_batch_gives_an_empty_result():
    module = tw.compile(MODELS["attention_of_any_length"], target="cuda")
    (y,) = module(*(np.zeros((1, 2, 0, 16), np.float32) for _ in range(3)))
    assert y.shape == (1, 2, 0, 16)


def test_products_of_floats_of_eight_bits():
    """Scales are applied to the sums, whichever a column has."""
    model = graph.parse("""graph @main(%x: f8e4m3[n, 1024], %w: f8e4m3[1024, 2048], %s: f32[2048]) {
      %y0 = matmul(%x, %w) {to = dtype f32}
      %y = mul(%y0, %s)
      return %y
    }""")
    module = tw.compile(model, target="cuda")
    rules = [each.rule for kernel in module.program.kernels.values() for each in kernel.decisions]
    assert "gemm_hopper" in rules
    shapes = (300, 1024), (1024, 2048)
    x, w = (random(*shape).astype(ml_dtypes.float8_e4m3fn) for shape in shapes)
    scale = random(2048)
    (got,) = module(*[cuda.to_device(each) for each in (x, w, scale)])
    x, w = x.astype(np.float32), w.astype(np.float32)
    # Tensor cores cut a sum of such products to some 14 bits after every 32 of them.
    bound = np.abs(x) @ np.abs(w) * np.abs(scale) / 2**10
    assert np.all(np.abs(cuda.to_host(got) - x @ w * scale) <= bound)


@pytest.mark.parametrize("k", [1024, 1000, 1001])
@pytest.mark.parametrize("turns", ["", "a", "b", "ab"])
def test_products_of_any_layout(turns, k):
    shapes = {"a": (768, k), "b": (k, 520)}
    given = {name: random(*shape).astype(np.float16) for name, shape in shapes.items()}
    params, nodes = [], []
    for name, array in given.items():
        rows, columns = array.shape[:: -1 if name in turns else 1]
        params.append(f"%{name}: f16[{rows}, {columns}]")
        nodes.append(f"%{name}t = transpose(%{name}) {{perm = (1, 0)}}" if name in turns else "")
    names = [f"%{name}t" if name in turns else f"%{name}" for name in given]
    model = graph.parse(f"""graph @main({", ".join(params)}) {{
      {nodes[0]} {nodes[1]} %y = matmul({", ".join(names)})
      return %y
    }}""")
    module = tw.compile(model, target="cuda")
    rules = [each.rule for kernel in module.program.kernels.values() for each in kernel.decisions]
    assert "gemm_hopper" in rules
    laid = [np.ascontiguousarray(x.T) if name in turns else x for name, x in given.items()]
    (got,) = module(*[cuda.to_device(x) for x in laid])
    want = given["a"].astype(np.float32) @ given["b"].astype(np.float32)
    np.testing.assert_allclose(cuda.to_host(got), want, rtol=2e-3, atol=2e-2)


@pytest.mark.parametrize("low", [np.finfo(np.float32).min, np.finfo(np.float16).min, -np.inf])
def test_attention_where_masks_hide_whole_tiles_of_keys(low):
    """Also by the least number, of which differences overflow; a query that sees nothing has equal
    weights of keys as low as each other."""
    net = graph.parse("""graph @main(%q: f16[1, 2, 256, 64], %k: f16[1, 2, 256, 64],
                                     %v: f16[1, 2, 256, 64], %m: f32[256, 256]) {
      %y = attention(%q, %k, %v, %m) {scale = 0.125}
      return %y
    }""")
    module = tw.compile(net, target="cuda")
    rng = np.random.default_rng(0)
    given = [rng.standard_normal((1, 2, 256, 64)).astype(np.float16) for _ in range(3)]
    for seen in (np.tri(256, dtype=bool), np.tri(256, dtype=bool)[::-1, ::-1]):
        mask = np.where(seen, np.float32(0.5), np.float32(low))
        mask[7] = low
        (want,) = graph.interpret(net, *given, mask)
        (out,) = module(*[cuda.to_device(x) for x in (*given, np.ascontiguousarray(mask))])
        np.testing.assert_allclose(cuda.to_host(out), want, rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("causal", ["false", "true"])
@pytest.mark.parametrize("rows", ["n", "1"])
def test_attention_of_lengths_that_calls_tell(rows, causal):
    """One kernel for all of them, also for a cache of keys that grows, and for no keys at all."""
    model = graph.parse(f"""graph @main(%q: f16[b, 4, {rows}, 64], %k: f16[b, 2, n, 64],
                                        %v: f16[b, 2, n, 64], %l: i64[b]) {{
      %y = attention(%q, %k, %v, none, %l) {{causal = {causal}}}
      return %y
    }}""")
    module = tw.compile(model, target="cuda")
    rules = [each.rule for k in module.program.kernels.values() for each in k.decisions]
    assert rules == ["attention_hopper"]
    for batch, length in [(1, 1), (3, 197), (2, 2048), (0, 64), (2, 0)]:
        count = length if rows == "n" else 1
        shapes = [(batch, 4, count, 64), (batch, 2, length, 64), (batch, 2, length, 64)]
        given = [random(*shape).astype(np.float16) for shape in shapes]
        given.append(np.arange(length, length - batch, -1).clip(min=0))
        (want,) = graph.interpret(model, *given)
        (got,) = module(*[cuda.to_device(x) for x in given])
        np.testing.assert_allclose(cuda.to_host(got), want, rtol=4e-3, atol=4e-3)


def test_threads_and_streams_do_not_mix():
    module = tw.compile(MODELS["conv_split"], target="cuda")
    (x,) = inputs_of(module)
    want = reference("conv_split", [x])[0]
    failures = []

    def work():
        stream = cuda.Stream()
        for _ in range(5):
            (y,) = module(x, stream=stream.handle)
            if not np.allclose(cuda.to_host(y, stream=stream.handle), want, rtol=2e-4, atol=2e-5):
                failures.append(threading.get_ident())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize(("name", "args"), [*DECIDED, ("loop", [np.array(3), random(4)])])
def test_control_flow(name, args):
    want = tw.compile(graph.parse(CONTROL[name]), target="cpu")(*args)
    module = tw.compile(graph.parse(CONTROL[name]), target="cuda")
    given = [cuda.to_device(arg) for arg in args]
    outputs = module(*given)
    for _ in range(3):  # launch by launch, then as a graph that decides
        module(*given, out=outputs)
        for a, b in zip(outputs, want, strict=True):
            np.testing.assert_allclose(cuda.to_host(a), np.asarray(b), rtol=1e-5)


def test_a_graph_decides_by_the_values_of_each_call():
    module = tw.compile(graph.parse(CONTROL["if"]), target="cuda")
    x, cond = cuda.to_device(random(4)), cuda.to_device(np.array(True))
    want = {c: np.exp(-cuda.to_host(x) if c else cuda.to_host(x)) for c in (True, False)}
    outputs = module(cond, x)
    for chosen in (True, False, False, True):
        cuda.copy_in(cond.address, np.array(chosen))
        (y,) = module(cond, x, out=outputs)
        np.testing.assert_allclose(cuda.to_host(y), want[chosen], rtol=1e-5)


def test_out_of_memory_leaves_the_gpu_usable():
    with pytest.raises(TilewrightError) as caught:
        cuda.empty((1 << 44,), "u8")
    assert caught.value.code == "TW4022"
    x = np.arange(8, dtype=np.float32)
    np.testing.assert_array_equal(cuda.to_host(cuda.to_device(x)), x)


def test_a_fault_in_a_kernel_is_told_from_then_on():
    code = """
import numpy as np
from tilewright.runtime import cuda
ptx = '''.version 8.0
.target sm_80
.address_size 64
.visible .entry bad() { .reg .b64 %a; mov.b64 %a, 16; st.global.b32 [%a], 1; ret; }
'''
cuda.Module(ptx).launch("bad", (1, 1, 1), (1, 1, 1), [])
codes = []
for _ in range(2):
    try:
        cuda.synchronize()
    except cuda.CudaError as error:
        codes.append(error.code)
assert codes == ["TW4021", "TW4023"], codes
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_saved_model_answers(tmp_path):
    module = tw.compile(MODELS["conv"], target="cuda")
    (x,) = inputs_of(module)
    loaded = tw.load(module.save(tmp_path / "model.so"))
    for _ in range(3):
        (y,) = loaded(x)
        np.testing.assert_allclose(np.asarray(y), reference("conv", [x])[0], rtol=2e-4, atol=2e-5)


def test_a_saved_model_takes_arrays_of_the_gpu_wherever_they_are(tmp_path):
    """Among others by bulk copies, whose tensor maps have addresses."""
    text = "graph @main(%x: f16[128, 256], %w: f16[256, 128]) { %y = matmul(%x, %w) return %y }"
    loaded = tw.load(tw.compile(graph.parse(text), target="cuda").save(tmp_path / "model.so"))
    w = random(256, 128).astype(np.float16)
    kept = []
    for at in range(5):
        x = (random(128, 256) + at).astype(np.float16)
        kept += [cuda.to_device(x), cuda.to_device(w)]
        kept.append(loaded(*kept[-2:])[0])
        got = kept[-1].numpy() if kept[-1].device.kind == "cpu" else cuda.to_host(kept[-1])
        want = x.astype(np.float32) @ w.astype(np.float32)
        np.testing.assert_allclose(got.astype(np.float32), want, rtol=1e-2, atol=0.2)


@pytest.mark.parametrize(("name", "args"), DECIDED)
def test_saved_control_flow(name, args, tmp_path):
    want = tw.compile(graph.parse(CONTROL[name]), target="cpu")(*args)
    saved = tw.compile(graph.parse(CONTROL[name]), target="cuda").save(tmp_path / "model.so")
    loaded = tw.load(saved)
    for _ in range(3):
        for a, b in zip(loaded(*args), want, strict=True):
            np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5)


def test_a_graph_of_the_caller_takes_control_flow(torch):
    module = tw.compile(graph.parse(CONTROL["if"]), target="cuda")
    cond, x = torch.tensor(True).cuda(), torch.from_numpy(random(4)).cuda()
    side, recorded = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    (y,) = module(cond, x, stream=side.cuda_stream)
    module(cond, x, out=[y], stream=side.cuda_stream)
    torch.cuda.synchronize()
    with torch.cuda.graph(recorded, stream=side):
        module(cond, x, out=[y], stream=side.cuda_stream)
    for chosen in (False, True):
        cond.fill_(chosen)
        recorded.replay()
        torch.cuda.synchronize()
        want = np.exp(-x.cpu().numpy() if chosen else x.cpu().numpy())
        np.testing.assert_allclose(cuda.to_host(y), want, rtol=1e-5)


def test_a_model_is_tuned_on_the_gpu_and_answers_the_same(tmp_path):
    records = tmp_path / "records.sqlite"
    seen = []
    module = tw.compile(
        MODELS["conv"],
        target="cuda",
        tune=tw.tune.Budget(minutes=0.25),
        database=records,
        tuning=lambda snapshot: seen.append(snapshot.stage),
    )
    assert module.tuning.trials > module.tuning.failed
    assert "timing in place" in seen
    inputs = inputs_of(module)
    again = tw.compile(MODELS["conv"], target="cuda", database=records)
    for made in (module, again):
        got = [cuda.to_host(y) for y in made(*inputs)]
        for a, b in zip(got, reference("conv", inputs), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", PROGRAMS)
def test_states_are_kept_on_the_gpu(name):
    program = graph.parse(PROGRAMS[name])
    model = tw.compile(program, target="cuda")
    x = cuda.empty(stateful_inputs(PROGRAMS[name], 1)[0].shape)
    outputs = None
    for _ in range(2):
        states = [program.constants[each] for each in program.states]
        for given in stateful_inputs(PROGRAMS[name], 3):
            cuda.copy_in(x.address, given)
            made = model(x, out=None if name == "found" else outputs)
            outputs = outputs or made
            results = graph.interpret(program, given, *states)
            count = len(program.made)
            states = results[count:]
            got = [cuda.to_host(each) for each in (*made, *model.states.values())]
            for one, want in zip(got, results, strict=True):
                np.testing.assert_allclose(one, want, rtol=1e-5, atol=1e-6)
        model.reset()


def test_streams_that_share_states_wait_for_each_other():
    model, x = tw.compile(graph.parse(MEAN), target="cuda"), np.ones(4, np.float32)
    streams = [cuda.Stream() for _ in range(3)]
    for at in range(30):
        model(x, stream=streams[at % 3].handle)
    state = model.states["sum"]
    got = cuda.to_host(state, stream=state.stream)
    np.testing.assert_array_equal(got, np.full(4, 30, np.float32))


def test_a_graph_of_the_caller_changes_the_states(torch):
    model = tw.compile(graph.parse(MEAN), target="cuda")
    x, side, recorded = torch.ones(4).cuda(), torch.cuda.Stream(), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    (y,) = model(x, stream=side.cuda_stream)
    model(x, out=[y], stream=side.cuda_stream)
    torch.cuda.synchronize()
    with torch.cuda.graph(recorded, stream=side):
        model(x, out=[y], stream=side.cuda_stream)
    for at in range(3, 8):
        recorded.replay()
        torch.cuda.synchronize()
        assert cuda.to_host(model.states["count"]) == at
        np.testing.assert_array_equal(torch.from_dlpack(model.states["sum"]).cpu(), [at] * 4)


def test_a_saved_model_with_states_keeps_them_on_the_gpu(tmp_path):
    saved = tw.compile(graph.parse(MEAN), target="cuda").save(tmp_path / "mean.so")
    model, x = tw.load(saved), np.ones(4, np.float32)
    assert isinstance(model.states["sum"], cuda.DeviceArray)
    for at in range(1, 4):
        (y,) = model(x)
        np.testing.assert_array_equal(np.asarray(y), x)
        assert cuda.to_host(model.states["count"]) == at
    model.reset()
    model(x)
    assert cuda.to_host(model.states["sum"]).tolist() == [1.0] * 4
