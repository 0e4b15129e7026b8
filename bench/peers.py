"""Peers of the benchmarks, each in a process of its own.

    python bench/peers.py PEER MODEL.onnx INPUTS.npz THREADS

A process loads the model, says how long that took and which kernels of ours no rule took, then
obeys lines of its input: `run SECONDS` answers with the milliseconds of single calls, `profile`
with the time of each kernel if it is ours, `program` with a text that is the same for equal code,
`outputs FILE` writes the outputs. Answers are lines of JSON. Contenders so keep their threads to
themselves, and only one runs at a time.

BENCH_TARGET names the target of ours. BENCH_HIDES (`avx512,amx`) hides instruction sets from all
others by native/cpuid.c, on x86: libraries have settings of their own (ONEDNN_MAX_CPU_ISA), which
do not reach kernels that come from elsewhere, such as MLAS inside of OpenVINO.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

Feed = dict[str, Any]
Run = Callable[[], Any]
SWITCHES = ("schedule", "packing", "in_place")  # what can be left out and is no pass of the graph
PEER_PRECISIONS = {"bf16x6": "f32"}  # what peers do where we split numbers: as exact
SPINNING_S = 0.06  # for which threads of a contender keep a core after its last call
_not_compiling = 0.0  # seconds that a contender spent on what is no part of its work


class TooSlow(RuntimeError):
    """A contender that did not answer within its limit."""


@contextmanager
def uncounted() -> Iterator[None]:
    """Work that a contender is not charged for: making up the weights of a model, say."""
    global _not_compiling
    begun = time.perf_counter()
    try:
        yield
    finally:
        _not_compiling += time.perf_counter() - begun


# --------------------------------------------------------------------------- contenders


def tilewright(path: Path, feed: Feed, threads: int) -> tuple[Run, Any]:
    import tilewright as tw

    without = set(filter(None, os.environ.get("BENCH_WITHOUT", "").split(",")))
    switches: Any = {name: name not in without for name in SWITCHES}
    passes = tuple(sorted(without - set(SWITCHES)))
    fixed = json.loads(os.environ.get("BENCH_SIZES", "{}"))
    compiling = tw.compile  # loads the compiler
    begun = time.perf_counter()
    module: Any = compiling(
        path,
        target=os.environ.get("BENCH_TARGET", "cpu"),
        threads=threads,
        without=passes,
        dynamic=fixed,
        precision=os.environ.get("BENCH_PRECISION", "f32"),
        **switches,
    )
    module.compile_s = time.perf_counter() - begun
    inputs = [feed[spec.name] for spec in module.inputs]
    return lambda: module(*inputs), module


def tilewright_artifact(path: Path, feed: Feed, threads: int) -> tuple[Run, Any]:
    """A saved library: `path` names it."""
    from tilewright.runtime import load

    module: Any = load(path)
    inputs = [feed[spec.name] for spec in module.inputs]
    return lambda: module(*inputs, threads=threads), module


def onnxruntime(path: Path, feed: Feed, threads: int) -> tuple[Run, Any]:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = {one.name for one in session.get_inputs()}
    given = {name: array for name, array in feed.items() if name in names}
    return lambda: session.run(None, given), None


def openvino(path: Path, feed: Feed, threads: int, precision: str = "") -> tuple[Run, Any]:
    """In the precision of the run; a quantized model says itself what is of eight bits."""
    import openvino as ov

    precision = precision or os.environ.get("BENCH_PRECISION", "f32")
    settings: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads}
    if precision != "int8":
        settings["INFERENCE_PRECISION_HINT"] = PEER_PRECISIONS.get(precision, precision)
    compiled = ov.Core().compile_model(str(path), "CPU", settings)
    request = compiled.create_infer_request()
    names = {name for one in compiled.inputs for name in one.get_names()}
    given = {name: array for name, array in feed.items() if name in names}
    return lambda: list(request.infer(given, share_inputs=True).values()), None


def openvino_bf16(path: Path, feed: Feed, threads: int) -> tuple[Run, Any]:
    return openvino(path, feed, threads, "bf16")


def torch_eager(path: Path, feed: Feed, threads: int, *, compiled: bool = False) -> tuple[Run, Any]:
    """The module that the model was exported from: only for models of bench/models.py."""
    import models
    import torch

    # Packages ask for optional ones by names, `kernels` say, that scripts of this folder have too.
    here = str(Path(__file__).parent)
    sys.path[:] = [folder for folder in sys.path if folder != here]
    torch.set_num_threads(threads)
    with uncounted():
        made = models.build(path.stem, "sdpa")
    module: Any = made.module
    if compiled:
        module = torch.compile(module)
    first = next(iter(made.cases.values()))
    given = [torch.from_numpy(np.array(feed[name])) for name in first]

    def run() -> Any:
        with torch.inference_mode():
            return module(*given)

    return run, None


def torch_compile(path: Path, feed: Feed, threads: int) -> tuple[Run, Any]:
    return torch_eager(path, feed, threads, compiled=True)


def tvm(path: Path, feed: Feed, threads: int) -> tuple[Run, Any]:
    """TVM's Relax with the default schedules of its CPU pipeline, untuned."""
    os.environ["TVM_NUM_THREADS"] = str(threads)
    import onnx
    import tvm as tvm_package
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    shapes = {name: list(array.shape) for name, array in feed.items()}
    program = from_onnx(onnx.load(path), shape_dict=shapes, keep_params_in_input=False)
    host = {"kind": "llvm", "mcpu": "native"}
    program = relax.get_pipeline("zero")(program)
    executable = tvm_package.compile(program, tvm_package.target.Target(host))
    machine = relax.VirtualMachine(executable, tvm_package.cpu())
    inputs = [tvm_package.runtime.tensor(array) for array in feed.values()]
    return lambda: machine["main"](*inputs), None


