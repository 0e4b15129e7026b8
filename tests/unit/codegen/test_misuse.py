"""What the functions of the package say when they are handed the wrong thing."""

import numpy as np
import pytest

import tilewright as tw
from tilewright.base.errors import UserError, UserTypeError

FILL = "func @f(%x: f32[4]) stage scheduled { %x[0] = 1.0 }"


@pytest.fixture(scope="module")
def fill():
    return tw.build(tw.tensor.parse(FILL))


@pytest.fixture(scope="module")
def loaded(fill, tmp_path_factory):
    return tw.load(fill.save(tmp_path_factory.mktemp("library") / "f.so"))


@pytest.mark.parametrize("use", [tw.build, tw.interpret])
def test_a_schedule_is_no_function(use):
    with pytest.raises(UserTypeError, match="a Schedule") as caught:
        use(tw.Schedule(tw.tensor.parse(FILL)))
    assert caught.value.code == "TW2195"
    assert caught.value.help == "pass its function: schedule.function"


@pytest.mark.parametrize("use", [tw.build, tw.interpret])
@pytest.mark.parametrize("value", [None, FILL, 3, tw.te.placeholder((4,), name="a")])
def test_other_things_are_no_function(use, value):
    with pytest.raises(UserTypeError) as caught:
        use(value)
    assert caught.value.code == "TW2195"
    assert "te.function" in caught.value.help


@pytest.mark.parametrize(
    ("threads", "code", "kind"),
    [
        (-1, "TW4016", UserError),
        (1 << 40, "TW4016", UserError),
        ("2", "TW4018", UserTypeError),
        (2.5, "TW4018", UserTypeError),
        (None, "TW4018", UserTypeError),
    ],
)
def test_bad_numbers_of_threads(fill, loaded, threads, code, kind):
    x = np.zeros(4, np.float32)
    for call in (
        lambda: fill(x, threads=threads),
        lambda: loaded(x, threads=threads),
        lambda: tw.set_threads(threads),
    ):
        with pytest.raises(kind) as caught:
            call()
        assert caught.value.code == code
    assert not x.any()


def test_numbers_of_threads_may_be_numpys(fill):
    x = np.zeros(4, np.float32)
    fill(x, threads=np.int64(2))
    assert x[0] == 1


@pytest.mark.parametrize("suffix", [".o", ".so", ".h", ".ll", ".s"])
def test_saving_into_a_missing_folder(fill, tmp_path, suffix):
    folder = tmp_path / "missing"
    with pytest.raises(UserError, match=str(folder)) as caught:
        fill.save(folder / f"f{suffix}")
    assert caught.value.code == "TW3033"
    assert not list(tmp_path.iterdir())


def test_the_runtime_is_at_hand(fill):
    x = tw.from_dlpack(tw.empty((4,), "f32"))
    with tw.profile():
        fill(x)
    assert np.from_dlpack(x)[0] == 1
