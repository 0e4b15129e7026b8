"""Loads of tile registers come right before their first use, and pass nothing but products."""

import pytest

from tilewright import graph, tensor
from tilewright.codegen.tile_loads import load_late
from tilewright.lower.graph import lower_graph
from tilewright.rules import schedule
from tilewright.sym import simplify
from tilewright.tensor.ir import Address, Alloc, Call, Eval
from tilewright.tensor.passes import lower
from tilewright.tensor.visit import walk

LOADS = {
    "a0": "tileloadd64:bool(address(%a[0]), address(%A[0]), 64)",
    "a1": "tileloadd64:bool(address(%a[512]), address(%A[512]), 64)",
    "b0": "tileloadd64:bool(address(%b[0]), address(%B[0]), 64)",
    "b1": "tileloadd64:bool(address(%b[512]), address(%B[512]), 64)",
}
PRODUCTS = {
    f"c{i}{j}": f"tdpbf16ps:bool(address(%c[{256 * (2 * i + j)}]), "
    f"address(%a[{512 * i}]), address(%b[{512 * j}]))"
    for i in range(2)
    for j in range(2)
}
INSTRUCTIONS = {
    **LOADS,
    **PRODUCTS,
    "zero": "tilezero:bool(address(%c[0]))",
    "next": "tileloadd64:bool(address(%a[0]), address(%A[1024]), 64)",
    "store": "tilestored64:bool(address(%c[0]), address(%C[0]), 64)",
}


def moved(names, instructions=INSTRUCTIONS):
    """The new order of instructions in a loop."""
    body = "\n".join(f"eval llvm.x86.{instructions[name]}" for name in names.split())
    fn = tensor.parse(
        f"""
        func @f(%A: bf16[4096], %B: bf16[4096], %C: f32[4096]) stage flat {{
          alloc %c: f32[1024] in amx.tile
          for %k in 0..4 {{
            alloc %a: bf16[1024] in amx.tile
            alloc %b: bf16[1024] in amx.tile
            {body}
          }}
        }}
        """
    )
    known = {f"llvm.x86.{text}": name for name, text in instructions.items()}
    found = [stmt for stmt in walk(load_late(fn.body)) if isinstance(stmt, Eval)]
    return " ".join(known[str(stmt.value)] for stmt in found)


def test_loads_wait_for_the_product_that_uses_them():
    assert moved("a0 a1 b0 b1 c00 c01 c10 c11") == "a0 b0 c00 b1 c01 a1 c10 c11"


def test_a_tile_is_loaded_again_after_its_last_use():
    assert moved("a0 b0 c00 next b0 c00 a0 b0 c00") == "a0 b0 c00 next c00 a0 c00"


def test_what_a_tile_holds_is_not_loaded_again():
    assert moved("a0 b0 b1 c00 c01 a0 a1 b1 c11") == "a0 b0 c00 b1 c01 a1 c11"


def test_a_tile_is_loaded_again_after_memory_was_written():
    assert moved("a0 b0 c00 store a0 b0 c00") == "a0 b0 c00 store a0 b0 c00"


def test_steps_side_by_side_share_their_tiles():
    step = """
        alloc %a{0}: bf16[512] in amx.tile
        eval llvm.x86.tileloadd64:bool(address(%a{0}[0]), address(%A[0]), 64)
        alloc %b{0}: bf16[512] in amx.tile
        eval llvm.x86.tileloadd64:bool(address(%b{0}[0]), address(%B[{1}]), 64)
        eval llvm.x86.tdpbf16ps:bool(address(%c[0]), address(%a{0}[0]), address(%b{0}[0]))
    """
    fn = tensor.parse(
        f"""
        func @f(%A: bf16[4096], %B: bf16[4096]) stage flat {{
          alloc %c: f32[256] in amx.tile
          {{ {step.format(0, 0)} }}
          {{ {step.format(1, 512)} }}
          {{ {step.format(2, 0)} }}
        }}
        """
    )
    body = load_late(fn.body)
    assert sum("tileload" in str(stmt.value) for stmt in walk(body) if isinstance(stmt, Eval)) == 4
    assert sum(isinstance(stmt, Alloc) for stmt in walk(body)) == 3


def test_loads_pass_products_alone():
    assert moved("a0 a1 b0 zero c00 store c10") == "zero a0 b0 c00 a1 store c10"


def test_tiles_are_known_by_their_place_however_it_is_written():
    written = INSTRUCTIONS | {"a1": LOADS["a1"].replace("%a[512]", "%a[256 + 256]")}
    assert moved("b0 a1 b1 c10", written) == "b0 a1 c10 b1"


def test_a_load_that_nothing_uses_stays():
    assert moved("a0 b0 b1 c00") == "a0 b0 c00 b1"


KERNELS = {
    "pieces": "graph @main(%x: bf16[64, 3, 96], %w: bf16[3, 96, 64]) {"
    "%y = matmul_pieces(%x, %w) return %y }",
    "gemm": "graph @main(%x: bf16[64, 96], %w: bf16[96, 64]) {"
    "%y = matmul(%x, %w) {to = dtype f32} %z = tanh(%y) return %z }",
    "conv": "graph @main(%x: bf16[1, 28, 28, 64], %w: bf16[64, 64, 3, 3]) {"
    "%y = conv(%x, %w) {strides = (1, 1), pads = (1, 1, 1, 1), dilations = (1, 1), "
    'layout = "channels_last", to = dtype f32} return %y }',
    "attention": "graph @main(%q: bf16[1, 2, 64, 64], %k: bf16[1, 2, 64, 64], "
    "%v: bf16[1, 2, 64, 64]) {"
    "%y = attention(%q, %k, %v) {round_weights = true, to = dtype f32} return %y }",
}


def products(body):
    """What every product multiplies: the loads that its tiles hold, in order; loops run once."""
    held, found = {}, []
    for stmt in walk(body):
        if not isinstance(stmt, Eval) or not isinstance(stmt.value, Call):
            continue
        op, tiles = stmt.value.op, [at for at in stmt.value.args if isinstance(at, Address)]
        places = [(at.buffer, tuple(map(simplify, at.index))) for at in tiles]
        if op.startswith("llvm.x86.tileload"):
            held[places[0]] = str(stmt.value.args[1:])
        elif op.startswith("llvm.x86.tdp"):
            found.append([held[place] for place in places[1:]])
    return found


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_product_of_a_kernel_multiplies_what_it_did(kernel):
    fn = lower_graph(graph.parse(KERNELS[kernel]).main, kernel)
    target = "x86_64-linux-gnu -mcpu=emeraldrapids"
    body = lower(schedule(fn, target, constants=["w"]).schedule.function).body
    before = products(body)
    assert before
    assert products(load_late(body)) == before
