"""YAML files that people write, read with the line of everything in them. Owns what such a file may look like.

Knows no options and no keys: it gives mappings of scalars and lists as they were written, and collects what is wrong
with them, so that a file is refused with all of its mistakes at once.
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from sssd.errors import ConfigError, MissingExtra


class Entry(NamedTuple):
    """A value and where it stands."""

    line: int  # from 1
    value: Any  # str as it was written, a list of Entry, or a dict of str to Entry


class Mistakes:
    """What is wrong with one file, to be said all at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: list[tuple[int, str]] = []

    def add(self, line: int, what: str) -> None:
        """One mistake, in words that say what is allowed."""
        self._found.append((line, what))

    def unknown(self, name: str, line: int, known: list[str]) -> None:
        """A name that means nothing; says what was probably meant."""
        near = get_close_matches(name, known, n=1) or get_close_matches(name.replace("_", "-").lower(), known, n=1)
        meant = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(known))}"
        self.add(line, f"{name} is not known: {meant}")

    def raise_any(self) -> None:
        """Raises ConfigError naming every mistake with its line; does nothing without one."""
        if self._found:
            lines = "; ".join(f"line {line}: {what}" for line, what in sorted(self._found))
            raise ConfigError(f"{self._path}: {lines}")


def read_mapping(path: Path) -> dict[str, Entry]:
    """The file's top level. Raises ConfigError when it cannot be read, is no YAML or no mapping."""
    try:
        import yaml
    except ModuleNotFoundError:
        raise MissingExtra("pyyaml", "server") from None
    try:
        node = yaml.compose(path.read_text("utf-8"), Loader=yaml.SafeLoader)
    except OSError as e:
        raise ConfigError(f"cannot read {path}: {e.strerror}; give a file that is there and readable") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is no UTF-8 text") from None
    except yaml.MarkedYAMLError as e:
        line = e.problem_mark.line + 1 if e.problem_mark else 1
        raise ConfigError(f"{path}: line {line}: no YAML: {e.problem}") from None
    except yaml.YAMLError:  # of characters that may not stand in a file; its text would show them
        raise ConfigError(f"{path} is no YAML: it holds characters that are no text") from None
    if node is None:
        return {}
    mistakes = Mistakes(path)
    entry = _entry(node, mistakes)
    if not isinstance(entry.value, dict):
        mistakes.add(entry.line, "names with values are expected, one a line, as in  port: 8000")
    mistakes.raise_any()
    assert isinstance(entry.value, dict)
    return entry.value


def _entry(node: Any, mistakes: Mistakes) -> Entry:
    import yaml

    line = node.start_mark.line + 1
    if isinstance(node, yaml.SequenceNode):
        return Entry(line, [_entry(child, mistakes) for child in node.value])
    if isinstance(node, yaml.ScalarNode):
        return Entry(line, node.value)
    found: dict[str, Entry] = {}
    for key, value in node.value:
        at = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            mistakes.add(at, "a name must be plain text")
        elif key.value in found:
            mistakes.add(at, f"{key.value} is given twice (line {found[key.value].line} too): leave one out")
        else:
            found[key.value] = Entry(at, _entry(value, mistakes).value)
    return Entry(line, found)
