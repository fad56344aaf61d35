"""The options of the format: their names in any case, their values, and the errors for wrong ones."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from pawnqueue import ClaimReference, ConfigError, InvalidArgumentError
from pawnqueue.settings.short_names import names_of_settings
from pyspark_pawnqueue import PawnQueueSparkError
from pyspark_pawnqueue.batch_reader import BatchReader
from pyspark_pawnqueue.job_environment import CLAIM_VARIABLE, CONNECTION_VARIABLE
from pyspark_pawnqueue.messages_to_rows import schema_of
from pyspark_pawnqueue.spark_errors import raise_spark_errors
from pyspark_pawnqueue.spark_options import OPTIONS, SparkOptions, read_references
from pyspark_pawnqueue.stream_reader import StreamReader
from pyspark_pawnqueue.writers import BatchWriter, StreamWriter

if TYPE_CHECKING:
    from pathlib import Path

REFERENCE = ClaimReference("orders", "run", 2, "session")
CLAIM = json.dumps(REFERENCE.to_dict())


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without variables of a queue or a claim."""
    for name in (CLAIM_VARIABLE, CONNECTION_VARIABLE, "PAWNQUEUE_S3_BUCKET_NAME"):
        monkeypatch.delenv(name, raising=False)


# --- names ---


@pytest.mark.parametrize("name", OPTIONS)
def test_our_names_are_known_in_any_letters(name: str) -> None:
    """Names are known in any case: Spark passes them in lower case."""
    for written in (name, name.lower(), name.upper()):
        assert SparkOptions.of({written: "1"}).given == {name.lower(): "1"}


def test_no_setting_has_the_name_of_an_option() -> None:
    """Otherwise one of the two could not be given."""
    assert {name.lower() for name in OPTIONS} & set(names_of_settings()) == set()
    assert [name for name in names_of_settings() if name != name.lower()] == []


@pytest.mark.parametrize("name", sorted(names_of_settings()))
def test_every_setting_is_an_option(name: str) -> None:
    """It is known by its last name or its path, in any case."""
    assert SparkOptions.of({name.upper(): "1"}).given == {name: "1"}


@pytest.mark.parametrize("name", ["checkpointLocation", "queryName", "outputMode"])
def test_what_is_sparks_is_left_to_it(name: str) -> None:
    """Spark passes it to the source too, which ignores it."""
    assert SparkOptions.of({name: "/tmp/x", "topic": "orders"}).given == {"topic": "orders"}  # noqa: S108 - never opened


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("payloadschem", r"did you mean 'payloadSchema'\?"),
        ("Claims", r"did you mean 'claim'\?"),
        ("bucket", r"did you mean 'bucket_name'\?"),
        ("s3.endpoint", r"did you mean 's3.endpoint_url'\?"),
        ("zzz", r"the options are claim, topic, mode, .*connection\."),
    ],
)
def test_an_unknown_option_is_told_with_the_nearest(name: str, hint: str) -> None:
    """A misspelt option is an error that names the nearest one."""
    with pytest.raises(InvalidArgumentError, match=f"'{name.lower()}' is neither an option of the format .*{hint}"):
        SparkOptions.of({"topic": "orders", name: "x"})


def test_a_path_is_told() -> None:
    """``load("orders")`` names a file in other formats, and is refused here."""
    with pytest.raises(InvalidArgumentError, match=r"takes no path \('orders'\).*without a path"):
        SparkOptions.of({"path": "orders"})


# --- what is read ---


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "The query does not say what to read"),
        ({"mode": "dead"}, "The topic is missing"),
        ({"claim": CLAIM, "topic": "orders"}, "claim or the option topic, not both"),
    ],
)
def test_what_is_to_be_read_is_said_once(given: dict[str, str], sentence: str) -> None:
    """A query names a claim or a topic, and not both."""
    with pytest.raises(InvalidArgumentError, match=sentence):
        _ = SparkOptions.of(given).has_claim


