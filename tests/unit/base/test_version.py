import tilewright
from tilewright.base.version import VERSION


def test_the_version_is_the_same_everywhere():
    assert tilewright.__version__ == VERSION
