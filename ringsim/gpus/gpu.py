"""`Gpu`: the times of a GPU's kernels, from the figures of its file; `load_gpu` reads a preset or a file."""

from math import ceil
from pathlib import Path
from statistics import NormalDist
from typing import Annotated

from ringsim.files import Record, decode, names_in, naming_place, parse_toml, read_preset, refusal, values, without_unit
from ringsim.gpus.roofline import Roofline, operators_of, share_left
from ringsim.traces import Attention, Operator, Product, TraceEvent, TraceEventKind

_PRESETS = Path(__file__).parent / "presets"
_QUERIES = 128  # of a block, for which a multiprocessor computes attention
# Rows and columns of the tiles of a product, of which a library chooses the best.
_TILES = (256, 128), (128, 256), (192, 128), (128, 128), (256, 64), (64, 256), (128, 64), (64, 128), (64, 64)
_GPUS_OF_A_HOST = 8  # on which steps were measured that gave the figures of GPUs
_BACKWARD_PRODUCTS = 2.5  # of attention, for each of the forward pass: it computes the scores again

_Share = Annotated[float, values.number(0.01, 1)]
_Length = Annotated[float, values.number(0, 1e6)]
_DTYPES = "bits8", "bits16", "tf32", "bits32", "bits64"


class _Table(Record, frozen=True, rename=without_unit):
    """A table of the file: values have units, keys are field names without units."""


def _require_order(within: tuple[float, float]) -> None:
    if within[0] > within[1]:
        raise refusal("within", within, "the first multiple must not be larger than the second")


class Products(_Table, frozen=True):
    """Products of matrices, whose tiles the multiprocessors compute in waves.

    share: of the peak rate, within a tile.
    depth: further columns of the left matrix that the begin and the end of a tile cost.
    traffic: a tile of a rows and b columns is slower by traffic * (1 / a + 1 / b), as it reads more per operation.
    """

    share: _Share
    depth: _Length
    traffic: _Length
    start_s: values.Time

    def seconds(self, product: Product, flops_per_s: float, multiprocessors: int) -> float:
        """Return the time with the best tiles. flops_per_s: peak rate of a multiprocessor."""
        flops_per_s *= self.share

        def with_tiles(rows: int, columns: int) -> float:
            waves = ceil(product.count * ceil(product.m / rows) * ceil(product.n / columns) / multiprocessors)
            reads = 1 + self.traffic * (1 / rows + 1 / columns)
            return waves * 2 * rows * columns * (product.k + self.depth) * reads / flops_per_s

        return min(with_tiles(*tile) for tile in _TILES)


class Attentions(_Table, frozen=True):
    """Kernels of attention, which compute blocks of queries, each with all keys that its mask leaves.

    share: of the peak rate, of wide heads. width: heads of this width are half as fast.
    depth: further keys that a block costs, at the rate of 16 bits.
    tail: share of the longest block for which the last ones are alone.
    """

    share: _Share
    backward_share: _Share
    width: _Length
    depth: _Length
    tail: values.Share
    start_s: values.Time

    def seconds(
        self, operator: Operator, attention: Attention, rates: tuple[float, float], multiprocessors: int
    ) -> float:
        """Return the time of a kernel without its start.

        operator: with the operations that the mask leaves.
        rates: of a multiprocessor, peak FLOP/s in the operator's dtype and in 16 bits.
        """
        is_backward = "backward" in operator.name
        products = _BACKWARD_PRODUCTS if is_backward else 1.0
        num_heads, width = attention.batch * attention.heads, attention.width
        blocks = num_heads * ceil(attention.queries / _QUERIES)
        kept = operator.flops / products / (4 * num_heads * attention.queries * width)
        mean = min(attention.keys, kept + (_QUERIES / 2 if kept < attention.keys else 0))
        share = self.backward_share if is_backward else self.share
        key_s, begin_s = (
            keys * products * 4 * _QUERIES * width * (1 + self.width / width) / (share * flops_per_s)
            for keys, flops_per_s in zip((1, self.depth), rates, strict=True)
        )
        longest_s = min(attention.keys, 2 * kept) * key_s + begin_s  # of a causal mask, all keys
        return max(blocks / multiprocessors * (mean * key_s + begin_s) + self.tail * longest_s, longest_s)


class KernelCosts(_Table, frozen=True):
    """Properties of all kernels.

    memory_share: of both bandwidths. gap_s: between two kernels of a stream.
    clock: in a step whose products keep the GPU at its power limit, relative to that of a kernel alone.
    """

    memory_share: _Share
    gap_s: values.Time
    clock: _Share = 1.0


class Cpu(_Table, frozen=True):
    """The time of the CPU to issue an operator of the program, a kernel of compiled code, and a collective.

    within: 80 % of programs and hosts take between these two multiples of the times.
    """

    operator_s: values.Time
    kernel_s: values.Time
    call_s: values.Time
    within: tuple[values.Ratio, values.Ratio] = 1.0, 1.0

    def __post_init__(self) -> None:
        _require_order(self.within)