QUEUE = {"bucket_name": "queues"}
SCHEMA = schema_of("", dead=False)
ROWS = StructType().add("n", "long")
PEEK = {**QUEUE, "topic": "orders", "mode": "peek"}
TOPIC = {**QUEUE, "topic": "orders"}


def made(use: str, given: dict[str, str]) -> object:
    """Return the reader or writer of such a query."""
    options = SparkOptions.of(given)
    schema = StructType([*SCHEMA.fields, *([StructField("5", StringType())] if set(EXTRA) & set(given) else [])])
    if use in ("read", "peek"):
        return BatchReader(options, schema)
    if use == "stream":
        return StreamReader(options, schema)
    return (BatchWriter if use == "batch write" else StreamWriter)(options, ROWS, overwrite=False)


INFER = {"inferSchema": "true"}
EXTRA = ("columnNameOfCorruptRecord", "rescuedDataColumn")
OF_READS = ("payloadSchema", "partitions", "inferSchema", "samplingMessages", *EXTRA)
FOR: dict[str, tuple[dict[str, str], set[str]]] = {
    "read": ({**QUEUE, "claim": CLAIM, **INFER}, {"claim", *OF_READS}),
    "peek": ({**PEEK, **INFER}, {"topic", "mode", *OF_READS, "maxMessages", "createdAfter", "createdBefore"}),
    "stream": (
        {**TOPIC, "minMessagesPerBatch": "5", **INFER},
        {"topic", *OF_READS, "consumer", "ttl"}
        | {"maxMessagesPerBatch", "maxBytesPerBatch", "minMessagesPerBatch", "maxDelay"},
    ),
    "batch write": ({**TOPIC, "writeId": "w"}, {"topic", "writeId", "allowEmpty", "producer"}),
    "stream write": (TOPIC, {"topic", "producer"}),
}
VALUES = {
    "mode": "peek",
    "claim": CLAIM,
    "topic": "orders",
    "writeId": "w",
    "payloadSchema": "",
    "allowEmpty": "true",
    "inferSchema": "true",
    "createdAfter": "2026-03-01",
    "createdBefore": "2026-03-01T12:00:00+01:00",
}


@pytest.mark.parametrize("use", FOR)
@pytest.mark.parametrize("name", [name for name in OPTIONS if name != "connection"])
def test_what_means_nothing_to_a_query_is_refused(use: str, name: str) -> None:
    """The error names the option and its uses. Options that apply are accepted."""
    given, meant = FOR[use]
    given = {**given, name: VALUES.get(name, "5")}
    if name in meant:
        made(use, given)
        return
    both = use in ("read", "peek") and {"claim", "topic"} <= set(given)
    sentence = "claim or the option topic, not both" if both else f"option {name} is for "
    with pytest.raises(PawnQueueSparkError, match=sentence) as raised:
        made(use, given)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("use", "name", "instead"),
    [
        ("read", "mode", "name a topic by"),
        ("read", "maxMessages", "a claim is read as a whole"),
        (
            "stream",
            "maxMessages",
            "this query is reading a stream: limit .* by maxMessagesPerBatch",
        ),
        ("peek", "maxMessagesPerBatch", "limit the messages by maxMessages"),
        ("peek", "writeId", "is for writing a DataFrame, and this query is looking at a topic: leave it out"),
        ("stream write", "writeId", "from its checkpoint"),
    ],
)
def test_what_to_do_instead(use: str, name: str, instead: str) -> None:
    """The error says what to do, if that is not just to leave the option out."""
    with pytest.raises(PawnQueueSparkError, match=instead):
        made(use, {**FOR[use][0], name: VALUES.get(name, "5")})


@pytest.mark.parametrize("given", [{}, {"writeId": ""}])
@pytest.mark.parametrize("value", ["true", "false"])
def test_only_a_named_write_can_have_been_committed_without_rows(given: dict[str, str], value: str) -> None:
    """``allowEmpty`` needs a ``writeId``: without one, each write has a new name."""
    with pytest.raises(PawnQueueSparkError, match=r'allowEmpty needs the option writeId.*\("writeId", ') as raised:
        made("batch write", {**TOPIC, **given, "allowEmpty": value})
    assert "\n" not in str(raised.value)


