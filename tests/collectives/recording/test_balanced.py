"""`ringsim trace --fake --assume balanced`: mixtures of experts whose routers choose all experts equally often."""

import pytest

from ringsim.traces import AssumedValues, Device
from tests.collectives.recording.recorded import HEAD, trace_of

EXPERTS, CHOICES, TOKENS, WIDTH, RANKS = 16, 2, 64, 8, 4
MIXTURE = f"""
EXPERTS, CHOICES, TOKENS, WIDTH, size = {EXPERTS}, {CHOICES}, {TOKENS}, {WIDTH}, dist.get_world_size()
torch.set_default_device(sys.argv[3])
router, experts = nn.Linear(WIDTH, EXPERTS), nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS // size))
optimizer = torch.optim.SGD([*router.parameters(), *experts.parameters()])
COUNTED = {{
    "bincount": lambda chosen: torch.bincount(chosen.view(-1), minlength=EXPERTS),
    "histc": lambda chosen: torch.histc(chosen.view(-1).float(), EXPERTS, 0, EXPERTS - 1).long(),
    "one_hot": lambda chosen: nn.functional.one_hot(chosen, EXPERTS).sum((0, 1)),
    "map": lambda chosen: torch.zeros(TOKENS, EXPERTS).int().scatter(1, chosen, 1).bool().sum(0),
    "flags": lambda chosen: tokens.new_zeros(TOKENS, EXPERTS, dtype=torch.bool).scatter_(1, chosen, 1).sum(0),
    "new": lambda chosen: chosen.new_zeros(TOKENS, EXPERTS).scatter_(1, chosen, 1).sum(0),
}}
CHOSEN = {{
    "topk": lambda scores: scores.topk(CHOICES, -1).indices,
    "sort": lambda scores: scores.sort(-1, descending=True)[1][:, :CHOICES].contiguous(),
    "multinomial": lambda scores: torch.multinomial(scores, CHOICES),
    "argmax": lambda scores: torch.stack([scores.argmax(-1), scores.max(-1)[1]], 1),
}}
def exchanged(rows, received, sent):
    outcome = rows.new_empty(sum(received), WIDTH)
    dist.all_to_all_single(outcome, rows, received, sent)
    return outcome
for _ in range(9):
    tokens = torch.randn(TOKENS, WIDTH)
    chosen = CHOSEN[sys.argv[1]](router(tokens).softmax(-1))
    counts = COUNTED[sys.argv[2]](chosen)
    dist.all_to_all_single(arriving := torch.empty_like(counts), counts)
    sent, received = (of.view(size, -1).sum(1).tolist() for of in (counts, arriving))
    rows = exchanged(tokens[chosen.view(-1).argsort(stable=True) // CHOICES], received, sent)
    expert = torch.repeat_interleave(torch.arange(EXPERTS // size).repeat(size), arriving)
    outcome = torch.zeros_like(rows)
    for index, layer in enumerate(experts):
        assert torch.where(expert == index)[0].shape == rows[expert == index][:, 0].shape
        outcome[expert == index] = layer(rows[expert == index])
    exchanged(outcome.detach(), sent, received)
    outcome.sum().backward()
    optimizer.step()
"""
CASES = [("topk", way) for way in ("bincount", "histc", "one_hot", "map", "flags", "new")]
CASES += [(way, "bincount") for way in ("sort", "multinomial", "argmax")]


@pytest.mark.parametrize("device", list(Device))
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_balanced_experts_get_equally_many_tokens(case: tuple[str, str], device: Device) -> None:
    """Each rank sends and receives as many rows as it has, and each of its experts computes an equal part of them."""
    options = {"is_fake": True, "num_ranks": RANKS, "device": device, "assume": AssumedValues.BALANCED}
    (step,) = trace_of(HEAD + MIXTURE, *case, device.value, **options).steps
    rows = TOKENS * CHOICES
    assert [call.size_bytes for call in step.calls] == [8 * EXPERTS, 4 * rows * WIDTH, 4 * rows * WIDTH]
    products = [operator for event in step.events for operator in event.operators if operator.flops]
    of_an_expert = 2 * rows // (EXPERTS // RANKS) * WIDTH**2
    assert sum(operator.count for operator in products if operator.flops == of_an_expert) >= EXPERTS // RANKS
