"""The model IR: text, operators, shape inference, interpreter, passes."""

from tilewright.graph.build import Builder
from tilewright.graph.interp import interpret
from tilewright.graph.ir import Graph, Module, Node, Value
from tilewright.graph.parser import parse
from tilewright.graph.printer import format_module
from tilewright.graph.types import MapType, OptionalType, SequenceType, TensorType, Type
