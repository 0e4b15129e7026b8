"""ONNX Runtime's operators on blocks of channels (com.microsoft.nchwc).

It writes them into optimized models on processors that have kernels for them. Images of this layout
are [batch, channels / block, height, width, block], but still count as [batch, channels, height,
width], with zeros for channels up to a multiple of the block. Here they are plain images, which may
lack such channels; weights are put back into the order of ONNX. The block is a property of the
processor that wrote the model, which the file does not name.
"""

from __future__ import annotations

from dataclasses import replace

import onnx

from tilewright.base.target import Target
from tilewright.frontends.onnx.rules import pool
from tilewright.frontends.onnx.rules.base import Context, Rule, Skip
from tilewright.frontends.onnx.rules.conv import conv
from tilewright.frontends.onnx.rules.microsoft import activated
from tilewright.frontends.onnx.rules.microsoft_images import channels_first, channels_last
from tilewright.frontends.onnx.rules.tensors import dims, part, reshape, transpose
from tilewright.graph import Value

DOMAIN = "com.microsoft.nchwc"
NARROW_BLOCK, WIDE_BLOCK = 8, 16  # channels: AVX and AVX2; AVX-512 and NEON


def channel_block(model: onnx.ModelProto) -> int:
    """The block of a model: what the sizes of its weights require, or that of this processor."""
    shapes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.domain == DOMAIN and node.op_type == "Conv" and node.input[1] in shapes:
            outputs, inputs, *_ = shapes[node.input[1]]
            many = inputs if inputs > WIDE_BLOCK else 0  # blocked
            if outputs % WIDE_BLOCK or many % WIDE_BLOCK:
                return NARROW_BLOCK
    host = Target.parse("cpu")
    is_narrow = host.arch == "x86_64" and "avx512f" not in host.features
    return NARROW_BLOCK if is_narrow else WIDE_BLOCK


def _reorder_input(node: Context) -> Value:
    return channels_first(node, node[0]) if node.attr("channels_last", 0) else node[0]


def _reorder_output(node: Context) -> Value:
    out = part(node, node[0], 0, node.attr("channels"), 1)
    return channels_last(node, out) if node.attr("channels_last", 0) else out


def _conv(node: Context) -> Value:
    weights = _weights(node)
    groups, channels = node.attr("group", 1), dims(node, node[0])[1]
    stored = dims(node, weights)[1]
    if groups == 1 and stored != channels:  # its last channels are zeros that the image lacks
        weights = part(node, weights, 0, channels, 1)
    out = conv(replace(node, inputs=[node[0], weights, node.get(2)]))
    if node.has(3):
        out = node.emit("add", out, node[3])
    return activated(node, out, node.attr("activation_params", ()))


def _weights(node: Context) -> Value:
    """The weights in ONNX's order [outputs, inputs, height, width]."""
    outputs, inputs, *kernel = dims(node, node[1])
    block = node.importer.channel_block
    if not isinstance(outputs, int) or not isinstance(inputs, int) or outputs % block:
        raise Skip(f"{DOMAIN}.{node.op_type} with weights of {outputs} x {inputs} channels")
    if inputs % block:  # images of few channels are not in blocks, nor are those of a group
        stored = reshape(node, node[1], outputs // block, inputs, *kernel, block)
        plain = transpose(node, stored, 0, 4, 1, 2, 3)
    else:
        shape = (outputs // block, inputs // block, *kernel, block, block)
        plain = transpose(node, reshape(node, node[1], *shape), 0, 5, 1, 4, 2, 3)
    return reshape(node, plain, outputs, inputs, *kernel)


def _upsample(node: Context) -> Value:
    scales = node.attr("scales")
    mode = node.attr("mode", "nearest")
    return node.emit(
        "resize",
        node[0],
        None,
        node.emit("cast", node.constant(scales), to=node[0].tensor.dtype),
        None,
        axes=tuple(range(len(scales))),
        mode="linear" if mode == "linear" else "nearest",
        coordinates=node.attr("coordinate_transformation_mode", "asymmetric"),
        nearest="floor",
    )


RULES: dict[str, Rule] = {
    "ReorderInput": _reorder_input,
    "ReorderOutput": _reorder_output,
    "Conv": _conv,
    "MaxPool": lambda node: pool.max_pool(node)[0],
    "AveragePool": lambda node: pool.avg_pool(node, node[0]),
    "GlobalMaxPool": pool.RULES["GlobalMaxPool"],
    "GlobalAveragePool": pool.RULES["GlobalAveragePool"],
    "Upsample": _upsample,
}
