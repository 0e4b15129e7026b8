"""Decompose Fourier transforms into matmuls with matrices of roots of unity.

A short transform is one matmul: a row of n values, with real and imaginary parts interleaved, times
a real 2n x 2n matrix. A longer one with n = a b takes two steps (Cooley-Tukey), with t = b t1 + t2
and k = k1 + a k2:

    y[t2, k1] = sum over t1 of x[b t1 + t2] w(a, t1 k1)                  a matmul with one matrix
    X[k1 + a k2] = sum over t2 of y[t2, k1] w(n, t2 k1) w(b, t2 k2)      one matrix for each k1

The short-time transform of a windowed signal is a convolution whose stride is the frame step. For
long real frames, values that are multiplied by equal cosines and opposite sines are first added and
subtracted, which halves the matmuls.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tilewright.base.dtype import F32
from tilewright.graph.ir import Node, Value
from tilewright.graph.match import Array, Steps, shape_of
from tilewright.graph.rates import NOMINAL_RATES
from tilewright.graph.types import items_of
from tilewright.sym import Const, Expr

MAX_MATRIX_ELEMENTS = 1 << 23  # larger matrices are not worth their memory


def decomposed_dft(node: Node, steps: Steps) -> list[Node] | None:
    """The nodes of a DFT; None if its axis or length is not static."""
    x = node.inputs[0]
    assert x is not None
    axis = node.get("axis")
    if len([value for value in node.inputs if value is not None]) > 1 or not isinstance(axis, int):
        return None
    shape = shape_of(x) or ()
    at = axis % len(shape)
    size, parts = _number(shape[at]), _number(shape[-1])
    inverse, one_sided = bool(node.get("inverse", False)), bool(node.get("onesided", False))
    count = node.get(
        "length", None if size is None else 2 * (size - 1) if inverse and one_sided else size
    )
    if not isinstance(count, int) or size is None or parts is None or min(size, count) < 1:
        return None
    last = [each for each in range(len(shape) - 1) if each != at]
    order = (*last, at, len(shape) - 1)
    made = _Transform(steps, count, inverse, one_sided)
    rows = steps.add("transpose", x, perm=order)
    result = made.of(rows)
    if result is None:
        return None
    steps.add("transpose", result, perm=tuple(order.index(each) for each in range(len(shape))))
    return steps.done()


def decomposed_stft(node: Node, steps: Steps) -> list[Node] | None:
    """The nodes of an STFT; None if its length, step or window is not static."""
    x, step = node.inputs[0], node.get("step")
    window = node.inputs[2] if len(node.inputs) > 2 else None
    assert x is not None
    _, values, parts = shape_of(x) or ()
    seen = None if window is None else steps.scope.constant(window)
    count = len(seen) if seen is not None else node.get("length", _number(values))
    known = isinstance(step, int) and isinstance(count, int) and _number(parts) is not None
    if not known or (window is not None and seen is None) or min(count, step) < 1:
        return None
    one_sided = bool(node.get("onesided", True))
    signal, channels = _real(steps, x) if one_sided else (x, int(parts.value))
    bins = count // 2 + 1 if one_sided else count
    if one_sided and not _is_kept(count * bins):
        return _folded_frames(node, steps, signal, seen, count, step)
    if count * channels * bins * 2 > MAX_MATRIX_ELEMENTS:
        return None
    table = _table(count, bins, channels).reshape(count, channels, 2 * bins)
    if seen is not None:
        table = table * seen.astype(np.float64)[:, None, None]
    weights = steps.constant(table.transpose(2, 1, 0), x.tensor, "roots")
    signal = steps.add("transpose", signal, perm=(0, 2, 1))
    spectra = steps.add("conv", signal, weights, strides=(step,), pads=(0, 0), dilations=(1,))
    spectra = steps.add("transpose", spectra, perm=(0, 2, 1))
    steps.add("reshape", spectra, shape=_items(node.output))
    return steps.done()


def _folded_frames(
    node: Node, steps: Steps, x: Value, seen: Array | None, count: int, step: int
) -> list[Node] | None:
    """The STFT of real frames with half the multiplications: for values at equal distances from the
    two ends of a frame, cosines are equal and sines opposite."""
    bins, half = count // 2 + 1, (count - 1) // 2
    if (half + 2) * bins > MAX_MATRIX_ELEMENTS:
        return None
    add = steps.add
    frames = add("patches", x, kernel=(count,), strides=(step,), dilations=(1,))
    frames = add("reshape", frames, shape=(*_items(node.output)[:2], count))
    if seen is not None:
        frames = add("mul", frames, steps.constant(seen, x.tensor, "window"))

    def cut(start: int, end: int, by: int = 1) -> Value:
        return add("slice", frames, starts=(start,), ends=(end,), axes=(2,), steps=(by,))

    near, far = cut(1, 1 + half), cut(count - 1, count - 1 - half, -1)
    angles = _roots(np.arange(bins)[:, None] * np.arange(bins), count, inverse=False)
    even = [cut(0, 1), add("add", near, far), *([] if count % 2 else [cut(half + 1, half + 2)])]
    cosines = steps.constant(angles.real, x.tensor, "cosines")
    sines = steps.constant(angles.imag[1 : 1 + half], x.tensor, "sines")
    parts = [
        add("matmul", add("concat", *even, axis=2), cosines),
        add("matmul", add("sub", near, far), sines),
    ]
    shape = (*_items(node.output)[:-1], 1)
    add("concat", *[add("reshape", part, shape=shape) for part in parts], axis=3)
    return steps.done()


# ------------------------------------------------------------------------------------ one axis


@dataclass(frozen=True)
class _Transform:
    """A transform along the last axis but one; the last has real and imaginary parts."""

    steps: Steps
    count: int
    inverse: bool
    one_sided: bool

    @property
    def _is_small(self) -> bool:
        """Whether the matrix fits in a cache: two steps need fewer operations, but more passes over
        memory."""
        bins = self.count // 2 + 1 if self.one_sided else 2 * self.count
        return _is_kept(self.count * bins)

    def of(self, x: Value) -> Value | None:
        """The transform of x, forward or inverse, one-sided or not."""
        if self._is_small or _factor(self.count) == 1:
            return self._one_matmul(x)
        if not self.one_sided:
            return self._two_steps(self._fitted(x, self.count))
        if self.inverse:
            whole = self._two_steps(self._mirrored(self._fitted(x, self.count // 2 + 1)))
            return None if whole is None else _real(self.steps, whole)[0]
        whole = self._two_steps(self._fitted(_real(self.steps, x)[0], self.count))
        return None if whole is None else self._cut(whole, 0, self.count // 2 + 1)

    def _one_matmul(self, x: Value) -> Value | None:
        """A single matmul. Missing values are zero: their rows of the matrix are left out."""
        back = self.inverse and self.one_sided
        half = self.count // 2 + 1
        if self.one_sided and not self.inverse:
            x = _real(self.steps, x)[0]
        given, parts = _numbers(x)[-2:]
        used = min(given, half if back else self.count)
        x = x if used == given else self._cut(x, 0, used)
        results = half if self.one_sided and not back else self.count
        if used * parts * results * 2 > MAX_MATRIX_ELEMENTS:
            return None
        table = _table(self.count, results, parts, inverse=self.inverse)[: used * parts]
        if back:  # the spectrum is symmetric: double all bins but the first and the middle one
            twice = np.where((np.arange(used) * 2) % self.count == 0, 1.0, 2.0)
            table = table[:, 0::2] * np.repeat(twice, parts)[:, None]
        shape = _items(x)
        rows = self.steps.add("reshape", x, shape=(*shape[:-2], used * parts))
        product = self.steps.add("matmul", rows, self._constant(table, x))
        return self.steps.add(
            "reshape", product, shape=(*shape[:-2], results, table.shape[1] // results)
        )

    def _two_steps(self, x: Value) -> Value | None:
        """Two matmuls (Cooley-Tukey); the matrices of the second one include the twiddle
        factors."""
        a = _factor(self.count)
        b = self.count // a
        if 4 * b * self.count > MAX_MATRIX_ELEMENTS:
            return None
        *outer, _, _ = _items(x)
        parts = _numbers(x)[-1]
        rows = math.prod(outer)
        add = self.steps.add
        y = add("reshape", x, shape=(rows, a, b, parts))
        y = add("transpose", y, perm=(0, 2, 1, 3))
        y = add("reshape", y, shape=(rows, b, a * parts))
        table = _table(a, a, parts, inverse=self.inverse)
        y = add("matmul", y, self._constant(table, x))
        y = add("reshape", y, shape=(rows, b, a, 2))
        y = add("transpose", y, perm=(2, 0, 1, 3))
        y = add("reshape", y, shape=(a, rows, b * 2))
        y = add("matmul", y, self._constant(_twiddled(a, b, inverse=self.inverse), x))
        y = add("reshape", y, shape=(a, rows, b, 2))
        y = add("transpose", y, perm=(1, 2, 0, 3))
        return add("reshape", y, shape=(*outer, self.count, 2))

    def _fitted(self, x: Value, count: int) -> Value:
        """Truncate or zero-pad the signal to `count` values."""
        given = _numbers(x)[-2]
        if given >= count:
            return x if given == count else self._cut(x, 0, count)
        rank = _rank(x)
        pads = [0] * (2 * rank)
        pads[2 * rank - 2] = count - given
        return self.steps.add("pad", x, pads=tuple(pads))

    def _mirrored(self, x: Value) -> Value:
        """The whole spectrum of a real signal from its first half."""
        axis = _rank(x) - 2
        low = 1 if self.count % 2 else 2  # even lengths have a single middle bin
        mirror = self.steps.add("slice", x, starts=(-low,), ends=(0,), axes=(axis,), steps=(-1,))
        signs = self.steps.constant(np.array([1.0, -1.0]), x.tensor, "signs")
        other = self.steps.add("mul", mirror, signs)
        return self.steps.add("concat", x, other, axis=axis)

    def _cut(self, x: Value, start: int, end: int) -> Value:
        axis = _rank(x) - 2
        return self.steps.add("slice", x, starts=(start,), ends=(end,), axes=(axis,))

    def _constant(self, table: Array, x: Value) -> Value:
        return self.steps.constant(table, x.tensor, "roots")


def _is_kept(numbers: int) -> bool:
    """Whether a matrix of so many complex numbers fits in a cache."""
    return 2 * numbers * F32.size_bytes <= NOMINAL_RATES.kept_bytes


def _real(steps: Steps, x: Value) -> tuple[Value, int]:
    """The real parts, and 1: the number of parts of each value."""
    if _numbers(x)[-1] == 1:
        return x, 1
    axis = _rank(x) - 1
    return steps.add("slice", x, starts=(0,), ends=(1,), axes=(axis,)), 1


# ------------------------------------------------------------------------------------ tables


def _roots(exponents: Array, count: int, *, inverse: bool) -> Array:
    """exp(-2 pi i e / count) for integers e; conjugated and divided by count for the inverse."""
    angles = (exponents % count) * (2 * math.pi / count)
    roots: Array = np.exp((1j if inverse else -1j) * angles)
    return roots / count if inverse else roots


def _as_real(roots: Array, parts: int) -> Array:
    """The real matrix that multiplies rows of complex (or real) numbers by complex ones."""
    real = np.stack([roots.real, roots.imag], axis=-1)
    rows = [real, np.stack([-roots.imag, roots.real], axis=-1)][:parts]
    *stack, height, width = roots.shape
    return np.stack(rows, axis=-3).reshape(*stack, height * parts, width * 2)


def _table(values: int, results: int, parts: int, *, inverse: bool = False) -> Array:
    """The matrix of a transform: a row per part of each value, a column per part of each result."""
    exponents = np.arange(values)[:, None] * np.arange(results)
    return _as_real(_roots(exponents, values, inverse=inverse), parts)


def _twiddled(a: int, b: int, *, inverse: bool) -> Array:
    """For each k1, the matrix of a transform of b values after twiddle factors w(a b, t2 k1)."""
    turns = _roots(np.arange(a)[:, None] * np.arange(b), a * b, inverse=inverse)
    table = _roots(np.arange(b)[:, None] * np.arange(b), b, inverse=inverse)
    turned = turns[:, :, None] * table
    # The inverse divides by a and by b; the twiddle factors must not divide again.
    return _as_real(turned * (a * b) if inverse else turned, 2)


def _factor(count: int) -> int:
    """The largest divisor up to the square root."""
    return next(each for each in range(math.isqrt(count), 0, -1) if count % each == 0)


# ------------------------------------------------------------------------------------ sizes


def _number(dim: Expr) -> int | None:
    return int(dim.value) if isinstance(dim, Const) else None


def _rank(x: Value) -> int:
    return len(shape_of(x) or ())


def _items(x: Value) -> tuple[int | Expr, ...]:
    return items_of(shape_of(x) or ())


def _numbers(x: Value) -> list[int]:
    """The last two extents of a signal, which are static."""
    return [int(dim.value) for dim in (shape_of(x) or ())[-2:] if isinstance(dim, Const)]