def test_what_sparks_catalog_notes_of_a_table_is_left_to_it() -> None:
    """It passes each option of a table twice, beside properties of the table, which are ignored."""
    table = {
        **{f"option.{name.lower()}": value for name, value in PEEK.items()},
        **{name.lower(): value for name, value in PEEK.items()},
        "provider": "pawnqueue",
        "owner": "root",
        "location": "file:/tmp/warehouse/orders",
        "comment": "orders to come",
        "team": "billing",
    }
    assert SparkOptions.of(table).given == PEEK
    with pytest.raises(InvalidArgumentError, match=r"'topc' is neither an option of the format pawnqueue.*'topic'"):
        SparkOptions.of({**table, "option.topc": "orders"})
    with pytest.raises(InvalidArgumentError, match="'owner' is neither an option of the format pawnqueue"):
        SparkOptions.of({"owner": "root", "topic": "orders"})


def test_the_submitted_claim_is_read_where_nothing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job of the operator need not name its claim. A claim that it names is used instead."""
    monkeypatch.setenv(CLAIM_VARIABLE, CLAIM)
    assert (SparkOptions.of({}).has_claim, SparkOptions.of({}).claims()) == (True, [REFERENCE])
    assert SparkOptions.of({"topic": "orders"}).has_claim is False
    other = ClaimReference("orders", "other", 0, "")
    assert SparkOptions.of({"claim": json.dumps(other.to_dict())}).claims() == [other]
    assert SparkOptions.of({"claim": ""}).claims() == [REFERENCE]


def test_several_claims_are_a_list_each_of_them_once() -> None:
    """⚑ A claim that is named twice is read once, so that its messages are not worked on twice."""
    other = ClaimReference("orders", "other", 0, "")
    given = [REFERENCE.to_dict(), other.to_dict(), {**REFERENCE.to_dict(), "session": "of-another-hand"}]
    assert [claim.stem for claim in SparkOptions.of({"claim": json.dumps(given)}).claims()] == ["run.2", "other.0"]
    assert SparkOptions.of({"claim": "[]"}).claims() == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "orders",
        "{",
        "[" * 100_000,
        "{'topic': 'orders'}",
        "5",
        "null",
        '"orders"',
        "[5]",
        "[[]]",
        "{}",
        '{"topic": "orders"}',
    ],
)
def test_what_is_no_claim_is_told(text: str) -> None:
    """The error says what to pass."""
    with pytest.raises(InvalidArgumentError) as raised:
        read_references(text)
    assert "\n" not in str(raised.value)
    assert any(word in str(raised.value) for word in ("json.dumps(reference)", "hand_over()"))


def test_a_long_text_that_is_no_claim_is_cut() -> None:
    """An error does not quote a whole payload."""
    with pytest.raises(InvalidArgumentError) as raised:
        read_references("x" * 5000)
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize("mode", [None, "", "claim", "Peek"])
def test_a_topic_is_read_without_claiming_and_that_is_said(mode: str | None) -> None:
    """The error names the modes, and how to claim instead."""
    given = {"topic": "orders"} | ({} if mode is None else {"mode": mode})
    with pytest.raises(InvalidArgumentError, match=r'"mode", "peek".*"mode", "dead".*To claim messages, use a stream'):
        SparkOptions.of(given).reads_dead_letters()


def test_the_modes() -> None:
    """The modes are peek and dead."""
    assert SparkOptions.of({"topic": "orders", "mode": "dead"}).reads_dead_letters() is True
    assert SparkOptions.of({"topic": "orders", "mode": "peek"}).reads_dead_letters() is False


@pytest.mark.parametrize("name", ["partitions", "maxMessages", "maxMessagesPerBatch", "maxBytesPerBatch"])
def test_counts(name: str) -> None:
    """A count is a whole number from 1. The error names the option as it is documented."""
    assert SparkOptions.of({}).count(name) is None
    assert SparkOptions.of({name: "12"}).count(name) == 12
    for wrong in ("0", "-1", "1.5", "many", ""):
        with pytest.raises(InvalidArgumentError, match=f"{name}='{wrong}': pass a whole number of at least 1"):
            SparkOptions.of({name: wrong}).count(name)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"maxDelay": "60"}, "maxDelay needs the option minMessagesPerBatch, which is missing: say how many"),
        ({"minMessagesPerBatch": "20000"}, "minMessagesPerBatch=20000 is more than maxMessagesPerBatch=10000"),
        ({"minMessagesPerBatch": "2", "maxMessagesPerBatch": "1"}, "Lower the first, or raise the second"),
        ({"minMessagesPerBatch": "2", "maxDelay": "5 minutes"}, "maxDelay='5 minutes': pass a number of seconds"),
    ],
)
def test_what_a_batch_waits_for_makes_sense(given: dict[str, str], sentence: str) -> None:
    """Options that contradict each other are refused before the query begins."""
    with pytest.raises(PawnQueueSparkError, match=sentence):
        made("stream", {**TOPIC, **given})


def test_a_time() -> None:
    """A ttl is a number of seconds, more than 0."""
    assert SparkOptions.of({}).seconds("ttl") is None
    assert SparkOptions.of({"ttl": "2.5"}).seconds("ttl") == 2.5
    for wrong in ("0", "-1", "inf", "nan", "5m", ""):
        with pytest.raises(InvalidArgumentError, match=f"ttl='{wrong}': pass a number of seconds"):
            SparkOptions.of({"ttl": wrong}).seconds("ttl")


def test_whether_a_write_without_rows_was_meant() -> None:
    """The option is true or false, in any case."""
    assert SparkOptions.of({}).allows_empty is False
    assert SparkOptions.of({"allowEmpty": "True"}).allows_empty is True
    for wrong in ("1", "yes", ""):
        with pytest.raises(InvalidArgumentError, match=f"allowEmpty='{wrong}': pass true or false"):
            _ = SparkOptions.of({"allowEmpty": wrong}).allows_empty


def test_without_a_topic_it_is_asked_for() -> None:
    """An empty topic counts as missing."""
    for given in ({}, {"topic": ""}):
        with pytest.raises(InvalidArgumentError, match="The topic is missing: name it"):
            _ = SparkOptions.of(given).topic


def test_the_rest() -> None:
    """Missing texts are None, and given ones are returned."""
    bare = SparkOptions.of({})
    assert (bare.text("consumer"), bare.text("producer"), bare.text("writeId"), bare.payload_schema) == (
        None,
        None,
        None,
        "",
    )
    given = SparkOptions.of({"consumer": "c", "producer": "p", "writeId": "w", "payloadSchema": " a int "})
    assert (given.text("consumer"), given.text("producer"), given.text("writeId")) == ("c", "p", "w")
    assert given.payload_schema == "a int"


@pytest.mark.parametrize("use", ["read", "peek", "stream"])
@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"inferSchema": "true", "payloadSchema": "a int"}, "both of the options inferSchema and payloadSchema"),
        ({"inferSchema": "yes"}, "inferSchema='yes': pass true or false"),
        (
            {"samplingMessages": "5", "inferSchema": "False"},
            r"samplingMessages needs .option\(\"inferSchema\", \"true\"\)",
        ),
    ],
)
def test_columns_are_inferred_or_named(use: str, given: dict[str, str], sentence: str) -> None:
    """The error names both options."""
    with pytest.raises(PawnQueueSparkError, match=sentence):
        made(use, {**FOR[use][0], **given})


@pytest.mark.parametrize("use", ["read", "peek", "stream"])
@pytest.mark.parametrize("given", [{"payloadSchema": "a int"}, {"inferSchema": "true"}])
def test_columns_are_named_once(use: str, given: dict[str, str]) -> None:
    """A schema of the query names all columns, and an option adds some: one of them has to go."""
    options = SparkOptions.of({**FOR[use][0], "inferSchema": "false", **given})
    with pytest.raises(
        PawnQueueSparkError, match=rf"both .schema\(…\) and the option {next(iter(given))}: leave out one"
    ):
        (StreamReader if use == "stream" else BatchReader)(options, ROWS)


# --- where the queue is ---


def test_settings_from_options_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings come from options, by name or path, and the rest from variables."""
    monkeypatch.setenv("PAWNQUEUE_S3_BUCKET_NAME", "of-the-environment")
    monkeypatch.setenv("PAWNQUEUE_S3_REGION", "eu-1")
    settings = SparkOptions.of({"S3.Bucket_Name": "queues", "visibility_timeout": "60", "use_ssl": "false"}).settings()
    assert (settings.s3.bucket_name, settings.s3.region_name, settings.s3.use_ssl) == ("queues", "eu-1", False)
    assert settings.polling.visibility_timeout_seconds == 60
    assert SparkOptions.of({}).settings().s3.bucket_name == "of-the-environment"


