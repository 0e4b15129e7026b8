"""Running code for other machines: emulators, or a clear reason why not."""

import importlib.util
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tilewright.base.dtype import from_numpy
from tilewright.base.target import Target
from tilewright.codegen import artifact
from tilewright.codegen.build import build
from tilewright.driver.compile import compile as compile_model
from tilewright.runtime.dlpack import code_of
from tilewright.tensor import parse

HARNESS = Path(__file__).parent / "harness.c"
# The processor an emulator pretends to be, where its own default lacks what we compile for.
CPUS = {"riscv64": ["-cpu", "rv64,v=true,vlen=128"], "x86_64": ["-cpu", "max"]}


def find_emulator(target):
    """The emulator's command; skips the test where there is none."""
    name = f"qemu-{target.arch}"
    found = shutil.which(f"{name}-static") or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (Debian: qemu-user-static)")
    return [found, *CPUS.get(target.arch, [])]


def check_linker(target):
    """Skips the test where no compiler links for the target."""
    name = "-".join(part for part in target.triple.split("-") if part != "unknown")
    if shutil.which(f"{name}-gcc") is None and importlib.util.find_spec("ziglang") is None:
        pytest.skip(f"no compiler links for {target}: install {name}-gcc or the ziglang package")


def packed(arrays):
    parts = [struct.pack("<q", len(arrays))]
    for array in arrays:
        code, bits, _ = code_of(from_numpy(array.dtype))
        data = array.tobytes()
        head = (code, bits, array.ndim, *array.shape, len(data))
        parts += [struct.pack(f"<{len(head)}q", *head), data]
    return b"".join(parts)


def unpacked(data, arrays):
    (code,) = struct.unpack_from("<q", data)
    assert code == 0
    at, results = 8, []
    for array in arrays:
        piece = data[at : at + array.nbytes]
        results.append(np.frombuffer(piece, array.dtype).reshape(array.shape))
        at += array.nbytes
    return results


def compile_program(run, target, folder):
    """A program that calls the function, linked for its machine."""
    image = run.save(folder / "kernel.o")
    source = folder / "harness.c"
    source.write_text(HARNESS.read_text().replace("KERNEL", run.name))
    program = folder / "program"
    artifact.link_program(program, [image], target, [source])
    return program


@pytest.fixture
def need_linker():
    return check_linker


@pytest.fixture
def run_elsewhere(tmp_path):
    """run_elsewhere(text, target, *arrays): the arrays after the program ran on that machine."""

    def run(text, target, *arrays):
        chosen = Target.parse(target)
        command = find_node() if chosen.kind == "wasm" else find_emulator(chosen)
        check_linker(chosen)
        program = compile_program(build(parse(text), chosen), chosen, tmp_path)
        done = subprocess.run(
            [*command, str(program)], input=packed(arrays), capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr.decode()
        return unpacked(done.stdout, arrays)

    return run


@pytest.fixture
def run_model_elsewhere(tmp_path):
    """run_model_elsewhere(model, target, *arrays): inputs and outputs after a run on a machine."""

    def run(model, target, *arrays):
        chosen = Target.parse(target)
        emulator = find_emulator(chosen)
        check_linker(chosen)
        module = compile_model(model, chosen, threads=2)
        image = module.save(tmp_path / "model.o", name="net")
        source = tmp_path / "harness.c"
        source.write_text(HARNESS.read_text().replace("KERNEL", "net"))
        artifact.link_program(tmp_path / "program", [image], chosen, [source])
        done = subprocess.run(
            [*emulator, tmp_path / "program"],
            input=packed(arrays),
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        return unpacked(done.stdout, arrays)

    return run


def find_node():
    """A command that runs a WebAssembly program; skips the test where there is none."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    script = (
        "import {readFileSync} from 'node:fs'; import {WASI} from 'node:wasi';"
        "const wasi = new WASI({version: 'preview1', args: [], env: {}});"
        "const module = await WebAssembly.compile(readFileSync(process.argv[1]));"
        "const made = await WebAssembly.instantiate(module, wasi.getImportObject());"
        "process.exitCode = wasi.start(made);"
    )
    return [node, "--no-warnings", "--input-type=module", "-e", script]
