"""Tables of a TOML file with the keys that they may have, and the reading of them.

A `Table` is read into a dict by the names of fields; keys that are left out are left out there too, so that the
defaults stand in one place and one table can be laid over another.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Union

from ringsim.files.text_file import shortened
from ringsim.files.toml_values import Parser
from ringsim.suggestions import nearest


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a table: it holds a value, a table, or (`many`) a list of tables, and becomes a field."""

    field: str
    holds: Union[Parser, "Table"]
    required: bool = False
    many: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """The keys that a table may have."""

    keys: Mapping[str, Key]

    def read(self, data: Any, place: str) -> dict[str, Any]:
        """Returns the fields. Raises ValueError with place, value and rule for whatever does not belong there."""
        if not isinstance(data, dict):
            raise refusal(place, data, ": must be a table of keys and values")
        for name in data:
            if name not in self.keys:
                shown = name if name.isidentifier() else json.dumps(name)  # a quoted key may hold anything
                raise ValueError(f"{_inside(place, shown)}: unknown key; {self._known(name)}")
        for name, key in self.keys.items():
            if key.required and name not in data:
                raise ValueError(f"{place}: {name} is missing")
        return {
            self.keys[name].field: _read(self.keys[name], value, _inside(place, name)) for name, value in data.items()
        }

    def _known(self, name: str) -> str:
        meant = nearest(name, self.keys)
        known = f"known here are {', '.join(self.keys)}"
        return f"did you mean {meant}? {known}" if meant else known


def refusal(place: str, value: Any, rule: str) -> ValueError:
    """Returns the error with the place and the value as they stand in the file, and the rule (after a colon)."""
    return ValueError(f"{place} = {shortened(json.dumps(value, ensure_ascii=False, default=str))}{rule}")


def _read(key: Key, value: Any, place: str) -> Any:
    if isinstance(key.holds, Table):
        if not key.many:
            return key.holds.read(value, place)
        if not isinstance(value, list):
            raise refusal(place, value, f": must be a list of tables, [[{place}]]")
        return [key.holds.read(item, f"{place}[{number}]") for number, item in enumerate(value)]
    try:
        return key.holds(value)
    except ValueError as error:
        raise refusal(place, value, str(error)) from None


def _inside(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name
