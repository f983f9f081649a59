"""The presets: network files that come with the package; and finding a network by name or path."""

from pathlib import Path

from ringsim.files import read_text
from ringsim.network.cluster import Cluster
from ringsim.network.file_reader import read_network
from ringsim.suggestions import nearest

_FOLDER = Path(__file__).parent / "presets"


def preset_names() -> list[str]:
    """In the order of the alphabet."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def load_network(name_or_path: str | Path) -> Cluster:
    """Return a preset by its name, or the network that a file describes, if the text ends in .toml.

    Raises ValueError for a name that no preset has, and for whatever is wrong with the file; OSError if it cannot
    be read.

        >>> from ringsim import load_network
        >>> load_network("dgx-h100").name
        'dgx-h100'
    """
    if str(name_or_path).endswith(".toml"):
        return read_network(read_text(Path(name_or_path)), str(name_or_path))
    name = str(name_or_path)
    names = preset_names()
    if name not in names:
        meant = nearest(name, names)
        hint = f"did you mean {meant}? " if meant else ""
        raise ValueError(f"network {name!r}: {hint}presets are {', '.join(names)}; or give a file that ends in .toml")
    return read_network(read_text(_FOLDER / f"{name}.toml"), f"ringsim/network/presets/{name}.toml")
