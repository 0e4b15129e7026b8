"""Clusters without a GPU: sums that blocks share, tiles that they bring for each other."""

import re
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.base.errors import ExecutionError, Unsupported
from tilewright.rules import schedule
from tilewright.rules.rule import Choice
from tilewright.tensor import parse
from tilewright.tensor.passes import lower
from tilewright.tensor.roles import consumer_registers, producer_registers

sys.path.insert(0, str(Path(__file__).parent))
from host_gpu import assembled
from test_hopper import TARGET, TYPES, close, gemm, operands

ROWS = "groups=1 block_n=64 slots=2 span=1 split_k=1 boxes=1"
# Sizes, the first fields of a plan, blocks of a cluster, what they take parts of, the form.
FORMS = {
    "sums of two blocks": ((64, 128, 512), ROWS, 2, "k", {}),
    "sums of four, and edges": ((40, 136, 256), ROWS.replace("=64", "=128"), 4, "k", {}),
    "two warpgroups": ((128, 64, 256), ROWS.replace("groups=1", "groups=2"), 2, "k", {}),
    "an epilogue": ((40, 88, 128), ROWS, 2, "k", {"epilogue": True}),
    "results of f32": ((64, 64, 256), ROWS, 2, "k", {"rounded": False}),
    "few rows": ((5, 64, 256), ROWS, 2, "k", {}),
    "a batch": ((40, 72, 128), ROWS, 2, "k", {"batch": (2,), "along_n": True}),
    "boxes": ((64, 64, 512), ROWS.replace("boxes=1", "boxes=2"), 2, "k", {}),
    "tiles of B": ((128, 64, 320), ROWS.replace("span=1", "span=2"), 2, "m", {}),
    "tiles of B for four": ((256, 64, 128), ROWS.replace("span=1", "span=4"), 4, "m", {}),
    "tiles of B along n": ((128, 64, 256), ROWS.replace("span=1", "span=2"), 2, "m",
                           {"along_n": True}),
    "tiles of B that leave L2 first": ((128, 192, 128), ROWS.replace("span=1", "span=2"), 2, "m",
                                       {}),
    "tiles of A": ((64, 256, 192), ROWS, 4, "n", {}),
    "low tiles of A": ((10, 120, 328), ROWS, 2, "n", {}),
    "tiles of A at edges": ((100, 90, 136), ROWS, 2, "n", {"epilogue": True}),
}  # fmt: skip
FOUND = ("TW2427", "TW2428", "TW2429", "TW2430", "TW2494")


@cache
def scheduled(form):
    sizes, rows, blocks, along, more = FORMS[form]
    plan = f"{rows} cluster={blocks} along={along} resident=1 pingpong=0"
    plan += f" evict_first={int('leave L2 first' in form)}"
    made = schedule(gemm(*sizes, **more), TARGET, choices={"C": Choice("gemm_hopper", plan)})
    assert [each.rule for each in made.decisions] == ["gemm_hopper"]
    return made.schedule.function


@cache
def program(form):
    return str(lower(scheduled(form), "gpu"))


def given_of(form):
    sizes, _, _, _, more = FORMS[form]
    given, want = operands(*sizes, **{k: v for k, v in more.items() if k != "rounded"})
    dtype = TYPES["bf16"] if more.get("rounded", True) else np.float32
    return given, want, np.full(want.shape, np.nan).astype(dtype)


@pytest.mark.parametrize("form", FORMS)
def test_blocks_of_a_cluster_compute_the_product(form):
    given, want, out = given_of(form)
    tw.interpret(parse(program(form)), *given, out, seed=len(form))
    close(out, want, out.dtype)


# Before they are lowered, products are added up element by element: one form of each kind always.
ALWAYS = ("few rows", "tiles of B along n", "tiles of A at edges")


@pytest.mark.parametrize(
    "form",
    [pytest.param(each, marks=() if each in ALWAYS else pytest.mark.fuzz) for each in FORMS],
)
def test_schedules_for_clusters_compute_the_product(form):
    given, want, out = given_of(form)
    tw.interpret(scheduled(form), *given, out)
    close(out, want, out.dtype)


def without(pattern, which=0):
    """A fault: one of the lines that match is gone."""

    def fault(text):
        lines = list(re.finditer(rf"\n[^\n]*{pattern}[^\n]*", text))
        start, end = lines[which].span()
        return text[:start] + text[end:]

    return fault


def changed(pattern, to):
    return lambda text: re.sub(pattern, to, text, count=1)


def both(*faults):
    """Faults that only together are one: blocks of one tile end behind a barrier."""
    return lambda text: faults[1](faults[0](text))


def call(op, name):
    """What begins a call of an instruction on a barrier."""
    return rf"{op}:bool\(address\(%{name}\[[^]]*\]\)"


def wanted(name, count):
    """A barrier that waits for other arrivals."""
    return changed(rf"({call('init', name)}, \d, )\d+", rf"\g<1>{count}")


