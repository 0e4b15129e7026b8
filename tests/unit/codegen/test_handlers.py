"""Tables of handlers: how calls and allocations find what writes them."""

import ast
from pathlib import Path

import pytest

from tilewright.base.errors import Unsupported
from tilewright.base.target import Target
from tilewright.codegen import amx, emitter, hardware, llvm, nvptx
from tilewright.codegen.build import build
from tilewright.codegen.builder import Value
from tilewright.codegen.handlers import Handlers
from tilewright.codegen.targets import CPU, X86, handlers_of
from tilewright.tensor import parse


def named(name):
    def handler(e, node, is_statement):
        return Value("void", name)

    return handler


def test_a_call_is_found_by_its_name_or_the_longest_prefix():
    table = {name: named(name) for name in ("a.", "a.b.", "a.b.c", "lane", "a.b.d.e")}
    handlers = Handlers(table)
    for op, found in {
        "a.b.c": "a.b.c",
        "a.b.cc": "a.b.",
        "a.b.c.d": "a.b.",
        "a.x": "a.",
        "a.": "a.",
        "lane": "lane",
    }.items():
        assert handlers.try_call(op) is table[found], op
    for op in ("a", "b.c", "lanes", "lane.x", "exp", "ab."):
        assert handlers.try_call(op) is None, op


def test_processors_have_tables_of_their_own():
    x86 = llvm.machine_of(Target.parse("x86_64-linux-gnu -mcpu=sapphirerapids"))
    arm = llvm.machine_of(Target.parse("aarch64-linux-gnu"))
    assert handlers_of(x86) is X86
    assert handlers_of(arm) is CPU
    assert X86.try_call("llvm.x86.tilezero") is amx.instruction
    assert CPU.try_call("llvm.x86.tilezero") is hardware.llvm_intrinsic
    assert nvptx.HANDLERS.try_call("wgmma.dot") is not None
    assert X86.try_call("wgmma.dot") is None


def test_a_memory_that_a_processor_does_not_have_is_refused():
    fn = parse(
        """
        func @f(%x: f32[4]) stage flat {
          alloc %t: f32[256] in amx.tile
          eval llvm.x86.tilezero:bool(address(%t[0]))
          %x[0] = 1.0
        }
        """
    )
    with pytest.raises(Unsupported, match=r"amx\.tile, which aarch64") as caught:
        build(fn, "aarch64-linux-gnu")
    assert caught.value.code == "TW3043"


def test_the_core_names_no_instruction_of_a_processor():
    tree = ast.parse(Path(emitter.__file__).read_text())
    texts = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    for word in ("x86", "nvvm", "aarch64", "wgmma", "amx"):
        assert not [text for text in texts if word in text], word
