"""What the sweep proves: ranges, dims that must be fixed, and wrong numbers that no shape excuses."""

from __future__ import annotations

import pytest

from paritygate.converter.parity.sweep import CaseResult, rule

SIZES = (1, 2, 3, 7, 17)


def results(faults: dict[int, str], *, base: str | None = None) -> list[CaseResult]:
    """A sweep of `batch`, traced at 2, with these faults by size."""
    sweep = [CaseResult(f"sweep:batch={n}", {"batch": n}, faults.get(n), "why") for n in SIZES if n != 2]
    return [
        CaseResult("base", {"batch": 2}, base, "why"),
        *sweep,
        CaseResult("extreme:zeros", {"batch": 2}, None),
    ]


def test_a_dim_that_agrees_everywhere_is_proven_with_its_sizes() -> None:
    ruling = rule(results({}), {"batch": 2})
    assert ruling.proven_ranges == {"batch": SIZES}
    assert (ruling.demoted, ruling.failing, ruling.excused) == ((), (), frozenset())


@pytest.mark.parametrize("fault", ["raised", "shape", "form"])
@pytest.mark.parametrize("sizes", [(1,), (17,), (1, 3, 7, 17)], ids=str)
def test_a_dim_that_cannot_take_another_size_is_fixed(fault: str, sizes: tuple[int, ...]) -> None:
    ruling = rule(results(dict.fromkeys(sizes, fault)), {"batch": 2})
    assert ruling.failing == ()
    assert ruling.proven_ranges == {}
    (entry,) = ruling.demoted
    assert (entry.dim, entry.size, entry.reason) == ("batch", 2, f"at size {sizes[0]}: why")
    assert ruling.excused == {f"sweep:batch={n}" for n in SIZES if n != 2}


def test_wrong_numbers_at_every_other_size_fix_the_dim() -> None:
    ruling = rule(results(dict.fromkeys((3, 7, 17), "numbers")), {"batch": 2})
    assert ruling.failing == ()
    assert ruling.demoted[0].dim == "batch"


def test_wrong_numbers_at_some_sizes_are_a_wrong_model() -> None:
    ruling = rule(results({17: "numbers"}), {"batch": 2})
    assert ruling.failing == ("sweep:batch=17",)
    assert ruling.demoted == ()


def test_wrong_numbers_beside_a_raise_are_a_wrong_model_if_another_size_agrees() -> None:
    ruling = rule(results({1: "raised", 17: "numbers"}), {"batch": 2})
    assert "sweep:batch=17" in ruling.failing


def test_nothing_is_excused_where_the_base_case_is_wrong() -> None:
    ruling = rule(results(dict.fromkeys((1, 3, 7, 17), "numbers"), base="numbers"), {"batch": 2})
    assert ruling.failing[0] == "base"
    assert ruling.demoted == ()


def test_a_failing_extreme_fails() -> None:
    failing = CaseResult("extreme:large", {"batch": 2}, "numbers", "why")
    assert rule([*results({}), failing], {"batch": 2}).failing == ("extreme:large",)


def test_a_dim_that_was_not_swept_is_not_claimed() -> None:
    ruling = rule([CaseResult("base", {"batch": 2}, None)], {"batch": 2})
    assert ruling.proven_ranges == {}
    assert "no other size was tried" in ruling.demoted[0].reason


def two_dims(joint: str | None, time: str | None = None) -> list[CaseResult]:
    return [
        CaseResult("base", {"batch": 2, "time": 5}, None),
        CaseResult("sweep:batch=3", {"batch": 3, "time": 5}, None),
        CaseResult("sweep:time=7", {"batch": 2, "time": 7}, time, "why"),
        CaseResult("joint:batch=3,time=7", {"batch": 3, "time": 7}, joint, "both"),
    ]


def test_dims_that_do_not_vary_together_leave_the_first_free() -> None:
    ruling = rule(two_dims("raised"), {"batch": 2, "time": 5})
    assert ruling.proven_ranges == {"batch": (2, 3)}
    assert ruling.demoted[0].dim == "time"
    assert "not together with batch: both" in ruling.demoted[0].reason
    assert ruling.excused == {"sweep:time=7", "joint:batch=3,time=7"}


def test_wrong_numbers_of_dims_together_are_a_wrong_model() -> None:
    assert rule(two_dims("numbers"), {"batch": 2, "time": 5}).failing == ("joint:batch=3,time=7",)


def test_a_joint_case_of_a_dim_that_is_fixed_already_says_nothing() -> None:
    ruling = rule(two_dims("raised", time="raised"), {"batch": 2, "time": 5})
    assert ruling.proven_ranges == {"batch": (2, 3)}
    assert [entry.dim for entry in ruling.demoted] == ["time"]
