"""Model files with something wrong: from a seed to a folder that holds one.

    path = damaged(seed, folder)       the model file; external data may lie beside it

A sound model is taken and damaged as bytes (flipped, cut, spliced), as fields of the protocol
buffer, or as a model: names, types, sizes, order, depth, and where its external data are.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx_random import random_case

NUMBERS = [0, 1, -1, 2, 7, 255, 1 << 20, 1 << 31, -(1 << 31), (1 << 62), (1 << 63) - 1, -(1 << 63)]
HEAD = '<ir_version: 10, opset_import: ["" : 21, "own" : 1]>\n'
TEXTS = [
    """g (float[n, 8] x, int64[2] a) => (float[p, q] y) {
        s = Shape (x)
        t = Constant <value = int64[2] {2, -1}> ()
        r = Reshape (x, t)
        u = ReduceMean <keepdims = 0> (r, a)
        v = Slice (x, a, a, a)
        w = Gather <axis = 1> (x, a)
        y = Concat <axis = 0> (v, w)
    }""",
    """g (bool c, float[4] x) => (float[m] y, float[k, 4] z) {
        z = Loop (, c, x) <body = b (int64 i, bool d, float[4] s) => (bool e, float[4] t) {
            e = Identity (d)
            t = Mul (s, x)
        }>
        y = If (c) <then_branch = t () => (float[m] p) { p = Neg (x) },
                    else_branch = f () => (float[m] q) { q = Concat <axis = 0> (x, x) }>
    }""",
    """g (float[1, 3, 8, 8] x) => (float[1, 4, q, r] y)
        <float[4, 3, 1, 1] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}> {
        k = Constant <value_ints = [0, 0, 1, 1, 0, 0, -1, 0]> ()
        c = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, w)
        p = MaxPool <kernel_shape = [2, 2], ceil_mode = 1> (c)
        y = Pad <mode = "edge"> (p, k)
    }""",
    """g (float[5, 4] x, seq(float[2]) l) => (float[a, b] v, int64[a, b] i, float[c] o) {
        k = Constant <value_ints = [2]> ()
        h = Constant <value_ints = [1]> ()
        v, i = TopK <axis = 1, largest = 0> (x, k)
        e = Einsum <equation = "ij,kj->ik"> (x, x)
        f = own.twice (e)
        o = ReduceLogSumExp <keepdims = 0> (f, h)
    }
    <domain: "own", opset_import: ["" : 21]> twice (a) => (b) { b = own.sum (a, a) }
    <domain: "own", opset_import: ["" : 21]> sum (a, c) => (b) { b = Add (a, c) }""",
]
MADE = 60  # random models among the sound ones


def sound(rng: random.Random) -> onnx.ModelProto:
    """A model with nothing wrong."""
    at = rng.randrange(len(TEXTS) + MADE)
    if at >= len(TEXTS):
        return random_case(rng.randrange(MADE), most=6).model
    model = onnx.parser.parse_model(HEAD + TEXTS[at])
    model.graph.initializer.append(helper.make_tensor("one", TensorProto.INT64, [1], [1]))
    return model


def damaged(seed: int, folder: Path) -> Path:
    """A damaged model file in a folder."""
    rng = random.Random(seed)
    model = sound(rng)
    kind = rng.choices(list(KINDS), [weight for _, weight in KINDS.values()])[0]
    data = KINDS[kind][0](model, rng, folder)
    path = folder / "model.onnx"
    path.write_bytes(data)
    return path


# ------------------------------------------------------------------------------------ bytes


def change_bytes(model: onnx.ModelProto, rng: random.Random, folder: Path) -> bytes:
    """Bytes changed, removed, added or cut off."""
    data = bytearray(model.SerializeToString())
    for _ in range(rng.choice([1, 1, 2, 5, 40])):
        at = rng.randrange(len(data))
        match rng.randrange(6):
            case 0:
                data[at] = rng.randrange(256)
            case 1 | 2:
                data[at] ^= 1 << rng.randrange(8)
            case 3:
                del data[at : at + rng.randrange(1, 8)]
            case 4:
                data[at:at] = rng.randbytes(rng.randrange(1, 6))
            case _:
                del data[max(at, 1) :]
        if not data:
            return b"\0"
    return bytes(data)


def change_lengths(model: onnx.ModelProto, rng: random.Random, folder: Path) -> bytes:
    """The length of a field, as the wire has it, made another."""
    data = bytearray(model.SerializeToString())
    fields = wire_fields(bytes(data))
    for _ in range(rng.choice([1, 1, 3])):
        start, payload, _end = rng.choice(fields)
        if payload - start >= 2 and payload <= len(data):
            data[start + 1 : payload] = varint(
                rng.choice([0, 1, 5, 127, 1 << 20, 1 << 35, 1 << 63])
            )
    return bytes(data)


def splice(model: onnx.ModelProto, rng: random.Random, folder: Path) -> bytes:
    """Fields moved, repeated, dropped, or taken over from another model."""
    data = model.SerializeToString()
    other = sound(rng).SerializeToString()
    for _ in range(rng.choice([1, 2, 4])):
        start, _payload, end = rng.choice(wire_fields(data))
        source = data if rng.random() < 0.5 else other
        first, _, last = rng.choice(wire_fields(source))
        piece = source[first:last] * rng.choice([1, 1, 2, 50])
        match rng.randrange(3):
            case 0:
                data = data[:end] + piece + data[end:]
            case 1:
                data = data[:start] + piece + data[end:]
            case _:
                data = data[:start] + data[end:]
        if not data or len(data) > 1 << 20:
            return data[: 1 << 20] or b"\0"
    return data


def wire_fields(data: bytes, depth: int = 4) -> list[tuple[int, int, int]]:
    """(start, payload, end) of fields that hold bytes, and of those inside them."""
    found: list[tuple[int, int, int]] = []
    work = [(0, len(data), depth)]
    while work:
        at, end, left = work.pop()
        while at < end:
            tag, here = read_varint(data, at)
            kind, here_start = tag & 7, at
            if kind == 0:
                _, at = read_varint(data, here)
            elif kind in (1, 5):
                at = here + (8 if kind == 1 else 4)
            elif kind == 2:
                length, here = read_varint(data, here)
                at = here + length
                if at <= end:
                    found.append((here_start, here, at))
                    if left and length > 2:
                        work.append((here, at, left - 1))
            else:
                break
    return found or [(0, 0, len(data))]


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while at < len(data):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128 or shift > 63:
            break
    return value, at


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


# ------------------------------------------------------------------------------------ fields


def all_nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    graphs, nodes = [model.graph], [n for f in model.functions for n in f.node]
    while graphs:
        graph = graphs.pop()
        nodes += graph.node
        for node in graph.node:
            graphs += [a.g for a in node.attribute if a.HasField("g")]
    return nodes


def change_fields(model: onnx.ModelProto, rng: random.Random, folder: Path) -> bytes:
    """Numbers, names and types replaced by others."""
    operators = [op for op in onnx.defs.get_all_schemas() if not op.domain]
    for _ in range(rng.choice([1, 1, 2, 4])):
        nodes = all_nodes(model)
        if not nodes:
            break
        node = rng.choice(nodes)
        graph = model.graph
        names = [name for other in nodes for name in (*other.output, *other.input)]
        match rng.randrange(14):
            case 0 | 1 if node.attribute:
                change_attribute(rng.choice(node.attribute), rng)
            case 2 if node.attribute:
                del node.attribute[rng.randrange(len(node.attribute))]
            case 3 | 4 if node.input:
                chosen = rng.choice([*names, "", "none"])
                node.input[rng.randrange(len(node.input))] = chosen
            case 5:
                node.op_type = rng.choice(operators).name
            case 6 if graph.initializer:
                tensor = rng.choice(graph.initializer)
                match rng.randrange(3):
                    case 0:
                        tensor.dims[:] = [rng.choice(NUMBERS) for _ in range(rng.randrange(5))]
                    case 1:
                        tensor.data_type = rng.randrange(40)
                    case _:
                        tensor.raw_data = rng.randbytes(rng.randrange(64))
            case 7 if graph.input:
                info = rng.choice(graph.input)
                info.type.tensor_type.elem_type = rng.randrange(40)
            case 8 if graph.input:
                dims = rng.choice(graph.input).type.tensor_type.shape.dim
                if dims:
                    rng.choice(dims).dim_value = rng.choice(NUMBERS)
            case 9:
                model.opset_import[0].version = rng.choice([0, 1, 6, 7, 9, 11, 13, 18, 24, 99, -1])
            case 10 if node.output:
                node.output[rng.randrange(len(node.output))] = rng.choice([*names, ""])
            case 11:
                graph.node.append(rng.choice(nodes))
            case 12 if node.input:
                del node.input[rng.randrange(len(node.input))]
            case _:
                node.input.append(rng.choice([*names, ""]))
    return bytes(model.SerializeToString())


def change_attribute(attribute: onnx.AttributeProto, rng: random.Random) -> None:
    match rng.randrange(5):
        case 0 if attribute.ints:
            attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(NUMBERS)
        case 1 if attribute.ints:
            attribute.ints.extend([rng.choice(NUMBERS)] * rng.choice([1, 3, 1000]))
        case 2 if attribute.HasField("t"):
            attribute.t.dims[:] = [rng.choice(NUMBERS) for _ in range(rng.randrange(4))]
        case 3:
            attribute.type = rng.randrange(15)
        case _:
            attribute.i, attribute.f = rng.choice(NUMBERS), rng.choice([0.0, -1.0, 1e38, np.nan])
            attribute.s = rng.choice([b"", b"edge", b"\xff\xfe", b"x" * 1000])


def change_constants(model: onnx.ModelProto, rng: random.Random, folder: Path) -> bytes:
    """Shapes, axes and amounts that the model holds as constants, made absurd."""
    tensors = [t for t in model.graph.initializer if t.data_type == TensorProto.INT64]
    for node in all_nodes(model):
        tensors += [
            a.t for a in node.attribute if a.HasField("t") and a.t.data_type == TensorProto.INT64
        ]
    for tensor in rng.sample(tensors, min(len(tensors), rng.choice([1, 1, 3]))):
        try:
            array = np.array(numpy_helper.to_array(tensor))
        except Exception:  # damaged already
            continue
        flat = array.reshape(-1)
        if flat.size:
            flat[rng.randrange(flat.size)] = rng.choice(NUMBERS)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return bytes(model.SerializeToString())


def change_order(model: onnx.ModelProto, rng: random.Random, folder: Path) -> bytes:
    """Cycles, names twice, nodes upside down, results that nothing makes."""
    graph = model.graph
    nodes = list(graph.node)
    match rng.randrange(5):
        case 0:
            rng.shuffle(nodes)
        case 1 if nodes:
            first, last = nodes[0], nodes[-1]
            if first.input and last.output:
                first.input[0] = last.output[0]
        case 2 if nodes:
            name = rng.choice(nodes).output[0]
            rng.choice(nodes).output[0] = name
        case 3:
            graph.output.append(rng.choice([*graph.input, *graph.output]))
            graph.input.extend(list(graph.input)[:1] * 2)
        case _ if nodes:
            del nodes[rng.randrange(len(nodes))]
    del graph.node[:]
    graph.node.extend(nodes)
    return bytes(model.SerializeToString())


# ------------------------------------------------------------------------------------ bombs


def bomb(model: onnx.ModelProto, rng: random.Random, folder: Path) -> bytes:
    """Small files that ask for much: depth, repetition, sizes."""
    kinds: tuple[Callable[[random.Random], Any], ...] = (
        deep_bodies,
        many_calls,
        call_oneself,
        long_chain,
        huge_tensors,
        many_dims,
        deep_types,
        sparse_bomb,
    )
    made = rng.choice(kinds)(rng)
    return made if isinstance(made, bytes) else bytes(made.SerializeToString())


def plain(nodes: list[Any], initializers: list[Any] = (), functions: list[Any] = ()) -> Any:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [x], [y], list(initializers))
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=list(functions), ir_version=8)


def deep_bodies(rng: random.Random) -> Any:
    depth = rng.choice([5, 20, 45])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    flag = helper.make_node("Constant", [], ["c"], value=helper.make_tensor("c", 9, [], [1]))
    body = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "b", [], [result])
    unknown = rng.random() < 0.5
    for _ in range(depth):
        node = helper.make_node(
            "If", ["f" if unknown else "c"], ["y"], then_branch=body, else_branch=body
        )
        body = helper.make_graph([flag, node][unknown:], "b", [], [result])
        if len(body.SerializeToString()) > 1 << 15:
            break
    nodes = [helper.make_node("Cast", ["x"], ["w"], to=9)]
    nodes.append(helper.make_node("Gather", ["w", "zero"], ["f"]))
    return plain([*nodes, *body.node], [helper.make_tensor("zero", 7, [], [0])])


def function(name: str, nodes: list[Any]) -> Any:
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    return helper.make_function("own", name, ["x"], ["y"], nodes, opsets)


def many_calls(rng: random.Random) -> Any:
    """Functions that each call the next several times."""
    depth, wide = rng.choice([3, 12, 40]), rng.choice([2, 3, 10])
    functions = []
    for at in range(depth):
        names = ["x", *(f"t{k}" for k in range(wide - 1)), "y"]
        op = f"f{at + 1}" if at + 1 < depth else "Neg"
        domain = "own" if at + 1 < depth else ""
        nodes = [
            helper.make_node(op, [names[k]], [names[k + 1]], domain=domain) for k in range(wide)
        ]
        functions.append(function(f"f{at}", nodes))
    return plain([helper.make_node("f0", ["x"], ["y"], domain="own")], functions=functions)


def call_oneself(rng: random.Random) -> Any:
    call = [helper.make_node("b", ["x"], ["y"], domain="own")]
    back = [helper.make_node("a", ["x"], ["y"], domain="own")]
    functions = [function("a", call), function("b", back)]
    return plain([helper.make_node("a", ["x"], ["y"], domain="own")], functions=functions)


def long_chain(rng: random.Random) -> Any:
    count = rng.choice([500, 3000])
    op = rng.choice(["Neg", "Add", "Concat"])
    nodes, last = [], "x"
    for at in range(count if op == "Neg" else 40):
        name = f"v{at}"
        inputs = [last] if op == "Neg" else [last, last]
        keywords = {"axis": 0} if op == "Concat" else {}
        nodes.append(helper.make_node(op, inputs, [name], **keywords))
        last = name
    return plain([*nodes, helper.make_node("Identity", [last], ["y"])])


def huge_tensors(rng: random.Random) -> Any:
    """Operators whose results would be beyond any memory."""
    big = rng.choice([1 << 20, 1 << 31, 1 << 40, 1 << 62])
    shape = helper.make_tensor("s", 7, [2], [big, rng.choice([1, 4, big])])
    op = rng.choice(["Expand", "ConstantOfShape", "Tile", "Pad", "Range", "OneHot", "EyeLike"])
    if op == "ConstantOfShape":
        nodes = [helper.make_node(op, ["s"], ["k"]), helper.make_node("Mul", ["k", "one"], ["y"])]
    elif op == "Range":
        nodes = [helper.make_node(op, ["zero", "big", "step"], ["k"])]
        nodes.append(helper.make_node("Cast", ["k"], ["y"], to=1))
    elif op == "OneHot":
        nodes = [helper.make_node(op, ["i", "big", "two"], ["y"])]
    elif op == "EyeLike":
        nodes = [helper.make_node("ConstantOfShape", ["s"], ["k"])]
        nodes.append(helper.make_node(op, ["k"], ["y"], dtype=1))
    elif op == "Pad":
        nodes = [helper.make_node(op, ["x", "s"], ["y"])]
    elif op == "Tile":
        nodes = [helper.make_node("Reshape", ["x", "r"], ["k"])]
        nodes.append(helper.make_node(op, ["k", "s"], ["y"]))
    else:
        nodes = [helper.make_node(op, ["one", "s"], ["y"])]
    constants = [
        shape,
        helper.make_tensor("one", 1, [1, 1], [1.0]),
        helper.make_tensor("zero", 7, [], [0]),
        helper.make_tensor("step", 7, [], [1]),
        helper.make_tensor("big", 7, [], [big]),
        helper.make_tensor("i", 7, [2], [0, 1]),
        helper.make_tensor("two", 1, [2], [0.0, 1.0]),
        helper.make_tensor("r", 7, [2], [1, 4]),
    ]
    return plain(nodes, constants)


def many_dims(rng: random.Random) -> Any:
    count = rng.choice([9, 33, 70, 2000])
    shape = helper.make_tensor("s", 7, [count], [1] * (count - 1) + [4])
    nodes = [helper.make_node("Reshape", ["x", "s"], ["k"])]
    nodes.append(helper.make_node(rng.choice(["Neg", "Transpose", "ReduceSum"]), ["k"], ["y"]))
    return plain(nodes, [shape])


def deep_types(rng: random.Random) -> Any:
    """Sequences of sequences of sequences."""
    of = helper.make_tensor_type_proto(1, [2])
    for _ in range(rng.choice([3, 20, 40])):
        of = helper.make_sequence_type_proto(of)
    model = plain([helper.make_node("Neg", ["x"], ["y"])])
    model.graph.input.append(helper.make_value_info("l", of))
    return model


def sparse_bomb(rng: random.Random) -> Any:
    values = helper.make_tensor("w", 1, [1], [2.0])
    place = rng.choice([0, -1, 1 << 40])
    indices = helper.make_tensor("i", 7, [1], [place])
    dims = [rng.choice([4, 1 << 30, 1 << 62])] * rng.choice([1, 2])
    model = plain([helper.make_node("Add", ["x", "w"], ["y"])])
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, dims))
    return model


# ------------------------------------------------------------------------------------ outside


def external(model: onnx.ModelProto, rng: random.Random, folder: Path) -> bytes:
    """A tensor in a file beside the model, or where the model has no business."""
    made = plain([helper.make_node("Add", ["x", "w"], ["y"])])
    secret = folder / "secret.bin"
    secret.write_bytes(rng.randbytes(64))
    inside = folder / "model"
    inside.mkdir(exist_ok=True)
    (inside / "data.bin").write_bytes(rng.randbytes(64))
    for name, target in (("link.bin", secret), ("loop", inside), ("same.bin", inside / "data.bin")):
        if not (inside / name).is_symlink():
            (inside / name).symlink_to(target)
    if not (inside / "hard.bin").exists():
        os.link(secret, inside / "hard.bin")
    names = ["data.bin", "data.bin", "link.bin", "hard.bin", "../secret.bin", "loop/data.bin"]
    names += [str(secret), "/etc/hostname", "", ".", "..", "data.bin\0", "x" * 5000, "/dev/zero"]
    names += ["/proc/self/mem", "same.bin", "C:\\secret", "..\\secret.bin", "missing.bin", "//x"]
    tensor = TensorProto(name="w", data_type=rng.choice([1, 1, 1, 8, 99]))
    tensor.dims.extend(rng.choice([[4], [4], [4], [1 << 40], [-1], [1 << 62, 4], []]))
    tensor.data_location = TensorProto.EXTERNAL
    entries = {"location": rng.choice(names)}
    if rng.random() < 0.6:
        entries["offset"] = rng.choice(["0", "16", "60", "-4", "99999999999999999999", "x", ""])
    if rng.random() < 0.6:
        entries["length"] = rng.choice(["16", "0", "-1", "1e3", "9223372036854775807"])
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    made.graph.initializer.append(tensor)
    (inside / "model.onnx").write_bytes(made.SerializeToString())
    return bytes(made.SerializeToString())


KINDS: dict[str, tuple[Callable[[onnx.ModelProto, random.Random, Path], bytes], float]] = {
    "bytes": (change_bytes, 4),
    "lengths": (change_lengths, 2),
    "splice": (splice, 3),
    "fields": (change_fields, 6),
    "constants": (change_constants, 3),
    "order": (change_order, 1.5),
    "bombs": (bomb, 1),
    "external": (external, 1),
}
