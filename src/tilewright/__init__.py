"""Tilewright: an end-to-end optimizing compiler for deep learning."""

from tilewright import te, tensor

__version__ = "0.1.0"
