"""Passes in bfloat16, and compiled ones: what they compute, and what remains as it is."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.ranks import RankPool
from tests.trainers.models import inputs, small_model
from tests.trainers.points import Points, config, run
from trainers.data_parallel import DataParallel
from trainers.loop.config import StepConfig, require_compiler
from trainers.loop.train_step import TrainStep


def dtypes_with_amp(group: dist.ProcessGroup) -> tuple[set[torch.dtype], set[torch.dtype], torch.dtype]:
    """Of what the last layer gives, of parameters and gradients after a step, and of the loss."""
    given: set[torch.dtype] = set()
    step = TrainStep(Points(3), StepConfig(strategy="ring", amp="bfloat16", seed=3), group)
    step.model.model.last.register_forward_hook(lambda _module, _inputs, output: given.add(output.dtype))
    step.run(0)
    parameters = [*step.model.parameters()]
    _, loss = step._forward(step.batches.share(1))
    return given, {t.dtype for p in parameters for t in (p, p.grad) if t is not None}, loss.dtype


def test_amp_is_of_forward_passes_alone(ranks: RankPool) -> None:
    """Parameters, gradients and the loss remain float32."""
    for given, kept, loss in ranks.run(dtypes_with_amp, num_ranks=2):
        assert (given, kept, loss) == ({torch.bfloat16}, {torch.float32}, torch.float32)


def test_amp_learns_nearly_the_same_and_resumes_with_the_same_bits(ranks: RankPool, tmp_path: Path) -> None:
    """With dropout and a warm-up, too."""
    plain, whole, parts = (config(tmp_path / name, warmup_steps=2) for name in ("plain", "whole", "parts"))
    whole, parts = (replace(each, amp="bfloat16") for each in (whole, parts))
    expected = ranks.run(run, whole, num_ranks=2)[0]
    ranks.run(run, parts, None, 6, num_ranks=2)
    resumed = ranks.run(run, replace(parts, resume=True), num_ranks=2)[0]
    assert (resumed.losses, resumed.fingerprint) == (expected.losses, expected.fingerprint)
    exact = ranks.run(run, plain, num_ranks=2)[0].losses
    assert exact != expected.losses == pytest.approx(exact, rel=0.1, abs=0.1)


def gradients(group: dist.ProcessGroup, strategy: str, compiles: bool) -> list[torch.Tensor]:
    """Of two steps, the first of which may form buckets anew."""
    model, graphs = DataParallel(small_model(), strategy, group), []
    if compiles:
        model.compile(backend=lambda graph, _: graphs.append(graph) or graph.forward)
    optimizer = model.optimizer(lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    for _ in range(2):
        optimizer.zero_grad()
        model(inputs(group.rank())).pow(2).mean().backward()
        optimizer.step()
    assert len(graphs) == compiles  # of the whole model
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("strategy", ["bucketed", "ddp", "zero1"])
def test_a_compiled_model_is_synchronised_alike(ranks: RankPool, strategy: str) -> None:
    """The graph that torch takes of it, without the compiler, gives the same parameters."""
    plain, compiled = (ranks.run(gradients, strategy, compiles, num_ranks=2)[1] for compiles in (False, True))
    torch.testing.assert_close(compiled, plain, rtol=1e-5, atol=1e-7)


@pytest.mark.slow
def test_a_run_compiles_its_model(ranks: RankPool, tmp_path: Path) -> None:
    """And computes the same to rounding."""
    options = {"dropout": 0.0}
    plain = ranks.run(run, config(tmp_path / "plain", steps=3), options, num_ranks=2)[0]
    compiled = ranks.run(run, config(tmp_path / "compiled", steps=3, compile=True), options, num_ranks=2)
    assert compiled[0].error == ""
    assert compiled[0].losses == pytest.approx(plain.losses, rel=1e-3, abs=1e-5)
    assert compiled[0].fingerprint == compiled[1].fingerprint


def test_without_a_compiler_it_is_said_in_a_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With what to do; so, too, without the headers that what it compiles includes."""
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ValueError, match=r"^--compile: there is no C\+\+ compiler 'no-such-compiler': install one"):
        require_compiler()
    compiler = tmp_path / "c++"
    compiler.write_text("")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    with pytest.raises(ValueError, match=r"^--compile: there is no .*Python\.h: install Python's headers"):
        require_compiler()
