"""Files, written completely or not at all, with errors that name place, value and rule."""

from ringsim.files import values
from ringsim.files.records import (
    FileFormat,
    JsonFile,
    OpenRecord,
    Record,
    decode,
    encode,
    parsed,
    refusal,
    unknown_key,
    without_unit,
)
from ringsim.files.text_file import (
    atomic_file,
    file_to_replace,
    finite_or_none,
    is_read_only,
    json_text,
    names_in,
    naming_place,
    parse_json,
    parse_toml,
    quoted,
    read_bytes,
    read_json,
    read_preset,
    read_regular,
    read_text,
    save_json,
    shortened,
    toml_text,
)
