"""Read a YAML file of settings, and say in one sentence what is wrong with it.

The parser's own messages are not passed on. They quote the file: an unquoted secret that begins with ``*`` or ``!``
would be in them as an unknown alias or tag.
"""

import re
from collections.abc import Iterator, Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Final

from airflow_provider_pawnqueue.engine.errors import ConfigError

if TYPE_CHECKING:
    import yaml

#: To YAML, a value that begins so is an alias, a tag, an anchor, a directive, or nothing at all.
_SIGN_BEFORE_A_VALUE: Final = re.compile(r"[:-] +([*!&%@`])")


def read_yaml(path: str | PathLike[str]) -> Mapping[str, object]:
    """Return the mapping that the file holds.

    :raises ConfigError: there is no such file, or it is not a YAML mapping without duplicate keys.
    """
    content, problem = _parsed(_text_of(path))
    if not problem and not isinstance(content, Mapping):
        problem = "is empty" if content is None else "is not a mapping of sections such as s3: and polling:"
    if problem or not isinstance(content, Mapping):
        message = f"The settings file {fspath(path)} {problem}."
        raise ConfigError(message, operation="configure")
    return content


def _text_of(path: str | PathLike[str]) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        problem = f"cannot be read: {error.strerror or type(error).__name__}"
    except UnicodeDecodeError:
        problem = "is not a UTF-8 text"
    except ValueError:
        problem = "cannot be read: no file can have this name"
    except TypeError:
        problem = "must be given by its path"
        path = f"of type {type(path).__name__}"
    message = f"The settings file {path} {problem}."
    raise ConfigError(message, operation="configure")


def _parsed(text: str) -> tuple[object, str]:
    """Return the content, or what is wrong with it."""
    import yaml  # noqa: PLC0415 - who configures by keywords or environment need not pay for it

    try:
        for line, key in _duplicates(yaml.compose(text, Loader=yaml.SafeLoader), set()):
            return None, f"has the key {key} twice in one mapping, the second time on line {line}"
        return yaml.safe_load(text), ""
    except yaml.MarkedYAMLError as error:
        return None, _in_our_words(text, error)
    except yaml.YAMLError:
        return None, "holds a character that YAML does not allow"
    except RecursionError:
        return None, "is nested too deeply"
    except (ValueError, TypeError, OverflowError):
        return None, "holds a date or a number that does not exist (quote it, if it is meant as text)"


def _duplicates(node: "yaml.Node | None", seen: set[int]) -> Iterator[tuple[int, str]]:
    """Find keys that a mapping has twice, where YAML would silently take the second."""
    if node is None or not isinstance(node.value, list) or id(node) in seen:
        return
    seen.add(id(node))  # an alias may lead back to where we came from
    keys: set[tuple[str, str]] = set()
    for entry in node.value:
        if not isinstance(entry, tuple):
            yield from _duplicates(entry, seen)
            continue
        key, value = entry
        if isinstance(key.value, str):
            if (key.tag, key.value) in keys:
                yield key.start_mark.line + 1, key.value
            keys.add((key.tag, key.value))
        yield from _duplicates(value, seen)


def _in_our_words(text: str, error: "yaml.MarkedYAMLError") -> str:
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return "is not valid YAML"
    line = "".join(text.split("\n")[mark.line : mark.line + 1])
    sentence = f"is not valid YAML on line {mark.line + 1}, column {mark.column + 1}"
    if "\t" in line:
        return f"{sentence}: there is a tab; indent with spaces"
    if sign := _SIGN_BEFORE_A_VALUE.search(line):
        return f"{sentence}: quote a value that begins with {sign[1]}"
    return sentence
