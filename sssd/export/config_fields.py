"""Typed access to a checkpoint's hyperparameters under their Hugging Face names.

Owns the reading of one field and its error; knows no family and no file format.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sssd.errors import ExportError


class Config:
    """Hyperparameters of a checkpoint; a JSON null counts as absent. Never mutated.

    Every accessor raises ExportError when a field has the wrong type, or is absent and has no default.
    """

    def __init__(self, values: Mapping[str, object], where: str) -> None:
        """`where` names the file (and section) in error messages."""
        self._values = values
        self.where = where

    def over(self, defaults: Mapping[str, object]) -> Config:
        """The same fields with `defaults` where a field is not written at all (an explicit null stays null)."""
        return Config({**defaults, **self._values}, self.where)

    def has(self, name: str) -> bool:
        """Is the field there and not null?"""
        return self._values.get(name) is not None

    def require(self, names: Sequence[str]) -> None:
        """Raise one ExportError that lists every absent name."""
        missing = [name for name in names if not self.has(name)]
        if missing:
            raise ExportError(f"{self.where} lacks {', '.join(missing)}: all of {', '.join(names)} are needed")

    def integer(self, name: str, default: int | None = None) -> int:
        """An integer field."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(name, value, "an integer")
        return value

    def optional_integer(self, name: str) -> int | None:
        """An integer field, None when absent."""
        return self.integer(name) if self.has(name) else None

    def number(self, name: str, default: float | None = None) -> float:
        """An integer or float field, as float."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(name, value, "a number")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """A true or false field."""
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """A string field."""
        value = self._get(name, default)
        if not isinstance(value, str):
            raise self._wrong(name, value, "a string")
        return value

    def numbers(self, name: str) -> tuple[float, ...]:
        """A list of numbers."""
        value = self._get(name, None)
        if not isinstance(value, Sequence) or not all(isinstance(x, int | float) for x in value):
            raise self._wrong(name, value, "a list of numbers")
        return tuple(float(x) for x in value)

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings."""
        value = self._get(name, None)
        if not isinstance(value, list | tuple) or not all(isinstance(x, str) for x in value):
            raise self._wrong(name, value, "a list of strings")
        return tuple(value)

    def ids(self, name: str) -> tuple[int, ...]:
        """Token ids written as one integer or as a list; empty when absent."""
        value = self._values.get(name)
        if value is None:
            return ()
        ids = value if isinstance(value, list | tuple) else (value,)
        if not all(isinstance(x, int) and not isinstance(x, bool) and x >= 0 for x in ids):
            raise self._wrong(name, value, "a token id or a list of them")
        return tuple(ids)

    def named_texts(self, name: str) -> dict[str, str]:
        """Texts by name: a list of {name, template} objects, or one string, which is called default."""
        value = self._get(name, None)
        if isinstance(value, str):
            return {"default": value}
        if not isinstance(value, list) or not all(
            isinstance(x, dict) and {"name", "template"} <= x.keys() for x in value
        ):
            raise self._wrong(name, value, "a string or a list of objects with name and template")
        return {str(x["name"]): str(x["template"]) for x in value}

    def section(self, name: str) -> Config | None:
        """A nested object, None when absent."""
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._wrong(name, value, "an object")
        return Config(value, f"{self.where} {name}")

    def _get(self, name: str, default: object) -> object:
        value = self._values.get(name)
        if value is not None:
            return value
        if default is None:
            raise ExportError(f"{self.where} lacks {name}: it is needed to export this model")
        return default

    def _wrong(self, name: str, value: object, wanted: str) -> ExportError:
        shown = repr(value)
        shown = shown if len(shown) <= 40 else shown[:40] + "..."
        return ExportError(f"{self.where}: {name} is {shown}, it must be {wanted}")
