"""The colours and the quiet look that all plots have."""

from typing import Any

INK, MUTED, ACCENT, SECOND, GRID = "#1d2733", "#667280", "#2a6fb0", "#d9822b", "#e3e7ec"


def style_axes(ax: Any, *, label_size: int) -> None:
    """Give a plot the quiet look that all of them have."""
    ax.grid(color=GRID, lw=0.8)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(MUTED)
    ax.tick_params(colors=MUTED, labelsize=label_size)
