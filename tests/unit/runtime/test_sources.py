import re

from tilewright.runtime import _native, errors
from tilewright.runtime.sources import FOLDER, HEADERS, runtime_sources


def test_runtime_sources_leave_the_python_binding_out():
    names = {path.name for path in runtime_sources()}
    assert "pool.c" in names
    assert not any(name.startswith("python_") for name in names)
    for path in (*runtime_sources(), *(FOLDER / header for header in HEADERS)):
        assert "Python.h" not in path.read_text()


def test_every_error_code_of_the_header_has_an_exception():
    header = (FOLDER / "tilewright.h").read_text()
    accel = re.search(r"enum tw_accel_code \{.*?\}", (FOLDER / "accel/accel.h").read_text(), re.S)
    codes = re.findall(r"TW_ERROR_\w+ = (\d+)", header)
    codes += re.findall(r"TW_ACCEL_\w+ = (\d+)", accel[0])
    assert {int(code) for code in codes} == set(errors._KINDS)


def test_symbols_are_declared_in_the_header():
    header = (FOLDER / "tilewright.h").read_text()
    for name in _native.symbols():
        assert re.search(rf"\b{name}\(", header)
