"""Whole small models of each kind: native code against the interpreter.

Each is compiled with its sizes open, run at several of them on one thread and on two, and once more
with its sizes known. Runs with the same inputs and threads give the same bits.
"""

import shutil
import subprocess
import threading

import numpy as np
import pytest
from fallbacks import fallen_kernels
from onnx import numpy_helper, parser

import tilewright as tw
from tilewright.base.target import Target
from tilewright.driver.compare import difference, is_close
from tilewright.frontends.onnx import import_model
from tilewright.graph.interp import interpret

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'


def weights(**shapes):
    """Random weights by name."""
    random = np.random.default_rng(7)
    return {
        name: (random.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)
        for name, shape in shapes.items()
    }


class Case:
    """A model as text with the size `n`, its weights, and what makes its inputs."""

    def __init__(self, name, text, arrays=None, inputs=None, sizes=(1, 3)):
        self.name, self.text, self.arrays = name, HEAD + text, arrays or {}
        self.inputs, self.sizes = inputs, sizes

    def model(self, size=None):
        text = self.text if size is None else self.text.replace("[n", f"[{size}")
        made = parser.parse_model(text)
        made.graph.initializer.extend(
            numpy_helper.from_array(array, name) for name, array in self.arrays.items()
        )
        return made

    def feed(self, size):
        return self.inputs(np.random.default_rng(size), size)


def normal(*shape):
    return lambda random, n: [random.standard_normal((n, *shape)).astype(np.float32)]


