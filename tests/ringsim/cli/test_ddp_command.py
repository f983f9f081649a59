"""`ringsim ddp`: its files, what it prints and draws, and one line for every mistake."""

import json
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from ringsim.training_step import Parameter, StepProfile, group_calls, load_layers
from tests.ringsim.commands import as_json, printed, refused, run, written
from tests.ringsim.made_networks import with_a_slow_link

DOCS = Path(__file__).parents[3] / "docs"
LAYERS = """
optimizer = "1ms"
buffers = "1KiB"
dtype = "bfloat16"
[[layer]]
name = "in"
parameters = ["3x4", "4"]
forward = "1ms"
backward = "2ms"
[[layer]]
repeat = 2
parameters = [5]
forward = "2ms"
backward = "4ms"
dtype = "float32"
"""
PROFILE = StepProfile(
    (Parameter("a", 3, 0.5), Parameter("b", 4, 0.25, "float16", "cuda:0")), 0.5, 1.0, 0.25, 8, {"by": "x"}
)


TRANSFORMER = ("ddp", "--layers", str(DOCS / "models" / "transformer.toml"))


@pytest.fixture
def layers(tmp_path: Path) -> Path:
    """A model of 3 layers."""
    return written(tmp_path / "my.toml", LAYERS)


def test_layers_become_a_profile(layers: Path) -> None:
    """Registered as they are listed, ready in the reverse."""
    profile = load_layers(layers)
    found = [(p.name, p.elements, round(p.ready_s * 1e3, 9), p.size_bytes) for p in profile.parameters]
    assert found == [("in.0", 12, 10, 24), ("in.1", 4, 10, 8), ("layer10.0", 5, 8, 20), ("layer11.0", 5, 4, 20)]
    assert (profile.forward_s, profile.backward_s) == (pytest.approx(5e-3), pytest.approx(10e-3))
    assert (profile.optimizer_s, profile.buffer_bytes) == (1e-3, 1024)
    documented = load_layers(DOCS / "models" / "transformer.toml")  # GPT-2 small
    assert sum(parameter.elements for parameter in documented.parameters) == 124_439_808


LAYER = '[[layer]]\nparameters = ["3"]\nforward = "1ms"\nbackward = "1ms"\n'
OPTIMIZER = 'optimizer = "1ms"\n'
WRONG_LAYERS = (
    LAYER,
    OPTIMIZER,
    OPTIMIZER + "layer = []\n",
    "optimizer = 1\n" + LAYER,
    OPTIMIZER + LAYER.replace('"3"', '"3x"'),
    OPTIMIZER + LAYER.replace('"3"', '"9x9x9x9x9x9x9x9x9x9x9x9x9x9x9x9x9"'),
    OPTIMIZER + LAYER + 'dtype = "int8"\n',
    OPTIMIZER + LAYER + "repeats = 2\n",
    OPTIMIZER + LAYER + "repeat = 1000000\n",
    OPTIMIZER + "buffers = 3\n" + LAYER,
)
WRONG_PROFILES = (  # what a field is to be; that its kind is looked at, the tests of records show
    {"parameters": []},
    {"forward_s": -1},
    {"backward_s": 0.25},
    {"parameters": [{"name": "a", "elements": 2**62, "ready_s": 0}]},
)


def test_mistakes_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion) -> None:
    """File, place, value and rule; a profile that is right is read as it was written."""
    monkeypatch.chdir(tmp_path)
    PROFILE.save(tmp_path / "p.json")
    assert StepProfile.load(tmp_path / "p.json") == PROFILE
    told = []
    for text in WRONG_LAYERS:
        told.append(f"{text}{refused('ddp', '--layers', written(Path('my.toml'), text))}")
    for change in WRONG_PROFILES:
        profile = written(Path("p.json"), json.dumps(PROFILE.as_dict() | change))
        told.append(f"{json.dumps(change)}\n{refused('ddp', '--profile', profile)}")
    assert "\n".join(told) == snapshot


def test_what_is_not_simulated_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which of NCCL's algorithms, and on how many ranks, in a line and as JSON; nothing where all are simulated."""
    network = with_a_slow_link("dgx-h100-cluster", tmp_path)
    options = (*TRANSFORMER, "--ranks", 16, "--scaling", 32, "--network", network)
    monkeypatch.setattr(group_calls, "QUEUED_TRANSFERS", 2000)
    why = "the time of NCCL's own formula, as it has too many transfers to be simulated"
    lines = [f"{calls} ranks: {why}" for calls in ("nvls on 16", "nccl_tree and nvls on 32")]
    text = " ".join(printed(*options).split())
    assert all(line in text for line in lines)
    found = as_json(*options)
    assert [found["by_formula"], found["scaling"][0]["by_formula"]] == lines


def test_the_files(layers: Path, tmp_path: Path) -> None:
    """The picture of a step with several workers and of a scaling, a page with everything, and a trace of the step."""
    options = ("ddp", "--layers", layers, "--workers", "3", "--copy-bandwidth", "1GB/s")
    several = ("--bucket-cap-mb", "0.00001:1", "--scaling", "2:4")
    for name, more in (("step.png", ()), ("curve.png", several), ("step.html", several), ("step.json", ())):
        assert f"wrote {tmp_path / name}" in run(*options, *more, "-o", tmp_path / name).stderr
    assert (tmp_path / "step.png").read_bytes() != (tmp_path / "curve.png").read_bytes()
    page = (tmp_path / "step.html").read_text()
    for shown in ("From 2 to 4 ranks", "of the step on a single process", "Bucket sizes", ">best<", "gradients"):
        assert shown in page
    assert "all_reduce 1" in (tmp_path / "step.json").read_text()
