"""The accelerator: share of peak of convolutions and GEMMs, by the cycle model.

    python bench/accel.py [--json FILE]

Geometry 1x16x16, buffers 32K/256K/128K/32K, a bus of 64 bits, 64 cycles of memory latency. Layers
are the 3x3 and 1x1 convolutions of ResNet-18, requantized, each as one verified stream; peak is one
GEMM step (256 multiply-accumulates) a cycle. `one slot` has no double buffering: what it lacks is
the latency that double buffering hides. Cycles do not depend on the machine that runs this; the
times of the simulators, on one core, do.
"""

from __future__ import annotations

import argparse
import time

import report

from tilewright.accel.build import Conv, build_conv, build_gemm
from tilewright.accel.compare import random_inputs
from tilewright.accel.cycle import Timing, cycles
from tilewright.accel.device import load, open_device, time_on
from tilewright.accel.isa import Stream
from tilewright.accel.verify import verify
from tilewright.base.geometry import Geometry

GEOMETRY = Geometry()
# name, how often ResNet-18 has it, sizes in blocks of 16 channels; rows, outputs and channels of a
# tile; least share of peak
LAYERS = (
    ("64-64 3x3 56", 4, Conv(4, 56, 56, 4), (4, 4, 1), 0.9),
    ("64-128 3x3 s2 56", 1, Conv(4, 56, 56, 8, stride=2), (2, 8, 1), 0.9),
    ("64-128 1x1 s2 56", 1, Conv(4, 56, 56, 8, (1, 1), 2, 0), (4, 8, 2), 0.6),
    ("128-128 3x3 28", 3, Conv(8, 28, 28, 8), (7, 4, 2), 0.9),
    ("128-256 3x3 s2 28", 1, Conv(8, 28, 28, 16, stride=2), (7, 8, 2), 0.9),
    ("128-256 1x1 s2 28", 1, Conv(8, 28, 28, 16, (1, 1), 2, 0), (7, 8, 2), 0.6),
    ("256-256 3x3 14", 3, Conv(16, 14, 14, 16), (14, 4, 2), 0.9),
    ("256-512 3x3 s2 14", 1, Conv(16, 14, 14, 32, stride=2), (7, 16, 2), 0.9),
    ("256-512 1x1 s2 14", 1, Conv(16, 14, 14, 32, (1, 1), 2, 0), (7, 16, 4), 0.6),
    ("512-512 3x3 7", 3, Conv(32, 7, 7, 32), (7, 8, 4), 0.9),
)
GEMM = (64, 32, 32)  # blocks of m, n, k
GEMM_TILE = (64, 8, 4)


def measure(options: argparse.Namespace) -> list[report.Figure]:
    figures = []
    verifying = functional = timing = with_memory = 0.0
    simulated = resnet = 0
    for name, count, conv, (rows, outputs, channels), least in LAYERS:
        streams = [build_conv(GEOMETRY, conv, rows, outputs, channels, slots) for slots in (1, 2)]
        begun = time.perf_counter()
        for stream in streams:
            verify(stream)
        verifying += time.perf_counter() - begun
        one, two = (time_on("timing", stream) for stream in streams)
        simulated += count * two.total
        functional += count * _seconds("functional", streams[1])
        with_memory += count * _seconds("cycle", streams[1])
        timing += count * _seconds("timing", streams[1])
        resnet += count * two.total
        figures += _compared(name, one, two, least)
    streams = [build_gemm(GEOMETRY, GEMM, GEMM_TILE, slots) for slots in (1, 2)]
    one, two = (time_on("timing", stream) for stream in streams)
    figures += _compared("GEMM 64x512x512", one, two, 0.9)
    agree = cycles(streams[1]).end == two.end
    figures.append(report.at_least("times as in the reference, GEMM", float(agree), "", 1))
    figures.append(
        report.at_most("ResNet-18, 19 convolutions one by one", resnet / 1e6, "Mcycles", 7.1)
    )
    figures.append(report.Figure("verifying two streams per layer", verifying, "s"))
    figures.append(
        report.at_most("functional simulator, 19 convolutions", 1000 * functional, "ms", 150)
    )
    for name, took in (("cycle model", timing), ("cycle model, memory as well", with_memory)):
        figures.append(report.at_least(name, simulated / took / 1e6, "Mcycles/s", 20))
    return figures


def _seconds(backend: str, stream: Stream) -> float:
    """Of one core: the least of three runs, without making the stream."""
    device = open_device(stream.geometry, backend)
    loaded = load(device, stream, random_inputs(stream, 0))
    found = []
    for _ in range(3):
        loaded.start()
        begun = time.process_time()
        device.wait()
        found.append(time.process_time() - begun)
    return min(found)


def _compared(name: str, one: Timing, two: Timing, least: float) -> list[report.Figure]:
    """Shares of peak without and with double buffering."""
    return [
        report.Figure(f"{name}, one slot", one.share_of_peak, "of peak"),
        report.at_least(f"{name}, two slots", two.share_of_peak, "of peak", least),
        report.at_least(f"{name}, gain", one.total / two.total, "x", 1.05),
    ]


if __name__ == "__main__":
    report.run(__doc__, measure)
