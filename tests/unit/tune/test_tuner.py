"""The tuner against a lab whose truth is known."""

from __future__ import annotations

import collections
import signal
from dataclasses import replace

import numpy as np
import pytest
from tune_fakes import Clock, FakeLab, GridSpace, task

from tilewright.tune.budget import Budget
from tilewright.tune.cost.gaussian import GaussianProcess
from tilewright.tune.database import Database, Records
from tilewright.tune.joined import JoinedSpace
from tilewright.tune.lab import Candidate, Task
from tilewright.tune.record import TaskKey, Winner
from tilewright.tune.search import View
from tilewright.tune.stats import Paired
from tilewright.tune.tuner import Tuner, _Open, _progress, _State


def tuned(tasks, lab, records=None, minutes=1.0, **more):
    records = records or Records.open(None)
    return Tuner(
        tasks, lab, records, Budget(minutes=minutes), model="gaussian", clock=Clock(), **more
    ).run()


def test_it_finds_what_is_faster_and_keeps_it():
    one = task()
    lab, records = FakeLab([one]), Records.open(None)
    outcome = tuned([one], lab, records)
    truth = lab.ns(lab.incumbents["matmul"])
    assert truth <= 1000.0 * 1.3
    assert outcome.gain == pytest.approx(one.baseline_ns / truth, rel=0.05)
    kept = records.winners([one.key])[one.key]
    assert kept.choices == dict(lab.incumbents["matmul"].choices)
    assert outcome.winners["matmul"] == kept


def test_a_default_that_is_best_stays():
    space = GridSpace(best=(6, 7, 0))
    one = task(spaces=(space,))
    lab, records = FakeLab([one], noise=0.03), Records.open(None)
    outcome = tuned([one], lab, records)
    assert outcome.gain == 1.0
    assert records.winners([one.key]) == {}


def test_every_outcome_is_on_record():
    one = task()
    lab = FakeLab([one], broken=lambda choice: "crashed" if choice.endswith("1") else "")
    records = Records.open(None)
    outcome = tuned([one], lab, records, minutes=3.0)  # enough to try all
    trials = records.trials(one.key)
    bad = [each for each in trials if each.error]
    assert bad
    assert all(each.error == "crashed" for each in bad)
    good = [each for each in trials if not each.error]
    assert all(each.ns > 0 and len(each.features) == 4 for each in good)
    assert outcome.failed == len(bad)
    assert outcome.failed + len(good) == len(lab.checked)


def test_what_is_wrong_never_wins():
    one = task()
    lab = FakeLab([one], broken=lambda choice: "another answer" if choice != "grid 6 3 1" else "")
    outcome = tuned([one], lab)
    assert outcome.winners["matmul"].choices == {"y": "grid 6 3 1"}


def test_what_does_not_help_the_whole_model_is_dropped():
    one = task()
    lab, records = FakeLab([one], in_model=9.0), Records.open(None)
    outcome = tuned([one], lab, records)
    assert outcome.gain == 1.0
    assert not outcome.winners
    assert records.winners([one.key]) == {}
    assert lab.incumbents["matmul"].choices == ()


def test_a_task_of_several_blocks_is_tuned_in_turn():
    one = task(spaces=(GridSpace("y"), GridSpace("z", best=(1, 1, 1))))
    lab = FakeLab([one])
    outcome = tuned([one], lab, minutes=3.0)
    assert set(outcome.winners["matmul"].choices) == {"y", "z"}
    assert outcome.gain > 1.3


def test_blocks_that_take_most_of_the_time_are_tried_first():
    one = task(spaces=(GridSpace("y", scale=0.01), GridSpace("z")))
    lab = FakeLab([one])
    tuned([one], lab, minutes=0.2)
    assert all({name for name, _ in each.choices} == {"z"} for each in lab.checked[:24])


def test_what_one_block_saves_is_known_of_others():
    one = task(spaces=(GridSpace("y"), GridSpace("z", best=(1, 1, 1))))
    tuner = Tuner([one], FakeLab([one]), Records.open(None), Budget(minutes=1), model="gaussian")
    state = tuner._states[0]
    y, z = tuner._opened(state)
    y.learn("grid 1 1 1", 1500.0)
    z.learn("grid 2 2 2", 1800.0)
    before = state.progress.best_ns
    pair = Paired((110.0,) * 9, (100.0,) * 9)
    tuner._adopt(Candidate.of("matmul", {"z": "grid 2 2 2"}), pair)
    saved = before - state.progress.best_ns
    assert saved == pytest.approx(before / 11)
    assert y.points["grid 1 1 1"][1] == pytest.approx(1500.0 - saved)
    assert z.points["grid 2 2 2"][1] == 1800.0


