"""Write the map of the code into docs/architecture.md: `python scripts/map_of_code.py`.

For each package it has a diagram of its subpackages, in which an arrow points to an imported one (an import that also
follows from a longer path is not drawn), and all files with the first sentence of their docstrings.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import grimp

from generated_part import GeneratedPart

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
PACKAGES = ("ringsim", "collectives", "trainers")
HIDDEN = ("__main__",)  # `python -m ringsim` and the like: each imports the command line and nothing else

Edges = dict[str, set[str]]


def part(what: str, folder: str) -> GeneratedPart:
    """Return the part of the page with the imports or the files of a folder."""
    return GeneratedPart(f"<!-- {what} of {folder}: begin -->", f"<!-- {what} of {folder}: end -->")


def diagram(package: str) -> str:
    """Return the subpackages as a Mermaid flow chart."""
    edges = without_short_cuts(imports(package))
    arrows = [f"    {importer} --> {imported}" for importer in sorted(edges) for imported in sorted(edges[importer])]
    return "\n".join(["```mermaid", "flowchart TD", *arrows, "```"])


def imports(package: str) -> Edges:
    """Return the imports of each subpackage or module of `package`."""
    graph = grimp.build_graph(package)
    children = sorted(graph.find_children(package))
    names = {module: module.rpartition(".")[2] for module in children}
    shown = [module for module in children if names[module] not in HIDDEN]
    return {
        names[importer]: {
            names[imported]
            for imported in shown
            if imported != importer
            and graph.direct_import_exists(importer=importer, imported=imported, as_packages=True)
        }
        for importer in shown
    }


def without_short_cuts(edges: Edges) -> Edges:
    """Remove each edge that a longer path makes redundant."""
    reach: Edges = {}

    def reached(name: str) -> set[str]:
        if name not in reach:
            reach[name] = edges[name].union(*(reached(imported) for imported in edges[name]))
        return reach[name]

    return {
        name: {
            imported
            for imported in imported_names
            if not any(imported in reached(o) for o in imported_names - {imported})
        }
        for name, imported_names in edges.items()
    }


def files(folder: Path, depth: int = 0) -> Iterator[str]:
    """Yield a line of a Markdown list for each Python file: single files first, then the folders with theirs."""
    indent = 4 * depth * " "
    for file in sorted(folder.glob("*.py")):
        if file.name not in ("__init__.py", "__main__.py"):
            yield f"{indent}- `{file.name}`: {summary(file)}"
    for package in sorted({file.parent for file in folder.glob("*/*.py")}):
        init = package / "__init__.py"
        yield f"{indent}- **`{package.name}/`**" + (f": {summary(init)}" if init.exists() else "")
        yield from files(package, depth + 1)


def summary(file: Path) -> str:
    """Return the first paragraph of a file's docstring on one line."""
    text = ast.get_docstring(ast.parse(file.read_text())) or ""
    return " ".join(text.partition("\n\n")[0].split())


def parts() -> Iterator[tuple[GeneratedPart, str]]:
    """Yield each generated part of the page with its text."""
    for package in PACKAGES:
        yield part("imports", package), diagram(package)
    for folder in (*PACKAGES, "scripts"):
        yield part("files", folder), "\n".join(files(ROOT / folder))


def main() -> None:
    """Write all parts."""
    for generated, text in parts():
        generated.write(PAGE, text)


if __name__ == "__main__":
    main()
