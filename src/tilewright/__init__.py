"""Tilewright: an end-to-end optimizing compiler for deep learning."""

from tilewright import intrin, te, tensor
from tilewright.base.errors import TilewrightError
from tilewright.base.target import Target
from tilewright.codegen.build import CompiledFunction, build, load
from tilewright.driver.compile import compile
from tilewright.runtime.array import Array, array, empty, from_dlpack
from tilewright.runtime.module import Module
from tilewright.runtime.pool import set_threads
from tilewright.runtime.profiler import profile
from tilewright.tensor import Schedule, Trace, interpret

__version__ = "0.1.0"
