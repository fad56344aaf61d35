"""Settings from YAML files, and the example file."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import yaml
from pydantic import SecretStr

from pawnqueue.settings import Settings, environment_variables
from tests.pawnqueue.settings.given import BUCKET, KEY_ID, SECRET, complaint_of, yaml_file

EXAMPLE = Path(__file__).parents[3] / "config.example.yaml"


def test_a_config_of_pawn_queue_works_unchanged(tmp_path: Path) -> None:
    """A file with pawn-queue's sections and nothing of ours loads, with its values."""
    path = yaml_file(
        tmp_path,
        f"""\
s3:
  endpoint_url: "https://objects.example.test"   # some provider
  bucket_name: "letters"
  aws_access_key_id: "{KEY_ID}"
  aws_secret_access_key: "{SECRET}"
  region_name: "north-1"
  use_ssl: true
polling:
  interval_seconds: 2
  max_messages_per_poll: 25
  visibility_timeout_seconds: 45
  lease_refresh_interval_seconds: 15
  jitter_max_ms: 100
concurrency:
  strategy: "csprng_verify"
  csprng_verify:
    jitter_min_ms: 50
    jitter_max_ms: 250
    verify_retries: 3
    verify_retry_delay_ms: 75
registry:
  heartbeat_interval_seconds: 90
""",
    )
    settings = Settings.from_yaml(path, environ={})
    assert settings.s3.endpoint_url == "https://objects.example.test"
    assert settings.s3.aws_secret_access_key == SecretStr(SECRET)
    assert settings.polling.visibility_timeout_seconds == 45
    assert settings.concurrency.csprng_verify.verify_retry_delay_ms == 75
    assert settings.registry.heartbeat_interval_seconds == 90


def test_the_example_has_every_setting_with_its_default() -> None:
    """config.example.yaml loads, leaves nothing out, and equals the defaults (but for the bucket, which has none)."""
    text = EXAMPLE.read_text(encoding="utf-8")
    assert {".".join(path) for path in Settings.flatten(yaml.safe_load(text))} == set(environment_variables().values())
    settings = Settings.from_yaml(EXAMPLE, environ={})
    assert settings == Settings(s3={"bucket_name": settings.s3.bucket_name})
    commented = [
        line for line in text.splitlines() if ":" in line and not line.startswith("#") and line.startswith(" ")
    ]
    assert all("  # " in line or " # " in line for line in commented)


@pytest.mark.parametrize("nothing", ["", " ~", " null", " {}"])
def test_a_section_without_content_has_its_defaults(tmp_path: Path, nothing: str) -> None:
    """All lines of a section may be commented out."""
    text = f"s3: {{bucket_name: test-bucket}}\npolling:{nothing}\nconcurrency:\n  csprng_verify:{nothing}\n"
    assert Settings.from_yaml(yaml_file(tmp_path, text), environ={}) == Settings(s3=BUCKET)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty"),
        ("# nothing\n", "is empty"),
        ("just text", "is not a mapping"),
        ("- s3", "is not a mapping"),
        ("s3:\n\tbucket_name: x\n", "line 2, column 1: there is a tab"),
        ("s3:\n  bucket_name: [x\n", "is not valid YAML on line 3"),
        (
            "s3: {bucket_name: x}\npolling: {}\ns3: {}\n",
            "has the key s3 twice in one mapping, the second time on line 3",
        ),
        ("s3:\n  use_ssl: true\n  use_ssl: false\n", "has the key use_ssl twice"),
        ("- {a: 1, a: 2}\n", "has the key a twice"),
        ("s3: 1\n---\ns3: 2\n", "is not valid YAML on line 2"),
        ("s3: {bucket_name: 2024-13-45}\n", "does not exist"),
        ("[" * 5000, "nested too deeply"),
        ("s3: \x01\n", "a character that YAML does not allow"),
        (f"s3:\n  aws_secret_access_key: *{SECRET}\n", "quote a value that begins with *"),
        (f"s3:\n  aws_secret_access_key: *ab/{SECRET}\n", "quote a value that begins with *"),
        (f"s3:\n  aws_secret_access_key: !{SECRET} x\n", "quote a value that begins with !"),
        (f"s3:\n  aws_secret_access_key: @{SECRET}\n", "quote a value that begins with @"),
        (f"s3:\n  aws_secret_access_key: !!int {SECRET}\n", "does not exist"),
    ],
)
def test_bad_yaml_is_told_without_quoting_it(tmp_path: Path, text: str, problem: str) -> None:
    """The sentence has the file, and the line if there is one; the line's content may be a secret."""
    path = yaml_file(tmp_path, text)
    sentence = complaint_of(lambda: Settings.from_yaml(path, environ={}))
    assert str(path) in sentence
    assert problem in sentence
    assert SECRET not in sentence


def test_a_file_that_cannot_be_read_is_a_config_error(tmp_path: Path) -> None:
    """Missing, a folder, not text, an impossible name."""
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    for path in (str(tmp_path / "missing.yaml"), str(tmp_path), str(binary), "a\x00b"):
        assert f"The settings file {path} " in complaint_of(partial(Settings.load, path, environ={}))


def test_a_file_from_windows_is_read(tmp_path: Path) -> None:
    """A byte order mark and CRLF do no harm."""
    path = tmp_path / "queue.yaml"
    path.write_bytes(b"\xef\xbb\xbfs3:\r\n  bucket_name: test-bucket\r\n")
    assert Settings.from_yaml(path, environ={}) == Settings(s3=BUCKET)


def test_a_mapping_that_contains_itself_is_a_config_error(tmp_path: Path) -> None:
    """An alias that leads back is an unknown key, not an endless loop."""
    path = yaml_file(tmp_path, "s3: &a\n  bucket_name: test-bucket\n  s3: *a\npolling: &b\n  polling: *b\n")
    assert "s3.s3 is unknown" in complaint_of(lambda: Settings.from_yaml(path, environ={}))


def test_merge_keys_are_yaml_and_no_duplicates(tmp_path: Path) -> None:
    """A mapping may take keys from an anchor and override them."""
    text = "s3: {bucket_name: test-bucket}\nretry: &r {budget_seconds: 1}\nclaims: {}\n"
    text += "polling:\n  <<: &p {interval_seconds: 1}\n  interval_seconds: 2\n"
    assert Settings.from_yaml(yaml_file(tmp_path, text), environ={}).polling.interval_seconds == 2


def test_an_error_names_the_file(tmp_path: Path) -> None:
    """An error about a value in a file has the file's path."""
    path = yaml_file(tmp_path, "s3: {bucket_name: x}\n")
    assert f"The settings of {path} do not hold" in complaint_of(lambda: Settings.from_yaml(path, environ={}))


def test_the_import_does_not_load_yaml() -> None:
    """A program that reads no file does not pay for the parser."""
    code = "import sys; import pawnqueue.settings as s; s.Settings; print('yaml' in sys.modules)"
    package = str(Path(__file__).parents[3])
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=package, timeout=60
    )
    assert run.stdout.strip() == "False"
