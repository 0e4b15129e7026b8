"""Workers on Ray: with a stand-in everywhere, with a cluster where Ray is installed."""

import importlib
import importlib.util
import os
import signal
import threading
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest

from tilewright.base.errors import UserError
from tilewright.tune.fleet.cluster import ray_fleet

BENCH = Path(__file__).parents[3] / "bench"
TOKEN = "0123456789abcdef0123456789abcdef"


class RayError(Exception):
    pass


class GetTimeoutError(RayError):
    pass


class StandIn:
    """As much of Ray as is used: actors that answer at once, die or never answer, as told."""

    exceptions = SimpleNamespace(RayError=RayError, GetTimeoutError=GetTimeoutError)

    def __init__(self, fates=(), cores=()):
        self.fates, self.options, self.made, self.killed = list(fates), {}, 0, 0
        self.cores, self.taken = cores, []  # of its machines; of actors
        self.is_down = False
        self._one = threading.Lock()  # several threads ask

    def init(self, **options):
        self.options = options
        if options["address"] == "nowhere":
            raise ConnectionError("nobody there\nat all")

    def remote(self, kind):
        def make():
            with self._one:
                self.made += 1
            actor = kind()

            def method(name):
                return SimpleNamespace(remote=lambda text: (name, getattr(actor, name), text))

            return SimpleNamespace(hello=method("hello"), ask=method("ask"))

        def sized(*, num_cpus):
            self.taken.append(num_cpus)
            return SimpleNamespace(remote=make)

        return SimpleNamespace(options=sized)

    def nodes(self):
        alive = [{"Alive": True, "Resources": {"CPU": float(count)}} for count in self.cores]
        return [
            *alive,
            {"Alive": True, "Resources": {}},
            {"Alive": False, "Resources": {"CPU": 64.0}},
        ]

    def get(self, reference, *, timeout):
        name, call, text = reference
        with self._one:
            fate = self.fates.pop(0) if name == "ask" and self.fates else ""
        if fate == "dies":
            raise RayError("the actor died")
        if fate == "hangs":
            raise GetTimeoutError
        if fate == "babbles":
            return "what?"
        return call(text)

    def kill(self, actor):
        self.killed += 1

    def shutdown(self):
        self.is_down = True


def echoes(count):
    return [{"kind": "echo", "say": number} for number in range(count)]


def test_tasks_are_texts_and_every_one_is_answered_once(monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "")
    ray = StandIn()
    with ray_fleet("somewhere:6379", token="secret", workers=2, ray=ray) as fleet:
        assert os.environ["RAY_AUTH_MODE"] == "token"
        assert os.environ["RAY_AUTH_TOKEN"] == "secret"
        results = fleet.submit(echoes(10), needs=["ray"]).results()
    assert [result.value["said"] for result in results] == list(range(10))
    assert ray.options["include_dashboard"] is False
    assert ray.is_down
    assert ray.killed == 2


@pytest.mark.parametrize("fate", ["dies", "hangs", "babbles"])
def test_an_actor_that_fails_is_replaced(monkeypatch, fate):
    monkeypatch.setenv("RAY_AUTH_MODE", "")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    ray = StandIn(["", fate, "", fate])
    with ray_fleet("somewhere:6379", workers=2, ray=ray) as fleet:
        results = fleet.submit(echoes(8)).results()
        assert sum(worker.lost for worker in fleet.workers) == 2
    assert [result.value["said"] for result in results] == list(range(8))
    assert ray.made == 4


def test_a_cluster_without_a_token_is_refused(monkeypatch):
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    ray = StandIn()
    with pytest.raises(UserError) as error:
        ray_fleet("somewhere:6379", ray=ray)
    assert error.value.code == "TW5206"
    assert not ray.options  # nobody was asked


def test_a_cluster_that_cannot_be_reached(monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "")
    with pytest.raises(UserError, match="cannot be reached: nobody there") as error:
        ray_fleet("nowhere", token="secret", ray=StandIn())
    assert error.value.code == "TW5203"


def test_another_version_on_the_cluster_is_refused(monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")

    class Older(StandIn):
        def get(self, reference, *, timeout):
            return '{"hello": 1, "version": "0.0", "tags": [], "cores": 1}'

    with pytest.raises(UserError, match=r"version '0\.0'") as error:
        ray_fleet("somewhere", workers=1, ray=Older())
    assert error.value.code == "TW5202"


@pytest.mark.parametrize(
    ("address", "asked", "cores"),
    [
        ("somewhere:6379", {"cores": 4}, [4] * 3),  # 8 // 4 + 6 // 4
        ("somewhere:6379", {"cores": 2, "workers": 1}, [2]),
        ("somewhere:6379?workers=2", {"cores": 4}, [4] * 2),
        ("somewhere:6379?workers=5&cores=1", {"cores": 4}, [1] * 5),
        ("somewhere:6379?cores=3", {}, [3] * 4),
    ],
)
def test_workers_and_their_cores_are_as_asked_or_as_many_as_fit(monkeypatch, address, asked, cores):
    monkeypatch.setenv("RAY_AUTH_MODE", "")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    ray = StandIn(cores=(8, 6))
    with ray_fleet(address, ray=ray, **asked):
        assert ray.taken == cores
        assert ray.options["address"] == "somewhere:6379"


@pytest.mark.parametrize("text", ["h:1?workers=0", "h:1?cores=", "h:1?cores=two", "h:1?speed=9"])
def test_an_address_says_workers_and_cores_or_nothing(text):
    with pytest.raises(UserError) as error:
        ray_fleet(text, token="secret", ray=StandIn())
    assert error.value.code == "TW5201"


def test_a_cluster_without_a_machine_that_is_large_enough(monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    ray = StandIn(cores=(8, 6))
    with pytest.raises(UserError, match="no machine of the cluster has 16 cores") as error:
        ray_fleet("somewhere:6379", cores=16, ray=ray)
    assert error.value.code == "TW5203"
    assert ray.is_down


@pytest.mark.slow
def test_two_of_three_actors_die_and_every_task_is_recorded_once(monkeypatch):
    """On a cluster of its own, with a token."""
    if importlib.util.find_spec("ray") is None:  # not imported: it reads its token as it is
        pytest.skip("Ray is not installed")
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_USAGE_STATS_ENABLED"):
        monkeypatch.setenv(name, "")  # what the cluster sets ends with this test
    monkeypatch.syspath_prepend(str(BENCH))
    ray_cluster = importlib.import_module("ray_cluster").ray_cluster
    with ray_cluster(TOKEN) as address, ray_fleet(address, token=TOKEN, workers=3) as fleet:
        pids = {
            result.value["pid"] for _ in range(4) for result in fleet.submit(echoes(6)).results()
        }
        job = fleet.submit(echoes(60))
        seen = [next(iter(job))]
        for pid in sorted(pids)[:2]:
            os.kill(pid, signal.SIGKILL)
        seen += islice(job, 59)
    assert sorted(result.task for result in seen) == list(range(60))
    assert all(not result.error for result in seen)
