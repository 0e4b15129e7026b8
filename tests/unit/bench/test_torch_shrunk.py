"""Which config and which inputs a model of transformers is tried with."""

import importlib
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

BENCH = Path(__file__).parents[3] / "bench"


@pytest.fixture
def shrunk(monkeypatch):
    monkeypatch.syspath_prepend(BENCH)
    return importlib.import_module("torch_shrunk")


class Taking(torch.nn.Module):
    """Takes what has the shape that it wants."""

    def __init__(self, main, wanted):
        super().__init__()
        self.main_input_name, self.wanted = main, wanted


class Sounds(Taking):
    def forward(self, input_values=None, input_features=None):
        given = input_features if input_values is None else input_values
        if given.shape[1:] != self.wanted:
            raise ValueError("another shape")
        return given


class Masked(Taking):
    def forward(self, input_features, input_features_mask=None):
        return input_features[input_features_mask.bool()]


class Both(Taking):
    def forward(self, input_ids, pixel_values, ratio=None):
        return input_ids, pixel_values


def test_sounds_are_tried_with_and_without_channels_and_as_spectra(shrunk):
    config = SimpleNamespace(audio_channels=2, num_mel_bins=16, max_length=24)
    for wanted in ((shrunk.SAMPLES,), (2, shrunk.SAMPLES), (24, 16)):
        given = shrunk._inputs(Sounds("input_values", wanted), config)(5)
        assert given["input_values"].shape == (5, *wanted)


def test_the_bands_of_a_spectrum_are_told_by_a_config_inside(shrunk):
    config = SimpleNamespace(encoder=SimpleNamespace(model_type="encoder", num_mel_bins=16))
    wanted = (2 * shrunk.FRAMES, 16)
    assert shrunk._inputs(Sounds("input_features", wanted), config)(2).keys() == {"input_features"}


def test_a_mask_is_given_to_who_needs_one(shrunk):
    made = shrunk._inputs(Masked("input_features", None), SimpleNamespace(num_mel_bins=100))(2)
    assert made.keys() == {"input_features", "input_features_mask"}


def test_what_has_no_default_is_given(shrunk):
    made = shrunk._inputs(Both("pixel_values", None), SimpleNamespace())(2)
    assert made.keys() == {"pixel_values", "input_ids"}


class Config(SimpleNamespace):
    model_type = "made"

    def to_diff_dict(self):
        return {"name": self.name}


def test_a_config_inside_keeps_what_its_owner_chose(shrunk):
    whole = Config(name="whole", backbone=Config(name="chosen", hidden_size=99))
    small = {"hidden_size": 32, "model_type": "made"}
    assert shrunk._smaller(whole, shrunk.TABLES[0], False) == {"backbone": small}
    made = shrunk._smaller(whole, shrunk.TABLES[0], True)
    assert made == {"backbone": {"name": "chosen", **small}}


def test_of_a_list_with_one_for_each_layer_the_last_ones_stay(shrunk):
    kinds = ["sliding", "sliding", "sliding", "full"]
    config = Config(name="", num_hidden_layers=4, kinds=kinds)
    made = shrunk._smaller(config, shrunk.TABLES[0], False)
    assert made == {"num_hidden_layers": 2, "kinds": ["sliding", "full"]}


def test_of_a_model_that_writes_text_there_is_a_layer_of_each_kind(shrunk):
    kinds, others = ["a", "a", "b", "a", "b"], [0, 0, 0, 1, 0]
    config = Config(name="", num_hidden_layers=5, kinds=kinds, others=others)
    made = shrunk._smaller(config, shrunk.TABLES[0], False, layers=4)
    assert made == {"num_hidden_layers": 3, "kinds": ["a", "b", "a"], "others": [0, 0, 1]}
    config = Config(name="", num_hidden_layers=5, kinds=["a"] * 5)
    made = shrunk._smaller(config, shrunk.TABLES[0], False, layers=4)
    assert made == {"num_hidden_layers": 2, "kinds": ["a", "a"]}