def test_settings_from_a_file_that_goes_before_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An option or the operator's variable names the file. Options override it, and the environment has no effect."""
    monkeypatch.setenv("PAWNQUEUE_S3_REGION", "eu-1")
    path = tmp_path / "queue.yaml"
    path.write_text("s3:\n  bucket_name: of-the-file\n  key_prefix: team/\n")
    for given in ({"connection": str(path)}, {}):
        monkeypatch.setenv(CONNECTION_VARIABLE, str(path))
        settings = SparkOptions.of({**given, "key_prefix": "mine/"}).settings()
        assert (settings.s3.bucket_name, settings.s3.key_prefix) == ("of-the-file", "mine/")
        assert settings.s3.region_name == "us-east-1"


def test_a_setting_by_two_names_is_told() -> None:
    """A setting with two different values is an error. The same value twice is accepted."""
    with pytest.raises(InvalidArgumentError, match=r"'bucket_name' and 's3\.bucket_name' are the same setting"):
        SparkOptions.of({"bucket_name": "one", "s3.bucket_name": "two"}).settings()
    given = {"bucket_name": "same", "s3.bucket_name": "same"}
    assert SparkOptions.of(given).settings().s3.bucket_name == "same"


def test_a_connection_that_is_not_there_is_told(tmp_path: Path) -> None:
    """The error names the path."""
    with pytest.raises(ConfigError, match=r"gone\.yaml"):
        SparkOptions.of({"connection": str(tmp_path / "gone.yaml")}).settings()


