"""The examples in docs/collectives.md and README.md, run as they stand there."""

import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import collectives
from tests.ranks import RankPool

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str) -> list[tuple[str, str]]:
    """Language and text of each block of a page."""
    return BLOCK.findall((ROOT / page).read_text())


def test_the_page_shows_what_its_programs_print(capsys: pytest.CaptureFixture[str]) -> None:
    """Each prints what stands below it; what a program follows, and not its output, prints nothing."""
    texts = blocks("docs/collectives.md")
    programs = [index for index, (language, _) in enumerate(texts) if language == "python"]
    assert programs
    for index in programs:
        exec(compile(texts[index][1], "docs/collectives.md", "exec"), {})
        language, below = texts[index + 1]
        assert capsys.readouterr().out == (below if language == "text" else "")


def fragments() -> list[str]:
    """What the README shows of our functions, but for the lines that start a program."""
    texts = [text for language, text in blocks("README.md") if language == "python" and "collectives." in text]
    return [text for text in texts if "init_process_group" not in text]


def readme_run(group: dist.ProcessGroup) -> list[float]:
    """The fragments with the names they take for granted; what the first two calls leave in their tensors."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    tensor, share = torch.tensor([float(group.rank())]), torch.empty(2)
    names = {
        "collectives": collectives,
        "dist": dist,
        "torch": torch,
        "group": group,
        "tensor": tensor,
        "share": share,
        "whole": torch.ones(2 * group.size()),
        "model": torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2)),
        "module": fully_shard(torch.nn.Linear(2, 2), mesh=init_device_mesh("cpu", (group.size(),))),
    }
    for text in fragments():
        exec(compile(text, "README.md", "exec"), names)
    names["work"].wait()  # type: ignore[attr-defined]
    return [tensor.item(), *share.tolist()]


def test_what_the_readme_shows_of_our_functions_runs(tmp_path: Path) -> None:
    """On two ranks."""
    assert len(fragments()) == 2
    with RankPool(2, tmp_path) as pool:
        assert pool.run(readme_run) == [[1.0, 2.0, 2.0]] * 2
