"""Workers on a Ray cluster, behind the same interface as those behind pipes.

    with ray_fleet("10.0.0.7:6379", token=..., workers=8) as fleet:
        job = fleet.submit(...)

    ray_fleet("10.0.0.7:6379?workers=8&cores=4")      the same by an address alone

Ray unpickles what peers that know its token send, so the token is the boundary: without one a
cluster is refused. Ray listens on every interface of its machines, so none is started here: nothing
of ours listens anywhere. What we send to actors are texts, as over pipes; they build kernels by
themselves. A lease that ends kills the actor, and another takes its place.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tilewright.base.errors import UserError, summary_of
from tilewright.tune.fleet.pool import CONNECT_S, LEASE_S, RETRIES, Fleet
from tilewright.tune.fleet.serve import Handler, answer, welcome
from tilewright.tune.fleet.wire import Lost, Message, check_welcome, greeting

TOKEN_VARIABLE, MODE_VARIABLE = "RAY_AUTH_TOKEN", "RAY_AUTH_MODE"


class Actor:
    """What runs on the cluster: texts in, texts out."""

    def hello(self, text: str) -> str:
        return json.dumps(welcome(json.loads(text), tags=["ray"]))

    def ask(self, text: str) -> str:
        return json.dumps(answer(json.loads(text), self.handlers()))

    def handlers(self) -> Mapping[str, Handler]:
        from tilewright.tune.fleet.worker import HANDLERS  # compilers load where they run

        return HANDLERS


class Ray(Protocol):
    """What is used of the module `ray`."""

    exceptions: Any

    def init(self, **options: Any) -> Any: ...

    def remote(self, kind: type) -> Any: ...

    def get(self, reference: Any, *, timeout: float) -> Any: ...

    def nodes(self) -> list[Any]: ...

    def kill(self, actor: Any) -> None: ...

    def shutdown(self) -> None: ...


class RayWorker:
    """One actor of a cluster."""

    def __init__(self, ray: Ray, cores: int, kind: type[Actor] = Actor) -> None:
        self._ray, self._cores, self._kind = ray, cores, kind
        self._actor: Any = None

    @property
    def name(self) -> str:
        return "ray"

    def start(self) -> tuple[tuple[str, ...], int]:
        self.stop()
        self._actor = self._ray.remote(self._kind).options(num_cpus=self._cores).remote()
        told = self._told(self._actor.hello.remote(json.dumps(greeting())), CONNECT_S)
        return check_welcome(told, self.name)

    def ask(self, message: Message, seconds: float) -> Mapping[str, Any]:
        if self._actor is None:
            raise Lost("it is not running")
        return self._told(self._actor.ask.remote(json.dumps(message)), seconds)

    def _told(self, reference: Any, seconds: float) -> Mapping[str, Any]:
        errors = self._ray.exceptions
        try:
            told = json.loads(self._ray.get(reference, timeout=seconds))
        except errors.GetTimeoutError:
            raise Lost("no answer in time") from None
        except (errors.RayError, ValueError) as error:
            raise Lost(f"it is gone: {summary_of(error)}") from None
        if not isinstance(told, Mapping):
            raise Lost("not a message")
        return told

    def stop(self) -> None:
        actor, self._actor = self._actor, None
        if actor is not None:
            with contextlib.suppress(Exception):  # gone already, with its node or the cluster
                self._ray.kill(actor)


class RayFleet(Fleet):
    """A fleet that leaves its cluster when it is closed."""

    def __init__(
        self,
        ray: Ray,
        workers: int,
        cores: int,
        lease_s: float,
        retries: int,
        kind: type[Actor] = Actor,
    ) -> None:
        self._ray = ray
        actors = [RayWorker(ray, cores, kind) for _ in range(workers)]
        super().__init__(actors, lease_s=lease_s, retries=retries)

    def close(self) -> None:
        super().close()
        self._ray.shutdown()


@dataclass(frozen=True)
class Place:
    """Where a cluster is, and what is asked of it; 0: not said."""

    address: str
    workers: int = 0
    cores: int = 0

    @staticmethod
    def parse(text: str) -> Place:
        """From `HOST:PORT`, or `HOST:PORT?workers=8&cores=4`."""
        address, _, query = text.partition("?")
        said = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
        is_known = set(said) <= {"workers", "cores"}
        if not is_known or not all(each.isdecimal() and int(each) for each in said.values()):
            raise UserError(
                "TW5201",
                f"{text!r} is no cluster",
                help="say HOST:PORT, or HOST:PORT?workers=8&cores=4",
            )
        return Place(address, **{name: int(each) for name, each in said.items()})


def room_for(ray: Ray, cores: int) -> int:
    """How many workers with so many cores each the machines of a cluster have room for."""
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    found = sum(int(each.get("CPU", 0)) // cores for each in alive)
    if not found:
        raise UserError(
            "TW5203",
            f"no machine of the cluster has {cores} cores",
            help="ask for fewer: --threads, or ?cores= in the address",
        )
    return found


def ray_fleet(
    address: str,
    *,
    token: str | None = None,
    workers: int = 0,
    cores: int = 1,
    lease_s: float = LEASE_S,
    retries: int = RETRIES,
    ray: Ray | None = None,
    kind: type[Actor] = Actor,
) -> RayFleet:
    """Workers on a cluster that runs; each takes so many of its cores.

    What the address says of workers and cores comes first; without a number of workers there are as
    many as there is room for. Without a token that of RAY_AUTH_TOKEN is used, if there is one.
    """
    place = Place.parse(address)
    address, workers, cores = place.address, place.workers or workers, place.cores or cores
    said = os.environ.get(TOKEN_VARIABLE, "") if token is None else token
    if not said:
        raise UserError(
            "TW5206",
            f"the cluster at {address} is used without a token",
            help=f"pass token=, or set {TOKEN_VARIABLE}; start Ray with {MODE_VARIABLE}=token",
        )
    os.environ[TOKEN_VARIABLE], os.environ[MODE_VARIABLE] = said, "token"  # read at import
    module = _module() if ray is None else ray
    try:
        module.init(
            address=address,
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
            ignore_reinit_error=True,
        )
    except Exception as error:  # Ray raises errors of many kinds here, none of its own
        raise UserError(
            "TW5203", f"the cluster at {address} cannot be reached: {summary_of(error)}"
        ) from error
    try:
        return RayFleet(module, workers or room_for(module, cores), cores, lease_s, retries, kind)
    except UserError:
        module.shutdown()
        raise


def _module() -> Ray:
    if importlib.util.find_spec("ray") is None:
        raise UserError(
            "TW5207",
            "a fleet on Ray needs Ray, which is not installed",
            help="pip install 'tilewright[fleet]', or give commands: Fleet.from_commands",
        )
    import ray

    found: Any = ray
    module: Ray = found
    return module
