"""Models of many kinds, none of which is in the zoo, against ONNX Runtime and OpenVINO.

    python bench/breadth.py [--json FILE] [--models FOLDER] [--only NAME ...] [--threads 2]
                            [--peers NAME ...] [--seconds S] [--precisions f32 int8]

Convolutional networks of every family, segmentation, text recognition of any height and width,
speech, encoders and decoders, mixture of experts: exported once with random weights (needs torch,
timm, torchvision and transformers), some also quantized by ONNX Runtime, statically and
dynamically. Each contender is a process of its own and they take turns. Models are shown worst
first; of those that lose to a peer, the kernels that take longest.
"""

from __future__ import annotations

import argparse
import math
import statistics
import subprocess
import sys
from pathlib import Path

import breadth_models
import int8
import peers
import report
import zoo
from report import Figure
from rich.console import Console
from rich.progress import track

DEFAULT = Path(__file__).parent / "models" / "breadth"
EXPORT_S = 600  # for one model
MEAN = {"f32": 1.3, "int8": 1.1}
LEAST = 0.95
KERNELS = 4  # shown of a model that loses


def export(names: list[str], folder: Path) -> dict[str, str]:
    """Write the models that are missing, each by a process of its own; why some could not be."""
    folder.mkdir(parents=True, exist_ok=True)
    script, failed = Path(__file__).with_name("breadth_models.py"), {}
    missing = [name for name in names if not (folder / f"{name}.onnx").exists()]
    for name in track(missing, "exporting", console=Console(stderr=True)):
        command = [sys.executable, str(script), name, str(folder)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=EXPORT_S, check=False
            )
        except subprocess.TimeoutExpired:
            failed[name] = f"took over {EXPORT_S} s"
            continue
        if done.returncode:
            (folder / f"{name}.onnx").unlink(missing_ok=True)
            failed[name] = (done.stderr.strip().splitlines() or ["it ended"])[-1][:160]
    return failed


def longest_kernels(case: zoo.Case, threads: int) -> list[str]:
    contender = peers.Contender(zoo.OURS, case.model, case.inputs, threads)
    try:
        kernels = contender.ask("profile")["kernels"]
    finally:
        contender.stop()
    total = sum(each["ms"] for each in kernels) or 1.0
    worst = sorted(kernels, key=lambda each: -each["ms"])[:KERNELS]
    return [
        f"{each['kernel']}: {each['ms']:.3f} ms, {each['ms'] / total:.0%}, "
        f"{each['flops'] / max(each['ms'], 1e-6) / 1e6:.0f} GFLOP/s"
        for each in worst
    ]


def measure_f32(options: argparse.Namespace, names: list[str]) -> list[Figure]:
    contenders = [name for name in (*options.peers, zoo.OURS) if peers.installed(name)]
    cases = [case for name in names for case in zoo.cases_of(options.models, [name])]
    results = [
        zoo.compete(case, options.threads, contenders, options.seconds, options.rounds, roofs=False)
        for case in track(cases, "f32", console=Console(stderr=True))
    ]
    results.sort(key=lambda each: each.ratio if not math.isnan(each.ratio) else -1.0)
    zoo.show(results, contenders)
    for each in results:
        if each.ratio < LEAST:
            print(f"{each.case.name}:")
            for line in longest_kernels(each.case, options.threads):
                print(f"  {line}")
    figures = []
    for each in results:
        label = f"{each.case.name}, f32"
        if zoo.OURS in each.failed:
            figures.append(report.at_least(f"{label}: runs", 0, "", 1))
        elif not math.isnan(each.ratio):
            figures.append(report.at_least(f"{label}: best peer / ours", each.ratio, "x", LEAST))
            wrong = each.wrong[zoo.OURS]
            figures.append(report.at_most(f"{label}: difference", wrong, "", zoo.tolerance()))
    return figures + mean([each.ratio for each in results], "f32")


def measure_int8(options: argparse.Namespace, names: list[str]) -> list[Figure]:
    rivals = [peer for peer in options.peers if peers.installed(peer)]
    chosen = [name for name in breadth_models.QUANTIZED if name in names]
    cases = [case for name in chosen for case in zoo.cases_of(options.models, [name])[:1]]
    todo = [(case, kind) for case in cases for kind in (int8.STATIC, int8.DYNAMIC)]
    results = []
    for case, kind in track(todo, "int8", console=Console(stderr=True)):
        try:
            made = int8.quantized(case, kind, options.models)
        except Exception as error:  # the quantizer's own faults are its own
            print(f"{case.name}: not quantized ({kind}): {error}")
            continue
        results.append(int8.compete(made, case, kind, options.threads, rivals, options.seconds))
    int8.show(results)
    figures = [
        report.at_least(f"{each.title}: best peer / ours", each.ratio, "x", LEAST)
        for each in results
        if not math.isnan(each.ratio)
    ]
    return figures + mean([each.ratio for each in results], "int8")


def mean(ratios: list[float], precision: str) -> list[Figure]:
    told = [ratio for ratio in ratios if not math.isnan(ratio)]
    if not told:
        return []
    value = statistics.geometric_mean(told)
    label = f"geometric mean of {len(told)} cases, {precision}, best peer / ours"
    return [report.at_least(label, value, "x", MEAN[precision])]


def measure(options: argparse.Namespace) -> list[Figure]:
    asked = options.only or list(breadth_models.NAMES)
    failed = export(asked, options.models)
    for name, why in failed.items():
        print(f"{name}: not exported: {why}")
    names = [name for name in asked if name not in failed]
    figures = [report.at_least("models exported", len(names), "", 60 if not options.only else 0)]
    if "f32" in options.precisions:
        figures += measure_f32(options, names)
    if "int8" in options.precisions:
        figures += measure_int8(options, names)
    return figures


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", type=Path, default=DEFAULT, help="a folder of models")
    parser.add_argument("--only", nargs="*", help="names of models")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--peers", nargs="*", default=["onnxruntime", "openvino"], choices=list(peers.PEERS)
    )
    parser.add_argument("--precisions", nargs="+", default=["f32", "int8"], choices=list(MEAN))
    parser.add_argument("--seconds", type=float, default=2.0, help="per contender and case")
    parser.add_argument("--rounds", type=int, default=6)


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
