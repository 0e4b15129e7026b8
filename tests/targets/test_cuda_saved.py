"""Models saved for a GPU: libraries that answer without Python, and say why where they cannot.

There is no GPU here: a driver in host memory (tests/native/fake_cuda.c) tells what it was asked.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright import graph
from tilewright.base.dtype import F32
from tilewright.base.errors import TilewrightError
from tilewright.driver import device_save
from tilewright.driver.device_launch import Span, by_urgency, waits_of
from tilewright.graph.types import TensorType
from tilewright.runtime import cuda
from tilewright.runtime.sources import FOLDER
from tilewright.sym import const

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


def compiled(target="cuda -arch=sm_90a", **options):
    b = graph.Builder()
    x = b.param("x", TensorType(F32, (const(2), const(48))))
    w = b.constant(np.random.default_rng(0).standard_normal((48, 64)).astype(np.float32))
    y = b.add("softmax", b.add("tanh", b.add("matmul", x, w)), axes=(1,))
    return tw.compile(b.module(y), target=target, cache=False, **options)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return compiled().save(tmp_path_factory.mktemp("saved") / "net.so")


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    made = tmp_path_factory.mktemp("driver") / "libcuda.so"
    source = ROOT / "tests/native/fake_cuda.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-w", str(source), "-o", str(made)], check=True)
    return made


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    made = tmp_path_factory.mktemp("program") / "run_saved"
    source = ROOT / "bench/native/run_saved.c"
    flags = ["-O1", f"-I{FOLDER}", "-ldl"]
    subprocess.run(["cc", str(source), "-o", str(made), *flags], check=True)
    return made


def run(program, saved, folder, calls=1, **environment):
    """The C program on a saved model; what it left, and what the driver was asked."""
    np.ones((2, 48), np.float32).tofile(folder / "x.bin")
    log = folder / "log.txt"
    files = [str(folder / "x.bin"), "2,48", str(folder / "y.bin"), "2,64"]
    done = subprocess.run(
        [str(program), str(saved), "net", *files, str(calls)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"FAKE_CUDA_LOG": str(log), **environment},
    )
    return done, log.read_text().splitlines() if log.exists() else []


def test_without_a_driver_a_library_says_so(saved, program, tmp_path):
    if cuda.is_available():
        pytest.skip("there is a driver")
    done, _ = run(program, saved, tmp_path)
    assert done.returncode == 10 + 15
    assert "the CUDA driver cannot be opened" in done.stderr
    with pytest.raises(TilewrightError) as caught:
        tw.load(saved)(np.zeros((2, 48), np.float32))
    assert caught.value.code == "TW4020"


def test_a_library_runs_its_launches_as_one_graph(saved, program, driver, tmp_path):
    done, log = run(program, saved, tmp_path, 3, TILEWRIGHT_CUDA_DRIVER=str(driver))
    assert done.returncode == 0, done.stderr
    launches = [line.split() for line in log if line.startswith("launch")]
    kernels = {line[1] for line in launches}
    assert len(launches) == len(kernels)  # recorded once, and only recorded
    assert all(line[4:6] == ["1", "1"] for line in launches)  # arguments of the GPU, in capture
    assert [line[6] for line in launches] == ["late"] + ["early"] * (len(launches) - 1)
    assert log.count("graph") == 3
    assert sum(line == f"in {2 * 48 * 4} 1" for line in log) == 3
    assert sum(line == f"out {2 * 64 * 4} 1" for line in log) == 3


def test_a_saved_chain_starts_all_its_blocks_together(program, driver, tmp_path):
    """Its blocks count in memory that nothing else has, from zero on."""
    text = """