SUMS = {
    "they never meet": without(r"barrier\.cluster"),
    "no wait for parts": without(call(r"wait\.cluster", "kept")),
    "no arrival at parts": without(call(r"arrive\.cluster", "kept")),
    "no wait for readers": both(
        without(call(r"wait\.cluster", "read")), without(r"barrier\.cluster", -1)
    ),
    "no arrival of readers": without(call(r"arrive\.cluster", "read")),
    "parts of one block awaited": wanted("kept", 128),
    "readers of one block awaited": wanted("read", 128),
    "too many parts awaited": wanted("kept", 384),
    "the phase of parts": changed(rf"({call('wait.cluster', 'kept')}, )[^\n]*", r"\g<1>1)"),
    "kept for another block": changed(r"(cluster\.keep[^\n]*%C_rf\[)", r"\g<1>4096 - "),
    "parts not told": changed(rf"({call('arrive.cluster', 'kept')}, 2, )1", r"\g<1>0"),
    "seen by the block alone": changed(rf"wait.cluster({call('', 'kept')})", r"wait\1"),
    "too many blocks": changed(rf"({call('arrive.cluster', 'kept')}, )2", r"\g<1>4"),
}
SHARED = {
    "they do not meet first": without(r"barrier\.cluster", 0),
    "they do not meet at last": without(r"barrier\.cluster", -1),
    "no wait for the tile": without(call("wait", "full")),
    "no wait for the slot": without(call("wait", "empty")),
    "given back to one block": changed(rf"arrive.cluster({call('', 'empty')}), 2, 0", r"arrive\1"),
    "consumers of one block awaited": wanted("empty", 4),
    "bytes of a part": changed(rf"({call('expect', 'full')}, )16384", r"\g<1>12288"),
    "a part for itself": changed(r"tma\.multicast(:bool\([^\n]*), 2\)\n", r"tma.load\1)\n"),
    "the same part": changed(r"(tma\.multicast[^\n]*?%B_[^]]*?) \+ %\w+ \* 2048", r"\1"),
}
FAULTS = {
    **{name: ("sums of two blocks", plant) for name, plant in SUMS.items()},
    **{name: ("tiles of B", plant) for name, plant in SHARED.items()},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault):
    form, plant = FAULTS[fault]
    good = program(form)
    bad = plant(good)
    assert bad != good
    given, _, out = given_of(form)
    with pytest.raises(ExecutionError) as caught:
        tw.interpret(parse(bad), *given, out, seed=len(fault))
    assert caught.value.code in FOUND


def test_blocks_stay_for_the_tiles_of_a_cluster():
    tiles = "groups=2 block_n=256 slots=4 span=16 split_k=1 boxes=1"
    plan = f"{tiles} cluster=2 along=m resident=1 pingpong=0 evict_first=0"
    made = schedule(gemm(4096, 4096, 256), TARGET, choices={"C": Choice("gemm_hopper", plan)})
    (kernel,) = tw.build(made.schedule.function, TARGET).kernels
    assert [str(dim) for dim in kernel.grid] == ["66", "2", "1"]


def test_tiles_that_differ_are_not_multicast():
    text = program("tiles of B")
    assert re.search(r"tma\.multicast:bool\(address\(%B_", text)
    assert re.search(r"tma\.load:bool\(address\(%A_", text)
    function = str(scheduled("tiles of B")).replace("tma_load_bf16", "tma_multicast_bf16")
    with pytest.raises(Unsupported) as caught:
        lower(parse(function), "gpu")
    assert caught.value.code == "TW2295"


@pytest.mark.parametrize("form", ["few rows", "an epilogue", "tiles of B", "tiles of A"])
def test_code_of_clusters(form):
    run = tw.build(scheduled(form), TARGET)
    _, _, blocks, along, _ = FORMS[form]
    assert f".reqnctapercluster 1, {blocks}, 1" in run.ptx
    assert ("multicast::cluster" in run.ptx) == (along != "k")
    assert ("ld.shared::cluster" in run.ptx) == (along == "k")
    assert not re.search(r"^\s*call", run.ptx, re.MULTILINE)
    told = assembled(run.ptx)
    assert "0 bytes spill stores, 0 bytes spill loads" in told
    assert "C75" not in told  # its warnings of products


@pytest.mark.parametrize("resident", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 2])
def test_consumers_take_no_more_registers_than_their_block_has(groups, resident):
    started = 65536 // resident // (128 * (groups + 1)) // 8 * 8  # of each thread
    taken, given = consumer_registers(groups, resident), producer_registers(resident)
    assert groups * taken + given <= (groups + 1) * started
    assert taken % 8 == given % 8 == 0


def test_a_multiprocessor_has_room_for_a_block_of_the_next_kernel():
    plan = f"{ROWS} cluster=1 along=k resident=2 pingpong=0 evict_first=0"
    made = schedule(gemm(64, 64, 256), TARGET, choices={"C": Choice("gemm_hopper", plan)})
    run = tw.build(made.schedule.function, TARGET)
    assert ".minnctapersm 2" in run.ptx
    assert run.kernels[0].shared_bytes <= 113 << 10
    given, want = operands(64, 64, 256)
    out = np.zeros(want.shape, TYPES["bf16"])
    tw.interpret(lower(made.schedule.function, "gpu"), *given, out)
    close(out, want, out.dtype)
