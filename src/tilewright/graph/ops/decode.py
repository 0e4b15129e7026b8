"""Decode image files with Pillow, if installed. No native code."""

from __future__ import annotations

import io
from importlib.util import find_spec
from typing import Any

import numpy as np

from tilewright import sym
from tilewright.base.dtype import U8
from tilewright.base.errors import Unsupported
from tilewright.graph.op import INTEGER, OPAQUE, Attr, Call, Input, Op
from tilewright.graph.types import TensorType, Type
from tilewright.sym import const

Array = np.ndarray[Any, Any]

CHANNELS = {"RGB": 3, "BGR": 3, "Grayscale": 1}


def has_decoder() -> bool:
    return find_spec("PIL") is not None


def _decoded_type(call: Call) -> tuple[Type, ...]:
    if not has_decoder():
        raise Unsupported(
            "TW1317", "decoding images needs Pillow", call.loc, help="pip install pillow"
        )
    channels = CHANNELS.get(call["pixels"])
    if channels is None:
        raise call.error("TW1318", f"decode_image has no pixels {call['pixels']!r}")
    return (TensorType(U8, (sym.size("height"), sym.size("width"), const(channels))),)


def _decoded(call: Call, x: Array) -> Array:
    from PIL import Image  # type: ignore[import-not-found, unused-ignore]  # optional

    gray = call["pixels"] == "Grayscale"
    try:
        picture = Image.open(io.BytesIO(x.astype(np.uint8).tobytes()))
        pixels = np.asarray(picture.convert("L" if gray else "RGB"), np.uint8)
    except Exception as error:  # formats raise different exceptions for invalid data
        raise call.error("TW1318", f"decode_image cannot decode the image: {error}") from error
    if gray:
        return pixels[:, :, None]
    return pixels[:, :, ::-1] if call["pixels"] == "BGR" else pixels


OPS = (
    Op(
        "decode_image",
        "The pixels, [height, width, channels], of an image file's contents.",
        (Input("x", INTEGER),),
        _decoded_type,
        _decoded,
        OPAQUE,
        (Attr("pixels", str, "RGB"),),
        native=False,
    ),
)
