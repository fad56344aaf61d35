"""What is printed, raised or logged shows no secret."""

import pickle
from collections.abc import Callable

import pytest
from pydantic import BaseModel

from pawnqueue.errors import ConfigError
from pawnqueue.settings import S3Settings, Settings, environment_variables
from tests.pawnqueue.settings.given import BUCKET, CREDENTIALS, KEY_ID, SECRET, TOKEN, complaint_of


@pytest.mark.parametrize(
    "show", [repr, str, lambda it: it.model_dump_json(), lambda it: str(it.model_dump(mode="json")), "{}".format]
)
def test_nothing_that_is_printed_shows_credentials(show: Callable[[BaseModel], str]) -> None:
    """Neither settings nor their s3 section print a secret, or the access key's id; pickling the text keeps it so."""
    settings = Settings(s3=CREDENTIALS)
    for thing in (settings, settings.s3):
        text = show(thing)
        assert "test-bucket" in text
        for secret in (KEY_ID, SECRET, TOKEN):
            assert secret not in text
            assert secret.encode() not in pickle.dumps(text)


@pytest.mark.parametrize("broken", [f" {SECRET}", f"{SECRET}\n", [SECRET], {SECRET: SECRET}, SECRET.encode()])
@pytest.mark.parametrize("field", ["aws_access_key_id", "aws_secret_access_key", "aws_session_token"])
@pytest.mark.parametrize("way", ["constructor", "section", "dict", "env", "validate"])
def test_no_error_shows_a_secret(field: str, broken: object, way: str, caplog: pytest.LogCaptureFixture) -> None:
    """The text, the repr, the pickle and the chain of the error, and the log, have nothing of a refused secret."""
    s3 = BUCKET | {field: broken}
    variable = next(name for name, path in environment_variables().items() if path == f"s3.{field}")
    ways: dict[str, Callable[[], object]] = {
        "constructor": lambda: Settings(s3=s3),
        "section": lambda: S3Settings(**s3),
        "dict": lambda: Settings.from_dict({"s3": s3}, environ={}),
        "env": lambda: Settings.from_env(environ={variable: f" {SECRET}"}, s3=BUCKET),
        "validate": lambda: Settings.model_validate({"s3": s3}),
    }
    with pytest.raises(ConfigError) as caught:
        ways[way]()
    error = caught.value
    assert error.__context__ is None
    for text in (str(error), repr(error), str(pickle.dumps(error)), caplog.text):
        assert SECRET not in text


@pytest.mark.parametrize("section", ["s3", "polling"])
def test_a_secret_in_the_place_of_a_section_is_not_shown(section: str) -> None:
    """A text where a mapping belongs is not quoted."""
    assert SECRET not in complaint_of(lambda: Settings.model_validate({"s3": BUCKET} | {section: SECRET}))


def test_a_mask_is_not_taken_for_a_secret() -> None:
    """Printed settings that are passed back raise an error, instead of being refused by the store."""
    printed = Settings(s3=CREDENTIALS).model_dump_json()
    sentence = complaint_of(lambda: Settings.model_validate_json(printed))
    assert "s3.aws_secret_access_key is the mask" in sentence
