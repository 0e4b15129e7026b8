"""What tests of intrinsics share: random tiles, and compiled code kept out of the user's cache."""

import ml_dtypes
import numpy as np
import pytest


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def tile():
    """tile(dtype, *shape): random elements; floats are small integers, whose sums are exact."""
    rng = np.random.default_rng(0)

    def make(of, *shape):
        if of in ("bf16", "f32"):
            to = {"bf16": ml_dtypes.bfloat16, "f32": np.float32}[of]
            return rng.integers(-8, 9, shape).astype(to)
        limits = np.iinfo(np.dtype({"u8": "u1", "i8": "i1", "i16": "i2", "i32": "i4"}[of]))
        return rng.integers(limits.min, limits.max, shape, endpoint=True).astype(limits.dtype)

    return make
