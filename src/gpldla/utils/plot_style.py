"""Colours and style of all plots."""

from typing import Any

INK, MUTED, ACCENT, SECOND, GRID = "#1d2733", "#667280", "#2a6fb0", "#d9822b", "#e3e7ec"


def style_axes(ax: Any, *, label_size: int) -> None:
    """Apply the common style to the axes of a plot."""
    ax.grid(color=GRID, lw=0.8)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(MUTED)
    ax.tick_params(colors=MUTED, labelsize=label_size)
