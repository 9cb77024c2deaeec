"""From matplotlib figures to inline SVG that follows the page's light or dark colours.

Figures are drawn in stand-in colours, which become CSS variables in the SVG. Salted ids and absent dates make the same
report the same bytes; ids carry the chart's name, so that several charts live in one page.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

__all__ = ["ALARM", "INK", "MUTED", "SERIES", "chart_style", "new_figure", "quiet", "standalone", "to_svg"]

INK = "#010101"
MUTED = "#020202"
ALARM = "#030303"
SERIES = ("#a00001", "#a00002", "#a00003", "#a00004", "#a00005", "#a00006", "#a00007", "#a00008")

_VARIABLES = {
    INK: "var(--ink)",
    MUTED: "var(--line)",
    ALARM: "var(--alarm)",
    **{colour: f"var(--series-{number})" for number, colour in enumerate(SERIES, start=1)},
}

_ON_WHITE = {  # the page's light colours, for a picture without a page
    "var(--ink)": "#1c2430",
    "var(--line)": "#c9d0d9",
    "var(--alarm)": "#c62f3b",
    "var(--series-1)": "#1f6fb5",
    "var(--series-2)": "#0f8a6b",
    "var(--series-3)": "#b8640b",
    "var(--series-4)": "#8a4fb0",
    "var(--series-5)": "#b5427d",
    "var(--series-6)": "#5d7a12",
    "var(--series-7)": "#2d8fa3",
    "var(--series-8)": "#7a5c3e",
}


@contextmanager
def chart_style() -> Iterator[None]:
    """The style of all charts, for as long as they are drawn and saved."""
    with rc_context(
        {
            "svg.fonttype": "none",
            "text.parse_math": False,  # names may hold dollars
            "svg.hashsalt": "fedloop",
            "font.family": "sans-serif",
            "font.size": 10,
            "text.color": INK,
            "axes.edgecolor": MUTED,
            "axes.labelcolor": INK,
            "axes.titlesize": 10,
            "axes.titleweight": "bold",
            "axes.titlelocation": "left",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.color": MUTED,
            "grid.alpha": 0.5,
            "grid.linewidth": 0.6,
            "xtick.color": MUTED,
            "ytick.color": MUTED,
            "xtick.labelcolor": INK,
            "ytick.labelcolor": INK,
            "legend.frameon": False,
            "legend.fontsize": 9,
            "lines.linewidth": 1.8,
            "lines.solid_capstyle": "round",
        }
    ):
        yield


def new_figure(height: float) -> Figure:
    """An empty figure as wide as the page's column; ``height`` in inches."""
    figure = Figure(figsize=(8.6, height), layout="constrained")
    FigureCanvasSVG(figure)
    return figure


def quiet(axes: Axes, *, grid: str) -> None:
    """Keeps only the grid lines along one axis (``x`` or ``y``), and no tick marks."""
    axes.grid(visible=False, axis="y" if grid == "x" else "x")
    axes.tick_params(length=0)


def to_svg(figure: Figure, name: str, description: str) -> str:
    """The figure as an ``<svg>`` element for a page; ``description`` is for those who do not see it."""
    buffer = io.StringIO()
    absent = {"Date": None, "Creator": None, "Format": None, "Type": None}
    figure.savefig(buffer, format="svg", transparent=True, metadata=absent)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = svg.replace('href="#', f'href="#{name}-').replace("url(#", f"url(#{name}-")
    svg = re.sub(r"font: [^;\"]*?(\d+(?:\.\d+)?)px [^;\"]*", r"font-size: \1px", svg)
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, variable)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{_attribute(description)}" ', 1)


def standalone(svg: str) -> str:
    """What ``to_svg`` returned, as a file of its own: in colours, on white."""
    for variable, colour in _ON_WHITE.items():
        svg = svg.replace(variable, colour)
    return svg.replace("<svg ", '<svg style="background: #ffffff" ', 1)


def _attribute(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