def iree(path: Path, feed: Feed, threads: int) -> tuple[Run, Any]:
    from iree import runtime

    with tempfile.TemporaryDirectory() as folder:
        imported, built = Path(folder) / "model.mlir", Path(folder) / "model.vmfb"
        binary = Path(sys.executable).parent
        importing = [binary / "iree-import-onnx", path, "-o", imported]
        subprocess.run([*map(str, importing)], check=True, capture_output=True)
        flags = [
            "--iree-hal-target-device=local",
            "--iree-hal-local-target-device-backends=llvm-cpu",
        ]
        flags += ["--iree-llvmcpu-target-cpu=host", "--iree-opt-data-tiling"]
        command = [binary / "iree-compile", imported, *flags, "-o", built]
        subprocess.run([*map(str, command)], check=True, capture_output=True)
        program = built.read_bytes()
    runtime.flags.parse_flags(f"--task_topology_max_group_count={threads}")
    config = runtime.Config("local-task")
    module = runtime.VmModule.copy_buffer(config.vm_instance, program)
    loaded = runtime.load_vm_module(module, config)
    names = loaded.vm_module.function_names
    name = next(name for name in names if not name.startswith("__") and "$" not in name)
    inputs = [runtime.asdevicearray(config.device, array) for array in feed.values()]
    function = loaded[name]

    def run() -> Any:
        made = function(*inputs)
        outputs = made if isinstance(made, tuple) else (made,)
        return [one.to_host() for one in outputs]

    return run, None


PEERS: dict[str, tuple[str, Callable[[Path, Feed, int], tuple[Run, Any]]]] = {
    # by name: the package that must be installed, and how it loads a model
    "tilewright": ("tilewright", tilewright),
    "tilewright_artifact": ("tilewright", tilewright_artifact),
    "onnxruntime": ("onnxruntime", onnxruntime),
    "openvino": ("openvino", openvino),
    "openvino_bf16": ("openvino", openvino_bf16),
    "torch": ("torch", torch_eager),
    "torch_compile": ("torch", torch_compile),
    "tvm": ("tvm", tvm),
    "iree": ("iree.compiler", iree),
}


@functools.cache
def hiding(names: str) -> dict[str, str]:
    """The environment of a process that is not to see some instruction sets."""
    if not names:
        return {}
    library = Path(tempfile.mkdtemp()) / "cpuid.so"
    source = Path(__file__).parent / "native" / "cpuid.c"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
    return {"LD_PRELOAD": str(library), "CPUID_HIDES": names}


def installed(peer: str) -> bool:
    try:
        return importlib.util.find_spec(PEERS[peer][0]) is not None
    except ModuleNotFoundError:
        return False


# --------------------------------------------------------------------------- the process


def peak_mb() -> float:
    """The most memory that this process, or a finished child, held.

    The system's own figure (ru_maxrss) starts with what the parent held: it is only for children.
    """
    status = Path("/proc/self/status").read_text()
    own = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return max(own, children) / 1024


def arrays_of(made: Any) -> list[Any]:
    found = list(made.values()) if isinstance(made, dict) else made
    if not isinstance(found, (list, tuple)):
        found = [found]
    return [np.asarray(one.numpy() if hasattr(one, "numpy") else one) for one in found]


