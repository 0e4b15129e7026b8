"""Budgets are durations."""

from __future__ import annotations

import pytest

from tilewright.base.errors import UserError
from tilewright.tune.budget import Budget


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("5m", 300), ("1h", 3600), (" 1.5 m", 90), (".5s", 0.5)]
)
def test_durations_have_units(text, seconds):
    assert Budget.parse(text).seconds == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "5", "m", "-5m", "0s", "5 minutes", "1e3s", "nan"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(UserError) as caught:
        Budget.parse(text)
    assert caught.value.code == "TW5001"


@pytest.mark.parametrize("minutes", [0, -1, float("nan"), float("inf"), "5", True])
def test_minutes_are_a_positive_number(minutes):
    with pytest.raises(UserError) as caught:
        Budget(minutes=minutes)
    assert caught.value.code == "TW5001"
