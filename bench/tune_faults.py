"""Candidates that crash, hang, take all memory or are wrong: see `bench/tune.py faults`."""

from __future__ import annotations

import argparse

from report import Figure


def faults(options: argparse.Namespace) -> list[Figure]:
    raise SystemExit("being written")
