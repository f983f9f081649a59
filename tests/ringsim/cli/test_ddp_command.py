"""`ringsim ddp`: its files, what it prints and draws, and one line for every mistake."""

import json
from pathlib import Path

import pytest

from ringsim.training_step import StepProfile, group_calls, load_layers
from ringsim.training_step.profile import Parameter
from tests.ringsim.commands import as_json, printed, refused, run
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
    (tmp_path / "my.toml").write_text(LAYERS)
    return tmp_path / "my.toml"


def test_the_output_is_that_of_a_step(layers: Path) -> None:
    """With the buckets, the source of the times, as the file has it, and the efficiency."""
    layers.write_text('source = "times made up"\n' + LAYERS)
    text = printed("ddp", "--layers", str(layers), "--ranks", "2")
    found = as_json("ddp", "--layers", str(layers), "--ranks", "2")
    assert text.startswith("a step of 2 ranks, each on a CPU: ")
    assert ", prediction (computations as given)\n" in text
    assert (
        "  gradients   72 B in 4 parameters, 2 buckets, bucket_cap_mb 25 (1 first)\n  source      times made up\n"
        in text
    )
    assert f"efficiency  {found['efficiency']:.1%} of a single process, whose step takes 16 ms\n" in text
    assert "recorded" not in text
    assert found["step_s"] == found["default_step_s"] == pytest.approx(found["compute_s"] + found["exposed_s"])
    assert (found["compute_s"], found["single_s"]) == (pytest.approx(16e-3), pytest.approx(16e-3))
    assert [call["collective"] for call in found["calls"]] == ["broadcast", "all_reduce", "all_reduce"]
    assert (found["num_buckets"], found["sweep"], found["scaling"]) == (2, [], [])
    layers.write_text(LAYERS)
    assert "source" not in printed("ddp", "--layers", str(layers), "--ranks", "2")


def test_the_backend_is_nccl_where_the_network_describes_it() -> None:
    """Likewise by `ringsim step` and `ringsim simulate`; another one may be named.

    NCCL takes what its formula says by size; a network that says nothing of NCCL gets a ring, and that is said.
    """
    by_nccl, by_gloo = (
        as_json(*TRANSFORMER, "--ranks", "16", "--network", "dgx-h100-cluster", *backend)
        for backend in ((), ("--backend", "gloo"))
    )
    assert {(call["algorithm"], call["protocol"]) for call in by_nccl["calls"]} == {("nvls", "Simple")}
    assert (by_nccl["on_gpu"], by_nccl["groups"][0]["backend"], by_nccl["not_chosen"]) == (True, "nccl", None)
    assert (by_gloo["on_gpu"], by_gloo["groups"][0]["backend"]) == (False, "gloo")
    assert by_gloo["step_s"] > by_nccl["step_s"]
    text = " ".join(printed(*TRANSFORMER, "--ranks", "16", "--network", "ib-100g", "--backend", "nccl").split())
    assert "not NCCL's choice: ib-100g: it does not describe NCCL: give --network with a file that does" in text


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
WRONG_LAYERS = [
    (LAYER, "my.toml: optimizer is missing"),
    ('optimizer = "1ms"\n', "my.toml: layer is missing"),
    ("optimizer = 1\n" + LAYER, 'my.toml: optimizer = 1: must be text with a unit, such as "10us" or "1.5ms"'),
    (
        'optimizer = "1ms"\n' + LAYER.replace('"3"', '"3x"'),
        'my.toml: layer[0].parameters = ["3x"]: must be a list of shapes, such as ["768x3072", "3072"]',
    ),
    (
        'optimizer = "1ms"\n' + LAYER + 'dtype = "int8"\n',
        'my.toml: layer[0].dtype = "int8": must be one of float64, float32, float16, bfloat16, complex64, complex128',
    ),
    (
        'optimizer = "1ms"\n' + LAYER + "repeats = 2\n",
        "my.toml: layer[0].repeats: unknown key; did you mean repeat? "
        "known here are name, parameters, forward, backward, repeat, dtype",
    ),
    ('optimizer = "1ms"\n' + LAYER + "repeat = 1000000\n", "my.toml: layer: more than 100000 parameters in all"),
    (
        'optimizer = "1ms"\n' + LAYER.replace('"3"', '"9x9x9x9x9x9x9x9x9x9x9x9x9x9x9x9x9"'),
        'my.toml: layer[0].parameters = ["9x9x9x9x9x9x9x9x9x9x9x9x9x9x9x9x9"]: must be a list of shapes, '
        'such as ["768x3072", "3072"]',
    ),
    ('optimizer = "1ms"\nbuffers = 3\n' + LAYER, 'my.toml: buffers = 3: must be text with a unit, such as "64KiB"'),
]


@pytest.mark.parametrize(("text", "message"), WRONG_LAYERS)
def test_mistakes_in_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str) -> None:
    """File, place, value and rule."""
    monkeypatch.chdir(tmp_path)
    Path("my.toml").write_text(text)
    assert refused("ddp", "--layers", "my.toml") == f"ringsim: {message}\n"