CONVOLUTIONS = Case(
    "convolutions",
    """g (float[n, 3, 12, 12] x) => (float[n, 5] y) {
      a = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, w1, b1)
      c = Relu (a)
      d = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (c)
      e = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], group = 8> (d, w2)
      f = Conv <kernel_shape = [1, 1]> (e, w3)
      h = Add (f, d)
      i = GlobalAveragePool (h)
      j = Flatten (i)
      y = Gemm <transB = 1> (j, w4, b4)
    }""",
    weights(w1=(8, 3, 3, 3), b1=(8,), w2=(8, 1, 3, 3), w3=(8, 8, 1, 1), w4=(5, 8), b4=(5,)),
    normal(3, 12, 12),
)
TRANSPOSED = Case(
    "transposed convolution",
    """g (float[n, 6, 5, 5] x) => (float[n, 3, 10, 10] y) {
      a = ConvTranspose <kernel_shape = [4, 4], strides = [2, 2], pads = [1, 1, 1, 1]> (x, w)
      y = Tanh (a)
    }""",
    weights(w=(6, 3, 4, 4)),
    normal(6, 5, 5),
)
PERCEPTRON = Case(
    "perceptron",
    """g (float[n, 20] x) => (float[n, 10] y) {
      a = Gemm (x, w1, b1)
      b = Sigmoid (a)
      c = MatMul (b, w2)
      y = Softmax <axis = -1> (c)
    }""",
    weights(w1=(20, 33), b1=(33,), w2=(33, 10)),
    normal(20),
)
ATTENTION = Case(
    "attention",
    """g (int64[n, 6] tokens) => (float[n, 6, 16] y) {
      e = Gather (table, tokens)
      q = MatMul (e, wq)
      k = MatMul (e, wk)
      v = MatMul (e, wv)
      t = Transpose <perm = [0, 2, 1]> (k)
      s = MatMul (q, t)
      p = Softmax <axis = -1> (s)
      a = MatMul (p, v)
      r = Add (a, e)
      y = LayerNormalization <axis = -1> (r, g1, b1)
    }""",
    weights(table=(50, 16), wq=(16, 16), wk=(16, 16), wv=(16, 16), g1=(16,), b1=(16,)),
    lambda random, n: [random.integers(0, 50, (n, 6))],
)
RECURRENT = Case(
    "recurrent",
    """g (float[n, 2, 5] x) => (float[n, 1, 2, 4] y, float[1, 2, 4] h) {
      y, h, c = LSTM <hidden_size = 4> (x, w, r, b)
    }""",
    weights(w=(1, 16, 5), r=(1, 16, 4), b=(1, 32)),
    normal(2, 5),
)
MOVEMENT = Case(
    "movement",
    """g (float[n, 4, 6] x) => (float[n, 24] y, float[n, 4, 3] z, int64[n, 4, 2] i) {
      a, b = Split <axis = 2> (x, halves)
      c = Concat <axis = 2> (b, a)
      d = Transpose <perm = [0, 2, 1]> (c)
      y = Reshape (d, shape)
      z = Where (mask, a, b)
      v, i = TopK <axis = 2> (x, two)
    }""",
    {
        "halves": np.array([3, 3]),
        "shape": np.array([-1, 24]),
        "mask": np.array([[True, False, True]]),
        "two": np.array([2]),
    },
    normal(4, 6),
)
CONTROL = Case(
    "control flow",
    """g (float[n, 4] x) => (float[n, 4] y, float[n, 4] z) {
      sum = ReduceSum <keepdims = 0> (x)
      up = Greater (sum, zero)
      z = If (up) <
        then_branch = t () => (float[n, 4] zt) { zt = Exp (x) },
        else_branch = f () => (float[n, 4] zf) { zf = Neg (x) }
      >
      y = Loop (three, true, x) <
        body = b (int64 i, bool c, float[n, 4] s) => (bool d, float[n, 4] u) {
          d = Identity (c)
          u = Add (s, z)
        }
      >
    }""",
    {"zero": np.float32(0), "three": np.array(3), "true": np.array(True)},
    normal(4),
)
COUNTED = Case(
    "sizes that the data tells",
    """g (float[n, 4] x) => (int64[2, k] where, float[k] values) {
      m = Greater (x, zero)
      where = NonZero (m)
      t = Transpose (where)
      values = GatherND (x, t)
    }""",
    {"zero": np.float32(0)},
    normal(4),
)
QUANTIZED = Case(
    "quantized",
    """g (float[n, 12] x) => (float[n, 7] y) {
      q = QuantizeLinear (x, s, zp)
      d = DequantizeLinear (q, s, zp)
      wd = DequantizeLinear (w, ws, wz)
      a = MatMul (d, wd)
      r = QuantizeLinear (a, s, zp)
      y = DequantizeLinear (r, s, zp)
    }""",
    {
        "s": np.float32(0.05),
        "zp": np.uint8(128),
        "w": np.random.default_rng(3).integers(-127, 127, (12, 7)).astype(np.int8),
        "ws": np.float32(0.01),
        "wz": np.int8(0),
    },
    normal(12),
)
NORMS = Case(
    "norms and reductions",
    """g (float[n, 6, 8] x) => (float[n, 6, 8] y, float[n, 6] m, int64[n, 6] best) {
      a = InstanceNormalization (x, s, b)
      c = ReduceL2 <axes = [2], keepdims = 1> (a)
      d = Div (a, c)
      y = Erf (d)
      m = ReduceMax <axes = [2], keepdims = 0> (x)
      best = ArgMax <axis = 2, keepdims = 0> (x)
    }""",
    weights(s=(6,), b=(6,)),
    normal(6, 8),
)
CASES = [
    CONVOLUTIONS, TRANSPOSED, PERCEPTRON, ATTENTION, RECURRENT, MOVEMENT, CONTROL, COUNTED,
    QUANTIZED, NORMS,
]  # fmt: skip


def check(got, want):
    for a, b in zip(got, want, strict=True):
        assert is_close(np.asarray(a), b), difference(np.asarray(a), b)


