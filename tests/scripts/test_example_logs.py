"""The logs of the manual are what their script writes, and say that nobody measured them."""

from pathlib import Path

from click.testing import CliRunner

from example_logs import main
from ringsim import read_logs

ROOT = Path(__file__).parents[2]
LOGS = ROOT / "examples" / "logs"


def test_the_logs_are_those_of_the_script(tmp_path: Path) -> None:
    """To the letter, and each begins with where its times are from."""
    done = CliRunner().invoke(main, [str(tmp_path)], catch_exceptions=False)
    assert done.exit_code == 0
    written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert written == {path.name: path.read_text() for path in LOGS.iterdir()}
    assert all(text.startswith("# NOT MEASURED: ") for text in written.values())


def test_the_logs_can_be_read() -> None:
    """As those of nccl-tests, with their ranks and hosts."""
    shapes = {(table.test, table.num_ranks, table.num_nodes) for table in read_logs(sorted(LOGS.iterdir()))}
    both = {(test, 8 * hosts, hosts) for test in ("all_gather", "all_reduce") for hosts in (1, 2)}
    assert shapes == both | {("all_reduce", 64, 8)}
