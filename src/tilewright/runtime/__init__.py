"""The run-time library of compiled models: arrays, devices, signatures, threads, the profiler.

`native/` is the C runtime, which compiled code calls; `_native` is its Python binding.
"""

from tilewright.runtime import errors as errors  # registers the exceptions of the C runtime
from tilewright.runtime.array import Array as Array
from tilewright.runtime.array import empty as empty
from tilewright.runtime.array import from_dlpack as from_dlpack
from tilewright.runtime.device import CPU as CPU
from tilewright.runtime.device import Device as Device
from tilewright.runtime.errors import OutOfMemory as OutOfMemory
from tilewright.runtime.pool import set_threads as set_threads
from tilewright.runtime.pool import threads as threads
from tilewright.runtime.profiler import profile as profile
from tilewright.runtime.saved import load as load
from tilewright.runtime.signature import Param as Param
from tilewright.runtime.signature import Signature as Signature