graph @main(%x: f32[2, 48]) {
  %r = reshape(%x) {shape = (1, 96)}
  %u = constant() {data = "u"}
  %v = constant() {data = "v"}
  %a = matmul(%r, %u)
  %b = matmul(%a, %v)
  %y = reshape(%b) {shape = (2, 64)}
  return %y
}
"""
    rng = np.random.default_rng(0)
    weights = {"u": rng.random((96, 96)), "v": rng.random((96, 128))}
    module = graph.parse(text, {name: w.astype(np.float32) for name, w in weights.items()})
    made = tw.compile(module, target="cuda -arch=sm_90a", chains=True)
    saved = made.save(tmp_path / "net.so")
    done, log = run(program, saved, tmp_path, 2, TILEWRIGHT_CUDA_DRIVER=str(driver))
    assert done.returncode == 0, done.stderr
    assert [line.split()[6] for line in log if line.startswith("launch")] == ["together"]


# What a driver in host memory can compute: values that are handed on.
HANDED = {
    "if": """
graph @main(%c: bool[], %x: f32[4], %z: f32[4]) {
  %y = if(%c, %x, %z) do {
    graph(%a: f32[4], %b: f32[4]) { return %a }
    graph(%a: f32[4], %b: f32[4]) { return %b }
  }
  return %y
}
""",
    "loop": """
graph @main(%n: i64[], %x: f32[4], %z: f32[4]) {
  %y, %w = loop(%n, none, %x, %z) {carried = 2} do {
    graph(%i: i64[], %going: bool[], %a: f32[4], %b: f32[4]) { return %going, %b, %a }
  }
  return %y
}
""",
    "scan": """
graph @main(%h: f32[4], %x: f32[3, 4]) {
  %y, %s = scan(%h, %x) {states = 1, inputs = 1} do {
    graph(%a: f32[4], %e: f32[4]) { return %e, %a }
  }
  return %s
}
""",
    "nested": """
graph @main(%n: i64[], %c: bool[], %x: f32[4], %z: f32[4]) {
  %y, %w = loop(%n, none, %x, %z, %c) {carried = 2} do {
    graph(%i: i64[], %going: bool[], %a: f32[4], %b: f32[4], %d: bool[]) {
      %e = neg(%b)
      %f = if(%d, %a, %b) do {
        graph(%g: f32[4], %h: f32[4]) { return %g }
        graph(%g: f32[4], %h: f32[4]) { return %h }
      }
      return %going, %f, %e
    }
  }
  return %y
}
""",
}
X, Z = np.arange(4, dtype=np.float32), np.arange(4, dtype=np.float32) + 10
TYPES = {"bool": "bool", "int64": "i64", "float32": "f32"}
CASES = [
    ("if", [np.array(True), X, Z], X, 0),
    ("if", [np.array(False), X, Z], Z, 0),
    ("loop", [np.array(0), X, Z], X, 0),
    ("loop", [np.array(3), X, Z], Z, 0),
    ("scan", [X, np.stack([Z, X, -Z])], np.stack([X, Z, X]), 0),
    ("nested", [np.array(5), np.array(True), X, Z], X, 5),
    ("nested", [np.array(1), np.array(False), X, Z], Z, 1),
    ("nested", [np.array(-1), np.array(False), X, Z], X, 0),
]


@pytest.fixture(scope="module")
def decided(tmp_path_factory):
    folder = tmp_path_factory.mktemp("decided")
    return {
        name: tw.compile(graph.parse(text), target="cuda").save(folder / f"{name}.so", name="net")
        for name, text in HANDED.items()
    }


@pytest.mark.parametrize("version", ["12040", "12020"])
@pytest.mark.parametrize(("name", "args", "want", "turns"), CASES)
@pytest.mark.sampled
def test_control_flow_runs_without_python(
    decided, name, args, want, turns, version, program, driver, tmp_path
):
    """By nodes of one graph, or by the host between graphs where the driver has no such nodes."""
    tensors = []
    for at, arg in enumerate((*args, want)):
        (tmp_path / f"{at}.bin").write_bytes(arg.tobytes())
        dims = ",".join(map(str, arg.shape))
        tensors += [str(tmp_path / f"{at}.bin"), f"{TYPES[arg.dtype.name]}:{dims}"]
    log = tmp_path / "log.txt"
    told = {"FAKE_CUDA_LOG": str(log), "TILEWRIGHT_CUDA_DRIVER": str(driver)}
    done = subprocess.run(
        [str(program), str(decided[name]), "net", *tensors, "2"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | told | {"FAKE_CUDA_VERSION": version},
    )
    assert done.returncode == 0, done.stderr
    found = np.fromfile(tmp_path / f"{len(args)}.bin", np.float32)
    np.testing.assert_array_equal(found.reshape(want.shape), want)
    lines = log.read_text().splitlines()
    assert sum(line.startswith("run ") for line in lines) == 2 * turns
    nodes = [line for line in lines if line.startswith("node")]
    by_graph = {"if": ["node 0"] * 2, "loop": ["node 1"], "nested": ["node 1", "node 0", "node 0"]}
    assert nodes == (by_graph.get(name, []) if version == "12040" else [])
    if nodes or name == "scan":
        assert lines.count("graph") == 2


def test_numbers_of_iterations_are_saved_beside_the_weights(decided, program, driver, tmp_path):
    """A loop whose iterations sizes tell is its iterations, which read their numbers."""
    text = """
