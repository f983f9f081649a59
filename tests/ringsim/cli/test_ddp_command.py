"""`ringsim ddp`: its files, what it prints and draws, and one line for every mistake."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text
from ringsim.training_step.layers import load_layers, read_layers

from ringsim.network import load_network
from ringsim.report.plots.step_figures import draw_prediction
from ringsim.training_step import BucketCaps, DdpConfig, Prediction, group_calls, predict_step
from ringsim.training_step.profile import Parameter, StepProfile
from tests.ringsim.commands import as_json, invoke, printed, refused, run
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


def test_the_source_of_the_times_is_told(tmp_path: Path) -> None:
    """In a line, as the file has it: made-up times give a made-up step; nothing where the file says nothing."""
    layers = tmp_path / "layers.toml"
    for source, shown in (('source = "times made up"\n', ["  source      times made up"]), ("", [])):
        layers.write_text(source + LAYERS)
        told = printed("ddp", "--layers", str(layers), "--ranks", "2").splitlines()
        assert [line for line in told if "source" in line] == shown


def test_the_backend_is_nccl_where_the_network_describes_it() -> None:
    """Likewise by `ringsim step` and `ringsim simulate`; another one may be named."""
    options = ("ddp", "--layers", str(DOCS / "models" / "transformer.toml"), "--ranks", "16", "--network")
    by_nccl = as_json(*options, "dgx-h100-cluster", "--backend", "nccl")
    assert as_json(*options, "dgx-h100-cluster") == by_nccl
    by_gloo = as_json(*options, "dgx-h100-cluster", "--backend", "gloo")
    assert by_gloo["step"]["step_s"] > by_nccl["step"]["step_s"]
    assert as_json(*options, "gbe") == as_json(*options, "gbe", "--backend", "gloo")


def test_layers_become_a_profile() -> None:
    """Registered as they are listed, ready in the reverse."""
    profile = read_layers(LAYERS, "my.toml")
    found = [(p.name, p.elements, round(p.ready_s * 1e3, 9), p.size_bytes) for p in profile.parameters]
    assert found == [("in.0", 12, 10, 24), ("in.1", 4, 10, 8), ("layer10.0", 5, 8, 20), ("layer11.0", 5, 4, 20)]
    assert (profile.forward_s, profile.backward_s) == (pytest.approx(5e-3), pytest.approx(10e-3))
    assert (profile.optimizer_s, profile.buffer_bytes) == (1e-3, 1024)


def test_the_documented_model_is_read() -> None:
    """GPT-2 small has 124,439,808 parameters."""
    profile = load_layers(DOCS / "models" / "transformer.toml")
    assert sum(parameter.elements for parameter in profile.parameters) == 124_439_808


LAYER = '[[layer]]\nparameters = ["3"]\nforward = "1ms"\nbackward = "1ms"\n'
WRONG_LAYERS = [
    ("layer = [\n", "my.toml: is not TOML: Invalid value (at end of document)"),
    (LAYER, "my.toml: optimizer is missing"),
    ('optimizer = "1ms"\n', "my.toml: layer is missing"),
    ('optimizer = "1ms"\nlayer = []\n', "my.toml: parameters: must have at least one entry"),
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
    (
        'optimizer = "1ms"\ndtype = []\n' + LAYER,
        "my.toml: dtype = []: must be one of float64, float32, float16, bfloat16, complex64, complex128",
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
    ({"format": "other"}, "not a ringsim-step-profile file; `trainers compare-strategies --profile` writes one"),
    ({"version": 2}, "version 2 of ringsim-step-profile: this ringsim reads version 1"),
    ({"parameters": []}, "parameters: must have at least one entry"),
    ({"forward_s": -1}, "forward_s = -1: must be a finite number of seconds, at least 0"),
    ({"backward_s": 0.25}, "a: ready_s 0.5: must not be after the backward pass, which takes 0.25 s"),
    (
        {"parameters": [{"name": "a", "elements": 1, "ready_s": 0, "dtype": "int8"}]},
        'parameters[0].dtype = "int8": must be one of float64, float32, float16, bfloat16, complex64, complex128',
    ),
    (
        {"parameters": [{"name": "a", "elements": 2**62, "ready_s": 0}]},
        f"parameters[0].elements = {2**62}: must be a whole number from 0 to {2**57}",
    ),
    ({"buffer_bytes": -1}, "buffer_bytes = -1: must be a whole number, at least 0"),
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
        (f"--layers {DOCS}/models/transformer.toml --algorithm rings", "algorithm 'rings': all_reduce has ring, gloo"),
    ],
)
def test_mistakes_in_options(options: str, message: str) -> None:
    """Which option, and what to write."""
    assert message in refused("ddp", *options.split())


def test_nccl_takes_what_its_formula_says() -> None:
    """By size, which the output shows; a network that says nothing of NCCL gets a ring, and that is said."""
    options = ("--layers", str(DOCS / "models" / "transformer.toml"), "--backend", "nccl", "--ranks", "16")
    text = printed("ddp", *options, "--network", "dgx-h100-cluster", "--scaling", "12")
    assert text.startswith("step of DDP, 16 ranks, nvls Simple, 1 worker, ")
    assert "ends  all_reduce\n" in text
    assert "not NCCL's choice" not in " ".join(text.split())  # on 12 ranks neither, which do not fill their hosts
    step = as_json("ddp", *options, "--network", "dgx-h100-cluster")["step"]
    assert {(bucket["algorithm"], bucket["protocol"]) for bucket in step["buckets"]} == {("nvls", "Simple")}
    assert step["not_chosen"] is None
    text = printed("ddp", *options, "--network", "ib-100g")
    why = "ib-100g: it does not describe NCCL: give --network with a file that does"
    assert f"not NCCL's choice: {why}" in " ".join(text.split())
    assert "all_reduce" not in text


def test_what_is_not_simulated_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which of NCCL's algorithms, and on how many ranks, in a line and as JSON; nothing where all are simulated."""
    options = ("--layers", str(DOCS / "models" / "transformer.toml"), "--backend", "nccl", "--ranks", "16")
    options += ("--network", with_a_slow_link("dgx-h100-cluster", tmp_path), "--scaling", "32")
    assert as_json("ddp", *options)["step"]["by_formula"] is None
    monkeypatch.setattr(group_calls, "MAX_TRANSFERS", 2000)
    why = "the time of NCCL's own formula, as it has too many transfers to be simulated"
    lines = [f"{calls} ranks: {why}" for calls in ("nvls on 16", "nccl_tree and nvls on 32")]
    assert f" % {' '.join(lines)} bucket " in " ".join(printed("ddp", *options).split())
    found = as_json("ddp", *options)
    assert [found["step"]["by_formula"], found["scaling"][0]["by_formula"]] == lines


