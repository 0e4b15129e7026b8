"""A Ray cluster on this machine, as a context manager.

with ray_cluster(token) as address:
    fleet = ray_fleet(address, token=token, workers=3)
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

CLUSTER = """
import sys, ray
ray.init(num_cpus=3, include_dashboard=False, object_store_memory=96 << 20, log_to_driver=False,
         configure_logging=False)
print(ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
"""


@contextmanager
def ray_cluster(token: str) -> Iterator[str]:
    """The address of a cluster of three cores that asks for the token."""
    said = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token, "RAY_USAGE_STATS_ENABLED": "0"}
    os.environ.update(said)  # Ray reads them when it is imported
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", CLUSTER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address, "no cluster started"
        yield address
    finally:
        process.communicate("")
