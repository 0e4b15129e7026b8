"""Reports: what is collected of a model, and the page made of it."""

import json
import re

import numpy as np
import pytest
from typer.testing import CliRunner

import tilewright as tw
from tilewright import graph, te
from tilewright.cli import app
from tilewright.cli.common import random_inputs
from tilewright.report import collect, write_page
from tilewright.report.charts import curves
from tilewright.report.collect import Box, Report
from tilewright.report.layout import HEIGHT, WIDTH, layered
from tilewright.report.page import page
from tilewright.report.trace import trace_of
from tilewright.runtime.profiler import Event, Record

NET = """
graph @main(%x: f32[n, 16], %w: f32[16, 32]) {
  %a = matmul(%x, %w)
  %b = relu(%a)
  %c = softmax(%b) {axes = (1,)}
  %d = add(%c, %b)
  return %d
}
"""
LOOP = """
graph @main(%x: f32[4], %count: i64[]) {
  %y = loop(%count, none, %x) {carried = 1} do {
    graph(%i: i64[], %go: bool[], %v: f32[4]) {
      %w = exp(%v)
      return %go, %w
    }
  }
  return %y
}
"""


def inputs(module):
    return random_inputs(module.inputs, {"n": 8})


@pytest.fixture(scope="module")
def told():
    return collect(graph.parse(NET), inputs, name="net", threads=1)


def test_boxes_are_inputs_kernels_and_outputs(told):
    kinds = [box.kind for box in told.boxes]
    assert kinds.count("input") == 2
    assert kinds.count("output") == 1
    assert kinds.count("kernel") >= 1
    assert all(box.nanoseconds > 0 for box in told.boxes if box.kind == "kernel")
    assert all(a < b for a, b, _ in told.edges)


def test_every_kernel_has_all_its_stages(told):
    kernels = {name for box in told.boxes for name in box.kernels}
    assert kernels == told.stages.keys()
    for stages in told.stages.values():
        assert {"graph", "loops", "scheduled", "lowered", "llvm", "assembly"} == stages.texts.keys()
        assert "define" in stages.texts["llvm"]
        assert any(decision["rule"] for decision in stages.decisions)


def test_passes_say_what_changed(told):
    fuse = next(step for step in told.passes if step.name == "fuse")
    assert fuse.changed
    assert fuse.more["fused"] >= 1
    assert len(told.compile_s) == 3


def test_the_arena_is_told_for_the_sizes_at_hand(told):
    assert told.arena_bytes >= max((slot.size_bytes for slot in told.slots), default=0)


def test_the_page_is_one_file_that_asks_for_nothing(told, tmp_path):
    text = write_page(told, tmp_path / "r.html").read_text()
    assert not re.search(r"<!--[A-Z_]+-->", text)
    links = set(re.findall(r'(?:src|href)="([^"]*)"', text))
    assert all(link.startswith(("#", "data:")) for link in links)
    assert "@import" not in text
    assert "url(http" not in text
    assert "fetch(" not in text


def test_two_models_stand_side_by_side(told):
    other = collect(graph.parse(NET), inputs, name="other", threads=1, without=("fuse",))
    text = page(told, other)
    assert 'id="against"' in text
    assert "other" in text
    assert 'id="against"' not in page(told)


def made_up(name, *boxes, **asked):
    """A report of kernels: what each computes of the model, and how long it takes."""
    shown = [Box(label, "kernel", (), nodes, (), (), ns, 1, 1) for label, nodes, ns in boxes]
    known = {"model": name, "processor": "made up", "threads": "1", **asked}
    return Report(known, (), (), (), (9e3,), tuple(shown), (), {}, peak_gflops=80, peak_gbytes=20)


