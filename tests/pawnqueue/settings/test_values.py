"""Numbers, choices, switches and texts: what each kind of value accepts, and how it refuses."""

import pytest

from tests.pawnqueue.settings.given import OTHER, at, complaint_of, with_one

NUMBERS = sorted(path for path, value in OTHER.items() if type(value) in {int, float})

WHOLE_NUMBERS = sorted(path for path, value in OTHER.items() if type(value) is int)

SWITCHES = sorted(path for path, value in OTHER.items() if isinstance(value, bool))

NOT_ZERO = {
    *(path for path in NUMBERS if path.split(".")[0] in {"s3", "limits", "registry"}),
    "packs.messages",
    "packs.bytes",
    "packs.min_messages",
    "polling.max_messages_per_poll",
    "polling.visibility_timeout_seconds",
    "polling.lease_refresh_interval_seconds",
    "concurrency.max_in_flight",
    "claims.max_claim_age_seconds",
}


@pytest.mark.parametrize("path", NUMBERS)
@pytest.mark.parametrize(
    "value", [-1, -0.5, float("nan"), float("inf"), float("-inf"), "many", True, None, [], 10**400, 1e300]
)
def test_a_number_out_of_range_is_refused(path: str, value: object) -> None:
    """Negative, endless, no number at all: each is refused, by the setting's path."""
    assert f"{path} must be a " in complaint_of(lambda: with_one(path, value))


@pytest.mark.parametrize("path", WHOLE_NUMBERS)
def test_a_fraction_is_no_whole_number(path: str) -> None:
    """A count is not rounded."""
    assert f"{path} must be a whole number" in complaint_of(lambda: with_one(path, 7.5))


@pytest.mark.parametrize("path", NUMBERS)
def test_zero_is_refused_where_it_makes_no_sense(path: str) -> None:
    """A time-out of zero is refused; a pause of zero, or a budget, is not."""
    if path in NOT_ZERO:
        assert path in complaint_of(lambda: with_one(path, 0))
    elif path in {"retry.max_delay_seconds", "concurrency.csprng_verify.jitter_max_ms"}:
        assert "must not be above" in complaint_of(lambda: with_one(path, 0))
    else:
        assert at(with_one(path, 0), path) == 0


def test_the_strategies_name_is_a_text() -> None:
    """Which strategies there are is known where a bucket is opened; what is no name at all is refused here."""
    assert with_one("concurrency.strategy", "newer").concurrency.strategy == "newer"
    for wrong in ("", " auto", 5, None):
        assert "concurrency.strategy must be a text" in complaint_of(
            lambda wrong=wrong: with_one("concurrency.strategy", wrong)
        )


@pytest.mark.parametrize("path", ["s3.client", "s3.addressing_style", "s3.server_side_encryption"])
def test_a_choice_is_refused_with_what_there_is_to_choose(path: str) -> None:
    """The choices are in the sentence, and what was chosen instead."""
    sentence = complaint_of(lambda: with_one(path, "magic"))
    assert f"{path} must be one of " in sentence
    assert str(OTHER[path]) in sentence
    assert "'magic'" in sentence


@pytest.mark.parametrize("path", SWITCHES)
@pytest.mark.parametrize(("word", "meaning"), [("true", True), ("Yes", True), ("ON", True), ("1", True), (1, True)])
def test_a_switch_is_on_by_any_of_its_words(path: str, word: object, meaning: bool) -> None:  # noqa: FBT001
    """Capitals do not matter."""
    assert at(with_one(path, word), path) is meaning


@pytest.mark.parametrize("path", SWITCHES)
@pytest.mark.parametrize("word", ["false", "NO", "Off", "0", 0, False])
def test_a_switch_is_off_by_any_of_its_words(path: str, word: object) -> None:
    """Capitals do not matter."""
    assert at(with_one(path, word), path) is False


@pytest.mark.parametrize("path", SWITCHES)
@pytest.mark.parametrize("word", ["", "y", "ja", "tru", 2, 1.0, None, []])
def test_a_switch_is_nothing_else(path: str, word: object) -> None:
    """What pawn-queue would take for false is refused."""
    assert f"{path} must be true or false" in complaint_of(lambda: with_one(path, word))


@pytest.mark.parametrize(
    "path", ["s3.region_name", "s3.profile_name", "s3.aws_access_key_id", "s3.aws_secret_access_key", "s3.role_arn"]
)
@pytest.mark.parametrize("value", ["", " x", "x\n", "a\x00b", 12345, "\udc80"])
def test_a_text_that_could_not_be_sent_is_refused(path: str, value: object) -> None:
    """Empty, with white space around it, with control characters, or a number in YAML: refused, and not shown."""
    sentence = complaint_of(lambda: with_one(path, value))
    assert f"{path} must be " in sentence
    assert "12345" not in sentence
