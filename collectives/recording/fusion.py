"""`plan`: the kernels of a captured graph, fused as inductor fuses them on a GPU.

A kernel is a set of pointwise operators, or of reductions along the same dimensions with their pointwise neighbours; it
reads its inputs and writes its outputs once. A pointwise result that is cheaper to recompute than to store is computed
in each kernel that needs it. All other operators run one by one.
"""

import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

from torch import Tag, Tensor
from torch._ops import OpOverload
from torch.fx import Graph, Node

from collectives.recording.operands import named
from collectives.recording.operators import dtype_of
from collectives.recording.placement import tensors_in
from ringsim.traces import FUSED, Operator

MAX_NAMES = 8  # in the name of a kernel
_POINTWISE = {  # without torch's tag
    *("arange", "cat", "constant_pad_nd", "copy", "copy_", "cumsum", "embedding", "eye", "fill", "flip", "full"),
    *("full_like", "gather", "index", "index_select", "iota", "masked_fill", "repeat", "roll", "scalar_tensor"),
    *("select_scatter", "slice_scatter", "stack", "_to_copy", "tril", "triu", "_unsafe_index", "_unsafe_masked_index"),
    *("bernoulli", "normal_functional", "rand", "rand_like", "randint", "randint_like", "randn", "randn_like"),
}
_LOOKUPS = {"embedding", "gather", "index", "index_select", "_unsafe_index", "_unsafe_masked_index"}
NAMESPACES = {"aten", "prims", "inductor", "inductor_prims"}
# Operators that do not read their first argument.
_OVERWRITING = {"copy", "copy_", "fill", "full_like", "rand_like", "randint_like", "randn_like"}
_RANDOM = Tag.nondeterministic_seeded


class Space(NamedTuple):
    """The elements that an operator passes over. rows: results of a reduction, None for a pointwise operator.

    is_inner: the reduction is along the last dimensions, so that a row is at hand with its result.
    """

    total: int
    rows: int | None = None
    dims: tuple[int, ...] = ()
    is_inner: bool = False

    def joined(self, other: "Space") -> "Space | None":
        if (self.rows is None) == (other.rows is None):
            return self if self == other else None
        reduction, pointwise = (other, self) if self.rows is None else (self, other)
        return reduction if pointwise.total in (reduction.total, reduction.rows) else None


@dataclass(eq=False, slots=True)
class Unit:
    """A kernel, or an operator that cannot be fused.

    space: None for the latter.
    before: bits of the units whose results it needs, also indirectly.
    late: nodes that need the result of a reduction in the same kernel.
    reads: bytes, by node. writes: nodes whose results go to memory; others stay in registers.
    operator: as recorded; None for an operator that is run and watched.
    """

    number: int
    nodes: list[Node]
    space: Space | None
    before: int = 0
    late: set[Node] = field(default_factory=set)
    reads: dict[Node, int] = field(default_factory=dict)
    writes: list[Node] = field(default_factory=list)
    operator: Operator | None = None

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors in memory that it reads and writes."""
        return [tensor for node in [*self.reads, *self.writes] for tensor in tensors_of(node)]


def operation(node: Node) -> str:
    """Return the name of a node's operator, without overload."""
    return node.target._schema.name.split("::")[1] if isinstance(node.target, OpOverload) else str(node.target)


def is_in_place(node: Node) -> bool:
    """Whether a node is an optimizer's operator that torch writes in place."""
    return operation(node).startswith("_fused_")


def is_view(node: Node) -> bool:
    """Whether a node needs no new memory: a view, or no tensor."""
    target = node.target
    if node.op != "call_function":
        return False
    if target is operator.getitem:
        source = node.all_input_nodes[0]
        return source.op != "call_function" or is_view(source) or is_in_place(source)
    if not isinstance(target, OpOverload):
        return not tensors_of(node)
    aliases = [argument.alias_info for argument in target._schema.arguments if argument.alias_info]
    is_alias = bool(aliases) and not any(alias.is_write for alias in aliases)
    return is_alias or target.namespace == "prim" or operation(node) == "_unsafe_view" or not tensors_of(node)


