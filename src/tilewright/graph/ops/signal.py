"""Signal processing: Fourier transforms and window functions.

Complex numbers have a last axis of two, real numbers of one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright import sym
from tilewright.base.dtype import F32, DType
from tilewright.graph.op import FLOAT, INTEGER, NUMBER, OPAQUE, Attr, Call, Input, Op
from tilewright.graph.ops.cast import cast_array
from tilewright.graph.ops.linalg import wide
from tilewright.graph.types import TensorType, Type
from tilewright.sym import Const, Expr, const

Array = np.ndarray[Any, Any]


def _number(name: str, *, optional: bool = False) -> Input:
    return Input(name, INTEGER, optional, folds=True)


def _half(length: Expr) -> Expr:
    """The length of a one-sided spectrum of a real signal."""
    return sym.simplify(sym.add(sym.floordiv(length, 2), 1))


def _scalar(call: Call, at: int) -> Expr | None:
    value = call.value(at)
    return value[0] if value else None


def _check_parts(call: Call, last: Expr) -> None:
    if isinstance(last, Const) and last.value not in (1, 2):
        raise call.error("TW1215", f"{call.op} takes numbers of one part or two, not of {last}")


def _dft_type(call: Call) -> tuple[Type, ...]:
    x = list(call.shape(0))
    of = call.tensor(0).dtype
    if len(x) < 2:
        raise call.error("TW1215", f"dft takes a signal and its parts, not rank {len(x)}")
    _check_parts(call, x[-1])
    back = call["inverse"] and call["onesided"]
    parts = const(1 if back else 2)
    axis = _scalar(call, 2)
    if not isinstance(axis, Const):  # any axis may be transformed
        if not call["onesided"] and not call.has(1):
            return (TensorType(of, (*x[:-1], parts)),)
        sizes = tuple(sym.size("spectrum") for _ in x[:-1])
        return (TensorType(of, (*sizes, parts)),)
    at = int(axis.value) % len(x)
    if at == len(x) - 1:
        raise call.error("TW1215", "dft cannot run along the parts of numbers")
    if call.has(1):
        given = _scalar(call, 1)
        if given is None:
            x[at] = sym.size("spectrum")
            return (TensorType(of, (*x[:-1], parts)),)
        length = given
    elif back:
        length = sym.simplify(sym.mul(sym.sub(x[at], 1), 2))
    else:
        length = x[at]
    x[at] = _half(length) if call["onesided"] and not call["inverse"] else length
    return (TensorType(of, (*x[:-1], parts)),)


def _complex(x: Array) -> Array:
    big = wide(x)
    out = big[..., 0].astype(np.complex128 if big.dtype == np.float64 else np.complex64)
    if x.shape[-1] == 2:
        out.imag = big[..., 1]
    return out


def _parts(x: Array, of: np.dtype[Any]) -> Array:
    return np.stack([x.real, x.imag], axis=-1).astype(of)


def _dft(call: Call, x: Array, length: Array | None, axis: Array) -> Array:
    at = int(axis.reshape(())) % x.ndim
    signal = _complex(x)
    count = None if length is None else int(length.reshape(()))
    if call["inverse"] and call["onesided"]:
        return np.fft.irfft(signal, count, axis=at)[..., None].astype(x.dtype)
    if call["onesided"]:
        return _parts(np.fft.rfft(signal.real, count, axis=at), x.dtype)
    transform = np.fft.ifft if call["inverse"] else np.fft.fft
    return _parts(transform(signal, count, axis=at), x.dtype)


def _stft_type(call: Call) -> tuple[Type, ...]:
    x = call.shape(0)
    if len(x) != 3:
        raise call.error("TW1215", f"stft takes a signal of rank 3, not {len(x)}")
    _check_parts(call, x[-1])
    step = _scalar(call, 1)
    if call.has(2):
        length: Expr | None = call.shape(2)[0]
    else:
        length = _scalar(call, 3) if call.has(3) else x[1]
    frames: Expr = sym.size("frames")
    if step is not None and length is not None:
        frames = sym.simplify(sym.add(sym.floordiv(sym.sub(x[1], length), step), 1))
    bins: Expr = sym.size("bins")
    if length is not None:
        bins = _half(length) if call["onesided"] else length
    return (TensorType(call.tensor(0).dtype, (x[0], frames, bins, const(2))),)


def _stft(
    call: Call, x: Array, step: Array, window: Array | None = None, length: Array | None = None
) -> Array:
    signal, stride = _complex(x), int(step.reshape(()))
    if window is not None:
        count = len(window)
    else:
        count = x.shape[1] if length is None else int(length.reshape(()))
    frames = max(0, (x.shape[1] - count) // stride + 1)
    places = np.arange(frames)[:, None] * stride + np.arange(count)
    seen = signal[:, places]
    if window is not None:
        seen = seen * wide(window)
    if call["onesided"]:
        return _parts(np.fft.rfft(seen.real, axis=-1), x.dtype)
    return _parts(np.fft.fft(seen, axis=-1), x.dtype)


def _mel_type(call: Call) -> tuple[Type, ...]:
    bands, length = _scalar(call, 0), _scalar(call, 1)
    rows = sym.size("bins") if length is None else _half(length)
    columns = sym.size("bands") if bands is None else bands
    return (TensorType(call["to"], (rows, columns)),)


def _mel(call: Call, bands: Array, length: Array, rate: Array, low: Array, high: Array) -> Array:
    """Triangular filters, evenly spaced on the mel scale, over the bins of a spectrum."""
    count, size = int(bands.reshape(())), int(length.reshape(()))

    def mel(hertz: float) -> float:
        return float(2595 * np.log10(1 + hertz / 700))

    ends = [mel(float(edge.reshape(()))) for edge in (low, high)]
    mels = ends[0] + np.arange(count + 2) * ((ends[1] - ends[0]) / (count + 2))
    hertz = 700 * (10 ** (mels / 2595) - 1)
    bins = ((size + 1) * hertz // float(rate.reshape(()))).astype(np.int64)
    out = np.zeros((size // 2 + 1, count), np.float64)
    for band in range(count):
        left, peak, right = bins[band : band + 3]
        if peak == left:
            out[peak, band] = 1
        else:
            up = np.arange(left, peak + 1)
            out[up, band] = (up - left) / (peak - left)
        if right > peak:
            down = np.arange(peak, right)
            out[down, band] = (right - down) / (right - peak)
    return cast_array(out, call["to"])


OPS = (
    Op(
        "dft",
        "The discrete Fourier transform along an axis, of `length` values (zero-padded or "
        "truncated), or its inverse. One-sided: of a real signal, or giving one.",
        (Input("x", FLOAT), _number("length", optional=True), _number("axis")),
        _dft_type,
        _dft,
        OPAQUE,
        (Attr("inverse", bool, False), Attr("onesided", bool, False)),
    ),
    Op(
        "stft",
        "Fourier transforms of windowed frames of a signal, `step` apart.",
        (
            Input("x", FLOAT),
            _number("step"),
            Input("window", FLOAT, optional=True),
            _number("length", optional=True),
        ),
        _stft_type,
        _stft,
        OPAQUE,
        (Attr("onesided", bool, True),),
    ),
    Op(
        "mel_weights",
        "The matrix that maps the bins of a spectrum to bands on the mel scale.",
        (
            _number("bands"),
            _number("length"),
            Input("rate", NUMBER),
            Input("low", NUMBER),
            Input("high", NUMBER),
        ),
        _mel_type,
        _mel,
        OPAQUE,
        (Attr("to", DType, F32),),
    ),
)
