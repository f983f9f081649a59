"""Reading and writing files: whole or not at all, and with errors that name place, value and rule."""

from ringsim.files.atomic_file import atomic_file
from ringsim.files.json_fields import (
    MAX_RANKS,
    MAX_S,
    as_tuple,
    finite_or_none,
    is_number,
    is_whole,
    require_duration,
    require_fields,
    require_name,
    require_object,
    require_one_each,
    require_seconds,
    require_text,
    require_times,
    require_whole,
)
from ringsim.files.text_file import (
    naming_place,
    parse_json,
    parse_toml,
    quoted,
    read_bytes,
    read_json,
    read_text,
    shortened,
)
from ringsim.files.toml_tables import Key, Table, refusal
from ringsim.files.toml_values import MAX_BYTES, MAX_COUNT

__all__ = [
    "MAX_BYTES",
    "MAX_COUNT",
    "MAX_RANKS",
    "MAX_S",
    "Key",
    "Table",
    "as_tuple",
    "atomic_file",
    "finite_or_none",
    "is_number",
    "is_whole",
    "naming_place",
    "parse_json",
    "parse_toml",
    "quoted",
    "read_bytes",
    "read_json",
    "read_text",
    "refusal",
    "require_duration",
    "require_fields",
    "require_name",
    "require_object",
    "require_one_each",
    "require_seconds",
    "require_text",
    "require_times",
    "require_whole",
    "shortened",
]
