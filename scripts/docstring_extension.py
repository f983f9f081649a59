"""A griffe extension for mkdocs.yml: mkdocstrings gets docstrings as Markdown."""

from typing import Any

from griffe import Extension, Object

from site_hooks import docstring_markdown


class DocstringMarkdown(Extension):
    """Rewrites every docstring that griffe loads."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Convert the docstring of a module, class, function or attribute."""
        if obj.docstring:
            obj.docstring.value = docstring_markdown(obj.docstring.value)
