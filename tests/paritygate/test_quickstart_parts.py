"""The quickstart's figures are computed, not told."""

from __future__ import annotations

from pathlib import Path

import pytest

from paritygate.quickstart.digits import NUM_TEST, load_splits
from paritygate.quickstart.story import StoryFailed, run_story
from paritygate.quickstart.traffic import Answer, Tally


def answer(user: str, version: str | None, correct: bool = True, error: str | None = None) -> Answer:
    return Answer(user, version, correct, 2.0, error)


def test_a_user_that_two_versions_answered_is_counted() -> None:
    tally = Tally([answer("a", "1"), answer("a", "2"), answer("b", "1"), answer("b", "1")])
    assert tally.users_on_two_versions() == 1


def test_a_failed_request_counts_as_failed_and_belongs_to_no_version() -> None:
    tally = Tally([answer("a", None, error="refused"), answer("a", "1"), answer("b", "2", correct=False)])
    assert (tally.requests, tally.failed, tally.first_error) == (3, 1, "refused")
    assert tally.share_percent("2") == 50.0
    assert tally.by_version()["2"]["accuracy"] == 0.0


def test_the_split_keeps_test_images_out_of_training() -> None:
    train, test = load_splits()
    assert len(test.images) == NUM_TEST
    seen = {image.tobytes() for image in train.images}
    shared = sum(image.tobytes() in seen for image in test.images)
    assert shared == 0
    assert train.images.shape[1:] == (1, 8, 8)


def test_a_directory_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(StoryFailed, match="empty directory"):
        run_story(tmp_path, quiet=True)
    assert (tmp_path / "thesis.txt").read_text(encoding="utf-8") == "mine"