def base_of(node: Node) -> Node:
    """Return the node that has the memory of a view."""
    while is_view(node) and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node


def bytes_of(node: Node) -> int:
    """Return the bytes of a node's result."""
    return sum(int(tensor.numel()) * tensor.itemsize for tensor in tensors_of(node))


def _numel(node: Node) -> int:
    return sum(map(Tensor.numel, tensors_of(node)))


def tensors_of(node: Node) -> list[Tensor]:
    """Return the tensors of a node's result, without data."""
    return tensors_in(node.meta.get("val"))


def _space_of(node: Node) -> Space | None:
    if node.op != "call_function" or not isinstance(node.target, OpOverload) or is_view(node):
        return None
    if node.target.namespace not in NAMESPACES:
        return None
    name, made, tags = operation(node), tensors_of(node)[0], node.target.tags
    if Tag.reduction in tags:
        return _space_of_reduction(node, made)
    sets_one = name == "scatter" and node.target._overloadname == "value" and _makes(node.args[0])
    if name in _POINTWISE or sets_one or (Tag.pointwise in tags and not node.target._schema.is_mutable):
        return Space(int(made.numel()))
    return None


def _makes(node: Any) -> bool:
    return isinstance(node, Node) and operation(node) in ("full", "full_like")


def _space_of_reduction(node: Node, made: Tensor) -> Space:
    source = tensors_of(node.all_input_nodes[0])[0]
    asked = named(node.target, node.args, node.kwargs).get("dim")  # type: ignore[arg-type]
    dims = sorted(dim % max(1, source.dim()) for dim in ([asked] if isinstance(asked, int) else asked or ()))
    rows = int(made.numel())
    is_inner = rows > 1 and dims == list(range(source.dim() - len(dims), source.dim()))
    shape = [int(side) for side in source.shape]
    place = () if is_inner else tuple(prod(shape[: dim + 1]) for dim in dims)
    return Space(int(source.numel()), rows, place, is_inner)


def plan(graph: Graph) -> list[Unit]:
    """Return the units of a graph in execution order."""
    return _Planner(graph).units()


