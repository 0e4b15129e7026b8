"""What rules say of work on weights alone: see `tensor/constants.py`."""

from tilewright.tensor.constants import CONSTANT

__all__ = ["CONSTANT"]
