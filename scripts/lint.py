"""Check words, names and imports, which ruff and import-linter do not know; `make lint` calls it.

Exits with 1 and prints a line per fault: the place, the fault, and the replacement.
"""

import ast
import collections
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from collectives.benchmark.command import main as benchmark
from figures import REGISTRY, read_registry
from ringsim.cli import main as ringsim
from ringsim.console import Choice, Name, Quantity
from trainers.cli.group import main as trainers

ROOT = Path(__file__).parents[1]
PACKAGES = ("ringsim", "collectives", "trainers")
PAGES = ("docs/**/*.md", "README.md", "CONTRIBUTING.md")
# Patterns, in which a space is any white space, and what to write instead.
WORDS = {
    r"\bso many\b": "'Number of ranks', 'as many' or '4 ranks'",
    r"\b(?:held|laid|put|timed|shown) beside\b": "'compared with' or 'next to'",
    r"\bof (?:its|your|our|their|his|one's) own\b": "'its own', 'your' or 'our'",
    r"(?:^|[.]\ )What (?:it|is|they|are)\b[^?]*?\.(?: |$)": "a noun: 'The bytes sent'",
    r",\s+too[.;:]": "'also', before the verb",
}
# Likewise, for errors and helps alone.
MESSAGE_WORDS = {
    r"(?:[;,:]|, or|, and) take\b": "'use' or 'run'",
    r"\bsomebody\b": "what has happened, such as 'was set to None directly'",
    r"\b(?:same with the same|for as many|say it)\b": "the noun that the reader has to guess",
    r"\b(?:did not come|came,|none came|has gone)\b": "'was not received' or 'has closed the connection'",
}
# First words of a help that begin a sentence about the option, or a fragment, and no noun phrase or imperative.
NO_FIRST_WORD = re.compile(
    r"(?:this|these|it|so|there|what|of|at|to|for|see|which|how|in|on|where|when|likewise|without|beside|is|has|are|"
    r"gives|writes|shows|prints|lists|reads|sets|takes|uses|makes|runs|keeps|adds|checks)\b",
    re.IGNORECASE,
)
MAX_HELP_WORDS = 40
# Commands without --json: what they make is a file, or they hand all options on to another command that has it.
WITHOUT_JSON = {"plot", "animate", "report", "export", "measure", "trace"}
NAMED = {"algorithm", "algorithms", "network", "names", "name", "strategy", "strategies", "task", "collective"}
PROGRAM = re.compile(r"(?<![\w/.])(?:-m ([\w.]+)|((?:scripts|examples)/\w+\.py))")
FILLERS = {"each", "found", "what"}
# Importing all of these at once would load torch or matplotlib where a command only checks its options.
BY_MODULE = ("trainers.", "collectives.benchmark.", "ringsim.report.plots", "ringsim.cli.")
USED_BY_NAME = {"collectives.calls", "ringsim.algorithms", "ringsim.cli", "trainers.strategies", "trainers.tasks"}
LAZILY = "collectives/__init__.py"  # FSDP2's part of torch takes a second to import

COMMANDS: tuple[click.Command, ...] = (benchmark, *ringsim.commands.values(), *trainers.commands.values())
Trees = dict[str, ast.Module]


def parsed(*folders: str) -> Trees:
    """Return every module in these folders, by path from the root."""
    paths = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in paths}


def literal(node: ast.expr) -> str:
    """Return a literal's text, with {} for each value in an f-string; "" for any other expression."""
    if isinstance(node, ast.JoinedStr):
        return "".join(literal(part) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def prose() -> Iterator[tuple[str, str]]:
    """Yield path and text of every page, without blocks of code."""
    for path in (path for pattern in PAGES for path in sorted(ROOT.glob(pattern))):
        text = re.sub(r"```.*?```", lambda block: "\n" * block[0].count("\n"), path.read_text(), flags=re.DOTALL)
        yield str(path.relative_to(ROOT)), text


def docstrings(trees: Trees) -> Iterator[tuple[str, str]]:
    """Yield place and text of every docstring; some are the help of commands."""
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{path}:{getattr(node, 'lineno', 1)}", ast.get_docstring(node) or ""


def errors(trees: Trees) -> Iterator[tuple[str, str]]:
    """Yield place and text of every error with a literal message."""
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("Error", "_error", "Exception")):
                yield from ((f"{path}:{node.lineno}", literal(given)) for given in node.args)


def helps(scripts: Trees) -> Iterator[tuple[str, str]]:
    """Yield place and help of every option."""
    for path, tree in scripts.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.keyword) and node.arg == "help":
                yield f"{path}:{node.value.lineno}", literal(node.value)
    for command in COMMANDS:
        for option in command.params:
            if isinstance(option, click.Option):
                yield f"{command.name} {option.opts[0]}", option.help or ""


