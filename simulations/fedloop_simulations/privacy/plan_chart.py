"""A forecast as a picture: epsilon by round of the run as it is and of the other choices."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.ticker import MaxNLocator

from fedloop_clients.privacy.forecast import Alternative, Lifetime
from fedloop_simulations.report.drawing import ALARM, INK, SERIES, chart_style, new_figure, quiet, standalone, to_svg

__all__ = ["plan_chart"]


def plan_chart(alternatives: Sequence[Alternative], lifetime: Lifetime) -> str:
    """An SVG file's content."""
    with chart_style():
        figure = new_figure(4.0)
        axes = figure.subplots()
        highest = 0.0
        for at, one in enumerate(alternatives):
            if one.forecast is None:
                continue
            points = ((0, 0.0), *((cost.round, cost.epsilon) for cost in one.forecast.by_round))
            colour = INK if at == 0 else SERIES[(at - 1) % len(SERIES)]
            label = f"{one.name}: {one.forecast.runs} runs"
            axes.plot(
                [r for r, _ in points], [e for _, e in points], color=colour, label=label, lw=2.4 if at == 0 else 1.4
            )
            highest = max(highest, one.forecast.epsilon)
        if lifetime.epsilon <= 1.5 * highest:
            axes.axhline(lifetime.epsilon, color=ALARM, linestyle=(0, (5, 3)), linewidth=1.2)
            axes.annotate("for life", (0, lifetime.epsilon), xytext=(3, 3), textcoords="offset points", color=ALARM)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("round")
        axes.set_ylabel("epsilon of the run")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        quiet(axes, grid="y")
        title = f"runs that {lifetime.epsilon:g} for life hold"
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), title=title, alignment="left")
        return standalone(to_svg(figure, "plan", "Epsilon by round, of the run as it is and of other choices"))
