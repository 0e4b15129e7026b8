"""A cache for all tests of code generation, which begins empty."""

import pytest


@pytest.fixture(scope="session")
def cache_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _own_cache(cache_folder, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(cache_folder))
