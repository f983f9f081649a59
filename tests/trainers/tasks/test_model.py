"""The model predicts the next token from the earlier ones and their places, and it learns."""

import math
from dataclasses import replace

import pytest
import torch

from trainers.tasks.config import ModelConfig
from trainers.tasks.model import TinyTransformer, next_token_loss, sinusoids

SMALL = ModelConfig(vocabulary=61, d_model=32, heads=4, layers=2, d_ff=64, sequence_length=12)


@pytest.fixture
def model() -> TinyTransformer:
    """An untrained model, the same in every test."""
    torch.manual_seed(3)
    return TinyTransformer(SMALL)


def tokens(*shape: int) -> torch.Tensor:
    """Random tokens, the same at every call."""
    return torch.randint(SMALL.vocabulary, shape, generator=torch.Generator().manual_seed(5))


def test_a_later_token_changes_no_earlier_logits(model: TinyTransformer) -> None:
    """Causality: position 7 is seen from 7 on, and from there on everywhere."""
    before = tokens(2, 12)
    after = before.clone()
    after[:, 7] = (after[:, 7] + 1) % SMALL.vocabulary
    difference = (model(after) - model(before)).abs().amax(dim=(0, 2))
    assert difference[:7].max() < 1e-6
    assert difference[7:].min() > 1e-4


def test_positions_tell_the_order_of_tokens() -> None:
    """Swapping two earlier tokens changes the logits, and without positions would not."""
    torch.manual_seed(3)
    # One layer, since a second one could tell the order from what each position has seen; doubles, to see it exactly.
    model = TinyTransformer(replace(SMALL, layers=1)).double()
    forwards = tokens(1, 6)
    swapped = forwards[:, [1, 0, 2, 3, 4, 5]]
    assert forwards[0, 0] != forwards[0, 1]
    assert (model(forwards)[0, -1] - model(swapped)[0, -1]).abs().max() > 1e-6
    model.positions.zero_()
    assert (model(forwards)[0, -1] - model(swapped)[0, -1]).abs().max() < 1e-12


def test_positions_follow_the_paper() -> None:
    """Even columns are sines, odd ones cosines, of position / 10000 ** (column / d_model)."""
    table = sinusoids(5, 6)
    expected = [f(3 / 10_000 ** (column / 6)) for column in (0, 2, 4) for f in (math.sin, math.cos)]
    assert table.shape == (5, 6)
    assert table[3].tolist() == pytest.approx(expected, abs=1e-6)


def test_an_untrained_model_prefers_no_token(model: TinyTransformer) -> None:
    """The first loss is that of guessing, ln(vocabulary); a larger one means a bad initialisation."""
    assert next_token_loss(model, tokens(16, 13)).item() == pytest.approx(math.log(SMALL.vocabulary), abs=0.05)


def test_the_loss_is_that_of_the_next_token() -> None:
    """A model that is sure of token + 1 has no loss on counting up, and a large one on counting down."""

    class Successor(torch.nn.Module):
        def forward(self, read: torch.Tensor) -> torch.Tensor:
            return 50.0 * torch.nn.functional.one_hot(read + 1, 20)

    up = torch.arange(1, 12).unsqueeze(0)
    assert next_token_loss(Successor(), up).item() == pytest.approx(0, abs=1e-6)
    assert next_token_loss(Successor(), up.flip(1)).item() == pytest.approx(50, abs=1e-3)


def test_it_learns_a_batch_by_heart(model: TinyTransformer) -> None:
    """A few dozen AdamW steps on eight random windows bring the loss far below that of guessing."""
    windows = tokens(8, 13)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(50):
        optimizer.zero_grad()
        next_token_loss(model, windows).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert next_token_loss(model, windows).item() < 0.5


def test_every_parameter_gets_a_gradient(model: TinyTransformer) -> None:
    """No parameter is left out: a rank that waits for its gradient to be synchronised would wait for ever."""
    next_token_loss(model, tokens(8, 13)).backward()  # type: ignore[no-untyped-call]
    without = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert without == []


def test_the_same_seed_makes_the_same_weights(model: TinyTransformer) -> None:
    """Ranks start equal by seeding alike, and differ otherwise."""
    torch.manual_seed(3)
    again = TinyTransformer(SMALL)
    other = TinyTransformer(SMALL)
    pairs = list(zip(model.parameters(), again.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not torch.equal(model.head.weight, other.head.weight)


def test_a_sequence_that_is_too_long_is_refused(model: TinyTransformer) -> None:
    """The message has both lengths; a shorter sequence is welcome."""
    assert model(tokens(2, 5)).shape == (2, 5, 61)
    with pytest.raises(ValueError, match=r"^sequence of 13 tokens: must be at most --sequence-length 12$"):
        model(tokens(2, 13))
