"""Other runtimes that `tilewright bench --peer` measures beside ours."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

from tilewright.base.errors import UserError
from tilewright.runtime.module import Module

Run = Callable[[], Any]

# The package of each, and the suffix of the files that it reads.
PEERS = {
    "onnxruntime": ("onnxruntime", ".onnx"),
    "openvino": ("openvino", ".onnx"),
    "torch": ("torch", ".pt2"),
    "inductor": ("torch", ".pt2"),
}


def peer_run(peer: str, path: str, module: Module, arrays: list[Any], threads: int) -> Run:
    """A function that runs the same model with the same inputs in another runtime."""
    if peer in ("torch", "inductor"):
        check_peer(peer, path)
        # Imported here: torch takes seconds.
        from tilewright.frontends.torch.peer import program_run

        return program_run(path, arrays, threads, is_compiled=peer == "inductor")
    feed = dict(zip([spec.name for spec in module.inputs], arrays, strict=True))
    return (openvino_run if peer == "openvino" else onnxruntime_run)(path, feed, threads)


def check_peer(peer: str, path: str) -> None:
    """Check that a runtime is installed and reads the file."""
    package, suffix = PEERS[peer]
    if importlib.util.find_spec(package) is None:
        raise UserError(
            "TW6034", f"{package} is not installed", help=f"pip install {package}, or omit --peer"
        )
    if not path.endswith(suffix):
        raise UserError("TW6034", f"{peer} cannot run {path}", help=f"give the {suffix} file")


def onnxruntime_run(path: str, feed: Mapping[str, Any], threads: int) -> Run:
    """A function that runs the same model in ONNX Runtime."""
    check_peer("onnxruntime", path)
    ort: Any = importlib.import_module("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, feed)


def openvino_run(path: str, feed: Mapping[str, Any], threads: int) -> Run:
    """A function that runs the same model in OpenVINO, with f32 as f32."""
    check_peer("openvino", path)
    openvino: Any = importlib.import_module("openvino")
    options: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    if threads:
        options["INFERENCE_NUM_THREADS"] = threads
    request = openvino.Core().compile_model(path, "CPU", options).create_infer_request()
    return lambda: request.infer(feed, share_inputs=True, share_outputs=True)