def test_a_choice_for_the_whole_kernel_leaves_other_blocks_alone():
    joined = JoinedSpace("y", {"": GridSpace("y"), "sketch": GridSpace("s")})
    spaces = (joined, GridSpace("z", scale=9.0))
    one = Task("k", "k", TaskKey("graph @k", "cpu", 2), lambda: spaces, 1000.0, 500.0)
    state = _State(one, _progress(one))
    random = np.random.default_rng(0)
    views = [View(each, GaussianProcess(), random) for each in one.spaces]
    state.spaces = [_Open(one, at, view, "ranked") for at, view in enumerate(views)]
    assert state.candidates(1)[0][0].space.name == "z"
    state.chosen = {"y": "sketch grid 1 1 1"}
    assert state.candidates(1)[0][0].space.name == "y"


def test_what_was_tried_before_is_not_tried_again(tmp_path):
    one = task()
    first = FakeLab([one])
    tuned([one], first, Records(Database(tmp_path / "a.sqlite")), minutes=0.3)
    with Database(tmp_path / "a.sqlite") as database:
        before = {each.choice for each in database.trials(one.key)}
    second = FakeLab([one], seed=1)
    again = tuned([one], second, Records(Database(tmp_path / "a.sqlite")), minutes=0.3)
    with Database(tmp_path / "a.sqlite") as database:
        trials = [each.choice for each in database.trials(one.key)]
    timed = {choice for each in second.checked[1:] for _, choice in each.choices}
    assert not timed & before
    assert len(trials) > len(before)
    assert second.checked[0].choices  # the winner of before, checked and raced anew
    assert again.gain > 1.0


def test_an_interruption_keeps_what_was_found():
    one = task()
    lab, records = FakeLab([one]), Records.open(None)
    lab.interrupt_after = 30
    outcome = tuned([one], lab, records)
    assert outcome.stopped == "interrupted"
    assert outcome.winners
    assert records.winners([one.key])


@pytest.mark.parametrize("stage", ["compare", "whole"])
def test_an_interruption_of_the_last_comparison_keeps_what_won_in_place(stage, monkeypatch):
    one = task()
    lab, records = FakeLab([one]), Records.open(None)
    monkeypatch.setattr(lab, stage, lambda *given: signal.raise_signal(signal.SIGINT))
    outcome = tuned([one], lab, records)
    assert outcome.stopped == "interrupted"
    assert (outcome.gain, outcome.least_gain) == (1.0, 1.0)
    assert records.winners([one.key]) == {one.key: outcome.winners["matmul"]}
    assert outcome.notes == [
        "interrupted before all was compared: 1 kernels are kept that won alone"
    ]


def test_an_interruption_keeps_nothing_that_lost_in_the_compiled_model(monkeypatch):
    tasks = several(4)
    lab, records = FakeLab(tasks, noise=0.0, slow_compiled=("k3",)), Records.open(None)
    compare = lab.whole

    def whole(chosen, pairs, seconds):
        if "k2" in chosen and len(chosen) < 4:  # all have lost, then k0 and k1 have won
            signal.raise_signal(signal.SIGINT)
        return compare(chosen, pairs, seconds)

    monkeypatch.setattr(lab, "whole", whole)
    outcome = tuned(tasks, lab, records, minutes=5.0)
    assert outcome.stopped == "interrupted"
    assert set(outcome.winners) == {"k0", "k1"}
    assert set(records.winners([each.key for each in tasks])) == {each.key for each in tasks[:2]}


def test_it_stops_when_nothing_is_left():
    one = task(floor=990.0)
    outcome = tuned([one], FakeLab([one]), minutes=60.0)
    assert outcome.stopped in ("less than 1% is left to gain", "every choice was tried")
    assert tuned([], FakeLab([])).stopped == "less than 1% is left to gain"


def test_the_budget_holds():
    one = task()
    outcome = tuned([one], FakeLab([one]), minutes=0.5)
    assert outcome.seconds <= 1.05 * 30.0


def test_a_round_whose_spaces_open_too_late_is_not_begun():
    clock, space = Clock(), GridSpace()

    def span():
        clock.now += 55.0
        return (space,)

    one = replace(task(), span=span)
    lab = FakeLab([task()])
    outcome = Tuner([one], lab, Records.open(None), Budget(minutes=1.0), clock=clock).run()
    assert (lab.checked, outcome.stopped) == ([], "the time is up")
    assert outcome.seconds <= 1.05 * 60.0