def test_what_computes_the_same_nodes_is_compared():
    fused = made_up("m", ("conv relu", ("c1", "r1"), 3e3), ("add", ("a",), 1e3), without="nothing")
    plain = made_up(
        "m", ("conv", ("c1",), 4e3), ("relu", ("r1",), 2e3), ("add", ("a",), 2e3),
        ("copy", (), 5e2), without="fuse",
    )  # fmt: skip
    text = page(fused, plain)
    cells = re.findall(r"<td[^>]*>(.*?)</td>", text[text.index('id="against"') :])
    assert cells[:4] == ["conv relu", "3.0", "6.0", "2.00"]
    assert cells[4:8] == ["add", "1.0", "2.0", "2.00"]
    assert cells[8:12] == ["copy", "", "0.5", "only there"]
    assert "m (without nothing), µs" in text
    assert "m (without fuse), µs" in text


def test_control_flow_is_one_box():
    module = graph.parse(LOOP)
    given = [np.zeros(4, np.float32), np.array(3)]
    told = collect(module, lambda _: given, threads=1)
    control = [box for box in told.boxes if box.kind == "control"]
    assert [box.label for box in control] == ["loop"]
    assert control[0].kernels


def test_what_the_interpreter_runs_is_marked():
    module = graph.parse(
        "graph @main(%x: f32[4], %s: str[2]) "
        "{ %t = string_concat(%s, %s) %y = exp(%x) return %t, %y }"
    )
    given = [np.zeros(4, np.float32), np.array(["a", "b"], object)]
    told = collect(module, lambda _: given, threads=1)
    assert told.fallbacks == ("string_concat",)
    assert {"fallback", "kernel"} <= {box.kind for box in told.boxes}


def test_boxes_do_not_overlap():
    edges = [(at, at + 1) for at in range(40)] + [(at, at + 3) for at in range(0, 36, 2)]
    places = layered(41, edges).places
    for at, (x, y) in enumerate(places):
        for u, v in places[at + 1 :]:
            assert abs(x - u) >= WIDTH or abs(y - v) >= HEIGHT
    assert all(places[a][1] < places[b][1] for a, b in edges)


def test_the_command_writes_a_page(tmp_path):
    source = tmp_path / "net.tw"
    source.write_text(NET)
    out = tmp_path / "net.html"
    done = CliRunner().invoke(app, ["report", str(source), "-o", str(out), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["bytes"] == out.stat().st_size < 5e6


def test_a_trace_has_passes_and_kernels():
    module = tw.compile(graph.parse(NET))
    record = module.profile(*inputs(module))
    events = trace_of(record, module.timings)["traceEvents"]
    names = {event["name"] for event in events}
    assert {"fuse", "import", "code"} <= names
    kernels = [event for event in events if event["pid"] == 2 and event["ph"] == "X"]
    assert len(kernels) == len(record.events) + len(record.shares)
    assert min(event["ts"] for event in kernels) == 0


def test_a_trace_has_the_threads_that_took_part():
    kernel = Event("matmul", 100, 900, 10, 20, thread=0)
    shares = (Event("matmul", 150, 800, 0, 0, thread=3), Event("matmul", 160, 700, 0, 0, thread=2))
    events = trace_of(Record((kernel,), shares), {})["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names == {0: "caller 0", 1: "worker 0", 2: "worker 1"}
    ran = [(e["name"], e["tid"], e["ts"]) for e in events if e["ph"] == "X"]
    assert ran == [("matmul", 0, 0.0), ("matmul", 2, 0.05), ("matmul", 1, 0.06)]


def test_notebooks_show_programs_and_tables():
    n = te.var("n")
    x = te.placeholder((n,), name="x")
    fn = te.function([n, x, te.compute((n,), lambda i: x[i] * 2.0, name="y")], name="f")
    sch = tw.Schedule(fn)
    module = tw.compile(graph.parse(NET))
    record = module.profile(*inputs(module))
    assert "for %i in 0..n" in fn._repr_html_()
    assert "trace" in sch._repr_html_()
    assert "<td>x</td>" in module._repr_html_()
    assert "GFLOP/s" in record._repr_html_()
    assert "softmax" in graph.parse(NET)._repr_html_()


def test_no_curve_is_drawn_of_a_search_that_had_no_time():
    assert curves({"model": (), "random": ()}) == ""
    assert "<svg" in curves({"model": ((1.0, 1.2),), "random": ()})
