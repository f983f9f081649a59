"""`NcclSettings`: what a log of nccl-tests, or its user, says of NCCL: its version, and what it was told to take."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

_VERSION = re.compile(r"(\d+)\.(\d+)")
_LIBRARY = re.compile(r"nccl-library=(\d+)(\d\d)\d\d\b")
_SETTING = re.compile(
    r"\bNCCL_(ALGO|PROTO|NVLS_ENABLE|PAT_ENABLE)(?: set by environment to |\s*[=:]\s*)[\"']?(\^?\w[\w,:;/]*)"
)
_BY_NCCL = " NCCL INFO "
_EXPORT = re.compile(r"^\W*export\s")
_UNSET = re.compile(r"\bunset\s+(?:-v\s+)?NCCL_(\w+)")
NCCL_ALGORITHMS = ("ring", "tree", "collnetdirect", "collnetchain", "nvls", "nvlstree", "pat")
NCCL_PROTOCOLS = ("ll", "ll128", "simple")
_SWITCH_CHANNELS = re.compile(r"\b(\d+) nvls channels\b")
_FIRST_SWITCH, _FIRST_PAT = (2, 17), (2, 23)  # the versions that brought NVLS and PAT


class NcclSettings(NamedTuple):
    """The version and the settings of the NCCL that made a log; empty or None where they are not known.

    version: the first two numbers. algorithms, protocols: of NCCL_ALGO and NCCL_PROTO, such as "ring,tree" or "^tree".
    uses_switch: whether the switches of a host add up (NVLS). uses_pat: whether PAT may be taken.
    """

    version: tuple[int, int] | None = None
    algorithms: str = ""
    protocols: str = ""
    uses_switch: bool | None = None
    uses_pat: bool | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "NcclSettings":
        """Return what these lines of a log say, which `LogEnvironment` has gathered."""
        match = _VERSION.search(environment.get("nccl version", ""))
        version = (int(match[1]), int(match[2])) if match else None
        return cls(
            version,
            _names(environment.get("nccl_algo", ""), NCCL_ALGORITHMS),
            _names(environment.get("nccl_proto", ""), NCCL_PROTOCOLS),
            _may(environment, "nccl_nvls_enable", version, _FIRST_SWITCH),
            _may(environment, "nccl_pat_enable", version, _FIRST_PAT),
        )

    def or_else(self, known: "NcclSettings") -> "NcclSettings":
        """Return these settings, and `known` ones where these say nothing."""
        return NcclSettings(
            self.version or known.version,
            self.algorithms or known.algorithms,
            self.protocols or known.protocols,
            known.uses_switch if self.uses_switch is None else self.uses_switch,
            known.uses_pat if self.uses_pat is None else self.uses_pat,
        )

    def admits(self, algorithm: str, protocol: str) -> bool:
        """Return whether NCCL may take them by NCCL_ALGO and NCCL_PROTO; "" is any."""
        return _lists(self.algorithms, algorithm) and _lists(self.protocols, protocol)

    def as_text(self) -> str:
        """Return what was set to be taken, as in the environment of NCCL, such as "NCCL_ALGO=ring"."""
        told = {"NCCL_ALGO": self.algorithms, "NCCL_PROTO": self.protocols}
        return " ".join(f"{name}={value}" for name, value in told.items() if value)


NOT_KNOWN = NcclSettings()


def _may(
    environment: Mapping[str, str], setting: str, version: tuple[int, int] | None, first: tuple[int, int]
) -> bool | None:
    if environment.get(setting) == "0" or (version is not None and version < first):
        return False
    return None if version is None and setting not in environment else True


def _names(setting: str, known: Sequence[str]) -> str:
    """Return such as "ring,tree" or "^tree"; "" if it is prose, or for single collectives, which is not understood."""
    lower = setting.lower()
    return lower if set(lower.removeprefix("^").split(",")) <= set(known) else ""


def _lists(setting: str, name: str) -> bool:
    """Return whether such as "ring,tree" or "^tree" has a name."""
    if not setting or not name:
        return True
    names = setting.removeprefix("^").split(",")
    return (name.lower() in names) != setting.startswith("^")


@dataclass(slots=True)
class LogEnvironment:
    """The versions and settings that the lines of a log tell, as they are for the process that runs at a line.

    A setting is that of the process that prints it, or of the next one where it stands between two, as in the command
    of the next; what the shell exports is that of all processes that begin later. A version is that of the process too;
    of one that does not tell, the first one that the log tells.
    """

    _versions: dict[str, str] = field(default_factory=dict)
    _exported: dict[str, str] = field(default_factory=dict)
    _own: dict[str, str] = field(default_factory=dict)
    _next: dict[str, str] = field(default_factory=dict)  # told after the rows of a process, before it has ended
    _has_rows: bool = False

    def look_at(self, line: str) -> None:
        """Note lines such as `# NCCL version: 2.18`, and what NCCL itself says of its version and settings."""
        settings, told = _settings(line), self._next if self._has_rows else self._own
        if not settings and (version := _version(line)):
            name, number = version
            self._versions.setdefault(name, number)
            told.setdefault(name, number)
        if _EXPORT.search(line):
            self._exported |= settings
        told |= settings
        if self._has_rows and _BY_NCCL in line:  # late, but of the process that runs
            self._own = settings | self._own
        for match in _UNSET.finditer(line):
            for known in (self._exported, told):
                known.pop(f"nccl_{match[1].lower()}", None)

    def begin_table(self) -> None:
        """Note that a table follows; what was told since the one before it holds for it."""
        self._own |= self._next
        self._next = {}

    def note_row(self) -> None:
        """Note that the process has printed a row of its table."""
        self._has_rows = True

    def end_process(self) -> None:
        """Forget the settings of the process, if there was one."""
        if self._has_rows:
            self._own, self._next, self._has_rows = self._exported | self._next, {}, False

    def as_dict(self) -> dict[str, str]:
        """Return what is known, for a table that ends here."""
        return self._versions | self._own


def _version(line: str) -> tuple[str, str] | None:
    """Return the name and the number of a version, or what else a benchmark prints like one; None if there is none."""
    if match := re.match(r"#\s*([A-Za-z][\w ]{1,30}):\s+(.+)", line):
        return match[1].strip().lower(), match[2].strip()
    if match := re.search(r"NCCL version ([\d.]+)", line):
        return "nccl version", match[1]
    match = _LIBRARY.search(line)
    return ("nccl version", f"{int(match[1])}.{int(match[2])}") if match else None


def _settings(line: str) -> dict[str, str]:
    """Return the settings that a line tells, with whether there are channels through switches."""
    settings = {f"nccl_{match[1].lower()}": match[2].rstrip(",:;") for match in _SETTING.finditer(line)}
    if match := _SWITCH_CHANNELS.search(line):
        settings["nccl_nvls_enable"] = "1" if int(match[1]) else "0"
    return settings