class _Planner:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._units: dict[int, Unit] = {}
        self._unit_of: dict[Node, Unit] = {}
        self._readers: dict[Node, list[Node]] = {}  # of kernels, by what they read
        self._copies: dict[Node, list[Unit]] = {}  # kernels that compute a node again

    def units(self) -> list[Unit]:
        for node in self._graph.nodes:
            if node.op != "call_function" or is_view(node):
                continue
            if operation(node) == "copy_" and is_in_place(base_of(node.all_input_nodes[1])):
                continue
            if node.target is operator.getitem:
                self._unit_of[node] = unit = self._unit_of[node.all_input_nodes[0]]
                unit.nodes.append(node)
            else:
                self._place(node)
        for unit in list(self._units.values()):
            self._compute_again(unit)
        self._find_memory()
        for unit in list(self._units.values()):
            self._merge_with_makers(unit)
        self._find_memory()
        order = {node: index for index, node in enumerate(self._graph.nodes)}
        for unit in self._units.values():
            unit.nodes.sort(key=order.__getitem__)
            unit.operator = _operator_of(unit)
        return _sorted(list(self._units.values()), order)

    def _inputs(self, node: Node) -> list[Node]:
        return [base for base in map(base_of, node.all_input_nodes) if base is not node]

    def _place(self, node: Node) -> None:
        """Add a node to kernels of its inputs or of their readers, or make a unit of it."""
        space, inputs = _space_of(node), self._inputs(node)
        makers = list(dict.fromkeys(self._unit_of[base] for base in inputs if base in self._unit_of))
        unit = Unit(len(self._unit_of), [node], space)
        for maker in makers:
            unit.before |= maker.before | 1 << maker.number
        self._units[unit.number] = self._unit_of[node] = unit
        if space is None:
            return
        large = [base for base in inputs if _numel(base) >= space.total]
        beside = [self._unit_of[reader] for base in large for reader in self._readers.get(base, [])]
        for kernel in dict.fromkeys([*reversed(makers), *beside]):
            if kernel.number in self._units and kernel.space is not None:
                unit = self._merged(kernel, unit)
        for base in inputs:
            self._readers.setdefault(base, []).append(node)

    def _merged(self, first: Unit, second: Unit) -> Unit:
        space = first.space.joined(second.space) if first.space and second.space else None
        if first is second or space is None:
            return second
        if self._has_between(first, second) or self._has_between(second, first):
            return second
        late = self._late(first, second)
        if not space.is_inner and any(_space_of(node) != Space(space.rows or 0) for node in late):
            return second
        del self._units[second.number]
        first.space, first.late = space, first.late | second.late | late
        first.nodes += second.nodes
        for node in second.nodes:
            if self._unit_of[node] is second:  # else it computes the node again
                self._unit_of[node] = first
        bits = 1 << first.number | 1 << second.number
        first.before = (first.before | second.before) & ~bits
        for unit in self._units.values():
            if unit.before & bits:
                unit.before = (unit.before | first.before | 1 << first.number) & ~(1 << second.number)
        return first

    def _has_between(self, first: Unit, second: Unit) -> bool:
        bit, before = 1 << first.number, second.before
        return bool(before & bit) and any(
            before >> unit.number & 1 and unit.before & bit for unit in self._units.values() if unit is not first
        )

    def _late(self, first: Unit, second: Unit) -> set[Node]:
        """Return the nodes of the second kernel that need a reduction's result of the first."""
        late: set[Node] = set()
        of_first = set(first.nodes)
        for node in second.nodes:
            for base in self._inputs(node):
                maker = base.all_input_nodes[0] if base.target is operator.getitem else base
                is_result = base in of_first and Tag.reduction in getattr(maker.target, "tags", ())
                if is_result or base in first.late or base in late:
                    late.add(node)
        return late

    def _readers_of(self, node: Node) -> Iterator[Unit | None]:
        """Yield the units that read a node; None for the output."""
        for user in node.users:
            if is_view(user):
                yield from self._readers_of(user)
            else:
                yield self._unit_of.get(user)
                yield from self._copies.get(user, ())

    def _compute_again(self, unit: Unit) -> None:
        """Let other kernels recompute results of this one, where reading its inputs is cheaper."""
        by_readers: dict[frozenset[Unit | None], list[Node]] = {}
        for node in unit.nodes if unit.space else ():
            readers = frozenset(reader for reader in self._readers_of(node) if reader is not unit)
            if readers and all(reader is not None and reader.space and node not in reader.nodes for reader in readers):
                by_readers.setdefault(readers, []).append(node)
        for readers, nodes in by_readers.items():
            chain, leaves = self._chain(nodes, unit)
            times, size_bytes = len(readers), sum(map(bytes_of, nodes))
            new = [leaf for leaf in leaves if leaf in unit.nodes]
            if chain and times * sum(map(bytes_of, leaves)) + sum(map(bytes_of, new)) <= size_bytes * (1 + times):
                for reader in (reader for reader in readers if reader):
                    reader.nodes = list(dict.fromkeys([*chain, *reader.nodes]))
                    for node in chain:
                        self._copies.setdefault(node, []).append(reader)

    def _merge_with_makers(self, unit: Unit) -> None:
        """Merge a kernel that recomputes with kernels whose results it reads, or that read the same."""
        if unit.space is None or unit.number not in self._units or not any(node in self._copies for node in unit.nodes):
            return
        inside = set(unit.nodes)
        for base in [base for node in unit.nodes for base in self._inputs(node)]:
            beside = self._readers_of(base) if _numel(base) >= unit.space.total else ()
            for other in [self._unit_of.get(base), *beside] if base not in inside else ():
                if other is not None and other.space and other.number in self._units:
                    unit = self._merged(other, unit)

    def _find_memory(self) -> None:
        """Set what each unit reads and writes; leave out unneeded kernels and nodes."""
        outputs = next(node for node in self._graph.nodes if node.op == "output")
        needed = {base_of(node) for node in outputs.all_input_nodes}
        order = sorted(self._units.values(), key=lambda unit: unit.before.bit_count(), reverse=True)
        for unit in order:  # each after those that read it
            unit.nodes = list(dict.fromkeys(unit.nodes))
            if unit.space is not None:
                unit.writes = [
                    n for n in unit.nodes if operation(n) == "copy_" or (n in needed and self._unit_of[n] is unit)
                ]
                unit.nodes = self._needed_for(unit)
                if not unit.writes:
                    del self._units[unit.number]
            else:
                unit.writes = unit.nodes
            unit.reads = self._reads(unit)
            needed.update(unit.reads)

    def _needed_for(self, unit: Unit) -> list[Node]:
        inside, kept, open_nodes = set(unit.nodes), dict[Node, None](), list(unit.writes)
        while open_nodes:
            node = open_nodes.pop()
            if node in inside and node not in kept:
                kept[node] = None
                open_nodes += self._inputs(node)
        return list(kept)

    def _chain(self, nodes: list[Node], unit: Unit) -> tuple[list[Node], list[Node]]:
        """Return the pointwise nodes that compute `nodes` again, and what they read; empty if impossible."""
        chain: dict[Node, None] = {}
        leaves: dict[Node, None] = {}
        inside, open_nodes = set(unit.nodes), list(nodes)
        while open_nodes:
            node = open_nodes.pop()
            space = _space_of(node)
            is_kept = node not in nodes and any(not (reader and reader.space) for reader in self._readers_of(node))
            if node not in inside or space is None or space.rows is not None or is_kept:
                leaves[node] = None
            elif node not in chain:
                if _RANDOM in node.target.tags or operation(node) == "copy_":  # type: ignore[union-attr]
                    return [], []
                chain[node] = None
                open_nodes += self._inputs(node)
        return ([], []) if any(node in leaves for node in nodes) else (list(chain), list(leaves))

    def _reads(self, unit: Unit) -> dict[Node, int]:
        inside = set(unit.nodes)
        views_of: dict[Node, dict[Node, int]] = {}
        for node in unit.nodes:
            for index, source in enumerate(node.all_input_nodes):
                base = base_of(source)
                if base in inside or (index == 0 and operation(node) in _OVERWRITING):
                    continue
                size_bytes = bytes_of(source)
                if index == 0 and operation(node) in _LOOKUPS:
                    size_bytes = min(size_bytes, bytes_of(node))
                views_of.setdefault(base, {})[source] = size_bytes
        return {base: min(bytes_of(base), sum(views.values())) for base, views in views_of.items()}


