import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tilewright import te
from tilewright.codegen.build import build
from tilewright.runtime import Signature, profile
from tilewright.runtime.profiler import Event, Record
from tilewright.tensor import Schedule


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


def test_long_names_are_whole(run):
    """Kernels of which the first hundred letters are the same stay apart."""
    names = ["k" * 100 + end for end in ("", "a", "b", "")]
    with profile() as record:
        for name in names:
            run(name)
    assert [event.kernel for event in record.events] == names
    assert {each.kernel: each.calls for each in record.kernels()} == Counter(names)


def test_names_of_several_threads_are_kept_once(run):
    names = [f"kernel {at}" for at in range(300)]
    with profile() as record, ThreadPoolExecutor(4) as pool:
        list(pool.map(run, names * 4))
    assert sorted(event.kernel for event in record.events) == sorted(names * 4)


def test_shares_of_workers_have_the_names_of_their_kernels():
    n = te.var("n")
    x = te.placeholder((n,), name="x")
    y = te.compute((n,), lambda i: te.exp(x[i]), name="y")
    sch = Schedule(te.function([n, x, y], name="exps"))
    sch.parallel(sch.get_loops(sch.get_block("y"))[0])
    function, size = build(sch.function), 1 << 18
    given, made = np.zeros(size, np.float32), np.empty(size, np.float32)
    with profile() as record:
        function(size, given, made, threads=2)
    assert not record.shares
    for _ in range(1000):  # a worker that never wakes up in time takes no share
        with profile(shares=True) as record:
            function(size, given, made, threads=2)
        (kernel,) = record.events
        if record.shares:
            break
    (share,) = record.shares
    assert (share.kernel, kernel.kernel) == ("exps", "exps")
    assert share.thread != kernel.thread
    assert kernel.begin_ns <= share.begin_ns <= share.end_ns
    assert len(record.trace()["traceEvents"]) == 2


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


@pytest.mark.parametrize(
    ("flops", "size_bytes", "shown"),
    [
        (5000, 800, ["GFLOP/s", "GB/s", "50.0", "8.0"]),
        (80_000_000, 400_000, ["TFLOP/s", "TB/s", "800.00", "4.00"]),
    ],
)
def test_rates_are_shown_in_billions_or_trillions(flops, size_bytes, shown):
    record = Record((Event("k", 0, 100, flops, size_bytes, 0),))
    assert all(part in str(record) and part in record._repr_html_() for part in shown)