graph @main(%x: f32[4]) {
  %zero = constant() {data = "zero"}
  %y = loop(none, none, %zero, %x) {carried = 1, trip = 3} do {
    graph(%i: i64[], %going: bool[], %a: i64[], %e: f32[4]) { return %going, %i }
  }
  return %y
}
"""
    module = graph.parse(text, {"zero": np.array(0)})
    saved = tw.compile(module, target="cuda").save(tmp_path / "net.so")
    X.tofile(tmp_path / "x.bin")
    log = tmp_path / "log.txt"
    done = subprocess.run(
        [str(program), str(saved), "net", str(tmp_path / "x.bin"), "4",
         str(tmp_path / "y.bin"), "i64:"],
        capture_output=True, text=True, check=False,
        env=os.environ | {"FAKE_CUDA_LOG": str(log), "TILEWRIGHT_CUDA_DRIVER": str(driver)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert np.fromfile(tmp_path / "y.bin", np.int64) == 2


OPEN = """
graph @main(%x: f32[n, 48]) {
  %t = tanh(%x)
  %y = softmax(%t) {axes = (1,)}
  return %y
}
"""


def test_a_library_for_several_sizes_has_a_graph_for_each(program, driver, tmp_path):
    module = tw.compile(graph.parse(OPEN), target="cuda -arch=sm_90a", cache=False)
    saved = module.save(tmp_path / "net.so", sizes={"n": [1, 2, 7]})
    log = tmp_path / "log.txt"
    environment = {"FAKE_CUDA_LOG": str(log), "TILEWRIGHT_CUDA_DRIVER": str(driver)}
    code = f"""
import numpy as np, tilewright as tw
net = tw.load({str(saved)!r})
for n in (2, 7, 2, 1, 7):
    (y,) = net(np.ones((n, 48), np.float32))
    assert y.shape == (n, 48)
try:
    net(np.ones((3, 48), np.float32))
except ValueError as error:
    assert "not saved for n = 3" in str(error), error
else:
    raise AssertionError("a size that nothing was saved for")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False,
        env=os.environ | environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = log.read_text().splitlines()
    launches = [line.split() for line in told if line.startswith("launch")]
    kernels = {line[1] for line in launches}
    assert len(launches) == 3 * len(kernels)  # recorded once for each size, the same kernels
    rows = [line[2] for line in launches if line[1].endswith(f"_{len(kernels) - 1}")]
    assert rows == ["2", "7", "1"]
    assert told.count("graph") == 5
    assert told.count("module 1") == 1


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (None, "the sizes n are dynamic"),
        ({"m": [1], "n": [1]}, "no dimension of an input is called m"),
        ({"n": []}, "0 sets of sizes"),
        ({"n": range(1000)}, "1000 sets of sizes"),
    ],
)
def test_sizes_that_cannot_be_saved_are_named(sizes, message, tmp_path):
    module = tw.compile(graph.parse(OPEN), target="cuda -arch=sm_90a", cache=False)
    with pytest.raises(TilewrightError) as caught:
        module.save(tmp_path / "net.so", sizes=sizes)
    assert caught.value.code == "TW6015"
    assert message in caught.value.message
    assert not list(tmp_path.iterdir())