def test_candidates_of_a_kernel_are_built_while_those_of_the_next_are_proposed():
    events = []

    def opening(name):
        def span():
            events.append(f"open {name}")
            return (GridSpace(),)

        return span

    tasks = [replace(task(each), span=opening(each)) for each in ("one", "two")]
    lab = FakeLab([task("one"), task("two")])
    check = lab.check

    def told(candidates, seconds):
        def taken():
            for each in candidates:
                events.append(f"build {each.task}")
                yield each

        return check(taken(), seconds)

    lab.check = told
    tuned(tasks, lab)
    assert list(dict.fromkeys(events)) == ["open one", "build one", "open two", "build two"]


@pytest.mark.parametrize(
    ("run_s", "shares"), [(0.01, {"one": 24}), (1.0, {"one": 2, "two": 1, "three": 1})]
)
def test_candidates_are_spread_over_kernels_where_a_run_takes_long(run_s, shares):
    """A wave has one candidate of each kernel, and takes several runs of the model."""
    tasks = [task(each) for each in ("one", "two", "three")]
    tasks[0] = replace(tasks[0], baseline_ns=1e9 * run_s)  # nearly all of the time
    lab, counts = FakeLab(tasks), []
    check = lab.check

    def counted(candidates, seconds):
        found = list(check(candidates, seconds))
        counts.append(collections.Counter(each.task for each, _ in found))
        return iter(found)

    lab.check = counted
    tuned(tasks, lab, minutes=5.0)
    assert counts[0] == shares


def test_what_stretches_on_a_busy_machine_is_taken_off_the_comparison():
    """Rounds that end late leave less for the end, and the clock governs what is done there."""
    clock, one, allowed = Clock(), task(), []
    lab = FakeLab([one])
    race, whole = lab.race, lab.whole

    def slow_race(wave, pairs):
        clock.now += 7.0 if clock.now > 44.5 else 0.0
        return race(wave, pairs)

    def slow_whole(chosen, pairs, seconds):
        allowed.append(seconds)
        clock.now += seconds
        return whole(chosen, pairs, seconds)

    lab.race, lab.whole = slow_race, slow_whole
    outcome = Tuner([one], lab, Records.open(None), Budget(minutes=1.0), clock=clock).run()
    assert allowed
    assert outcome.seconds <= 1.05 * 60.0


def test_a_model_that_takes_long_to_build_has_more_time_for_the_comparison():
    clock, one = Clock(), task()
    lab, begun, allowed = FakeLab([one]), [], []
    lab.build_s, whole = 6.0, lab.whole

    def tell(snapshot):
        begun.append((snapshot.stage, snapshot.seconds))

    def slow_whole(chosen, pairs, seconds):
        allowed.append(seconds)
        clock.now += 2 * lab.build_s
        return whole(chosen, pairs, seconds)

    lab.whole = slow_whole
    alike = {"clock": clock, "report": tell}
    outcome = Tuner([one], lab, Records.open(None), Budget(minutes=1.0), **alike).run()
    assert max(at for stage, at in begun if stage == "building and checking") <= 60.0 - 3 * 6.0
    assert allowed[0] >= 2 * lab.build_s
    assert outcome.winners


def test_a_budget_that_is_over_at_once_takes_nothing_from_the_records():
    clock, one = Clock(), task()
    lab, records = FakeLab([one]), Records.open(None)
    records.keep(one.key, Winner({"y": "grid 6 3 4"}, 1.2))
    check, whole, allowed = lab.check, lab.whole, []

    def slow_check(candidates, seconds):
        clock.now += 90.0
        return check(candidates, seconds)

    def told_whole(chosen, pairs, seconds):
        allowed.append(seconds)
        return whole(chosen, pairs, seconds)

    lab.check, lab.whole, lab.build_s = slow_check, told_whole, 2.0
    Tuner([one], lab, records, Budget(minutes=1.0), clock=clock).run()
    assert allowed[0] > lab.build_s  # there is time for one comparison
    assert one.key in records.winners([one.key])


def test_checks_that_were_all_late_get_more_time():
    """What they had begun, such as a reference, was lost: it would be again."""
    one, allowed = task(), []
    lab = FakeLab([one])
    check = lab.check

    def late(candidates, seconds):
        allowed.append(seconds)
        found = list(check(candidates, seconds))
        return iter(found if seconds > 40.0 else ())

    lab.check = late
    outcome = tuned([one], lab, minutes=10.0)
    assert allowed[:3] == [16.0 + 8.0, 32.0 + 8.0, 64.0 + 8.0]  # of it 8 to propose them
    assert set(allowed[2:]) == {72.0}
    assert outcome.trials > 0


def test_snapshots_tell_how_it_goes():
    one, told = task(), []
    tuned([one], FakeLab([one]), report=told.append)
    assert {"building and checking", "timing in place", "confirming"} <= {s.stage for s in told}
    assert told[-1].tasks[0].gain > 1.0
    assert told[0].left > told[-1].left