def test_no_settings_at_all_tells_the_ways() -> None:
    """The error names options, the file and variables."""
    with pytest.raises(ConfigError) as raised:
        SparkOptions.of({}).settings()
    sentence = str(raised.value)
    assert "s3.bucket_name is missing" in sentence
    for way in ('.option("s3.bucket_name"', '.option("connection"', "PAWNQUEUE_*"):
        assert way in sentence
    assert "\n" not in sentence


def test_a_secret_is_in_no_error() -> None:
    """No error shows a secret, whatever else is wrong."""
    with pytest.raises(ConfigError) as raised:
        SparkOptions.of({"secret_access_key": "hunter2\n", "bucket_name": "no bucket"}).settings()
    assert "hunter2" not in str(raised.value)


# --- errors ---


def test_an_error_of_the_queue_comes_out_as_its_sentence() -> None:
    """It follows the prefix, without the stack trace of its cause. Other errors pass unchanged."""
    with pytest.raises(PawnQueueSparkError, match=r"^PawnQueue: The topic is missing") as raised, raise_spark_errors():
        _ = SparkOptions.of({}).topic
    assert raised.value.__suppress_context__
    error: Any = ZeroDivisionError("other")
    with pytest.raises(ZeroDivisionError), raise_spark_errors():
        raise error
