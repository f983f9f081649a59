"""A griffe extension, which mkdocs.yml names: mkdocstrings shows the lines about fields in a docstring as a list."""

from typing import Any

from griffe import Extension, Object

from site_hooks import with_field_lists


class FieldLists(Extension):
    """Rewrites every docstring that griffe loads."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Called for each module, class, function and attribute."""
        if obj.docstring:
            obj.docstring.value = with_field_lists(obj.docstring.value)
