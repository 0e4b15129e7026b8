import json

import pytest

from tilewright.runtime import Signature, profile


@pytest.fixture
def run(kernel, native):
    """Runs a function that reports itself under a name."""

    def go(name, flops=0, size_bytes=0):
        def report(_tensors):
            native.tw_profile_end(name.encode(), native.tw_profile_begin(), flops, size_bytes)

        address, owner = kernel(report)
        Signature(name, ()).bind(address, owner)()

    return go


def test_kernels_are_counted_and_timed(run):
    with profile() as record:
        run("scale", flops=10, size_bytes=40)
        run("scale", flops=20, size_bytes=80)
        run("add")
    assert [event.kernel for event in record.events] == ["scale", "scale", "add"]
    totals = {total.kernel: total for total in record.kernels()}
    scale = totals["scale"]
    assert (scale.calls, scale.flops, scale.size_bytes) == (2, 30, 120)
    assert 0 <= scale.min_ns <= scale.max_ns <= scale.total_ns
    assert scale.gflops == pytest.approx(30 / scale.total_ns)
    assert scale.gbytes == pytest.approx(120 / scale.total_ns)
    assert "scale" in str(record)
    assert record.lost == 0


def test_nothing_is_recorded_outside(run):
    run("before")
    with profile() as record:
        pass
    run("after")
    assert record.events == ()


def test_earlier_events_are_forgotten(run):
    with profile():
        run("first")
    with profile() as record:
        run("second")
    assert [event.kernel for event in record.events] == ["second"]


def test_newest_events_are_kept_and_the_others_counted(run):
    with profile(2) as record:
        for i in range(5):
            run(f"run {i}")
    assert [event.kernel for event in record.events] == ["run 3", "run 4"]
    assert record.lost == 3
    assert "3 runs were not recorded" in str(record)


def test_long_names_are_cut(run):
    with profile() as record:
        run("k" * 100)
    assert record.events[0].kernel == "k" * 63


def test_only_one_profiler_runs_at_a_time(run):
    with profile(), pytest.raises(ValueError, match="TW4017"), profile():
        pass
    with profile() as record:
        run("again")
    assert len(record.events) == 1


def test_trace_is_written_for_viewers(run, tmp_path):
    with profile() as record:
        run("scale", flops=3, size_bytes=4)
    record.write_trace(tmp_path / "trace.json")
    (event,) = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert (event["name"], event["ph"], event["args"]) == ("scale", "X", {"flops": 3, "bytes": 4})