WRONG_PROFILES = [  # what a field is to be; that its kind is looked at, the tests of records show
    ({"parameters": []}, "parameters: must have at least one entry"),
    ({"forward_s": -1}, "forward_s = -1: must be a finite number of seconds, at least 0"),
    ({"backward_s": 0.25}, "a: ready_s 0.5: must not be after the backward pass, which takes 0.25 s"),
    (
        {"parameters": [{"name": "a", "elements": 2**62, "ready_s": 0}]},
        f"parameters[0].elements = {2**62}: must be a whole number from 0 to {2**57}",
    ),
]


def test_a_profile_is_read_as_it_was_written(tmp_path: Path) -> None:
    """All of it."""
    PROFILE.save(tmp_path / "p.json")
    assert StepProfile.load(tmp_path / "p.json") == PROFILE


@pytest.mark.parametrize(("change", "message"), WRONG_PROFILES)
def test_mistakes_in_profiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, object], message: str
) -> None:
    """The file, and what is wrong with it."""
    monkeypatch.chdir(tmp_path)
    Path("p.json").write_text(json.dumps(PROFILE.as_dict() | change))
    assert refused("ddp", "--profile", "p.json") == f"ringsim: p.json: {message}\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("", "give either --profile or --layers: what a step of one process is"),
        ("--layers no.toml", "no.toml: No such file or directory"),
        ("--bucket-cap-mb 1e308", "'--bucket-cap-mb': '1e308' is not a cap: write MiB as a number greater than 0"),
        ("--bucket-cap-mb 0", "'--bucket-cap-mb': '0' is not a cap: write MiB as a number greater than 0, such as 25"),
        (f"{' '.join(TRANSFORMER[1:])} --algorithm rings", "algorithm 'rings': all_reduce has ring, gloo"),
    ],
)
def test_mistakes_in_options(options: str, message: str) -> None:
    """Which option, and what to write."""
    assert message in refused("ddp", *options.split())


def test_what_is_not_simulated_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which of NCCL's algorithms, and on how many ranks, in a line and as JSON; nothing where all are simulated."""
    options = (*TRANSFORMER, "--ranks", "16", "--scaling", "32")
    options += ("--network", with_a_slow_link("dgx-h100-cluster", tmp_path))
    assert as_json(*options)["by_formula"] is None
    monkeypatch.setattr(group_calls, "MAX_TRANSFERS", 2000)
    why = "the time of NCCL's own formula, as it has too many transfers to be simulated"
    lines = [f"{calls} ranks: {why}" for calls in ("nvls on 16", "nccl_tree and nvls on 32")]
    text = " ".join(printed(*options).split())
    assert all(line in text for line in lines)
    found = as_json(*options)
    assert [found["by_formula"], found["scaling"][0]["by_formula"]] == lines


def test_a_sweep_recommends_its_least(layers: Path) -> None:
    """As JSON and in tables; torch's own caps are among them."""
    options = ("ddp", "--layers", str(layers), "--bucket-cap-mb", "0.00001:1", "--scaling", "2:6")
    found = as_json(*options)
    assert found["step_s"] == pytest.approx(min(step["step_s"] for step in found["sweep"]), rel=1e-9)
    assert (found["sweep"][-1]["first_cap_bytes"], found["sweep"][-1]["cap_bytes"]) == (2**20, 25 * 2**20)
    assert [step["num_ranks"] for step in found["scaling"]] == [2, 4, 6]
    assert {step["cap_bytes"] for step in found["scaling"]} == {found["cap_bytes"]}
    assert all(step["efficiency"] == found["single_s"] / step["step_s"] for step in found["scaling"])
    caps, ranks = (block.splitlines() for block in printed(*options).split("\n\n")[-2:])
    assert sum(line.endswith("best") for line in caps) == 1
    assert caps[-1].startswith(" 25 (1 first) ")
    assert [line.split()[0] for line in ranks[:4]] == ["ranks", "2", "4", "6"]


def test_the_files(layers: Path, tmp_path: Path) -> None:
    """The picture of a step with several workers and of a scaling, a page with everything, and a trace of the step."""
    options = ("ddp", "--layers", str(layers), "--workers", "3", "--copy-bandwidth", "1GB/s")
    several = ("--bucket-cap-mb", "0.00001:1", "--scaling", "2:4")
    for name, more in (("step.png", ()), ("curve.png", several), ("step.html", several), ("step.json", ())):
        assert f"wrote {tmp_path / name}" in run(*options, *more, "-o", str(tmp_path / name)).stderr
    assert (tmp_path / "step.png").read_bytes() != (tmp_path / "curve.png").read_bytes()
    page = (tmp_path / "step.html").read_text()
    for shown in ("From 2 to 4 ranks", "of the step on a single process", "Bucket sizes", ">best<", "gradients"):
        assert shown in page
    assert "all_reduce 1" in (tmp_path / "step.json").read_text()
    assert "not one for each of --scaling" in refused(*options, *several, "-o", "step.json")