class Gpu(_Table, frozen=True):
    """A GPU, and the CPU that issues its work.

    The defaults are for a GPU of which only the data sheet is known: `product` has the medians of the presets with a
    table of kernels, the other tables are those of the H100, and `within` contains how far these presets differ in
    products and clocks.

    peak: FLOP/s of dense arithmetic by the key of `bits_of`. bandwidth_bytes_per_s: of its memory.
    attention: of FlashAttention-2, torch's default. cudnn_attention: None: the same.
    within: 80 % of published steps take between these two multiples of their predicted times.
    spread: relative standard deviation of the time of the same work on GPUs of this model.
    host_bytes_per_s: of copies from the CPU's memory, or to it; of 16 lanes of PCIe 5.0 by default.
    """

    name: values.Name
    source: values.Text
    multiprocessors: values.Count
    memory_bytes: values.Capacity
    bandwidth_bytes_per_s: values.Rate
    peak: dict[str, values.Flops]
    product: Products = Products(share=0.75, depth=142, traffic=0.87, start_s=2.3e-6)
    attention: Attentions = Attentions(share=0.45, backward_share=0.38, width=18, depth=170, tail=1.0, start_s=1e-7)
    kernel: KernelCosts = KernelCosts(memory_share=0.79, gap_s=1e-6, clock=0.87)
    cpu: Cpu = Cpu(operator_s=65e-6, kernel_s=9e-6, call_s=110e-6, within=(0.6, 1.0))
    cudnn_attention: Attentions | None = None
    within: tuple[values.Ratio, values.Ratio] = 0.82, 1.34
    spread: values.Share = 0.0
    host_bytes_per_s: values.Rate = 64e9

    def __post_init__(self) -> None:
        if unknown := sorted(self.peak.keys() - set(_DTYPES)):
            raise ValueError(f"peak.{unknown[0]}: must be one of {', '.join(_DTYPES)}")
        if not self.peak or not self.memory_bytes:
            raise ValueError(f"{'memory' if self.peak else 'peak'}: must not be empty")
        _require_order(self.within)

    @property
    def roofline(self) -> Roofline:
        return Roofline(self.peak, self.bandwidth_bytes_per_s, self.multiprocessors, self.memory_bytes)

    def seconds(self, event: TraceEvent, occupied: int = 0, is_fused: bool = False) -> float:
        """Return the time of a computation. occupied: multiprocessors in use by calls."""
        share = share_left(self.multiprocessors, occupied)
        return sum(operator.count * self.kernel_s(operator, share) for operator in operators_of(event, is_fused))

    def issue_s(self, event: TraceEvent, is_fused: bool = False) -> float:
        """Return the time of the CPU to issue a computation or a call."""
        if event.kind is TraceEventKind.CALL:
            return self.cpu.call_s
        operators = operators_of(event, is_fused)
        return sum(
            operator.count * (self.cpu.kernel_s if is_fused or operator.in_graph else self.cpu.operator_s)
            for operator in operators
        )

    def slowness(self, num_gpus: int, probability: float = 0.5) -> float:
        """Return the time of computations on the slowest of `num_gpus`, relative to the slowest of a host's eight.

        The steps from which the times of the file come waited for the latter.

        probability: that the slowest of random GPUs is not slower. The largest of n independent values is below x with
        the probability F(x)^n (David and Nagaraja, Order Statistics, 2003, section 2.1); F is normal.
        """
        normal = NormalDist()
        slowest, of_a_host = normal.inv_cdf(probability ** (1 / num_gpus)), normal.inv_cdf(0.5 ** (1 / _GPUS_OF_A_HOST))
        return (1 + self.spread * slowest) / (1 + self.spread * of_a_host)

    def kernel_s(self, operator: Operator, share: float = 1.0) -> float:
        """Return the time of one call. share: of the multiprocessors."""
        memory_s = operator.size_bytes / (self.bandwidth_bytes_per_s * self.kernel.memory_share)
        if operator.is_transfer:  # read here, written there
            memory_s = operator.size_bytes / 2 / (self.host_bytes_per_s * self.kernel.memory_share)
        arithmetic_s, start_s = self._arithmetic_s(operator, max(1, round(share * self.multiprocessors)))
        least_s = operator.flops / self.roofline.peak(operator.dtype)  # what sizes leave out, such as wide values
        return self.kernel.gap_s + start_s + max(memory_s, least_s, arithmetic_s / self.kernel.clock)

    def _arithmetic_s(self, operator: Operator, multiprocessors: int) -> tuple[float, float]:
        """Return the time of the arithmetic at full clock, and of the kernel's start."""
        if not operator.flops:
            return 0.0, 0.0
        peaks = self.roofline.peak(operator.dtype), self.roofline.peak("bfloat16")
        flops_per_s, half_flops_per_s = (peak / self.multiprocessors for peak in peaks)
        if operator.attention:
            kernels = self.cudnn_attention if self.cudnn_attention and "cudnn" in operator.name else self.attention
            rates = flops_per_s, half_flops_per_s
            return kernels.seconds(operator, operator.attention, rates, multiprocessors), kernels.start_s
        if operator.product:
            product = operator.product
            num_products = operator.flops / (2 * product.count * product.m * product.n * product.k)
            return num_products * self.product.seconds(product, flops_per_s, multiprocessors), self.product.start_s
        return operator.flops / (flops_per_s * multiprocessors * self.product.share), self.product.start_s


def gpu_names() -> list[str]:
    """Return the names of the presets."""
    return names_in(_PRESETS)


def load_gpu(name: str) -> Gpu:
    """Return a preset, or the GPU of a file whose name ends in .toml.

    Raises ValueError for an unknown name or an invalid file.
    """
    text, file = read_preset("GPU", name, _PRESETS)
    with naming_place(file):
        gpu: Gpu = decode(Gpu, parse_toml(text))
        return gpu
