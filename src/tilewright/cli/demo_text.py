"""Draw a line of text, show it in a terminal, and decode the output of a recognition model."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.base.errors import Unsupported

Array = np.ndarray[Any, Any]

HEIGHT = 48  # of a line: the model's input height
MARGIN = 12
FONT_PIXELS = 34
DARK = 0.33  # of the darkest visible block
BLOCKS = {(False, False): " ", (True, False): "▀", (False, True): "▄", (True, True): "█"}


def drawn(text: str) -> Array:
    """Draw the line, white 1 and black 0, 48 pixels high."""
    if importlib.util.find_spec("PIL") is None:
        raise Unsupported(
            "TW6038", "the demo draws with Pillow", help="pip install 'tilewright[demo]'"
        )
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(FONT_PIXELS)
    width = int(font.getlength(text)) + 2 * MARGIN
    picture = Image.new("L", (width, HEIGHT), 255)
    ImageDraw.Draw(picture).text((MARGIN, 4), text, font=font, fill=0)
    return np.asarray(picture, np.float32) / 255


def as_blocks(picture: Array, columns: int) -> str:
    """The picture in half-block characters, truncated to `columns`."""
    ink = 1 - picture
    ink = ink[:, np.flatnonzero(ink.any(0))[0] :] if ink.any() else ink
    step = max(1, min(-(-ink.shape[1] // columns), ink.shape[0] // 8))
    rows, width = ink.shape[0] // (2 * step) * 2, min(columns, ink.shape[1] // step)
    cells = ink[: rows * step, : width * step].reshape(rows, step, width, step).mean((1, 3))
    dark = cells > DARK * max(float(cells.max()), 1e-3)
    lines = [
        "".join(
            BLOCKS[bool(a), bool(b)] for a, b in zip(dark[y], dark[y + 1], strict=True)
        ).rstrip()
        for y in range(0, rows, 2)
    ]
    return "\n".join(_without_empty(lines))


def _without_empty(lines: Sequence[str]) -> Sequence[str]:
    used = [at for at, line in enumerate(lines) if line]
    return lines[used[0] : used[-1] + 1] if used else lines


def as_input(picture: Array) -> Array:
    """The model's input: three equal channels in -1..1."""
    scaled = (picture - 0.5) / 0.5
    return np.ascontiguousarray(np.broadcast_to(scaled, (1, 3, *scaled.shape)), np.float32)


def read(scores: Array, alphabet: Sequence[str]) -> str:
    """Greedy CTC decoding of scores (steps, characters): merge repeats, drop blanks."""
    best = scores.argmax(-1)
    kept = [at for step, at in enumerate(best) if at and (step == 0 or best[step - 1] != at)]
    return "".join(alphabet[at] for at in kept)