def test_a_size_outside_of_the_model_s_range_is_not_saved(tmp_path):
    net = graph.parse(OPEN)
    module = tw.compile(net, target="cuda -arch=sm_90a", dynamic={"n": (1, 8)}, cache=False)
    module.save(tmp_path / "net.so", sizes={"n": range(1, 9)})
    with pytest.raises(TilewrightError) as caught:
        module.save(tmp_path / "other.so", sizes={"n": [9]})
    assert caught.value.code == "TW4012"
    assert not (tmp_path / "other.so").exists()


def test_arguments_are_checked_before_the_driver_is_opened(saved, program, driver, tmp_path):
    np.ones((2, 47), np.float32).tofile(tmp_path / "x.bin")
    log = tmp_path / "log.txt"
    files = [str(tmp_path / "x.bin"), "2,47", str(tmp_path / "y.bin"), "2,64"]
    environment = {"FAKE_CUDA_LOG": str(log), "TILEWRIGHT_CUDA_DRIVER": str(driver)}
    done = subprocess.run(
        [str(program), str(saved), "net", *files],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
    )
    assert done.returncode == 10 + 3
    assert "dimension 1 is 47, expected 48" in done.stderr
    assert not log.exists()


@pytest.mark.parametrize(
    ("environment", "code", "message"),
    [
        ({"FAKE_CUDA_VERSION": "11080"}, 15, "of version 11.8, 12.0 is needed"),
        ({"FAKE_CUDA_LIMIT": "4096"}, 11, "of 4096 are free"),
        ({"FAKE_CUDA_FAULT": "softmax"}, 16, "failed: a fault (700)"),
    ],
)
def test_what_the_driver_refuses_is_told(
    saved, program, driver, tmp_path, environment, code, message
):
    done, _ = run(program, saved, tmp_path, TILEWRIGHT_CUDA_DRIVER=str(driver), **environment)
    assert done.returncode == 10 + code
    assert message in done.stderr


# A caller without Tilewright: its output is memory of the GPU, somewhat behind where it begins.
CALLER = """
import _ctypes, ctypes, json, os, sys
saved, driver = sys.argv[1], ctypes.CDLL(sys.argv[2])
behind, calls, *streams = map(int, sys.argv[3:])

class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int * 2), ("ndim", ctypes.c_int),
                ("dtype", ctypes.c_uint8 * 4), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64)]

def tensor(address, kind, *shape):
    dtype = (ctypes.c_uint8 * 4)(2, 32, 1, 0)
    return Tensor(address, (kind, 0), 2, dtype, (ctypes.c_int64 * 2)(*shape), None, 0)

room = ctypes.create_string_buffer(2 * 48 * 4 + 64)
x = tensor(-(-ctypes.addressof(room) // 64) * 64, 1, 2, 48)
out = ctypes.c_uint64()
driver.cuMemAlloc_v2(ctypes.byref(out), ctypes.c_size_t(4096))
y = tensor(out.value + behind, 2, 2, 64)
library = ctypes.CDLL(saved)
library.tw_last_error.restype = ctypes.c_char_p
args = (ctypes.POINTER(Tensor) * 2)(ctypes.pointer(x), ctypes.pointer(y))
if streams:
    on_gpu = ctypes.c_uint64()
    driver.cuMemAlloc_v2(ctypes.byref(on_gpu), ctypes.c_size_t(4096))
    given = (x, tensor(on_gpu.value, 2, 2, 48))
    told = []
    for at, stream in enumerate(streams):  # the last with an input of the host
        args[0] = ctypes.pointer(given[at + 1 < len(streams) or "ALL_ON_GPU" in os.environ])
        on = (library.net_on_stream, ctypes.c_void_p(stream)) if stream else (library.net,)
        told.append((on[0](args, 2, *on[1:]), library.tw_last_error().decode()))
else:
    told = []
    for _ in range(calls):
        told.append((library.net(args, 2), library.tw_last_error().decode()))
        y.data += int(os.environ.get("APART", 0))  # the next output lies elsewhere
_ctypes.dlclose(library._handle)
print(json.dumps(told))
"""


