"""`FUNCTIONS`: the table of collectives, from which functions, process groups, recordings and the benchmark follow."""

from typing import Any, NamedTuple

from ringsim.schedule import Collective

SCATTERING = Collective.REDUCE_SCATTER, Collective.SCATTER, Collective.ALL_TO_ALL  # a rank gives a share to each


class Function(NamedTuple):
    """A function of `collectives` and torch.distributed; of coalesced ones only the all_reduce is, others are methods.

    output, input: the arguments with the tensors that it writes and that it reads; one name if these are the same.
    methods: those of torch's ProcessGroup that do it, the newest name first.
    root: the argument for the root, a rank of the job: src or dst; empty if there is none.
    """

    name: str
    collective: Collective
    output: str
    input: str
    methods: str
    root: str = ""

    @property
    def is_in_place(self) -> bool:
        """Whether it writes the tensors that it reads."""
        return self.output == self.input

    @property
    def is_coalesced(self) -> bool:
        """Whether it does a collective for each of several pairs of operands, or tensors."""
        return self.name != self.single

    @property
    def single(self) -> str:
        """The name of the function that does one of them."""
        return self.name.removesuffix("_coalesced")

    def arguments(self, output: Any, given: Any) -> tuple[Any, ...]:
        """Return the positional arguments for what it writes and what it reads."""
        if self.is_in_place:
            return (output,)
        return (given, output) if self.root == "dst" else (output, given)


_AR, _RS, _AG = Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.ALL_GATHER
_ALL = (
    Function("all_reduce", _AR, "tensor", "tensor", "allreduce"),
    Function("reduce_scatter_tensor", _RS, "output", "input", "reduce_scatter_single _reduce_scatter_base"),
    Function("all_gather_into_tensor", _AG, "output_tensor", "input_tensor", "all_gather_single _allgather_base"),
    Function("broadcast", Collective.BROADCAST, "tensor", "tensor", "broadcast", "src"),
    Function("reduce", Collective.REDUCE, "tensor", "tensor", "reduce", "dst"),
    Function("gather", Collective.GATHER, "gather_list", "tensor", "gather", "dst"),
    Function("scatter", Collective.SCATTER, "tensor", "scatter_list", "scatter", "src"),
    Function("all_to_all_single", Collective.ALL_TO_ALL, "output", "input", "all_to_all_single alltoall_base"),
    Function("reduce_scatter", _RS, "output", "input_list", "reduce_scatter"),
    Function("all_gather", _AG, "tensor_list", "tensor", "allgather"),
    Function("all_to_all", Collective.ALL_TO_ALL, "output_tensor_list", "input_tensor_list", "alltoall"),
    Function("barrier", _AR, "", "", "barrier"),  # which sums one number
    Function("all_reduce_coalesced", _AR, "tensors", "tensors", "allreduce_coalesced"),
    Function("all_gather_coalesced", _AG, "outputs", "inputs", "allgather_coalesced"),
    Function("all_gather_into_tensor_coalesced", _AG, "outputs", "inputs",
             "all_gather_single_coalesced allgather_into_tensor_coalesced"),
    Function("reduce_scatter_tensor_coalesced", _RS, "outputs", "inputs",
             "reduce_scatter_single_coalesced reduce_scatter_tensor_coalesced"),
)  # fmt: skip
FUNCTIONS = {function.name: function for function in _ALL}
FIRST = {collective: next(one for one in _ALL if one.collective is collective) for collective in Collective}
