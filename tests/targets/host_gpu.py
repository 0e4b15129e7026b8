"""A GPU in host memory: what a module launches is run by the interpreter, races detected."""

import ctypes
import importlib.util
import re
import shutil
import subprocess
import tempfile
import weakref
from bisect import bisect_left
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tilewright import sym
from tilewright.base.passes import PassContext
from tilewright.base.target import Target
from tilewright.codegen.launches import number, steps_of
from tilewright.codegen.nvptx import _free_scalars, _outer_buffers
from tilewright.driver.device_module import DeviceModule
from tilewright.runtime.stateful import StatefulModule
from tilewright.tensor import parse
from tilewright.tensor.interp import Interpreter
from tilewright.tensor.ir import DEVICE, Function
from tilewright.tensor.passes import lower

LIVE = weakref.WeakSet()  # all memory that was allocated and not freed


class Memory:
    def __init__(self, size_bytes):
        self.array = np.full(max(1, size_bytes) + 64, 0xAB, np.uint8)
        self.address = -(-self.array.ctypes.data // 64) * 64
        self.end = self.address + size_bytes
        LIVE.add(self)


class Module:
    """The kernels of one function, by name."""

    def __init__(self, kernel, code, target):
        self.code = code
        self.loops = {}
        self.launched = {}  # what runs a kernel, with its buffers and numbers
        device = parse(kernel.text)
        if device.stage != DEVICE:  # else it is a chain, of kernels that were lowered
            device = lower(device, "gpu", PassContext(target=target))
        names = iter([one.name for one in code.kernels])
        self.made = {one.name: one for one in code.kernels}

        def note(loop):
            name = next(names)
            self.loops[name] = (device, loop)
            return self.made[name]

        steps_of(device.body, note)

    def launch(self, name, grid, block, arguments, *, shared_bytes=0, stream=0, **how):
        if name not in self.launched:
            device, loop = self.loops[name]
            buffers = _outer_buffers(device, loop)
            # Lowered from text a second time, products of sizes may have another order.
            by_name = {var.name: var for var in _free_scalars(loop)}
            scalars = [by_name[var.name] for var in self.made[name].scalars]
            sizes = {
                size: None for of in buffers for dim in of.shape for size in sym.free_vars(dim)
            }
            guessed = [size for size in sizes if size not in scalars]
            fn = Function(name, (*buffers, *scalars, *guessed), loop, stage=DEVICE)
            self.launched[name] = Interpreter(fn), buffers, scalars, guessed
        kernel, buffers, scalars, guessed = self.launched[name]
        numbers = arguments[len(buffers) : len(buffers) + len(scalars)]  # then tensor maps
        given = {var: sym.const(n) for var, n in zip(scalars, numbers, strict=True)}
        addressed = list(zip(arguments, buffers, strict=False))
        given = {**untold(addressed, given), **given}
        numbers = (*numbers, *[int(given[size].value) for size in guessed])
        views = [view(address, shape_of(of, given), of.dtype) for address, of in addressed]
        arrays = [one.copy() for one in views]
        kernel.run(*arrays, *numbers)
        for one, array in zip(views, arrays, strict=True):
            # Nothing but what was stored: a view may be longer than its buffer.
            kept, made = one.reshape(-1).view(np.uint8), array.reshape(-1).view(np.uint8)
            changed = np.flatnonzero(kept != made)
            kept[changed] = made[changed]


def shape_of(buffer, sizes):
    return [number(sym.substitute(dim, sizes), {}) for dim in buffer.shape]


def untold(addressed, given):
    """A kernel is not told of sizes that no index needs: the largest for which all buffers that
    have them lie within memory."""
    free = [(at, of, {size for dim in of.shape for size in sym.free_vars(dim)} - given.keys())
            for at, of in addressed]  # fmt: skip
    left = set().union(*(sizes for _, _, sizes in free))

    def fits(at, of, guess):
        shape = shape_of(of, {**given, **dict.fromkeys(left, sym.const(guess))})
        end = at + int(np.prod(shape, dtype=np.int64)) * of.dtype.size_bytes
        return any(memory.address <= at and end <= memory.end for memory in LIVE)

    def is_too_large(guess):
        return not all(fits(at, of, guess) for at, of, sizes in free if sizes)

    largest = bisect_left(range(1, 1025), True, key=is_too_large)
    return dict.fromkeys(left, sym.const(largest))


def view(address, shape, dtype):
    count = int(np.prod(shape, dtype=np.int64))
    size = max(1, count * dtype.size_bytes)
    raw = np.frombuffer((ctypes.c_uint8 * size).from_address(address), np.uint8)
    return raw[: count * dtype.size_bytes].view(dtype.numpy).reshape(shape)


class Graph:
    """Runs what waits for nothing that is left, the last of them first."""

    def __init__(self, launches, waits):
        self.launches, self.waits = launches, waits

    def launch(self, stream):
        left = list(range(len(self.launches)))
        while left:
            ready = [at for at in left if not set(self.waits[at]) & set(left)]
            self.launches[ready[-1]].start(stream)
            left.remove(ready[-1])


CAPTURED = 77  # a stream that somebody else records


class Timer:
    def start(self, stream):
        pass

    def stop(self, stream):
        return 0.001


class HostGpu:
    """Stands in for `driver.device_module.CudaGpu`."""

    def __init__(self, target="cuda", decides=True):
        self.target = Target.parse(target)
        self.decides = decides  # whether its graphs do, or the host

    def allocate(self, size_bytes, stream):
        return Memory(size_bytes)

    def zeroed(self, size_bytes, stream):
        return self.holding(np.zeros(size_bytes, np.uint8), stream)

    def holding(self, array, stream):
        made = Memory(array.nbytes)
        self.copy_in(made.address, array, stream)
        return made

    def is_capturing(self, stream):
        return stream == CAPTURED

    def follow(self, stream, before):
        pass

    def has_conditions(self):
        return self.decides

    def timer(self):
        return Timer()

    def wait(self, stream):
        pass

    def copy_in(self, address, source, stream):
        ctypes.memmove(address, source.ctypes.data, source.nbytes)

    def copy_out(self, target, address, stream):
        ctypes.memmove(target.ctypes.data, address, target.nbytes)

    def copy(self, to, source, size_bytes, stream):
        ctypes.memmove(to, source, size_bytes)

    def load(self, code, kernel):
        return Module(kernel, code, self.target)

    def graph(self, launches, waits):
        return Graph(launches, waits)

    def record(self, launches, waits, stream):
        Graph(launches, waits).launch(stream)

    @contextmanager
    def beside_capture(self):
        yield self

    def tensor_map(self, address, shape, dtype, box, corners):
        return (address, shape, dtype, box)


def on_host(module):
    """A compiled module whose launches are interpreted here."""
    gpu, inner = HostGpu(), module
    while not isinstance(inner, DeviceModule):
        if isinstance(inner, StatefulModule):
            inner.memory.gpu = gpu
        inner = inner.inner
    gpu.target, inner._gpu = inner.target, gpu
    return module


def fetched(module, outputs):
    """NumPy arrays of outputs that pretend to be on a GPU."""
    return [view(o.address, o.shape, o.dtype).copy() for o in outputs]


def assembled(ptx, arch="sm_90a", *options):
    """What NVIDIA's assembler, on the path or of the extra `ptxas`, says of kernels: it finds no
    fault, serializes no products and ignores no `setmaxnreg`."""
    found = shutil.which("ptxas")
    spec = None if found else importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations if spec else ():
        found = found or next(map(str, Path(folder).glob("*/bin/ptxas")), None)
    if found is None:
        pytest.skip("ptxas is not installed (pip install 'tilewright[ptxas]')")
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder) / "kernel.ptx", Path(folder) / "kernel.o"
        source.write_text(ptx)
        command = [found, f"-arch={arch}", "-v", *options, source, "-o", made]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not re.search("serialized|setmaxnreg", done.stderr), done.stderr
    return done.stderr