def called(saved, driver, folder, behind=0, calls=1, streams=(), **environment):
    """What calls of a saved model come to, and what the driver was asked. With streams, calls on
    each in turn (0: without one), the last with an input that is memory of the host, but for
    ALL_ON_GPU in the environment."""
    log = folder / "log.txt"
    told = {"FAKE_CUDA_LOG": str(log), "TILEWRIGHT_CUDA_DRIVER": str(driver), **environment}
    done = subprocess.run(
        [sys.executable, "-S", "-c", CALLER, str(saved), str(driver), str(behind), str(calls)]
        + [str(stream) for stream in streams],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | told,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), log.read_text().splitlines()


@pytest.mark.parametrize(
    ("behind", "environment", "code", "message"),
    [
        (0, {"FAKE_CUDA_ORDINAL": "1"}, 5, "output 0 is on cuda:1, expected cuda:0"),
        (4, {}, 7, "output 0 lies at an address that 16 does not divide"),
    ],
)
def test_memory_of_a_gpu_that_kernels_cannot_use_is_named(
    saved, driver, tmp_path, behind, environment, code, message
):
    (told,), log = called(saved, driver, tmp_path, behind, **environment)
    assert told == [code, message]
    assert "graph" not in log


def test_after_a_fault_every_call_of_a_library_says_that_the_context_is_lost(
    saved, driver, tmp_path
):
    told, log = called(saved, driver, tmp_path, calls=3, FAKE_CUDA_FAULT="softmax")
    assert [code for code, _ in told] == [16, 17, 17]
    assert told[2][1] == "the GPU's context is lost: a fault (700)"
    assert not [line for line in log if line.startswith("free")]  # there is nothing left to free


def test_a_library_that_is_unloaded_gives_all_memory_back(saved, driver, tmp_path):
    told, log = called(saved, driver, tmp_path, calls=2)
    assert [code for code, _ in told] == [0, 0]
    assert log.count("free 1") == 3  # weights, arena, and room for the input: the output is not its
    assert log.count("unload 1") == log.count("module 1") > 0
    assert log[-1] == "release 0"


def test_addresses_that_change_are_told_to_the_kernels_that_use_them(saved, driver, tmp_path):
    """The graph stays: of its kernels only the last has the output."""
    told, log = called(saved, driver, tmp_path, calls=4, APART="512")
    assert [code for code, _ in told] == [0] * 4
    assert log.count("graph") == 4
    launches = [line.split()[1] for line in log if line.startswith("launch")]
    changes = [line.split()[1:] for line in log if line.startswith("change")]
    assert len(launches) == len(set(launches))  # captured once
    assert changes == [[launches[-1], "1"]] * 3


@pytest.mark.parametrize(
    ("environment", "codes", "captures"),
    [
        ({"FAKE_CUDA_VERSION": "12000"}, [0, 0, 0, 0], 4),  # its graphs do not tell their nodes
        ({"FAKE_CUDA_REFUSES": "cuGraphExecKernelNodeSetParams"}, [0, 16, 0, 16], 2),
    ],
)
def test_graphs_that_cannot_be_changed_are_captured_again(
    saved, driver, tmp_path, environment, codes, captures
):
    told, log = called(saved, driver, tmp_path, calls=4, APART="512", **environment)
    assert [code for code, _ in told] == codes
    launches = [line.split()[1] for line in log if line.startswith("launch")]
    assert len(launches) == captures * len(set(launches))
    assert log.count("graph") == codes.count(0)


def test_calls_on_streams_return_at_once_and_wait_for_each_other(saved, driver, tmp_path):
    """There is one arena: each runs behind the one before, whatever its stream."""
    told, log = called(saved, driver, tmp_path, streams=(70, 80, 0, 80, 70))
    assert [code for code, _ in told] == [0] * 5
    order = ("graph", "event", "behind", "synchronize")
    asked = [line for line in log if line.split()[0] in order]
    ours = asked[0].split()[1]  # the library's own stream, once it has made everything ready
    assert asked == [
        f"synchronize {ours}",
        *("graph", "event 70"),
        *("behind 80", "graph", "event 80"),
        *(f"behind {ours}", "graph", f"synchronize {ours}"),
        *("graph", "event 80"),
        *("behind 70", "graph", "synchronize 70"),  # the input was copied from the host
    ]