def same_bits(first, second):
    return all(
        np.asarray(a).tobytes() == np.asarray(b).tobytes()
        for a, b in zip(first, second, strict=True)
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_model_with_open_sizes(case):
    model = case.model()
    module = tw.compile(model)
    assert module.fallbacks == ()
    graph = import_model(model)
    for size in case.sizes:
        inputs = case.feed(size)
        want = interpret(graph, *inputs)
        for threads in (1, 2):
            got = module(*inputs, threads=threads)
            check(got, want)
            assert same_bits(got, module(*inputs, threads=threads))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_model_with_known_sizes(case):
    size = case.sizes[-1]
    model = case.model(size)
    inputs = case.feed(size)
    check(tw.compile(model, threads=1)(*inputs), interpret(import_model(model), *inputs))


@pytest.mark.parametrize("case", [CONVOLUTIONS, ATTENTION], ids=lambda case: case.name)
def test_optimizations_off_change_nothing(case):
    from tilewright.driver.pipelines import PIPELINES

    known = {step.__name__ for step in PIPELINES["cpu", "f32"]}
    model, inputs = case.model(), case.feed(2)
    off = tuple(sorted(known & {"fuse", "fold_constants", "recognize_attention", "assign_layout"}))
    check(tw.compile(model, without=off)(*inputs), interpret(import_model(model), *inputs))


# --------------------------------------------------------------------------- many calls


def test_eight_threads_call_one_module():
    module = tw.compile(CONVOLUTIONS.model())
    feeds = [CONVOLUTIONS.feed(1 + at % 3) for at in range(8)]
    wants = [module(*feed) for feed in feeds]
    wrong = []

    def work(at):
        runs = [module(*feeds[at]) for _ in range(20)]
        wrong.extend(at for run in runs if not same_bits(run, wants[at]))

    _together(work, range(8))
    assert not wrong


def test_two_modules_run_at_once():
    cases = (PERCEPTRON, ATTENTION)
    modules = [tw.compile(case.model()) for case in cases]
    feeds = [case.feed(3) for case in cases]
    wants = [module(*feed) for module, feed in zip(modules, feeds, strict=True)]
    wrong = []

    def work(at):
        runs = [modules[at](*feeds[at]) for _ in range(50)]
        wrong.extend(at for run in runs if not same_bits(run, wants[at]))

    _together(work, (0, 1, 0, 1))
    assert not wrong


def _together(work, arguments):
    threads = [threading.Thread(target=work, args=(argument,)) for argument in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_the_arena_is_kept_between_calls():
    module = tw.compile(CONVOLUTIONS.model())
    assert module.arena_bytes == 0
    inputs = CONVOLUTIONS.feed(3)
    module(*inputs)
    kept = module.arena_bytes
    assert kept > 0
    for _ in range(5):
        module(*inputs)
    assert module.arena_bytes == kept


COUNT = """
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include "net.h"
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
static volatile long count;
void *malloc(size_t n) { count++; return __libc_malloc(n); }
void *calloc(size_t a, size_t b) { count++; return __libc_calloc(a, b); }
void *realloc(void *p, size_t n) { count++; return __libc_realloc(p, n); }
int posix_memalign(void **p, size_t a, size_t n) {
  count++;
  *p = __libc_memalign(a, n);
  return *p ? 0 : ENOMEM;
}
int main(void) {
  static float x[2 * 3 * 12 * 12], y[2 * 5];
  int64_t in[4] = {2, 3, 12, 12}, out[2] = {2, 5};
  DLTensor tx = {x, {1, 0}, 4, {2, 32, 1}, in, 0, 0};
  DLTensor ty = {y, {1, 0}, 2, {2, 32, 1}, out, 0, 0};
  const DLTensor *args[2] = {&tx, &ty};
  tw_set_threads(2);
  for (int i = 0; i < 50; ++i) if (net(args, 2)) return 1;
  long before = count;
  if (before == 0) return 2; /* the hooks work */
  for (int i = 0; i < 200; ++i) if (net(args, 2)) return 3;
  printf("%ld", count - before);
  return 0;
}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_a_warm_call_allocates_nothing(tmp_path):
    tw.compile(CONVOLUTIONS.model()).save(tmp_path / "net.so")
    (tmp_path / "main.c").write_text(COUNT)
    command = ["cc", "-O1", "main.c", "./net.so", "-o", "main"]
    subprocess.run(command, cwd=tmp_path, check=True)
    done = subprocess.run([tmp_path / "main"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "0")


@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_a_convolution_pads_an_open_size_to_what_its_stride_takes(precision):
    """The pads of the first layer are expressions of the size."""
    text = (
        "g (float[1, 3, n, 16] x) => (float[a, b, c, d] y) "
        '{ y = Conv <auto_pad = "SAME_UPPER", strides = [2, 2]> (x, w) }'
    )
    case = Case("same", text, weights(w=(16, 3, 3, 3)))
    model = tw.compile(case.model(), precision=precision)
    for height in (8, 9, 33):
        x = np.random.default_rng(height).standard_normal((1, 3, height, 16), dtype=np.float32)
        (want,) = interpret(import_model(case.model()), x)
        (got,) = model(x=x)
        np.testing.assert_allclose(got, want, atol=0.05 if precision == "bf16" else 1e-5)


@pytest.mark.parametrize("size", [None, 3], ids=["dynamic", "known"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.sampled
def test_every_kernel_has_a_rule_of_its_own(case, size):
    assert fallen_kernels(import_model(case.model(size)), Target.host())[0] == []
