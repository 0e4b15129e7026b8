"""One kernel: what happens where a schedule asks for too much."""

import pytest

from tilewright import graph
from tilewright.base.errors import Unsupported
from tilewright.base.target import Target
from tilewright.driver import kernel_code
from tilewright.driver.kernels import Job, KernelSetting


@pytest.fixture
def job():
    module = graph.parse("graph @main(%x: f32[40]) -> (f32[40]) { %y = relu(%x) return %y }")
    return Job("relu", module.main, {}, frozenset(), KernelSetting(Target.parse("cpu"), 1))


def test_plain_loops_serve_where_a_schedule_does_not(job, monkeypatch):
    plain = kernel_code.compile_kernel(
        Job(job.label, job.source, {}, frozenset(), KernelSetting(job.setting.target, 1, False)),
        use_cache=False,
    )
    image, refused = kernel_code._image, []

    def picky(fn, target, **options):
        if not refused:
            refused.append(fn)
            raise Unsupported("TW3041", "not a constant register")
        return image(fn, target, **options)

    monkeypatch.setattr(kernel_code, "_image", picky)
    made = kernel_code.compile_kernel(job, use_cache=False)
    assert refused
    assert made.text.split("{", 1)[1] == plain.text.split("{", 1)[1]


def test_what_nothing_can_compile_is_refused(job, monkeypatch):
    def refuse(*_, **__):
        raise Unsupported("TW3041", "not a constant register")

    monkeypatch.setattr(kernel_code, "_image", refuse)
    with pytest.raises(Unsupported, match="constant register"):
        kernel_code.compile_kernel(job, use_cache=False)
