"""Steps on the backends "gloo" and "ring", as `scripts/bench_steps.py` times them."""

import re
from pathlib import Path

from tests.processes import ROOT, TIMEOUT_S
from tests.ranks import run_forked_programs, run_script

SMALL = ["-n", "4", "--d-model", "16", "--layers", "1", "--tokens", "8"]
PROGRAMS = [
    "no synchronisation", "DDP on gloo", "DDP on ring", "collectives.DDP on ring", "FSDP2 on gloo", "FSDP2 on ring"
]  # fmt: skip


def test_a_line_for_each_program_and_each_bucket(tmp_path: Path) -> None:
    """Rank 0 alone prints; what synchronising adds is stated for all programs that do, ratios for those on ring.

    The only bucket is the last: that of torch's class is handed over, that of ours is not.
    """
    first, second = run_forked_programs(2, TIMEOUT_S, tmp_path, run_script, ROOT / "scripts" / "bench_steps.py", SMALL)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr
    lines = first.stdout.splitlines()
    numbers = {name: [line[26:].split() for line in lines if line[:26].rstrip() == name] for name in PROGRAMS}
    assert {name: [len(line) for line in found] for name, found in numbers.items()} == {
        name: [2 if name == "no synchronisation" else 5 if "ring" in name else 3] for name in PROGRAMS
    }
    assert len(re.findall(r"^ +[\d.]+ KiB( +-?\d+\.\d\d){4}$", first.stdout, re.MULTILINE)) == 1
    assert second.stdout == ""