def test_calls_that_have_ended_are_not_waited_for(saved, driver, tmp_path):
    """The last one waited: its input is of the host."""
    _, log = called(saved, driver, tmp_path, streams=(70, 80))
    assert "waited" not in log


def test_a_library_waits_for_its_last_call_before_it_gives_memory_back(saved, driver, tmp_path):
    """That call is on a stream of the caller's, and may still run when the library is unloaded."""
    told, log = called(saved, driver, tmp_path, streams=(70,), ALL_ON_GPU="1")
    assert [code for code, _ in told] == [0]
    assert log.count("waited") == 1
    assert log.index("event 70") < log.index("waited") < log.index("free 1")


def test_a_stream_that_is_being_captured_is_refused_in_words(saved, driver, tmp_path):
    told, log = called(saved, driver, tmp_path, streams=(70,), FAKE_CUDA_CAPTURES="1")
    assert told == [[5, "the stream is being captured; call the model outside of it"]]
    assert "graph" not in log


def test_the_header_of_a_library_for_a_gpu_tells_of_streams(saved):
    text = saved.with_suffix(".h").read_text()
    assert (
        "int32_t net_on_stream(const DLTensor *const *args, int32_t n_args, void *stream);" in text
    )


def test_a_driver_without_a_function_is_too_old(saved, program, tmp_path):
    (tmp_path / "old.c").write_text("int cuInit(unsigned flags) { return (int)flags; }\n")
    old = tmp_path / "old.so"
    subprocess.run(["cc", "-shared", "-fPIC", str(tmp_path / "old.c"), "-o", str(old)], check=True)
    done, _ = run(program, saved, tmp_path, TILEWRIGHT_CUDA_DRIVER=str(old))
    assert done.returncode == 10 + 15
    assert "too old: it has no cuDriverGetVersion" in done.stderr


def test_blocks_count_where_nothing_else_is():
    """Each set of sizes has memory of its own for it, as large as its kernels ask."""
    module = tw.compile(graph.parse(OPEN), target="cuda -arch=sm_90a")
    asked = []

    def launched(gpu, ready, given, wanted, told):
        (rows,) = told.values()
        asked.append([gpu.zeroed(100 * rows, 0).address, gpu.allocate(8, 0).address])
        return []

    sets = device_save.size_sets(module.program, {"n": [1, 7]})
    tables = device_save.tables_of(module.program, module.codes, launched, sets, {})
    (first, arena), (second, other) = asked[2:]  # those before only tell how much
    assert first < second < arena == other
    assert arena - second >= 700
    assert tables.arena_bytes >= 256 + 768 + 256


def test_places_tell_what_they_are():
    for kind in (device_save.ARENA, device_save.WEIGHT):
        found = device_save.argument_of(kind << device_save.KIND_SHIFT | 4096)
        assert (found.kind, found.value) == (kind, 4096)
    found = device_save.argument_of(device_save._numbered(device_save.OUTPUT, 3, 8).address + 16)
    assert (found.kind, found.which, found.value) == (device_save.OUTPUT, 3, 16)


