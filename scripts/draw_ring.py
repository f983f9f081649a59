"""Draw the page of `ringsim animate` as a GIF: a screenshot of each moment in headless Chromium.

python scripts/draw_ring.py ring.html docs/ring.gif
"""

import subprocess
import tempfile
from pathlib import Path

import click
from PIL import Image

from ringsim.console import FILE, OneLineCommand, OutputFile
from ringsim.files import atomic_file

FRAMES, FRAME_MS, HOLD_MS = 72, 120, 2500  # in all; each; the last one
COLOURS = 96
WINDOW, BELOW_CONTROLS, SIZE = (1100, 760), (0, 172, 1100, 760), (770, 412)  # pixels


@click.command("draw_ring", cls=OneLineCommand)
@click.argument("page", type=FILE)
@click.argument("output", type=OutputFile((".gif",)))
@click.option("--chromium", default="chromium", show_default=True, help="The browser's program.")
def main(page: str, output: Path, chromium: str) -> None:
    """Write the moments of PAGE, evenly spaced, to OUTPUT."""
    with tempfile.TemporaryDirectory() as folder:
        moments = [f"{Path(page).absolute().as_uri()}#t={number / (FRAMES - 1):.4f}" for number in range(FRAMES)]
        frames = [screenshot(chromium, moment, folder).crop(BELOW_CONTROLS).resize(SIZE) for moment in moments]
    # One palette for all frames, so that nothing flickers and unchanged parts are not stored again.
    colours = frames[FRAMES // 2].quantize(COLOURS, dither=Image.Dither.NONE)
    drawn = [frame.quantize(palette=colours, dither=Image.Dither.NONE) for frame in frames]
    durations = [FRAME_MS] * (FRAMES - 1) + [HOLD_MS]
    with atomic_file(output) as file:
        drawn[0].save(file, "GIF", save_all=True, append_images=drawn[1:], duration=durations, loop=0, disposal=1)


def screenshot(chromium: str, address: str, folder: str) -> Image.Image:
    """Return the picture of a page. Raises ValueError if Chromium makes none."""
    path = Path(folder, "frame.png")
    path.unlink(missing_ok=True)
    options = ("--headless", "--no-sandbox", "--hide-scrollbars", f"--user-data-dir={folder}/profile")
    command = [chromium, *options, "--window-size={},{}".format(*WINDOW), f"--screenshot={path}", address]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    if done.returncode or not path.exists():
        raise ValueError(f"{chromium}: made no picture of {address}")
    with Image.open(path) as picture:
        return picture.convert("RGB")


if __name__ == "__main__":
    main(prog_name="draw_ring")