def _operator_of(unit: Unit) -> Operator | None:
    tensors = unit.tensors
    size_bytes = sum(unit.reads.values()) + sum(map(bytes_of, unit.writes))
    if unit.space is not None:
        names = list(dict.fromkeys(operation(node) for node in unit.nodes if isinstance(node.target, OpOverload)))
        name = f"{FUSED}{', '.join([*names[:MAX_NAMES], *(['...'] if len(names) > MAX_NAMES else [])])})"
        return Operator(name, dtype_of(tensors), 0, size_bytes)
    target = unit.nodes[0].target
    if isinstance(target, OpOverload):
        return None
    return Operator(str(target), dtype_of(tensors), 0, size_bytes, is_counted=False)  # a function of functions


def _sorted(units: list[Unit], order: dict[Node, int]) -> list[Unit]:
    """Sort units by their last nodes, but each after those that it reads."""
    makers = {node: unit for unit in units for node in unit.writes}
    done: dict[Unit, None] = {}

    def add(unit: Unit) -> None:
        if unit not in done:
            for base in unit.reads:
                if base in makers and makers[base] is not unit:
                    add(makers[base])
            done[unit] = None

    for unit in sorted(units, key=lambda unit: max(map(order.__getitem__, unit.nodes))):
        add(unit)
    return list(done)
