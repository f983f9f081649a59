"""Write what the commands of pages print into the pages: `python -m tests.docs docs/simulator.md docs/synthesis.md`.

For output that has changed on purpose. What varies, what takes long and what is shown in part stays as it is.
"""

import os
import sys
import tempfile
from pathlib import Path

import click

from ringsim.console import OneLineCommand
from tests.docs.pages import ROOT, blocks, with_outputs
from tests.docs.test_pages import CHECKOUT, run_commands


def refreshed(page: str) -> str:
    """The text of the page with the present output below each block of commands; run in a checkout."""
    text = (ROOT / page).read_text()
    for block, below in with_outputs(page):
        if block.file is not None:
            Path(block.file).write_text(block.text)
        if not block.is_run or block.language != "bash" or block.mark == "slow":
            continue
        printed = run_commands(block)
        if below is not None and not below.mark and " ...\n" not in below.text and "\n...\n" not in f"\n{below.text}":
            text = text.replace(f"```text\n{below.text}```", f"```text\n{printed.rstrip()}\n```", 1)
    return text


@click.command("docs", cls=OneLineCommand)
@click.argument("pages", nargs=-1, required=True)
def main(pages: tuple[str, ...]) -> None:
    """Run the commands of PAGES, such as docs/simulator.md, and write what they print below them."""
    for page in pages:
        if not (ROOT / page).is_file() or not blocks(page):
            raise ValueError(f"{page}: must be a page with blocks of commands, named from the root of the repository")
    os.environ["COLUMNS"] = "80"
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    for page in pages:
        with tempfile.TemporaryDirectory() as checkout:
            for name in CHECKOUT:
                Path(checkout, name).symlink_to(ROOT / name)
            os.chdir(checkout)
            text = refreshed(page)
            os.chdir(ROOT)
        (ROOT / page).write_text(text)
        click.echo(f"wrote {page}")


if __name__ == "__main__":
    main(prog_name="docs")
