"""`NcclSettings`: NCCL's version and settings, from a log of nccl-tests or its user."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

_VERSION = re.compile(r"NCCL version:?\s+v?(\d+)\.(\d+)|nccl-library=(\d+)(\d\d)\d\d\b")
_SETTING = re.compile(
    r"\bNCCL_(ALGO|PROTO|NVLS_ENABLE|PAT_ENABLE|TESTS_SPLIT(?:_MASK)?|(?:SHM|P2P|IB)_DISABLE|P2P_LEVEL|NET|IB_HCA"
    r"|NET_GDR_LEVEL|NET_PLUGIN|M(?:AX|IN)_NCHANNELS|M(?:AX|IN)_CTAS|CROSS_NIC|SOCKET_IFNAME)"
    r"(?: set by environment to |\s*[=:]\s*)[\"']?([\^%&|/]?\w[\w,:;/%&]*)"
)
_PAIR = re.compile(r"(?<=env )\s*(NCCL_\w+)\s+(?=[^\s=])")  # setenv of csh, -genv of Hydra
_ITERATIONS = re.compile(r"\b(agg iters: (?!1\b)|graph: (?!0\b))(\d+)")
_NETWORK = re.compile(r"\bUsing network (Socket)\b")
SPLITS = ("nccl_tests_split", "nccl_tests_split_mask")
_OTHERWISE_MODELLED = ("nccl_algo", "nccl_proto", "nccl_nvls_enable", "nccl_pat_enable", *SPLITS)
_NCCL = "nccl version"
_NOT_SINGLE = "iterations"  # of several calls at once, or of CUDA graphs
GROUPS = "groups"  # communicators that do the same at once, on the NICs of one host
_BY_NCCL = " NCCL INFO "
_EXPORT = re.compile(r"^\W*(?:export|setenv)\s")
_UNSET = re.compile(r"\bunset\s+(?:-v\s+)?NCCL_(\w+)")
NCCL_ALGORITHMS = ("ring", "tree", "collnetdirect", "collnetchain", "nvls", "nvlstree", "pat")
NCCL_PROTOCOLS = ("ll", "ll128", "simple")
_SWITCH_CHANNELS = re.compile(r"\b(\d+) nvls channels\b")
_FIRST_SWITCH, _FIRST_PAT = (2, 17), (2, 23)  # the versions that brought NVLS and PAT


class NcclSettings(NamedTuple):
    """The version and the settings of the NCCL that made a log; empty or None if unknown.

    version: the first two numbers. algorithms, protocols: NCCL_ALGO and NCCL_PROTO, such as "ring,tree" or "^tree".
    uses_switch, uses_pat: whether NVLS and PAT are available.
    groups: communicators that run the same collective at once and share the NICs of a host.
    """

    version: tuple[int, int] | None = None
    algorithms: str = ""
    protocols: str = ""
    uses_switch: bool | None = None
    uses_pat: bool | None = None
    groups: int = 1

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "NcclSettings":
        major, minor = environment.get(_NCCL, ".").split(".")
        version = (int(major), int(minor)) if major else None
        return cls(
            version,
            _names(environment.get("nccl_algo", ""), NCCL_ALGORITHMS),
            _names(environment.get("nccl_proto", ""), NCCL_PROTOCOLS),
            _may(environment, "nccl_nvls_enable", version, _FIRST_SWITCH),
            _may(environment, "nccl_pat_enable", version, _FIRST_PAT),
            int(environment.get(GROUPS, "1")),
        )

    def or_else(self, known: "NcclSettings") -> "NcclSettings":
        said = {name: value for name, value in self._asdict().items() if value not in (None, "")}
        return known._replace(**said)

    def admits(self, algorithm: str, protocol: str) -> bool:
        """Return whether NCCL_ALGO and NCCL_PROTO admit them; "" is any."""
        return _lists(self.algorithms, algorithm) and _lists(self.protocols, protocol)

    def as_text(self) -> str:
        settings = {"NCCL_ALGO": self.algorithms, "NCCL_PROTO": self.protocols}
        return " ".join(f"{name}={value}" for name, value in settings.items() if value)


NOT_KNOWN = NcclSettings()


def path_settings(environment: Mapping[str, str]) -> str:
    """Return the settings of the path of bytes or of the calls, such as "NCCL_P2P_DISABLE=1"."""
    given = {name.upper(): value for name, value in sorted(environment.items()) if name not in _OTHERWISE_MODELLED}
    changes = {name: value for name, value in given.items() if not (name.endswith("_DISABLE") and value == "0")}
    text = " ".join(f"{name}={value}" for name, value in changes.items() if _SETTING.match(f"{name}={value}"))
    return f"{environment.get(_NOT_SINGLE, '')} {text}".strip()


def _may(
    environment: Mapping[str, str], setting: str, version: tuple[int, int] | None, first: tuple[int, int]
) -> bool | None:
    if environment.get(setting) == "0" or (version is not None and version < first):
        return False
    return None if version is None and setting not in environment else True


def _names(setting: str, known: Sequence[str]) -> str:
    """Return the setting; "" for prose, or settings of single collectives."""
    lower = setting.lower()
    return lower if set(lower.removeprefix("^").split(",")) <= set(known) else ""


def _lists(setting: str, name: str) -> bool:
    if not setting or not name:
        return True
    names = setting.removeprefix("^").split(",")
    return (name.lower() in names) != setting.startswith("^")


@dataclass(slots=True)
class LogEnvironment:
    """The versions and settings in the lines of a log, for the process that runs at a line.

    A setting between two processes, as in a command, belongs to the next one; exports hold for all later ones.
    Processes without a version have the first one of the log.
    """

    _versions: dict[str, str] = field(default_factory=dict)
    _exported: dict[str, str] = field(default_factory=dict)
    _own: dict[str, str] = field(default_factory=dict)
    _next: dict[str, str] = field(default_factory=dict)  # told after the rows of a process, before it has ended
    _has_rows: bool = False

    def look_at(self, line: str) -> None:
        settings, noted = _settings(line), self._next if self._has_rows else self._own
        self._versions = {_NCCL: settings[_NCCL]} | self._versions if _NCCL in settings else self._versions
        if _EXPORT.search(line):
            self._exported |= settings
        noted |= settings
        if self._has_rows and _BY_NCCL in line:  # late, but of the process that runs
            self._own = settings | self._own
        for match in _UNSET.finditer(line):
            for known in (self._exported, noted):
                known.pop(f"nccl_{match[1].lower()}", None)

    def begin_table(self) -> None:
        """Apply the settings since the previous table to the following one."""
        self._own |= self._next
        self._next = {}

    def note_row(self) -> None:
        self._has_rows = True

    def end_process(self) -> None:
        """Forget the settings of the process, if it has printed rows."""
        if self._has_rows:
            self._own, self._next, self._has_rows = self._exported | self._next, {}, False

    def as_dict(self) -> dict[str, str]:
        return self._versions | self._own


def _settings(line: str) -> dict[str, str]:
    """Return the settings in a line, and whether NVLS has channels."""
    # Most lines of a long log tell nothing.
    matches = _SETTING.finditer(_PAIR.sub(r"\1=", line)) if "NCCL_" in line else ()
    settings = {f"nccl_{match[1].lower()}": match[2].rstrip(",:;") for match in matches}
    if match := _VERSION.search(line):
        settings[_NCCL] = f"{match[1] or match[3]}.{match[2] or match[4]}"
    if "iters" in line and (calls := [match[0] for match in _ITERATIONS.finditer(line)]):
        settings[_NOT_SINGLE] = " ".join(calls)
    if match := _NETWORK.search(line):
        settings.setdefault("nccl_net", match[1])
    if "nvls" in line and (match := _SWITCH_CHANNELS.search(line)):
        settings["nccl_nvls_enable"] = "1" if int(match[1]) else "0"
    return settings