def wrong_words(texts: list[tuple[str, str]], patterns: dict[str, str]) -> Iterator[str]:
    """Yield each match of a pattern, with its line in the text."""
    for pattern, instead in patterns.items():
        for place, text in texts:
            for match in re.finditer(re.sub(r"(?<!\\) ", r"\\s+", pattern), text, re.IGNORECASE):
                line = text.count("\n", 0, match.start())
                yield f"{place} (+{line}): {' '.join(match[0].split())[:80]!r}: write {instead}"


def wrong_helps(texts: list[tuple[str, str]]) -> Iterator[str]:
    """Yield helps that are no noun phrase or imperative, such as "Number of ranks." or "Write it to FILE."."""
    for place, text in texts:
        is_short = 2 <= len(text.split()) <= MAX_HELP_WORDS
        if not (is_short and text[0].isupper() and text.endswith((".", "]"))) or NO_FIRST_WORD.match(text):
            yield f"{place}: {text!r}: write 2 to {MAX_HELP_WORDS} words that begin with a noun or an imperative"


def wrong_options(commands: tuple[click.Command, ...]) -> Iterator[str]:
    """Yield commands without JSON output, and name options that neither complete nor suggest."""
    for command in commands:
        if command.name not in WITHOUT_JSON and not any("--json" in option.opts for option in command.params):
            yield f"{command.name}: give it --json, or name it in WITHOUT_JSON"
        for option in command.params:
            is_name = option.name in NAMED and not isinstance(option.type, Choice | Name | Quantity)
            if is_name or (isinstance(option.type, click.Choice) and not isinstance(option.type, Choice)):
                yield f"{command.name} {option.name}: give it type Choice or Name of ringsim.console"


def wrong_figures() -> Iterator[str]:
    """Yield programs that a figure's command starts, but whose code the figure does not measure."""
    for figure in read_registry(REGISTRY).values():
        for module, script in PROGRAM.findall(" ".join(figure.commands)):
            program = script or module.replace(".", "/")
            if not program.startswith(figure.measures):
                yield f"{REGISTRY.name}: {figure.name}: starts {program}: add it to measures"


def wrong_names(trees: Trees) -> Iterator[str]:
    """Yield classes that share a name, and variables with filler names."""
    places = collections.defaultdict(list)
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in FILLERS:
                yield f"{path}:{node.lineno}: {node.id}: name what it holds"
        for statement in tree.body:
            if isinstance(statement, ast.ClassDef):
                places[statement.name].append(path)
    yield from (f"{', '.join(paths)}: {name}: rename one" for name, paths in places.items() if len(paths) > 1)


def subpackage(module: str) -> str:
    """Return the subpackage of a module: ringsim.schedule of ringsim.schedule.verify."""
    return ".".join(module.split(".")[:2])


def imports(trees: Trees) -> Iterator[tuple[str, str, str]]:
    """Yield file, module and name of every import from our packages; `console.say` imports say."""
    for path, tree in trees.items():
        subpackages = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(PACKAGES):
                yield from ((path, node.module, alias.name) for alias in node.names)
                if node.module in PACKAGES:
                    subpackages |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in subpackages:
                yield path, subpackages[node.value.id], node.attr


def wrong_imports(trees: Trees, scripts: Trees) -> Iterator[str]:
    """Yield imports that bypass a subpackage's exports, because modules may move, and unused exports."""
    used = {(module, name) for _, module, name in imports(scripts)}
    for path, module, name in imports(trees):
        own = subpackage(path.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
        if subpackage(module) != own and "." in module:
            used.add((module, name))
            if module != subpackage(module) and not module.startswith(BY_MODULE) and path != LAZILY:
                yield f"{path}: {module}: import {name} from {subpackage(module)}"
    inits = {path: tree for path, tree in trees.items() if path.endswith("/__init__.py") and path.count("/") == 2}
    for path, module, name in imports(inits):
        package = path.removesuffix("/__init__.py").replace("/", ".")
        if module.startswith(f"{package}.") and (package, name) not in used and package not in USED_BY_NAME:
            yield f"{path}: {name}: nobody imports it from here"


def faults() -> Iterator[str]:
    """Yield one line for each fault."""
    trees, scripts = parsed(*PACKAGES), parsed("scripts")
    everything = trees | scripts
    options = list(helps(scripts))
    messages = [*errors(everything), *options]
    yield from wrong_words([*prose(), *docstrings(everything), *messages], WORDS)
    yield from wrong_words(messages, MESSAGE_WORDS)
    yield from wrong_helps(options)
    yield from wrong_options(COMMANDS)
    yield from wrong_figures()
    yield from wrong_names(trees)
    yield from wrong_imports(trees, scripts)


if __name__ == "__main__":
    lines = list(faults())
    sys.exit("\n".join(lines) if lines else 0)
