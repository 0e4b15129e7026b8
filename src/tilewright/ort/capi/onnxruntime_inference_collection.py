"""Sessions, values and bindings, where ONNX Runtime defines them."""

from tilewright.ort.binding import IOBinding
from tilewright.ort.devices import OrtDevice
from tilewright.ort.enums import OrtDeviceVendorId
from tilewright.ort.model_compiler import ModelCompiler
from tilewright.ort.options import AdapterFormat
from tilewright.ort.session import InferenceSession
from tilewright.ort.values import OrtValue, SparseTensor, copy_tensors

Session = InferenceSession
