"""The generator: what it gives is fixed for all targets, and looks random."""

import numpy as np

from tilewright.graph.ops.random import philox


def rounds(index, seed):
    """Philox2x32-10 as its paper has it, on Python's integers."""
    low, high, key = index & 0xFFFFFFFF, index >> 32, seed
    for _ in range(10):
        product = low * 0xD256D193
        low, high = (product >> 32) ^ key ^ high, product & 0xFFFFFFFF
        key = (key + 0x9E3779B9) & 0xFFFFFFFF
    return low


def test_words_are_philox():
    index = np.array([0, 1, 2, 12345, (7 << 32) + 5, (1 << 63) - 1], np.uint64)
    for seed in (0, 1, 0xDEADBEEF):
        want = [rounds(int(i), seed) for i in index]
        assert philox(index, seed).tolist() == want


def test_an_element_depends_on_its_index_and_the_seed_alone(run_op):
    long = run_op("random_bits", shape=(100,), seed=3)
    grid = run_op("random_bits", np.array([4, 5]), seed=3, symbolic=False)
    np.testing.assert_array_equal(grid.ravel(), long[:20])
    assert (run_op("random_bits", shape=(100,), seed=4) != long).all()


def test_bits_are_even():
    words = philox(np.arange(1 << 16), 1)
    ones = np.unpackbits(words.view(np.uint8)).mean()
    assert abs(ones - 0.5) < 0.002
    numbers = (words >> 8) * 2.0**-24
    assert abs(numbers.mean() - 0.5) < 0.005
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.01
    counts, _ = np.histogram(numbers, 64, (0, 1))
    assert ((counts - 1024) ** 2 / 1024).sum() < 120
