"""Designs of the accelerator: area, limits, the front."""

import numpy as np
import pytest

from tilewright.accel.area import estimate, fit_luts
from tilewright.accel.build.random_layers import random_layers
from tilewright.accel.explore import (
    Design,
    Limits,
    candidates,
    confirm,
    evaluate,
    explore,
    front,
    plot,
    table,
)
from tilewright.base.geometry import Geometry
from tilewright.base.target import Target
from tilewright.driver.accelerate import layers_of
from tilewright.graph.parser import parse as parse_module

# What `tilewright accel report` says of these.
COUNTED = {
    Geometry(): (192, 126),
    Geometry(1, 4, 4, 2048, 4096, 4096, 2048): (24, 5),
    Geometry(1, 4, 4, 1024, 2048, 4096, 2048): (24, 5),
}


@pytest.mark.parametrize("geometry", COUNTED, ids=lambda g: g.options)
def test_multipliers_and_memories_are_those_that_yosys_counts(geometry):
    found = estimate(geometry)
    assert (found["DSP48"], found["RAMB36"]) == COUNTED[geometry]


def test_look_up_tables_are_fitted_to_what_was_counted():
    shapes = [(4, 4), (4, 8), (8, 8), (8, 16), (16, 16), (4, 16), (16, 4)]
    designs = [
        Geometry(1, n, m, acc_bytes=acc, bus_bits=64 << at % 2, taps=1 + 3 * (at % 3 == 0))
        for acc in (1 << 12, 1 << 14, 1 << 17)
        for at, (n, m) in enumerate(shapes)
    ]
    counted = [1000 + 500 * g.block_out + 10 * g.macs_per_cycle for g in designs]  # fmt: skip
    found = fit_luts(designs, counted)
    assert found[:3] == pytest.approx([1000, 500, 10], rel=1e-3)


def test_candidates_fit_the_chip():
    limits = Limits(dsp=60, bram=80)
    found = candidates(limits)
    assert found
    assert all(limits.admit(estimate(one)) for one in found)
    assert not candidates(Limits(dsp=1))


def design(cycles, dsp, bram):
    area = {"DSP48": dsp, "RAMB36": bram, "LUT": 1}
    return Design(Geometry(), area, {"net": float(cycles)})


def test_the_front_holds_what_no_other_beats():
    found = [design(10, 50, 50), design(10, 60, 50), design(20, 40, 60), design(30, 50, 40)]
    found += [design(40, 45, 61)]
    assert front(found) == [found[0], found[2], found[3]]
    assert "net, Mcycles" in table(front(found))
    drawn = plot(found)
    assert drawn.count("<circle") == 5
    assert drawn.count("#c33") == 4  # three dots and their line


def test_no_design_is_drawn_as_axes_alone():
    assert "<circle" not in plot([])


def test_layers_that_are_refused_are_left_out_of_the_search():
    attributes = "{a = 3, b = 4, bias = 0, multiplier = 1073741824, shift = 33}"
    text = "graph @main(%x: i8[b, 16, 4, 4], %z: i8[b, 16, 4, 4], %v: i8[b, n, 4, 4]) { "
    text += f"%y = quantized_add(%x, %z) {attributes} "
    text += f"%w = quantized_add(%v, %v) {attributes} return %y, %w }}"
    graph, constants = layers_of(parse_module(text), Target.parse("vta-sim"))
    assert [node.output.name for node in graph.nodes] == ["y"]
    assert len(list(explore({"sum": (graph, constants)}, Limits(dsp=220, bram=140), 1))) == 1


def test_designs_are_searched_and_confirmed_by_the_cycle_model():
    layers = random_layers(0)
    models = {"net": (layers.graph, layers.constants)}
    found = list(explore(models, Limits(dsp=220, bram=140), 4))
    assert found[0].geometry == Geometry()
    assert len(found) == 4
    sure = confirm(models, found[0])
    assert sure.is_confirmed
    assert 0.3 < sure.mean / found[0].mean < 3
    assert np.isfinite(sure.mean)


def test_a_design_without_room_for_a_layer_is_left_out():
    layers = random_layers(2)
    tiny, large = Geometry(1, 4, 4, 64, 256, 256, 128), Geometry(1, 4, 4)
    found = evaluate({"net": (layers.graph, layers.constants)}, [tiny, large])
    assert [one.geometry for one in found] == [large]
