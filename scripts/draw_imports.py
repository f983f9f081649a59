"""Write the diagrams of subpackages and their imports into docs/architecture.md: `python scripts/draw_imports.py`.

An arrow points to an imported subpackage. An import that also follows from a longer path is not drawn.
"""

from pathlib import Path

import grimp

from generated_part import GeneratedPart

PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"
PACKAGES = ("ringsim", "collectives", "trainers")
HIDDEN = ("__main__",)  # `python -m ringsim` and the like: each imports the command line and nothing else

Edges = dict[str, set[str]]


def part(package: str) -> GeneratedPart:
    """Return the part of the page with a package's diagram."""
    return GeneratedPart(f"<!-- imports of {package}: begin -->", f"<!-- imports of {package}: end -->")


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


def main() -> None:
    """Write all diagrams."""
    for package in PACKAGES:
        part(package).write(PAGE, diagram(package))


if __name__ == "__main__":
    main()