def test_a_sweep_recommends_its_least(tmp_path: Path) -> None:
    """As JSON; torch's own caps are among them."""
    (tmp_path / "my.toml").write_text(LAYERS)
    options = ("--layers", str(tmp_path / "my.toml"), "--bucket-cap-mb", "0.00001:1", "--scaling", "2:6")
    found = as_json("ddp", *options)
    assert found["step"]["step_s"] == pytest.approx(min(step["step_s"] for step in found["sweep"]), rel=1e-9)
    assert (found["sweep"][-1]["first_cap_bytes"], found["sweep"][-1]["cap_bytes"]) == (2**20, 25 * 2**20)
    assert [step["num_ranks"] for step in found["scaling"]] == [2, 4, 6]
    assert found["profile"]["step_s"] == pytest.approx(16e-3)


def test_failing_networks(tmp_path: Path) -> None:
    """A step that never ends is a result; there is no picture of it."""
    (tmp_path / "my.toml").write_text(LAYERS)
    network = '[host]\nranks = 1\nnic.bandwidth = "1GB/s"\n[[failure]]\nlink = "host1.nic0.out"\nat = "0s"\n'
    (tmp_path / "failing.toml").write_text(network)
    options = ("--layers", str(tmp_path / "my.toml"), "--network", str(tmp_path / "failing.toml"), "--ranks", "2")
    assert "step        never" in printed("ddp", *options)
    assert as_json("ddp", *options)["step"]["step_s"] is None
    failed = invoke("ddp", *options, "-o", tmp_path / "x.png")
    assert failed.exit_code == 2
    assert "never ends" in failed.stderr


@pytest.mark.parametrize("workers", ["1", "3"])
def test_the_picture(tmp_path: Path, workers: str) -> None:
    """With and without curves below the lanes."""
    (tmp_path / "my.toml").write_text(LAYERS)
    options = ("--layers", str(tmp_path / "my.toml"), "--workers", workers, "--copy-bandwidth", "1GB/s")
    for more in ((), ("--bucket-cap-mb", "0.00001:1"), ("--bucket-cap-mb", "0.00001:1", "--scaling", "2:4")):
        path = tmp_path / "step.png"
        run("ddp", *options, *more, "-o", str(path))
        assert path.read_bytes().startswith(b"\x89PNG")


def test_no_fact_of_a_step_s_picture_is_cut() -> None:
    """However long the description of the network is; the results come first."""
    network = load_network("dgx-h100-cluster")
    named = replace(network, description=f"{network.description}, " * 3)
    step = predict_step(PROFILE, named, 16, DdpConfig())
    figure = draw_prediction(Prediction(PROFILE, named.as_dict(), step, step))
    FigureCanvasAgg(figure).draw()
    [facts] = [text for text in figure.findobj(Text) if "efficiency" in text.get_text()]
    assert facts.get_window_extent().x1 <= figure.bbox.x1
    [title] = [text for text in figure.findobj(Text) if text.get_text().startswith("A step of DDP")]
    assert title.get_window_extent().x0 == pytest.approx(facts.get_window_extent().x0, abs=3)
    assert facts.get_window_extent().y1 < title.get_window_extent().y0 < title.get_window_extent().y1 < figure.bbox.y1


def test_the_optimizer_is_named_above_its_bar_where_that_is_too_short() -> None:
    """Else inside."""
    for optimizer_s, y in ((1e-3, -0.5), (0.25, 0.0)):
        profile = replace(PROFILE, optimizer_s=optimizer_s)
        step = predict_step(profile, load_network("gbe"), 2, DdpConfig())
        figure = draw_prediction(Prediction(profile, load_network("gbe").as_dict(), step, step))
        [named] = [text for text in figure.findobj(Text) if text.get_text().startswith("optimizer")]
        assert named.get_position()[1] == y


def test_lines_across_are_told_apart_without_colours() -> None:
    """Torch's own caps are dashed, one process alone is dotted, and the steps are joined by a full line."""
    step = predict_step(PROFILE, load_network("gbe"), 2, DdpConfig())
    sweep = (step, predict_step(PROFILE, load_network("gbe"), 2, DdpConfig(caps=BucketCaps.from_mb(1))))
    figure = draw_prediction(Prediction(PROFILE, load_network("gbe").as_dict(), step, step, sweep=sweep))
    strokes = {line.get_label(): line.get_linestyle() for axes in figure.findobj(Axes)[1:] for line in axes.lines}
    assert strokes == {"step": "-", "torch's default: 1, then 25": "--", "single process": ":"}
