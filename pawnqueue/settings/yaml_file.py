"""Read a YAML file of settings, and say in one sentence what is wrong with it.

The parser's own messages are not passed on. They quote the file: an unquoted secret that begins with ``*`` or ``!``
would be in them as an unknown alias or tag.
"""

import re
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pawnqueue.errors import ConfigError

if TYPE_CHECKING:
    import yaml

#: YAML takes a value that begins with one of these for an alias, a tag, an anchor or a directive, or refuses it.
_SIGN_BEFORE_A_VALUE: Final = re.compile(r"[:-] +([*!&%@`])")


class _TwiceError(Exception):
    """A mapping has a key twice: the key, and the line."""


def read_yaml(path: str | PathLike[str]) -> Mapping[str, object]:
    """Return the mapping that the file holds.

    :raises ConfigError: there is no such file, or it is not a YAML mapping without duplicate keys.
    """
    try:
        content, problem = _parse(Path(path).read_text(encoding="utf-8"))
        if isinstance(content, Mapping):
            return content
        problem = problem or (
            "is empty" if content is None else "is not a mapping of sections such as s3: and polling:"
        )
    except OSError as error:
        problem = f"cannot be read: {error.strerror or type(error).__name__}"
    except UnicodeDecodeError:
        problem = "is not a UTF-8 text"
    except ValueError:
        problem = "cannot be read: no file can have this name"
    except TypeError:
        problem, path = "must be given by its path", f"of type {type(path).__name__}"
    raise ConfigError(f"The settings file {path} {problem}.", operation="configure")


def _parse(text: str) -> tuple[object, str]:
    """Return the content, or what is wrong with it."""
    import yaml  # noqa: PLC0415 - settings by keywords or environment do not need it

    class Loader(yaml.SafeLoader):
        """Refuses a key that a mapping has twice, where YAML would silently take the second one."""

        def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
            node = super().compose_mapping_node(anchor)
            seen: set[tuple[str, str]] = set()
            for key in (key for key, _ in node.value if isinstance(key.value, str)):
                if (key.tag, key.value) in seen:
                    raise _TwiceError(key.value, key.start_mark.line + 1)
                seen.add((key.tag, key.value))
            return node

    try:
        return yaml.load(text, Loader), ""  # noqa: S506 - it is a SafeLoader
    except _TwiceError as twice:
        return None, "has the key {} twice in one mapping, the second time on line {}".format(*twice.args)
    except yaml.MarkedYAMLError as error:
        return None, _describe_error(text, error)
    except yaml.YAMLError:
        return None, "holds a character that YAML does not allow"
    except RecursionError:
        return None, "is nested too deeply"
    except (ValueError, TypeError, OverflowError):
        return None, "holds a date or a number that does not exist (quote it, if it is meant as text)"


def _describe_error(text: str, error: "yaml.MarkedYAMLError") -> str:
    if (mark := error.problem_mark or error.context_mark) is None:
        return "is not valid YAML"
    line = "".join(text.split("\n")[mark.line : mark.line + 1])
    sentence = f"is not valid YAML on line {mark.line + 1}, column {mark.column + 1}"
    if "\t" in line:
        return f"{sentence}: there is a tab; indent with spaces"
    sign = _SIGN_BEFORE_A_VALUE.search(line)
    return f"{sentence}: quote a value that begins with {sign[1]}" if sign else sentence
