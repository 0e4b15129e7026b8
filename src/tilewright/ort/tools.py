"""`onnxruntime.tools`, of an installed onnxruntime."""

from tilewright.ort.installed import hand_over

hand_over(__name__)
