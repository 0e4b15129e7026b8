"""The table of costs that graph passes ask: measured where tuning knows, else estimated."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tilewright.base.dtype import F32
from tilewright.base.passes import PassContext, run_passes
from tilewright.base.target import Target
from tilewright.driver.build import build_module, kernel_setting
from tilewright.driver.compile import compile
from tilewright.driver.costs import KernelCosts, recorded_times
from tilewright.driver.kernels import KernelSetting, try_cached
from tilewright.driver.lowering import planned_calls
from tilewright.driver.optimize import kernel_costs, optimize
from tilewright.driver.options import Options
from tilewright.driver.sizes import with_sizes
from tilewright.driver.tuning import helping_choices as helping
from tilewright.driver.tuning.graph_choices import TimedJob, alone_module, measure_choices
from tilewright.driver.tuning.records import task_key
from tilewright.graph import Builder, TensorType, parse
from tilewright.graph.build import store_constant
from tilewright.graph.costs import ESTIMATED, MEASURED, Candidate, alone
from tilewright.graph.ir import CANONICAL
from tilewright.graph.passes import FUSED
from tilewright.graph.passes.assign_layout import assign_layout
from tilewright.graph.passes.choose_winograd import choose_winograd, with_tile
from tilewright.graph.passes.im2col_convolutions import im2col_convolutions
from tilewright.graph.types import sizes_of
from tilewright.graph.visit import Edit
from tilewright.lower.graph import lower_graph
from tilewright.rules import schedule
from tilewright.rules.estimate import estimate_ns, weights_bytes
from tilewright.sym import const
from tilewright.tune.budget import Budget, Deadline, Late
from tilewright.tune.database import Database, Records
from tilewright.tune.outcome import Outcome
from tilewright.tune.record import Time, Trial
from tilewright.tune.stats import Paired

SERVER = Target.parse("x86_64-linux-gnu -mcpu=cascadelake")
HOST = Target.parse("cpu")


def model(size=28, channels=64, layout="channels_last"):
    b = Builder()
    shape = (1, size, size, channels) if layout == "channels_last" else (1, channels, size, size)
    x = b.param("x", TensorType(F32, tuple(map(const, shape))))
    w = b.constant(np.ones((channels, channels, 3, 3), np.float32))
    window = {"strides": (1, 1), "pads": (1,) * 4, "dilations": (1, 1)}
    return b.module(b.add("conv", x, w, layout=layout, **window))


def candidates(module=None):
    node = next(node for node in (module or model()).main.nodes if node.op == "conv")
    forms = {"direct": node, "winograd 4": with_tile(node, 4)}
    return tuple(Candidate(name, alone(each), frozenset({1})) for name, each in forms.items())


def table(times=None, target=SERVER, **more):
    return KernelCosts(KernelSetting(target, 2), times, **more)


def test_an_estimate_is_the_price_of_the_plan_that_rules_would_choose():
    costs = table(use_cache=False)
    for candidate, price in zip(candidates(), costs.prices(candidates()), strict=True):
        fn = lower_graph(candidate.kernel, "kernel")
        made = schedule(fn, SERVER, threads=2, constants=[fn.params[1].name])
        assert price.source == ESTIMATED
        assert price.ns == pytest.approx(sum(d.predicted_ns for d in made.decisions), rel=0.05)


def test_prices_that_are_compared_are_of_one_kind():
    direct, tiled = candidates()
    costs = table()
    known = {costs.job(direct).key: 5e3}
    costs.times = lambda job: known.get(job.key)
    assert costs.measured((direct, tiled)) is None
    assert {price.source for price in costs.prices((direct, tiled))} == {ESTIMATED}
    known[costs.job(tiled).key] = 7e3
    assert [(p.ns, p.source) for p in costs.prices((direct, tiled))] == [
        (5e3, MEASURED),
        (7e3, MEASURED),
    ]


def test_what_was_measured_decides_about_the_method():
    def chosen(fast):
        costs = table()
        ns = {costs.job(each).key: 1e3 if each.name == fast else 1e4 for each in asked}
        costs.times = lambda job: ns.get(job.key)
        ctx = PassContext(target=SERVER, costs=costs)
        made = run_passes(model(), (choose_winograd,), ctx)
        (choice,) = ctx.choices
        assert {price.source for price in choice.prices} == {MEASURED}
        return made.main.nodes[-1].get("winograd", 0), choice.chosen

    node = model().main.nodes[-1]
    two = Candidate("winograd 2", alone(with_tile(node, 2)), frozenset({1}))
    asked = (*candidates(), two)
    assert chosen("direct") == (0, "direct")
    assert chosen("winograd 4") == (4, "winograd 4")
    assert chosen("winograd 2") == (2, "winograd 2")


DYNAMIC = "graph @main(%x: f32[n, 64]) { %y = exp(%x) return %y }"


def test_an_estimate_of_dynamic_sizes_is_for_the_middle_of_their_range():
    (node,) = parse(DYNAMIC).main.nodes
    (size,) = sizes_of(node.output.type)

    def estimated(*ranges):
        costs = table(use_cache=False, ranges=ranges)
        (price,) = costs.prices((Candidate("kernel", alone(node)),))
        return price.ns

    few, many = estimated((size, 1, 4)), estimated((size, 1000, 4000))
    assert 5 * few < estimated() < many / 5


def test_ranges_of_a_model_reach_the_table_of_costs():
    module = with_sizes(parse(DYNAMIC), {"n": (2, 8)})
    ctx = PassContext(target=SERVER, costs=table(use_cache=False))
    optimize(module, SERVER, Options(threads=2), ctx)
    assert [(low, high) for _, low, high in ctx.costs.ranges] == [(2, 8)]


@pytest.mark.parametrize(("first_us", "moved"), [(10, False), (1000, True)])
def test_the_minimum_cut_goes_by_measured_times(first_us, moved):
    costs = table(asked=[])
    module = model(layout="channels_first")
    run_passes(module, (assign_layout,), PassContext(target=SERVER, costs=costs))
    us = {"channels first": first_us, "transpose": 20}  # other forms are of channels last
    asked = [each for group in costs.asked for each in group]
    ns = {costs.job(each).key: 1e3 * us.get(each.name, 100) for each in asked}
    costs.times = lambda job: ns.get(job.key)
    ctx = PassContext(target=SERVER, costs=costs)
    made = run_passes(module, (assign_layout,), ctx)
    assert any(node.op == "transpose" for node in made.main.nodes) is moved
    assert [each.chosen for each in ctx.choices] == ["channels last" if moved else "channels first"]


INTEGERS = """
graph @main(%x: u8[1, 14, 14, 3], %w: i8[32, 3, 3, 3]) -> (i32[1, 14, 14, 32]) {
  %y = conv_integer(%x, %w) {
    strides = (1, 1), pads = (1, 1, 1, 1), dilations = (1, 1), layout = "channels_last"}
  return %y
}"""


@pytest.mark.parametrize("fast", ["channels of 4", "im2col"])
def test_what_was_measured_decides_how_windows_become_rows(fast):
    module = with_constants(parse(INTEGERS), {"w": np.ones((32, 3, 3, 3), np.int8)})
    costs = table(asked=[])
    ctx = PassContext(target=SERVER, costs=costs)
    before = run_passes(module, (im2col_convolutions,), ctx)
    ((*group,),) = costs.asked
    # three channels are no whole group of a dot product
    assert {each.name for each in group} == {"channels of 4", "im2col"}
    assert ctx.choices[0].chosen == "channels of 4"
    assert set(before.constants) == {"w", "w_1"}, "weights of forms that were only weighed stay"
    ns = {costs.job(each).key: 1e3 if each.name == fast else 2e3 for each in group}
    costs.times = lambda job: ns.get(job.key)
    made = run_passes(module, (im2col_convolutions,), PassContext(target=SERVER, costs=costs))
    assert any(node.op == "conv_integer" for node in made.main.nodes) is (fast != "im2col")


def with_constants(module, arrays):
    """The module with some parameters constant."""
    constants = {}
    edit, head = Edit(), []
    for param in module.main.params:
        if param.name in arrays:
            head.append(store_constant(constants, arrays[param.name], param.name))
            edit.values[param] = head[-1].output
    main = module.main
    nodes = (*head, *(edit.node(node) for node in main.nodes))
    params = tuple(param for param in main.params if param.name not in arrays)
    results = tuple(edit.value(result) for result in main.results)
    main = replace(main, params=params, nodes=nodes, results=results)
    return replace(module, graphs={"main": main}, constants=constants)


def test_times_of_the_database_are_found_and_none_are_no_error(tmp_path):
    costs, (direct, _) = table(), candidates()
    database = Database(tmp_path / "tuned.db")
    database.time(task_key(costs.job(direct)), Time(1500.0))
    for source in (database, tmp_path / "tuned.db"):
        costs.times = recorded_times(source)
        assert costs.measured((direct,))[0].ns == 1500.0
    database.close()
    costs.times = recorded_times(tmp_path / "tuned.db")
    (tmp_path / "tuned.db").write_bytes(b"damaged" * 1000)
    (tmp_path / "tuned.db-wal").unlink(missing_ok=True)
    costs.measured((direct,))  # whatever it tells, it is no error
    assert recorded_times("") is None
    assert recorded_times(tmp_path / "none.db") is None
    (tmp_path / "damaged.db").write_bytes(b"no database" * 100)
    assert recorded_times(tmp_path / "damaged.db") is None


def test_weights_from_memory_take_their_time():
    _, tiled = candidates(model(7, 512))
    fn = lower_graph(tiled.kernel, "kernel")
    weights = frozenset({fn.params[1].name})
    assert weights_bytes(fn, weights) == 36 * 512 * 512 * 4  # transformed, not as they are given
    near, far = (
        estimate_ns(fn, SERVER, threads=1, constants=weights, in_cache=each)
        for each in (True, False)
    )
    machine = SERVER.machine
    least = 36 * 512 * 512 * 4 / machine.scattered_bytes_per_cycle * machine.cycle_ns
    assert near <= far
    assert far >= least
    prices = table().prices((tiled, replace(tiled, in_cache=False)))
    assert prices[0].ns <= prices[1].ns


def square(op):
    b = Builder()
    x = b.param("x", TensorType(F32, (const(4), const(4))))
    return Candidate(op, alone(b.module(b.add(op, x)).main.nodes[0]))


def test_work_in_order_has_the_price_of_its_rule():
    candidate = square("det")
    made = schedule(lower_graph(candidate.kernel, "kernel"), SERVER, threads=2)
    assert "sequence" in [each.rule for each in made.decisions]
    (price,) = table(use_cache=False).prices((candidate,))
    assert price.ns == pytest.approx(sum(each.predicted_ns for each in made.decisions))


def test_a_kernel_that_no_rule_prices_has_no_estimate(monkeypatch):
    monkeypatch.setattr("tilewright.rules.estimate.RULES", {})
    assert table(use_cache=False).prices((square("reduce_sum"),)) is None


def built(module):
    steps = FUSED if module.stage == CANONICAL else ()
    made = run_passes(module, steps, PassContext(target=HOST))
    return build_module(made, HOST, Options(threads=2, database=""))


def unwanted(module):
    pytest.fail("it is known")


def test_choices_are_measured_as_kernels_and_remembered():
    costs = table(target=HOST, asked=[])
    run_passes(model(8, 16), (choose_winograd,), PassContext(target=HOST, costs=costs))
    found = measure_choices(costs, built, Deadline.after(60.0), Records.open(None))
    (group,) = costs.asked
    assert {each.job.key for each in found} == {costs.job(each).key for each in group}
    costs.times = helping.with_times(found, None)
    assert {price.source for price in costs.prices(group)} == {MEASURED}
    assert measure_choices(costs, unwanted, Deadline.after(60.0), Records.open(None)) == []


def test_candidates_are_compiled_together_before_they_are_measured():
    costs, events = table(target=HOST, asked=[]), []
    run_passes(model(8, 16), (choose_winograd,), PassContext(target=HOST, costs=costs))

    def build(module):
        events.append(module)
        return built(module)

    def prepare(modules):
        events.append(list(modules))

    given = (build, Deadline.after(60.0), Records.open(None))
    assert measure_choices(costs, *given, prepare=prepare)
    first, *others = events
    assert first == others
    assert len(first) > 1


def test_kernels_that_are_compiled_ahead_are_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    settings = Options(threads=1, database="")
    module = run_passes(model(8, 16), FUSED, PassContext(target=HOST))
    setting = kernel_setting(module, HOST, settings)
    _, jobs = planned_calls(module, setting)
    assert not any(map(try_cached, jobs.values()))
    helping.compile_ahead([module], Deadline.after(600.0), HOST, settings)
    assert all(map(try_cached, jobs.values()))
    with pytest.raises(Late):
        helping.compile_ahead([optimized_at(24)], Deadline.after(-1.0), HOST, settings)


def optimized_at(size):
    return run_passes(model(8, size), FUSED, PassContext(target=HOST))


SPREAD = """
graph @main(%row: f32[1, 48], %x: f32[64, 48]) -> (f32[64, 48]) {
  %e = exp(%row)
  %y = add(%x, %e)
  return %y
}"""


def test_both_ways_to_fuse_are_measured_as_kernels_and_the_faster_is_taken():
    costs = table(target=HOST, asked=[])
    module = parse(SPREAD)
    run_passes(module, FUSED, PassContext(target=HOST, costs=costs))
    (group,) = costs.asked
    for candidate in group:
        (kernel,) = alone_module(candidate).main.nodes
        assert kernel.op == "fused"
    found = measure_choices(costs, built, Deadline.after(60.0), Records.open(None))
    assert [each.is_fused for each in found] == [True] * 3
    for slow, ops in (("together", [["exp"], ["add"]]), ("first", [["exp", "add"]])):
        ns = {costs.job(each).key: 1e6 if each.name == slow else 1.0 for each in group}
        costs.times = helping.with_times([replace(t, ns=ns[t.job.key]) for t in found], None)
        made = run_passes(module, FUSED, PassContext(target=HOST, costs=costs))
        assert [[n.op for n in node.bodies[0].nodes] for node in made.main.nodes] == ops


@pytest.mark.parametrize(
    ("helps", "kept"), [([True], [1, 2]), ([False, True], [1]), ([False, False], [])]
)
def test_measured_costs_are_kept_where_the_model_is_no_slower(monkeypatch, helps, kept):
    """Those of fusion are left out where the model is faster without them alone."""
    direct, tiled = (table().job(each) for each in candidates())
    timed = [TimedJob(direct, 1.0, is_fused=False), TimedJob(tiled, 2.0, is_fused=True)]
    answers = iter(helps)
    monkeypatch.setattr(helping, "unmeasured", lambda costs: [candidates()])
    monkeypatch.setattr(helping, "measure_choices", lambda *given: timed)
    faster = Paired((2.0,) * 7, (1.0,) * 7)
    monkeypatch.setattr(helping, "choices_gain", lambda *given: faster if next(answers) else None)
    program = parse("graph @main(%x: f32[4]) { %y = relu(%x) return %y }")
    with Database() as database:
        settings = Options(threads=2, database=database)
        tuned = helping.choices_tuned(program, HOST, settings, Budget(minutes=100))
        ctx = tuned.ctx
        known = [database.measured(task_key(job)) for job in (direct, tiled)]
        assert [seconds * 1e9 for seconds in known if seconds is not None] == pytest.approx(kept)
        told = [ctx.costs.times and ctx.costs.times(job) for job in (direct, tiled)]
        assert [ns for ns in told if ns] == pytest.approx(kept)
        assert tuned.gain == (2.0 if kept else 1.0)
        outcome = Outcome(1.5, 1.25, {}, (), 10.0, 0, 0, "trees", "the time is up")
        whole = tuned.told(outcome)
        assert (whole.gain, whole.graph_gain) == (1.5 * tuned.gain, tuned.gain)
        assert whole.seconds > outcome.seconds


@pytest.mark.parametrize(("after_ns", "helps"), [(0.9, True), (1.0, False), (1.5, False)])
def test_a_model_that_comes_out_no_faster_does_not_help(monkeypatch, after_ns, helps):
    settings = Options(threads=1, database="")
    costs = kernel_costs(HOST, settings)
    same = parse("graph @main(%x: f32[64]) { %y = relu(%x) return %y }")
    assert helping.choices_gain(same, HOST, settings, costs, Deadline.after(60.0)) == Paired((), ())
    other = parse("graph @main(%x: f32[64]) { %z = neg(%x) %y = relu(%z) return %y }")
    made = iter([optimize(each, HOST, settings) for each in (same, other)])
    monkeypatch.setattr(helping, "optimize", lambda *given: next(made))
    pair = Paired((1.0,) * 7, (after_ns,) * 7)
    monkeypatch.setattr(helping, "in_turns", lambda *given: pair)
    gain = helping.choices_gain(same, HOST, settings, costs, Deadline.after(60.0))
    assert (gain is not None) is helps


@pytest.mark.parametrize(("build_s", "is_measured"), [(0.0, True), (0.4, False)])
def test_choices_are_measured_within_their_share_or_not_at_all(monkeypatch, build_s, is_measured):
    """Where the builds that a comparison needs take more than the share, nothing is begun."""
    measured, now = [], [0.0]
    build, measure = helping.build_module, helping.measure_choices

    def slowly(module, target, options):
        now[0] += build_s
        return build(module, target, options)

    def measuring(*given):
        found = measure(*given)
        measured.extend(found)
        return found

    settings = Options(threads=2, database="")
    program = model(8, 16)
    optimized(program)  # what is estimated is kept, and costs no time below
    monkeypatch.setattr(helping, "build_module", slowly)
    monkeypatch.setattr(helping, "measure_choices", measuring)
    clock = SimpleNamespace(monotonic=lambda: now[0], perf_counter=time.perf_counter)
    monkeypatch.setattr(helping, "time", clock)
    monkeypatch.setattr("tilewright.tune.budget.time", clock)
    budget = Budget(minutes=(4.0 if build_s else 600.0) / 60.0)
    tuned = helping.choices_tuned(program, HOST, settings, budget)
    assert bool(measured) is is_measured
    if build_s:
        assert tuned.seconds == build_s
        assert tuned.settings.tune.seconds >= 0.4 * budget.seconds


def optimized(program):
    costs = kernel_costs(HOST, Options(threads=2, database=""))
    costs.asked = []
    ctx = PassContext(target=HOST, costs=costs)
    return optimize(program, HOST, Options(threads=2), ctx)


def test_a_build_ends_with_the_first_kernel_after_the_deadline():
    program = optimize(parse(SPREAD), HOST, Options(threads=2))
    settings = Options(threads=2, cache=False)
    with pytest.raises(Late):
        helping.build_until(Deadline.after(-1.0), program, HOST, settings)


def test_pairs_are_fewer_where_there_is_less_time_and_too_few_tell_nothing():
    def run(*inputs):
        time.sleep(0.002)

    assert (
        len(helping.in_turns(run, run, [], Deadline.after(6000.0)).first) == helping.CHOICES_PAIRS
    )
    with pytest.raises(Late):
        helping.in_turns(run, run, [], Deadline.after(0.01))


def test_every_stage_of_measuring_choices_is_told():
    told = []
    settings = Options(threads=2, database="", tuning=told.append)
    helping.choices_tuned(model(8, 16), HOST, settings, Budget(minutes=10))
    stages = [each.stage.partition(",")[0] for each in told]
    assert list(dict.fromkeys(stages)) == [
        "finding choices of the graph",
        "building the model as it is",
        "measuring choices of the graph",
        "comparing choices of the graph",
    ]
    assert {each.budget_s for each in told} == {600.0}
    assert [each.seconds for each in told] == sorted(each.seconds for each in told)


STAGES = {  # when Ctrl-C comes: what is on record then, trials and times
    "finding choices of the graph": (False, False),
    "building the model as it is": (False, False),
    "measuring choices of the graph, 2": (True, False),
    "comparing choices of the graph": (True, False),
    "building the untuned model": (True, True),
}


@pytest.mark.parametrize("stage", STAGES)
def test_an_interruption_keeps_what_was_measured_until_then(stage, monkeypatch):
    def heard(snapshot):
        if snapshot.stage.startswith(stage):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(helping, "choices_gain", lambda *given: Paired((2.0,) * 7, (1.0,) * 7))
    with Database() as database:
        module = compile(
            parse(TWO_CHOICES), threads=2, tune=Budget(minutes=10), database=database, tuning=heard
        )
        lines = [line.record for line in database.query()]
    assert module.tuning.stopped == "interrupted"
    assert [note for note in module.tuning.notes if "kept" in note]
    kinds = tuple(any(isinstance(each, kind) for each in lines) for kind in (Trial, Time))
    assert kinds == STAGES[stage]
    assert module.tuning.graph_gain == (2.0 if "untuned" in stage else 1.0)


TWO_CHOICES = """
graph @main(%row: f32[1, 48], %x: f32[64, 48], %z: f32[32, 48]) -> (f32[64, 48], f32[32, 48]) {
  %e = exp(%row)
  %y = add(%x, %e)
  %f = tanh(%row)
  %v = add(%z, %f)
  return %y, %v
}"""


def test_what_an_ended_tuner_measured_is_not_measured_again():
    costs = table(target=HOST, asked=[])
    run_passes(parse(SPREAD), FUSED, PassContext(target=HOST, costs=costs))
    with Database() as database:
        found = measure_choices(costs, built, Deadline.after(60.0), Records(database))
        again = measure_choices(costs, unwanted, Deadline.after(60.0), Records(database))
    assert [(each.job.key, each.ns) for each in again] == [(t.job.key, t.ns) for t in found]


def test_candidates_are_timed_on_numbers_that_differ():
    (weights,) = alone_module(candidates()[0]).constants.values()
    assert len(np.unique(weights)) > weights.size // 2


def test_extents_of_images_count_alike_for_every_rule():
    """A GEMM over the pixels of an image has as many of them as windows over it."""
    text = """graph @main(%x: f32[1, 32, h, w], %v: f32[32, 32, 1, 1]) {
      %y = conv(%x, %v) {strides = (1, 1), pads = (0, 0, 0, 0), dilations = (1, 1)}
      return %y
    }"""
    main = parse(text).main
    kernel = Candidate("first", alone(main.nodes[0]))
    like_images = replace(kernel, spatial=frozenset(main.params[0].tensor.shape[2:]))
    setting = KernelSetting(Target.parse("aarch64-linux-gnu -mcpu=neoverse-n1"), 1)
    costs = KernelCosts(setting, use_cache=False)
    ((few,), (many,)) = (costs.prices((each,)) for each in (kernel, like_images))
    assert few.ns < many.ns
    assert many.ns / few.ns == pytest.approx((224 / 128) ** 2, rel=0.2)


@pytest.mark.parametrize("padding", [(0, 0), (9, 450)])
def test_a_signal_is_long_enough_for_the_windows_that_a_layer_takes_of_it(padding):
    """Windows of 512 samples, as of a Fourier transform: an image has none of them, or one if it is
    padded, and nothing would cost anything. Weights packed along filters beat samples gathered
    from afar."""
    text = f"""graph @main(%x: f32[b, 1, samples], %v: f32[257, 1, 512]) {{
      %y = conv(%x, %v) {{strides = (440,), pads = {padding}, dilations = (1,)}}
      return %y
    }}"""
    module = with_constants(parse(text), {"v": np.ones((257, 1, 512), np.float32)})
    made = assign_layout(module, PassContext(target=SERVER, costs=table(use_cache=False)))
    (conv,) = (node for node in made.main.nodes if node.op == "conv")
    assert conv["layout"] == "channels_last"
