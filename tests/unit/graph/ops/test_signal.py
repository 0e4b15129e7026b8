"""Fourier transforms against their sum."""

import numpy as np
import pytest

from tilewright.base.dtype import F32
from tilewright.base.errors import UserError
from tilewright.graph import Builder, TensorType
from tilewright.sym import const, size


def parts(x):
    return np.stack([x.real, x.imag], axis=-1)


def summed(x, sign=-1):
    n = len(x)
    turn = np.exp(sign * 2j * np.pi * np.outer(np.arange(n), np.arange(n)) / n)
    return turn @ x


def test_forward_and_back(run_op, rng):
    x = rng.standard_normal((3, 7, 2))
    there = run_op("dft", x, axis=1)
    for row in range(3):
        np.testing.assert_allclose(there[row], parts(summed(x[row, :, 0] + 1j * x[row, :, 1])))
    np.testing.assert_allclose(run_op("dft", there, axis=-2, inverse=True), x, atol=1e-12)


@pytest.mark.parametrize("length", [5, 6])
def test_half_a_spectrum_says_all_of_a_real_signal(run_op, rng, length):
    x = rng.standard_normal((2, length, 1))
    half = run_op("dft", x, axis=1, onesided=True)
    whole = run_op("dft", x, axis=1)
    assert half.shape == (2, length // 2 + 1, 2)
    np.testing.assert_allclose(half, whole[:, : length // 2 + 1], atol=1e-12)
    kinds = {"axis": 1, "inverse": True, "onesided": True}
    back = run_op("dft", half, np.array(length), **kinds, symbolic=False)
    np.testing.assert_allclose(back, x, atol=1e-12)


@pytest.mark.parametrize("length", [4, 12])
def test_signals_are_cut_or_filled_up(run_op, rng, length):
    x = rng.standard_normal((8, 1))
    made = run_op("dft", x, np.array(length), axis=0, symbolic=False)
    signal = np.zeros(length)
    signal[: min(8, length)] = x[:length, 0]
    np.testing.assert_allclose(made, parts(summed(signal)), atol=1e-12)


def test_frames_are_seen_through_a_window(run_op, rng):
    x, window = rng.standard_normal((2, 20, 1)), np.hanning(8)
    made = run_op("stft", x, np.array(5), window, symbolic=False)
    assert made.shape == (2, 3, 5, 2)
    frame = run_op("dft", x[:, 5:13] * window[:, None], axis=1, onesided=True)
    np.testing.assert_allclose(made[:, 1], frame)


def test_shapes_follow_sizes():
    n = size("n")
    builder = Builder()
    x = builder.param("x", TensorType(F32, (const(2), n, const(1))))
    assert str(builder.add("dft", x, axis=1, onesided=True).type) == "f32[2, n // 2 + 1, 2]"
    window = builder.constant(np.ones(8, np.float32))
    made = builder.add("stft", x, None, window, step=4)
    assert str(made.type) == "f32[2, n // 4 - 1, 5, 2]"


def test_mel_bands_are_triangles(run_op):
    numbers = [np.array(v) for v in (4, 64, 8000)] + [np.float32(0), np.float32(4000)]
    made = run_op("mel_weights", *numbers, symbolic=False)
    assert made.shape == (33, 4)
    assert (made.max(axis=0) == 1).all()
    for band in made.T:
        (inside,) = np.nonzero(band)
        peak = band.argmax()
        assert (np.diff(band[inside[0] : peak + 1]) > 0).all()
        assert (np.diff(band[peak : inside[-1] + 1]) < 0).all()


@pytest.mark.parametrize(
    ("op", "shape", "attributes", "error"),
    [
        ("dft", (4,), {"axis": 0}, "TW1215.*not rank 1"),
        ("dft", (4, 2), {"axis": 1}, "TW1215.*parts"),
        ("dft", (4, 3), {"axis": 0}, "TW1215.*not of 3"),
        ("stft", (4, 2), {"step": 2}, "TW1215.*rank 3"),
        ("stft", (1, 4, 0), {"step": 2}, "TW1215.*not of 0"),
    ],
)
def test_what_does_not_fit(run_op, op, shape, attributes, error):
    with pytest.raises(UserError, match=error):
        run_op(op, np.ones(shape), **attributes)
