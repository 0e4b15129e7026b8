"""Passes take time in proportion to the model: four times the layers, four times the calls."""

import cProfile
from collections import Counter
from collections.abc import Iterator

import pytest

from tilewright import graph
from tilewright.base.passes import PassContext, run_passes
from tilewright.base.target import Target
from tilewright.driver.pipelines import PIPELINES

LAYERS = 8
MOST = 5.5  # times the calls: rounding, and what is sorted
FEW = 5_000  # calls that are not worth comparing
QUADRATIC = {"assign_layout"}  # a minimum cut


def scan(count: int) -> Iterator[str]:
    """An unrolled recurrence, element by element."""
    yield f"graph @main(%a: f32[{count}, 8, 16], %b: f32[{count}, 8, 16], %h0: f32[8, 16]) {{"
    for at in range(count):
        for name in "ab":
            place = f"axes = (0,), ends = ({at + 1},), starts = ({at},)"
            yield f"%{name}{at} = slice(%{name}) {{{place}}}"
            yield f"%{name}r{at} = reshape(%{name}{at}) {{shape = (8, 16)}}"
        yield f"%m{at} = mul(%h{at}, %ar{at})"
        yield f"%h{at + 1} = add(%m{at}, %br{at})"
    yield f"return %h{count} }}"


def transformer(count: int) -> Iterator[str]:
    yield "graph @main(%x0: f32[1, 12, 32], %w: f32[32, 96], %o: f32[32, 32], %g: f32[32]) {"
    yield "%f = constant() {data = f32[](0.25)}"
    for at in range(count):
        yield f"%n{at} = layer_norm(%x{at}, %g, %g) {{axis = 2, epsilon = 1e-05}}"
        yield f"%p{at} = matmul(%n{at}, %w)"
        for part, name in enumerate("qkv"):
            place = f"axes = (2,), ends = ({32 * part + 32},), starts = ({32 * part},)"
            yield f"%{name}s{at} = slice(%p{at}) {{{place}}}"
            yield f"%{name}r{at} = reshape(%{name}s{at}) {{shape = (1, 12, 4, 8)}}"
            perm = "(0, 2, 3, 1)" if name == "k" else "(0, 2, 1, 3)"
            yield f"%{name}t{at} = transpose(%{name}r{at}) {{perm = {perm}}}"
        yield f"%s{at} = matmul(%qt{at}, %kt{at})"
        yield f"%m{at} = mul(%s{at}, %f)"
        yield f"%u{at} = softmax(%m{at}) {{axes = (3,)}}"
        yield f"%y{at} = matmul(%u{at}, %vt{at})"
        yield f"%z{at} = transpose(%y{at}) {{perm = (0, 2, 1, 3)}}"
        yield f"%r{at} = reshape(%z{at}) {{shape = (1, 12, 32)}}"
        yield f"%e{at} = matmul(%r{at}, %o)"
        yield f"%x{at + 1} = add(%x{at}, %e{at})"
    yield f"return %x{count} }}"


def branches(count: int) -> Iterator[str]:
    how = "dilations = (1, 1), groups = 1, pads = (0, 0, 0, 0), strides = (1, 1)"
    yield "graph @main(%x0: f32[1, 8, 9, 9], %w: f32[8, 8, 1, 1], %v: f32[8, 24, 1, 1]) {"
    for at in range(count):
        for name in "abc":
            yield f"%{name}{at} = conv(%x{at}, %w) {{{how}}}"
        yield f"%q{at} = concat(%a{at}, %b{at}, %c{at}) {{axis = 1}}"
        yield f"%r{at} = relu(%q{at})"
        yield f"%x{at + 1} = conv(%r{at}, %v) {{{how}}}"
    yield f"return %x{count} }}"


def calls(text: str, target: str, precision: str) -> Counter[str]:
    """Calls of functions by each pass."""
    module, found = graph.parse(text), Counter[str]()
    ctx = PassContext(target=Target.parse(target))
    for step in PIPELINES[ctx.target.kind, precision]:
        profile = cProfile.Profile()
        module = profile.runcall(run_passes, module, [step], ctx)
        profile.create_stats()
        found[step.__name__] += sum(one[1] for one in profile.stats.values())
    return found


@pytest.mark.parametrize("model", [scan, transformer, branches])
@pytest.mark.parametrize(
    ("target", "precision"), [("x86_64-linux-gnu", "f32"), ("cuda -arch=sm_90a", "f16")]
)
def test_passes_are_linear(model, target, precision):
    calls("\n".join(model(1)), target, precision)  # imports, and what is cached
    few, many = (calls("\n".join(model(n)), target, precision) for n in (LAYERS, 4 * LAYERS))
    slow = {
        name: (few[name], count)
        for name, count in many.items()
        if count > MOST * few[name] + FEW and name not in QUADRATIC
    }
    assert not slow
