"""Processes that compile: started before there are jobs, and one for each thread."""

from types import SimpleNamespace

import pytest

from tilewright.base.errors import CompilerBug
from tilewright.driver import workers
from tilewright.driver.workers import (
    FEW_JOBS,
    FEW_OPERATORS,
    Workers,
    compile_all,
    expect_jobs,
    started_workers,
)


class Worker:
    """A process that answers each job with its own number."""

    made = 0
    has_ended = False

    def __init__(self):
        Worker.made += 1
        self.number = Worker.made

    def ask(self, job, use_cache):
        return [self.number]

    def stop(self):
        pass


@pytest.fixture
def pretended(monkeypatch):
    monkeypatch.setattr(Worker, "made", 0)
    monkeypatch.setattr(workers, "Worker", Worker)
    monkeypatch.setattr(workers, "started_workers", lambda n: [Worker() for _ in range(n)])
    monkeypatch.setattr(workers, "_workers", None)
    monkeypatch.setattr(workers.atexit, "register", lambda stop: None)


@pytest.mark.usefixtures("pretended")
def test_jobs_go_to_the_processes_that_were_started():
    some = Workers(2)
    some.start()
    assert Worker.made == 2
    answers = [future.result() for future in [some.submit(None, False) for _ in range(8)]]
    assert {number for (number,) in answers} <= {1, 2}
    assert Worker.made == 2
    some.stop()


@pytest.mark.usefixtures("pretended")
def test_processes_start_with_the_first_job_if_nobody_expected_it():
    some = Workers(1)
    assert Worker.made == 0
    assert some.submit(None, False).result() == [1]
    some.stop()


@pytest.mark.usefixtures("pretended")
@pytest.mark.parametrize(
    ("cores", "operators", "started"), [(1, 100, 0), (2, 100, 2), (2, FEW_OPERATORS, 0)]
)
def test_who_expects_jobs_starts_the_workers_once(monkeypatch, cores, operators, started):
    monkeypatch.setattr(workers, "host_cores", lambda: cores)
    expect_jobs(operators)
    expect_jobs(operators)
    assert Worker.made == started


@pytest.mark.usefixtures("pretended")
@pytest.mark.parametrize(("are_running", "count"), [(False, FEW_JOBS), (True, 1)])
def test_few_jobs_start_no_workers_and_are_done_by_those_who_run(monkeypatch, are_running, count):
    monkeypatch.setattr(workers, "host_cores", lambda: 2)
    here = []
    monkeypatch.setattr(workers, "_compile_here", lambda job, use_cache: here.append(job))
    if are_running:
        workers.workers()
    for jobs in (range(count), range(count + 1)):
        made, _ = compile_all(list(jobs), lambda kernel: None)
        assert len(made) == len(jobs)
    assert here == list(range(count))
    assert Worker.made > 0
    workers.workers().stop()


@pytest.mark.usefixtures("pretended")
def test_what_fails_in_this_process_is_named_as_in_a_worker(monkeypatch):
    def fail(job, use_cache):
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(workers, "_compile_here", fail)
    job = SimpleNamespace(label="softmax")
    with pytest.raises(CompilerBug, match=r"TW6001.*softmax failed: RuntimeError: no such"):
        compile_all([job], lambda kernel: None)


def test_a_worker_forks_others_that_outlive_it():
    fork, first = started_workers(2)
    try:
        for worker in (fork, first, fork):
            assert "NoneType" in worker.ask(None, False)  # no job: each answers what is wrong
        assert not fork.has_ended
        first.process.kill()
        first.process.wait()
        assert first.has_ended
        assert not fork.has_ended
        assert "NoneType" in fork.ask(None, False)
    finally:
        fork.stop()
        first.stop()