def test_a_saved_model_has_no_compiler_in_it(saved):
    code = (
        "import sys; from tilewright.runtime import load; "
        f"load({str(saved)!r}); assert 'llvmlite' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_launches_wait_for_those_they_share_memory_with():
    read, write = (lambda a, b: Span(a, b, False)), (lambda a, b: Span(a, b, True))
    used = [
        [read(0, 8), write(100, 108)],
        [read(0, 8), write(200, 208)],  # side by side with the first
        [read(100, 108), read(200, 208), write(300, 308)],
        [read(300, 308), write(100, 104)],  # over what the third has read
        [write(500, 508)],
    ]
    assert waits_of(used) == [[], [], [0, 1], [2], []]


def test_launches_with_most_work_behind_them_come_first():
    # 0 feeds a small one (1) and a chain of large ones (2, 3); 4 waits for nobody.
    order, waits = by_urgency([1, 1, 10, 10, 2], [[], [0], [0], [2], []])
    assert order == [0, 2, 3, 4, 1]
    assert waits == [[], [0], [1], [], [0]]
    same = by_urgency([1, 1, 1], [[], [], [0, 1]])
    assert same == ([0, 1, 2], [[], [], [0, 1]])


def test_windows_of_images_are_described_to_the_driver(driver, program, tmp_path):
    b = graph.Builder()
    x = b.param("x", TensorType(F32, (const(1), const(64), const(6), const(6))))
    w = b.constant(np.random.default_rng(0).standard_normal((64, 64, 3, 3)).astype(np.float32))
    window = {"strides": (2, 2), "pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": 1}
    module = b.module(b.add("conv", x, w, **window))
    made = tw.compile(module, target="cuda -arch=sm_90a", precision="f16", cache=False)
    saved = made.save(tmp_path / "net.so")
    np.ones((1, 64, 6, 6), np.float32).tofile(tmp_path / "x.bin")
    log = tmp_path / "log.txt"
    files = [str(tmp_path / "x.bin"), "1,64,6,6", str(tmp_path / "y.bin"), "1,64,3,3"]
    found = {"FAKE_CUDA_LOG": str(log), "TILEWRIGHT_CUDA_DRIVER": str(driver)}
    done = subprocess.run(
        [str(program), str(saved), "net", *files, "1"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | found,
    )
    assert done.returncode == 0, done.stderr
    # f16, four axes, swizzled by 128 bytes; of the padded image, windows begin at 0, and the last
    # ones 3 before its last pixel.
    assert re.search(r"^windows 6 4 3 1, from 0 0 to -3 -3, \d+ of 64$", log.read_text(), re.M)
    # Its weights, whose rows are in groups: five axes.
    assert re.search(r"^map 6 5 3 1$", log.read_text(), re.M)


STATEFUL = """
module stage imported states (f32[4](1.0, 2.0, 3.0, 4.0), f32[4](5.0, 6.0, 7.0, 8.0)) {
  graph @main(%x: f32[4], %a: f32[4], %b: f32[4]) { return %a, %b, %x }
}
"""
REMEMBERED = """
import numpy as np, tilewright as tw
net = tw.load({path!r})
given = [np.full(4, n, np.float32) for n in (10, 20, 30)]
seen = [np.asarray(net(x)[0])[0] for x in given]
assert seen == [1, 5, 10], seen
assert [state[0] for state in net.states.values()] == [20, 30]
other = net.fork()
net.reset()
assert np.asarray(net(given[0])[0]).tolist() == [1, 2, 3, 4]
later = tw.load(other.save({later!r}, states="current"))
assert np.asarray(other(given[0])[0])[0] == 20
assert np.asarray(later(given[0])[0])[0] == 20
"""


def test_a_saved_model_with_states_begins_as_it_did(driver, tmp_path):
    """Without the bindings of the driver the states are the host's, and copied back."""
    saved = tw.compile(graph.parse(STATEFUL), target="cuda").save(tmp_path / "net.so")
    log = tmp_path / "log.txt"
    environment = {"FAKE_CUDA_LOG": str(log), "TILEWRIGHT_CUDA_DRIVER": str(driver)}
    script = REMEMBERED.format(path=str(saved), later=str(tmp_path / "later.so"))
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True, text=True, check=False, env=os.environ | environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = log.read_text().splitlines()
    assert told.count("out 16 1") == 6 * 3  # the result and both states
    text = (tmp_path / "net.h").read_text()
    assert "a: f32[4] (state: read, then changed)" in text
    assert "extern const void *const net_constants[];" in text


def test_an_object_has_what_its_header_declares(tmp_path):
    if shutil.which("nm") is None:
        pytest.skip("nm is not installed")
    saved = tw.compile(graph.parse(STATEFUL), target="cuda").save(tmp_path / "net.o")
    listed = subprocess.run(["nm", "-g", "--defined-only", str(saved)], capture_output=True,
                            text=True, check=True).stdout.split()  # fmt: skip
    assert {"net", "net_on_stream", "net_constants"} <= set(listed)
