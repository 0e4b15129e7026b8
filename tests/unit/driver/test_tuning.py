"""Tuning of models: tables of kernels, checks of candidates, records that compilation uses."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.base.errors import UserError
from tilewright.base.target import Target
from tilewright.cli.inspect import variant_sizes
from tilewright.codegen import llvm
from tilewright.codegen.build import new_module
from tilewright.codegen.host import emit_main
from tilewright.driver.kernel_code import compile_kernel
from tilewright.driver.kernels import KernelSetting
from tilewright.driver.lowering import jobs_of
from tilewright.driver.optimize import load_graph, optimize
from tilewright.driver.options import Options
from tilewright.driver.tuning.check import Checker
from tilewright.driver.tuning.inputs import placements
from tilewright.driver.tuning.lab import Checkers, store_built
from tilewright.driver.tuning.messages import Build, Check
from tilewright.driver.tuning.records import choices_of, task_key
from tilewright.driver.tuning.running import ALL, WHOLE, Measured, Running
from tilewright.driver.tuning.server import Server
from tilewright.driver.tuning.sized_kernels import Kernels
from tilewright.driver.tuning.table import Built, built
from tilewright.driver.tuning.tuning import (
    Settings,
    _decided,
    _tasks,
    local_laboratory,
    spaces_of,
    tune_model,
)
from tilewright.graph.parser import parse
from tilewright.rules.rule import Choice
from tilewright.tune import Budget, Database, TaskKey, Winner
from tilewright.tune.cost.choose import choose
from tilewright.tune.database import Records
from tilewright.tune.joined import JoinedSpace
from tilewright.tune.lab import Candidate
from tilewright.tune.process import Limits
from tilewright.tune.record import Variant

BENCH = Path(__file__).parents[3] / "bench"
NET = """<ir_version: 8, opset_import: ["" : 17]>
net (float[1, 32, 64] x) => (float[1, 32, 48] y) {
  h = MatMul (x, w)
  r = Relu (h)
  y = Softmax <axis = 1> (r)
}"""
SETTING = KernelSetting(Target.parse("cpu"), 2)


@pytest.fixture(scope="module")
def net(weighted):
    return weighted(NET, 64, 48)


@pytest.fixture(scope="module")
def graph(net):
    return optimize(load_graph(net), SETTING.target, Options(threads=2))


@pytest.fixture(scope="module")
def jobs(graph):
    return jobs_of(graph, SETTING)


@pytest.fixture(scope="module")
def matmul(jobs):
    return next(job for job in jobs.values() if "matmul" in job.label)


@pytest.fixture(scope="module")
def other_choice(matmul):
    """A choice that is not the default one."""
    space = spaces_of(matmul)[0]
    points = space.sample(6, np.random.default_rng(0))
    default = space.choice(space.default(), 0)
    return next(
        {space.name: text}
        for row in range(len(points))
        if (text := space.choice(points, row)) != default
    )


@pytest.fixture(scope="module")
def running(graph, jobs):
    return Running(graph, SETTING, {name: built(job) for name, job in jobs.items()}, {})


# --------------------------------------------------------------------------- tables


def test_a_model_with_a_table_gives_the_same_answer(net, running):
    module = tw.compile(net, threads=2)
    inputs = running._sets[0][0]
    got = running._model.run(running._untuned, inputs).outputs
    for a, b in zip(got, module(*inputs), strict=True):
        np.testing.assert_array_equal(a, np.asarray(b))


def test_every_kernel_is_timed_in_place(running, jobs):
    (measured,) = running.baseline(3)
    assert set(measured) == {WHOLE, *jobs}
    assert sum(measured[name].ns for name in jobs) <= measured[WHOLE].ns
    assert max(measured[name].flops for name in jobs) >= 2 * 32 * 64 * 48


def test_a_candidate_takes_turns_with_the_incumbent(running, matmul, other_choice):
    candidate = built(replace(matmul, choices=choices_of(other_choice)))
    sized = (matmul.name, ALL)
    times = running.race({sized: candidate}, 5)
    first, second = times[sized]
    assert len(first) == len(second) == 5
    assert min(*first, *second) > 0
    running.adopt(sized, candidate)
    assert {len(each) for pair in running.compare(5).values() for each in pair} == {5}
    running.adopt(sized, None)


def test_a_candidate_that_changes_the_models_answer_is_not_timed(running, matmul):
    nodes = tuple(
        replace(node, op="neg") if node.op == "relu" else node for node in matmul.source.nodes
    )
    liar = built(replace(matmul, source=replace(matmul.source, nodes=nodes)))
    assert running.race({(matmul.name, ALL): liar}, 5) == {}


def test_dynamic_sizes_and_weights_of_several_calls(weighted):
    text = """<ir_version: 8, opset_import: ["" : 17]>
    net (float[n, 16] x) => (float[n, 16] y) {
      a = MatMul (x, w)
      b = Tanh (a)
      c = MatMul (b, w)
      y = Add (c, x)
    }"""
    model = weighted(text, 16, 16)
    graph = optimize(load_graph(model), SETTING.target, Options(threads=2))
    defaults = {name: built(job) for name, job in jobs_of(graph, SETTING).items()}
    running = Running(graph, SETTING, defaults, {"n": [5, 1]})
    shapes = [[inputs[0].shape for inputs in placed] for placed in running._sets]
    assert shapes == [[(1, 16)] * 3, [(5, 16)] * 3]
    module = tw.compile(model, threads=2)
    for inputs in (each for placed in running._sets for each in placed):
        (got,) = running._model.run(running._untuned, inputs).outputs
        np.testing.assert_array_equal(got, np.asarray(module(*inputs)[0]))
    name, job = next(iter(jobs_of(graph, SETTING).items()))
    wave = {(name, 1): defaults[name]}
    assert {sized: len(first) for sized, (first, _) in running.race(wave, 6).items()} == {
        (name, 1): 6
    }
    everywhere = (name, ALL)
    assert len(running.race({everywhere: defaults[name]}, 6)[everywhere][0]) == 12
    assert all(each[WHOLE].ns > 0 for each in running.baseline(2))
    checker = Checker(job, defaults[name], {"n": [5, 1, 9, 2]})
    assert [checker.fault(defaults[name]) for _ in range(5)] == [""] * 5
    assert {inputs[0].shape[0] for inputs, _ in checker._sets} == {5, 1, 9, 2}


# --------------------------------------------------------------------------- checks


def test_sound_candidates_pass_and_liars_do_not(matmul, other_choice):
    checker = Checker(matmul, built(matmul), {})
    assert checker.fault(built(replace(matmul, choices=choices_of(other_choice)))) == ""
    nodes = tuple(
        replace(node, op="neg") if node.op == "relu" else node for node in matmul.source.nodes
    )
    liar = built(replace(matmul, source=replace(matmul.source, nodes=nodes)))
    assert "another answer" in checker.fault(liar)


def test_what_a_kernel_leaves_unwritten_is_wrong(matmul, monkeypatch):
    checker = Checker(matmul, built(matmul), {})
    checker.fault(built(matmul))
    monkeypatch.setattr(checker._bench, "run", lambda candidate, inputs, results: None)
    assert "not finite" in checker.fault(built(matmul))


@pytest.mark.slow
def test_planted_faults_cost_their_candidates_alone(matmul):
    """Crashes, hangs, memory and lies, in processes of their own."""
    sys.path.insert(0, str(BENCH))
    from tune_faults import REASONS, SERVER
    from tune_faulty_server import HANG, KINDS, planted

    space = spaces_of(matmul)[0]
    points = space.sample(400, np.random.default_rng(1))
    found = {}
    for row in range(len(points)):
        job = replace(matmul, choices=choices_of({space.name: space.choice(points, row)}))
        found.setdefault(planted(job.name), job)
        if len(found) > len(KINDS):
            break
    assert set(found) == {"", *KINDS}
    default = built(matmul)
    # What crashes comes last: another process would start for what follows.
    order = sorted(found, key=["", *reversed(KINDS)].index)
    questions = {kind: Check(found[kind], default, {}) for kind in order}
    hang = {HANG: questions.pop(HANG)}  # what never ends need not be given long
    pools = {
        seconds: Checkers(Limits(seconds=seconds, memory_bytes=8 << 30), 1, SERVER)
        for seconds in (2.0, 600.0)
    }
    answers = {}
    try:
        for (_, checkers), asked in zip(pools.items(), (hang, questions), strict=True):
            answers |= dict(checkers.ask(asked.items(), 6000.0))
    finally:
        for checkers in pools.values():
            checkers.close()
    assert isinstance(answers.pop(""), Built)
    for kind, answer in answers.items():
        assert REASONS[kind] in str(answer), kind
    assert len(answers) == len(KINDS)


def test_a_kernel_with_few_plans_has_sketches_however_fast_it_is(jobs):
    found = {job.label: spaces_of(job, sketches=False)[0] for job in jobs.values()}
    for label, space in found.items():
        assert isinstance(space, JoinedSpace) is ("matmul" not in label), label


def test_a_question_is_asked_before_the_next_is_made(matmul):
    """So that candidates are built while others are proposed."""
    checkers, asked = Checkers(Limits(), 1), []
    answer = checkers._answer

    def told(question, deadline):
        found = answer(question, deadline)
        asked.append(found)
        return found

    def questions():
        yield "first", Build(matmul)
        until = time.monotonic() + 600.0
        while not asked:  # the answer comes while this one is made
            assert time.monotonic() < until
            time.sleep(0.01)
        yield "second", Build(matmul)

    checkers._answer = told
    try:
        found = dict(checkers.ask(questions(), 600.0))
    finally:
        checkers.close()
    assert list(found) == ["first", "second"]


@pytest.mark.parametrize(("limit", "kept"), [(1, 1), (1 << 30, 2)])
def test_references_are_kept_as_far_as_memory_allows(jobs, monkeypatch, limit, kept):
    """Building one takes as long as building a candidate."""
    monkeypatch.setattr("tilewright.driver.tuning.server.MAX_CHECKED_BYTES", limit)
    server = Server()
    for job in jobs.values():
        default = built(job)
        for _ in range(2):
            assert isinstance(server.answer(Check(job, default, {})), Built)
    assert len(jobs) == 2
    assert [*server._checkers] == [job.name for job in jobs.values()][-kept:]


def test_what_does_not_compile_says_why(matmul):
    space = spaces_of(matmul)[0]
    bad = replace(matmul, choices={space.name: Choice("gemm", "mr=1")})
    checkers = Checkers(Limits(), 1)
    try:
        ((_, answer),) = checkers.ask([("bad", Build(bad))], 600.0)
    finally:
        checkers.close()
    assert "TW2701" in answer


# --------------------------------------------------------------------------- records


def kept(job, choices, database):
    database.keep(task_key(job), Winner(choices, 1.5, job.label))


def tuned_kernels(module):
    return [kernel for kernel in module.inside.program.kernels.values() if kernel.tuned]


def test_compilation_uses_records_that_are_there(net, matmul, other_choice, tmp_path):
    path = tmp_path / "records.sqlite"
    with Database(path) as database:
        kept(matmul, other_choice, database)
    module = tw.compile(net, threads=2, database=path)
    (kernel,) = tuned_kernels(module)
    assert {each.block: f"{each.rule} {each.plan}" for each in kernel.decisions} == other_choice
    untuned = tw.compile(net, threads=2, database="")
    assert tuned_kernels(untuned) == []
    x = np.random.default_rng(1).standard_normal((1, 32, 64)).astype(np.float32)
    np.testing.assert_allclose(module(x)[0], untuned(x)[0], rtol=1e-5, atol=1e-6)


def test_an_open_database_serves_too_and_the_environment_names_one(
    net, matmul, other_choice, tmp_path, monkeypatch
):
    path = tmp_path / "records.sqlite"
    with Database(path) as database:
        kept(matmul, other_choice, database)
        assert tuned_kernels(tw.compile(net, threads=2, database=database))
    monkeypatch.setenv("TILEWRIGHT_TUNING_DB", str(path))
    assert tuned_kernels(tw.compile(net, threads=2))


@pytest.mark.parametrize("threads", [1, 2])
def test_records_are_for_one_number_of_threads(net, matmul, other_choice, threads):
    database = Database()
    kept(matmul, other_choice, database)
    module = tw.compile(net, threads=threads, database=database)
    assert bool(tuned_kernels(module)) is (threads == 2)


@pytest.mark.parametrize(
    "choices", [{"nowhere": "gemm mr=1"}, {"h": "no_such_rule a=1"}, {"h": "gemm mr=1"}]
)
def test_records_that_do_not_fit_any_more_are_left_out(net, matmul, choices):
    database = Database()
    kept(matmul, choices, database)
    module = tw.compile(net, threads=2, database=database)
    assert tuned_kernels(module) == []
    kernel = next(k for k in module.inside.program.kernels.values() if "matmul" in k.name)
    assert any(each.rule == "tuned plan" for each in kernel.refusals)


def test_a_damaged_database_does_not_stop_compilation(net, tmp_path, caplog):
    path = tmp_path / "records.sqlite"
    path.write_bytes(b"no database" * 100)
    assert tuned_kernels(tw.compile(net, threads=2, database=path)) == []
    assert "untuned" in caplog.text


def test_choices_make_another_kernel_and_another_key(matmul, other_choice):
    tuned = replace(matmul, choices=choices_of(other_choice))
    assert tuned.name != matmul.name
    assert tuned.key != matmul.key
    assert task_key(matmul) == task_key(matmul, matmul.key)
    assert isinstance(task_key(matmul), TaskKey)
    assert matmul.setting.key not in task_key(matmul).text
    assert compile_kernel(tuned, use_cache=False).tuned
    assert not compile_kernel(matmul, use_cache=False).tuned


# --------------------------------------------------------------------------- the whole


def interrupt(snapshot):
    """Ctrl-C after the first round in which a candidate was ready in time."""
    if snapshot.stage == "learning" and any(each.trials for each in snapshot.tasks):
        raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.usefixtures("small_rounds")
def test_a_model_is_tuned_and_the_records_serve_the_next_time(net, tmp_path):
    path, told = tmp_path / "records.sqlite", []

    def heard(snapshot):
        told.append(snapshot)
        interrupt(snapshot)

    module = tw.compile(
        net, threads=2, tune=Budget(minutes=10), database=path, tuning=heard, cost_model="estimate"
    )
    outcome = module.tuning
    assert outcome.model == choose("estimate").name
    assert outcome.trials > 0
    assert outcome.gain >= 1.0
    assert outcome.stopped == "interrupted"
    assert told[-1].budget_s <= 600.0
    with Database(path) as database:
        assert sum(database.versions.values()) > 0
    again = tw.compile(net, threads=2, database=path)
    assert len(tuned_kernels(again)) == len(tuned_kernels(module)) == len(outcome.winners)


SLOW_SERVER = """
import runpy, time
time.sleep(1)
runpy.run_module("tilewright.driver.tuning.server", run_name="__main__")
"""


@pytest.mark.slow
def test_processes_that_check_have_started_before_a_candidate_needs_its_time(graph, matmul):
    """However long that takes; what a candidate may take is little."""
    limits = Limits(seconds=600.0)
    settings = Settings(command=(sys.executable, "-c", SLOW_SERVER), limits=limits)
    kernels = Kernels(graph, SETTING, {})
    for job in kernels.jobs.values():
        store_built(job, built(job))  # none has to be built
    with local_laboratory(graph, SETTING, settings, kernels) as (lab, _):
        assert lab._checkers.are_ready
        space = spaces_of(matmul)[0]
        choices = {space.name: space.choice(space.default(), 0)}
        candidate = Candidate.of(matmul.name, choices)
        assert list(lab.check([candidate], 600.0)) == [(candidate, "")]


@pytest.mark.slow
@pytest.mark.usefixtures("small_rounds")
def test_records_that_cannot_be_written_stay_in_memory(graph, tmp_path):
    path = tmp_path / "records.sqlite"
    path.write_bytes(b"no database" * 100)
    records = Records.open(path)
    outcome = tune_model(graph, SETTING, Budget(minutes=0.05), records, Settings(model="gaussian"))
    assert any("in memory" in note for note in outcome.notes)
    assert path.read_bytes().startswith(b"no database")


def test_models_that_cannot_be_timed_here_are_refused(net):
    with pytest.raises(UserError) as caught:
        tw.compile(net, "riscv64-linux-gnu", tune=Budget(minutes=1))
    assert caught.value.code == "TW5010"
    text = parse("graph @main(%x: str[2]) { %y = string_concat(%x, %x) return %y }")
    with pytest.raises(UserError) as caught:
        tw.compile(text, tune=Budget(minutes=1))
    assert caught.value.code == "TW5011"


def test_sizes_to_tune_for_are_sizes_of_the_model(net):
    with pytest.raises(UserError) as caught:
        tw.compile(net, tune=Budget(minutes=1), sizes={"rows": [1]})
    assert caught.value.code == "TW6005"


@pytest.mark.parametrize(
    ("option", "code"), [({"cost_model": "oracle"}, "TW5007"), ({"search": "luck"}, "TW5008")]
)
def test_unknown_ways_to_tune_are_told_before_anything_is_read(option, code, tmp_path):
    with pytest.raises(UserError) as caught:
        tw.compile(tmp_path / "none.onnx", tune=Budget(minutes=1), **option)
    assert caught.value.code == code


def test_plain_loops_have_nothing_to_tune(net):
    module = tw.compile(net, threads=2, schedule=False, tune=Budget(minutes=1))
    assert module.tuning is None


def test_json_is_what_the_command_tells(net, tmp_path):
    from tilewright.cli.tune import describe
    from tilewright.tune.outcome import Outcome
    from tilewright.tune.tasks import Progress

    task = Progress("matmul_1", "matmul", 2000.0, 1000.0, 1000.0)
    outcome = Outcome(
        2.0, 1.9, {"matmul_1": Winner({"h": "gemm mr=1"}, 2.0)}, [task], 3.0, 9, 1, "estimate", "x"
    )
    told = json.loads(json.dumps(describe(outcome)))
    assert told["kernels"][0]["choices"] == {"h": "gemm mr=1"}
    assert told["gain"] == 2.0


def test_inputs_lie_at_several_places_of_their_pages():
    array = np.arange(3000, dtype=np.float32).reshape(3, 1000)
    placed = [one[0] for one in placements([array])]
    assert all((each == array).all() and each.flags.c_contiguous for each in placed)
    assert placed[2].ctypes.data % 4096 == 2048 + 64


# --------------------------------------------------------------------------- dynamic sizes

OPEN = """<ir_version: 8, opset_import: ["" : 17]>
net (float[n, 64] x) => (float[n, 48] y) {
  h = MatMul (x, w)
  r = Relu (h)
  y = Softmax <axis = 1> (r)
}"""


@pytest.fixture(scope="module")
def open_net(weighted):
    return weighted(OPEN, 64, 48)


@pytest.fixture(scope="module")
def open_matmul(open_net):
    graph = optimize(load_graph(open_net), SETTING.target, Options(threads=2))
    return next(job for job in jobs_of(graph, SETTING).values() if "matmul" in job.label)


def plans_of(job, count):
    """Some choices that differ from the default."""
    space = spaces_of(job)[0]
    points = space.sample(40, np.random.default_rng(0))
    texts = [space.choice(points, row) for row in range(len(points))]
    others = dict.fromkeys(text for text in texts if text != space.choice(space.default(), 0))
    return [{space.name: text} for text in list(others)[:count]]


def host_text(module):
    """The host program as LLVM IR."""
    inside = module.inside
    machine = llvm.machine_of(inside.target)
    text = new_module(machine)
    program = inside.program
    places = {name: at for at, name in enumerate(program.module.constants)}
    emit_main(text, machine, program.module, inside.plan, "model", program.kernels, places)
    return text.text()


def test_variants_of_a_kernel_are_chosen_by_size(open_net, open_matmul):
    few, some, many = plans_of(open_matmul, 3)
    database = Database()
    variants = (Variant(0, 4, few), Variant(0, 20, some))
    database.keep(task_key(open_matmul), Winner(many, 1.5, "matmul", variants))
    module = tw.compile(open_net, threads=2, database=database)
    assert len(tuned_kernels(module)) == 3
    (node,) = [n for n in module.inside.program.module.main.nodes if n.get("variants")]
    assert node["limits"] == ((0, 4), (0, 20))
    assert variant_sizes(module.inside.program) == {
        node["variants"][0]: "n <= 4",
        node["variants"][1]: "n <= 20",
    }
    main = host_text(module)
    marks = [", 4\n", node["variants"][0], ", 20\n", node["variants"][1], node["function"]]
    at = main.index("icmp sle")
    for mark in marks:
        at = main.index(mark, at)
    untuned = tw.compile(open_net, threads=2, database="")
    for size in (1, 4, 5, 20, 21, 64):
        x = np.random.default_rng(size).standard_normal((size, 64)).astype(np.float32)
        np.testing.assert_allclose(module(x)[0], untuned(x)[0], rtol=1e-5, atol=1e-6)


def test_a_variant_may_be_the_default_and_the_rest_tuned(open_net, open_matmul, tmp_path):
    (many,) = plans_of(open_matmul, 1)
    database = Database()
    database.keep(task_key(open_matmul), Winner(many, 1.5, "matmul", (Variant(0, 4, {}),)))
    module = tw.compile(open_net, threads=2, database=database)
    assert len(tuned_kernels(module)) == 1
    module.save(tmp_path / "net.so")
    loaded = tw.load(tmp_path / "net.so")
    for size in (3, 9):
        x = np.random.default_rng(size).standard_normal((size, 64)).astype(np.float32)
        np.testing.assert_array_equal(module(x)[0], loaded(x)[0])


def test_sizes_that_are_told_apart_are_tuned_on_their_own(open_net, open_matmul):
    graph = optimize(load_graph(open_net), SETTING.target, Options(threads=2))
    kernels = Kernels(graph, SETTING, {"n": [32, 1]})
    name = open_matmul.name
    assert kernels.sized_kernels(name) == [(name, 0), (name, 1)]
    assert kernels.key((name, 0)).text == f"{task_key(open_matmul).text}\nat n=1"
    (choices,) = plans_of(open_matmul, 1)
    found = kernels.winners({f"{name}@0": Candidate.of(f"{name}@0", choices)}, {f"{name}@0": 4.0})
    assert found == {
        task_key(open_matmul): Winner({}, 2.0, open_matmul.label, (Variant(0, 5, choices),))
    }
    alone = Kernels(graph, SETTING, {"n": 32})
    assert alone.sized_kernels(name) == [(name, ALL)]
    assert alone.key((name, ALL)) == task_key(open_matmul)


def test_tasks_of_one_kernel_share_its_spaces(open_net, open_matmul):
    """Finding them takes longer than building a candidate."""
    graph = optimize(load_graph(open_net), SETTING.target, Options(threads=2))
    kernels = Kernels(graph, SETTING, {"n": [1, 32]})
    times = {WHOLE: Measured(1e6, 0, 0)} | {n: Measured(5e5, 9, 9) for n in kernels.jobs}
    tasks = _tasks(kernels, [times, times], SETTING, Settings())
    few, many = (task for task in tasks if task.group == open_matmul.name)
    assert few.name != many.name
    assert few.spaces
    assert all(a is b for a, b in zip(few.spaces, many.spaces, strict=True))


def test_what_rules_decide_at_a_size_is_a_hint_for_it(open_net, open_matmul):
    """A kernel of dynamic sizes is planned for some of them: others have other plans."""
    graph = optimize(load_graph(open_net), SETTING.target, Options(threads=2))
    kernels = Kernels(graph, SETTING, {"n": [1, 512]})
    name = open_matmul.name
    fixed = [kernels.fixed((name, at)) for at in (0, 1)]
    assert [each.source.params[0].tensor.shape[0].value for each in fixed] == [1, 512]
    few, many = (dict(_decided(kernels, (name, at))) for at in (0, 1))
    assert few.keys() == many.keys()
    assert few != many


@pytest.mark.slow
@pytest.mark.usefixtures("small_rounds")
def test_a_model_with_dynamic_sizes_is_tuned_at_each_of_them(open_net, tmp_path):
    path = tmp_path / "records.sqlite"
    module = tw.compile(
        open_net, threads=2, tune=Budget(minutes=10), database=path, sizes={"n": [1, 200]},
        tuning=interrupt,
    )  # fmt: skip
    outcome = module.tuning
    assert {each.name.rpartition("@")[2] for each in outcome.tasks} == {"0", "1"}
    again = tw.compile(open_net, threads=2, database=path)
    assert {k.name for k in tuned_kernels(again)} == {k.name for k in tuned_kernels(module)}
    untuned = tw.compile(open_net, threads=2, database="")
    for size in (1, 7, 200, 300):
        x = np.random.default_rng(size).standard_normal((size, 64)).astype(np.float32)
        np.testing.assert_allclose(again(x)[0], untuned(x)[0], rtol=1e-5, atol=1e-6)
