"""Stages of an export: each second is booked once, on the innermost stage."""

from __future__ import annotations

import time

import pytest

from paritygate.converter._stages import measured_stages, stage


def test_time_of_an_inner_stage_counts_for_it_alone() -> None:
    with measured_stages() as seconds:
        with stage("outer"):
            with stage("inner"):
                time.sleep(0.05)
        time.sleep(0.05)
    assert seconds["inner"] >= 0.05 > seconds["outer"]


def fail_in_a_stage() -> None:
    with stage("work"):
        time.sleep(0.02)
        raise RuntimeError


def test_stage_that_comes_twice_is_added_up_also_when_it_fails() -> None:
    with measured_stages() as seconds:
        with stage("work"):
            time.sleep(0.02)
        with pytest.raises(RuntimeError):
            fail_in_a_stage()
        with stage("after"):
            pass
    assert seconds["work"] >= 0.04
    assert seconds["after"] < 0.04


def test_nothing_is_counted_while_nobody_measures() -> None:
    with stage("work"):
        pass
    with measured_stages() as seconds:
        pass
    assert seconds == {}
