"""`flow_chart_svg`: a Mermaid flow chart of plain arrows as SVG, for a site that works without a network.

Each node is one layer below its lowest predecessor. An arrow that skips layers passes through a point in each of them,
so that it avoids boxes. Neighbours are ordered by the mean position of their connected nodes, in a few passes down and
up (barycentre heuristic; Sugiyama, Tagawa and Toda 1981).
"""

import re
from html import escape

ARROW = re.compile(r"^\s*(\w+) --> (\w+)$")
HEADER = "flowchart TD"
CHARACTER, PADDING, HEIGHT, GAP_X, GAP_Y, POINT = 8.2, 24.0, 30.0, 22.0, 46.0, 10.0  # in pixels
SWEEPS = 24
TIP = (
    '<defs><marker id="tip" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
    '<path d="M0 0L8 4L0 8z"/></marker></defs>'
)

Edges = list[tuple[str, str]]


def flow_chart_svg(text: str) -> str:
    r"""Return the chart as one line of SVG.

    Raises ValueError, naming the line, for lines other than the header and arrows.

        >>> flow_chart_svg("flowchart TD\n    calls --> runtime\n")[:26]
        '<svg class="flow-chart" vi'
    """
    edges = parse_arrows(text)
    layers, segments = with_points(layers_of(edges), edges)
    return drawing(ordered(layers, segments), segments, {name for edge in edges for name in edge})


def parse_arrows(text: str) -> Edges:
    """Return the arrows, in the order of the text."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines or lines[0].strip() != HEADER:
        raise ValueError(f"a Mermaid diagram begins with {lines[:1]}: only {HEADER!r} can be drawn")
    matches = [(line, ARROW.match(line)) for line in lines[1:]]
    for line, match in matches:
        if match is None:
            raise ValueError(f"Mermaid line {line.strip()!r}: only arrows can be drawn, such as 'a --> b'")
    return [(match[1], match[2]) for _, match in matches if match is not None]


def layers_of(edges: Edges) -> list[list[str]]:
    """Return the nodes by the longest path to them. Raises ValueError for a cycle."""
    depth = dict.fromkeys((name for edge in edges for name in edge), 0)
    for _ in depth:
        changed = False
        for above, below in edges:
            if depth[below] <= depth[above]:
                depth[below], changed = depth[above] + 1, True
        if not changed:
            break
    else:
        raise ValueError(f"the arrows of a Mermaid diagram go round in a circle: {edges}")
    return [[name for name in depth if depth[name] == layer] for layer in range(max(depth.values()) + 1)]


def with_points(layers: list[list[str]], edges: Edges) -> tuple[list[list[str]], Edges]:
    """Add a point to each layer that an arrow skips, and cut the arrow there."""
    place = {name: index for index, layer in enumerate(layers) for name in layer}
    layers, segments = [list(layer) for layer in layers], []
    for above, below in edges:
        last = above
        for layer in range(place[above] + 1, place[below]):
            point = f"{above}/{below}/{layer}"
            layers[layer].append(point)
            segments.append((last, point))
            last = point
        segments.append((last, below))
    return layers, segments


def ordered(layers: list[list[str]], segments: Edges) -> list[list[str]]:
    """Order each layer; return the order with the fewest crossings of all tried."""
    best = layers
    for sweep in range(SWEEPS):
        place = {name: (index + 0.5) / len(layer) for layer in layers for index, name in enumerate(layer)}
        downwards = sweep % 2 == 0
        layers = [list(layer) for layer in layers]
        for layer in layers if downwards else reversed(layers):
            means = {name: _mean_place(name, segments, downwards, place) for name in layer}
            layer.sort(key=means.__getitem__)
            place.update({name: (index + 0.5) / len(layer) for index, name in enumerate(layer)})
        best = min(best, layers, key=lambda order: crossings(order, segments))
    return best


def _mean_place(name: str, segments: Edges, downwards: bool, place: dict[str, float]) -> float:
    """Return the mean position of the connected nodes: above on the way down, below on the way up."""
    others = [a if downwards else b for a, b in segments if name == (b if downwards else a)]
    return sum(place[other] for other in others) / len(others) if others else place[name]


def crossings(layers: list[list[str]], segments: Edges) -> int:
    """Return the number of crossing pairs of arrows."""
    place = {name: (row, index) for row, layer in enumerate(layers) for index, name in enumerate(layer)}
    ends = [(place[a][0], place[a][1], place[b][1]) for a, b in segments]
    return sum(a[0] == b[0] and (a[1] - b[1]) * (a[2] - b[2]) < 0 for i, a in enumerate(ends) for b in ends[:i])


def drawing(layers: list[list[str]], segments: Edges, nodes: set[str]) -> str:
    """Draw the layers from top to bottom as SVG."""
    width = {name: len(name) * CHARACTER + PADDING if name in nodes else POINT for layer in layers for name in layer}
    lengths = [sum(width[name] for name in layer) + GAP_X * (len(layer) - 1) for layer in layers]
    total = max(lengths)
    centre: dict[str, tuple[float, float]] = {}
    for row, (layer, length) in enumerate(zip(layers, lengths, strict=True)):
        x = (total - length) / 2
        for name in layer:
            centre[name] = x + width[name] / 2, row * (HEIGHT + GAP_Y) + HEIGHT / 2
            x += width[name] + GAP_X
    height = len(layers) * (HEIGHT + GAP_Y) - GAP_Y
    parts = [*(_arrow(centre[a], centre[b], a in nodes, b in nodes) for a, b in segments)]
    parts += [_box(name, *centre[name], width[name]) for name in centre if name in nodes]
    size = f'viewBox="-2 -2 {total + 4:.0f} {height + 4:.0f}" width="{total + 4:.0f}"'
    return f'<svg class="flow-chart" {size} role="img">{TIP}{"".join(parts)}</svg>'


def _arrow(begin: tuple[float, float], end: tuple[float, float], from_box: bool, to_box: bool) -> str:
    """Return a curve that leaves and arrives vertically, with a tip only at a box."""
    (x0, y0), (x1, y1) = begin, end
    y0, y1 = y0 + HEIGHT / 2 * from_box, y1 - HEIGHT / 2 * to_box
    middle = (y0 + y1) / 2
    tip = ' marker-end="url(#tip)"' if to_box else ""
    curve = f"M{x0:.0f} {y0:.0f}C{x0:.0f} {middle:.0f} {x1:.0f} {middle:.0f} {x1:.0f} {y1:.0f}"
    return f'<path class="arrow" d="{curve}"{tip}/>'


def _box(name: str, x: float, y: float, width: float) -> str:
    box = f'<rect x="{x - width / 2:.0f}" y="{y - HEIGHT / 2:.0f}" width="{width:.0f}" height="{HEIGHT:.0f}" rx="4"/>'
    return f'{box}<text x="{x:.0f}" y="{y + 5:.0f}" text-anchor="middle">{escape(name)}</text>'