def test_a_winner_of_before_that_is_no_better_is_not_kept_blindly():
    space = GridSpace(best=(6, 7, 0))
    one = task(spaces=(space,))
    records = Records.open(None)
    records.keep(one.key, Winner({"y": "grid 0 0 5"}, 1.5))
    outcome = tuned([one], FakeLab([one]), records)
    assert not outcome.winners
    assert records.winners([one.key]) == {}


def test_a_winner_of_before_that_fails_now_is_forgotten():
    one, records = task(), Records.open(None)
    records.keep(one.key, Winner({"y": "grid 0 0 5"}, 1.5))
    lab = FakeLab([one], broken=lambda choice: "crashed")
    assert not tuned([one], lab, records, minutes=0.2).winners
    assert records.winners([one.key]) == {}


# --------------------------------------------------------------------------- the compiled model


def several(count):
    return [task(f"k{at}") for at in range(count)]


def test_what_is_slower_in_the_compiled_model_is_found_by_halving():
    tasks = several(6)
    lab, records = FakeLab(tasks, noise=0.0, slow_compiled=("k4",)), Records.open(None)
    outcome = tuned(tasks, lab, records, minutes=5.0)
    assert set(outcome.winners) == {"k0", "k1", "k2", "k3", "k5"}
    assert outcome.gain > 1.0
    assert records.winners([tasks[4].key]) == {}
    assert lab.incumbents["k4"].choices == ()
    assert lab.compared[0] == ["k0", "k1", "k2", "k3", "k4", "k5"]


def test_nothing_is_kept_that_cannot_be_compared():
    one = task()
    lab, records = FakeLab([one]), Records.open(None)
    records.keep(one.key, Winner({"y": "grid 6 3 4"}, 1.2))
    lab.whole = lambda chosen, pairs, seconds: []
    outcome = tuned([one], lab, records)
    assert (outcome.gain, outcome.winners) == (1.0, {})
    assert records.winners([one.key]) == {}


# --------------------------------------------------------------------------- sizes


def at_sizes(bests):
    """One kernel at several sizes: tasks of a group, each with a best point of its own."""
    found = []
    for place, best in enumerate(bests):
        made = task(f"matmul@{place}", spaces=(GridSpace(best=best),))
        key = TaskKey(f"graph @matmul at {place}", "cpu", 2)
        found.append(replace(made, group="matmul", place=place, key=key))
    return found


def test_a_kernel_has_at_most_three_variants():
    tasks = at_sizes([(6, 2, 4), (6, 2, 4), (6, 6, 2), (6, 6, 2), (6, 1, 1)])
    lab = FakeLab(tasks, noise=0.0)
    outcome = tuned(tasks[::-1], lab, minutes=5.0)
    chosen = [str(outcome.winners[each.name].choices) for each in tasks]
    assert chosen[0] == chosen[1]
    assert chosen[2] == chosen[3]
    assert len({*chosen}) == 3


def test_what_won_at_one_size_is_tried_at_the_others():
    tasks = at_sizes([(6, 2, 4), (6, 2, 4)])
    lab = FakeLab(tasks, noise=0.0)
    outcome = tuned(tasks, lab)
    first, second = (outcome.winners[each.name].choices for each in tasks)
    assert first == second


def test_hints_of_a_task_are_tried_first_where_they_are_new():
    made = task()
    (grid,) = made.spaces
    default = grid.choice(grid.default(), 0)
    hints = [("y", default), ("y", "grid 6 2 4"), ("z", "grid 6 2 4")]
    made = replace(made, hints=lambda: hints)
    tuner = Tuner([made], FakeLab([made], noise=0.0), Records.open(None), Budget(minutes=1.0))
    (state,) = tuner._states
    (space,) = tuner._opened(state)
    assert state.candidates(4) == [(space, "grid 6 2 4")]


def test_what_won_is_tried_in_kernels_alike_and_in_no_others():
    tasks = [replace(each, label=label) for each, label in zip(several(3), "aab", strict=True)]
    lab = FakeLab(tasks, noise=0.0)
    tuner = Tuner(tasks, lab, Records.open(None), Budget(minutes=1.0))
    one, other, third = tuner._states
    choice = ("y", "grid 6 2 4")
    candidate = Candidate.of(one.task.name, dict([choice]))
    tuner._adopt(candidate, Paired((2.0,) * 7, (1.0,) * 7))
    assert (other.hints, third.hints) == ([choice], [])
    tuner._opened(other)
    (space,) = other.spaces
    assert other.candidates(4) == [(space, choice[1])]
    assert choice[1] not in [each for _, each in other.candidates(500)]