def serve(peer: str, path: Path, inputs: Path, threads: int, answers: IO[str]) -> None:
    def answer(**told: Any) -> None:
        print(json.dumps(told), file=answers, flush=True)

    with np.load(inputs) as stored:
        feed = {name: stored[name] for name in stored.files}
    begun = time.perf_counter()
    run, module = PEERS[peer][1](path, feed, threads)
    loaded = time.perf_counter() - begun - _not_compiling
    run()
    first = time.perf_counter() - begun - _not_compiling
    compiling = getattr(module, "compile_s", loaded)
    told = {"compile_s": compiling, "first_s": first, "peak_mb": peak_mb()}
    answer(load_s=loaded, **told, fell_back=fallen_kernels(module))
    for line in sys.stdin:
        word, _, rest = line.strip().partition(" ")
        if word == "run":
            answer(times_ms=timed(run, float(rest)), peak_mb=peak_mb())
        elif word == "profile":
            answer(kernels=profiled(module, run))
        elif word == "program":
            answer(program=program_of(module))
        elif word == "outputs":
            made = arrays_of(run())
            np.savez(rest, **{str(at): array for at, array in enumerate(made)})
            answer(outputs=len(made))


def program_of(module: Any) -> str:
    """A digest of what a module of ours calls, in which memory; empty for others."""
    if not hasattr(module, "inside"):
        return ""
    text = f"{sorted(module.inside.program.kernels)}\n".encode() + module.inside.image
    return hashlib.sha256(text).hexdigest()


def fallen_kernels(module: Any) -> list[str]:
    """The kernels of a module of ours that run as plain loops or by the last rule, and why."""
    if not hasattr(module, "inside"):
        return []
    kernels = module.inside.program.kernels.values()
    return [f"{each.name}: {each.fell_back}" for each in kernels if each.fell_back]


def timed(run: Run, seconds: float) -> list[float]:
    """Milliseconds of single calls, after what the contender before left behind has ended."""
    time.sleep(SPINNING_S)
    run()  # its own threads wake up
    times: list[float] = []
    begun = time.perf_counter()
    while not times or time.perf_counter() - begun < seconds:
        start = time.perf_counter()
        run()
        times.append((time.perf_counter() - start) * 1e3)
    return times


def profiled(module: Any, run: Run) -> list[dict[str, Any]]:
    """The least time of each call of a kernel over several runs."""
    if module is None:
        return []
    from tilewright.runtime.profiler import profile

    best: list[Any] = []
    for _ in range(5):
        with profile(runtime=module._runtime) as record:
            run()
        events = list(record.events)
        if not best:
            best = events
        best = [
            a if a.duration_ns <= b.duration_ns else b for a, b in zip(best, events, strict=True)
        ]
    return [
        {"kernel": e.kernel, "ms": e.duration_ns / 1e6, "flops": e.flops, "bytes": e.size_bytes}
        for e in best
    ]


class Contender:
    """A process, seen from the benchmark. It has `limit` seconds for its first answer."""

    def __init__(
        self,
        peer: str,
        path: Path,
        inputs: Path,
        threads: int,
        limit: float | None = None,
        **environment: str,
    ) -> None:
        command = [sys.executable, __file__, peer, str(path), str(inputs), str(threads)]
        limits = {"OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": "1"}
        if PEERS[peer][0] != "tilewright":
            limits |= hiding(os.environ.get("BENCH_HIDES", ""))
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **limits, **environment},
            start_new_session=True,  # so that the compilers it starts end with it
        )
        try:
            self.loaded = self._read(limit)
        except RuntimeError:
            self.stop()
            raise

    def _read(self, limit: float | None = None) -> dict[str, Any]:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], limit)
        if not ready:
            raise TooSlow(f"> {limit:.0f} s")
        line = self.process.stdout.readline()
        if line:
            told: dict[str, Any] = json.loads(line)
            return told
        assert self.process.stderr is not None
        reason = self.process.stderr.read().strip().splitlines() or ["it ended"]
        raise RuntimeError(reason[-1][:200])

    def ask(self, line: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self._read()

    def in_front(self, yes: bool) -> None:
        """Before all other work of this machine, where the system allows it; or as others."""
        policy, priority = (os.SCHED_RR, 20) if yes else (os.SCHED_OTHER, 0)
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            with suppress(OSError):
                os.sched_setscheduler(int(task.name), policy, os.sched_param(priority))

    def stop(self) -> None:
        with suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


if __name__ == "__main__":
    quiet = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a contender prints does not disturb answers
    serve(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), quiet)
