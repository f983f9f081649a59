"""The fuzzer: attacks that draw cases from a seed, and the campaign that runs them in turn."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "scripts"))  # as pytest has it, for `python -m tests.fuzz`
