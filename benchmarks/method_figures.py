"""The figures of docs/how-it-works.md: each step of GPLDLA on two features, drawn from the heads themselves.

    python -m benchmarks.method_figures

Two features of unit length would lie on a circle, so these are taken as they are (normalize=False).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from torch import Tensor

from gpldla.heads import Posterior, create_head
from gpldla.utils.plot_style import ACCENT, INK, MUTED, SECOND

IMAGES = Path(__file__).parents[1] / "docs" / "images"
COLOURS = (ACCENT, SECOND, "#3b9c6b")
CENTRES = torch.tensor([[-1.2, -0.7], [1.3, -0.6], [0.0, 1.3]], dtype=torch.float64)
SPREAD = 0.55
REACH = 4.0  # of the axes
GRID = 161
SHOTS = 4


def examples(shots: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return examples [3·shots, 2] of three classes around their centres, and labels [3·shots]."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(3, shots, 2, generator=generator, dtype=torch.float64)
    labels = torch.arange(3).repeat_interleave(shots)
    return (CENTRES[:, None] + SPREAD * noise).reshape(-1, 2), labels


def adapted(name: str, support: Tensor, labels: Tensor, **options: Any) -> Posterior:
    """Return the posterior of a head on features as they are."""
    head = create_head(name, 2, normalize=False, **options).double().eval()
    with torch.no_grad():
        return head.adapt(support, labels, 3)


def plane() -> Tensor:
    """Return the points of the grid, [GRID², 2]."""
    ticks = torch.linspace(-REACH, REACH, GRID, dtype=torch.float64)
    return torch.cartesian_prod(ticks, ticks)


def mean_logits(posterior: Any, points: Tensor) -> Tensor:
    """Return w_j·x + b_j of the posterior's mode, [n, 2] → [n, 3]."""
    logits: Tensor = points @ posterior.weight_mean.mT + posterior.bias_mean
    return logits


def on_grid(values: Tensor) -> npt.NDArray[np.float64]:
    """Return values [GRID², ...] as an image whose rows go upwards."""
    return values.reshape(GRID, GRID, *values.shape[1:]).transpose(0, 1).numpy()


def panel(ax: Axes, title: str, support: Tensor, labels: Tensor) -> None:
    """Draw the examples, and a frame without ticks."""
    for index, colour in enumerate(COLOURS):
        x, y = support[labels == index].T
        ax.scatter(x, y, s=34, color=colour, edgecolor="white", linewidth=0.8, zorder=4)
    ax.set(xlim=(-REACH, REACH), ylim=(-REACH, REACH), xticks=[], yticks=[], aspect="equal")
    ax.spines[:].set_color(MUTED)
    ax.set_title(title, fontsize=10.5, color=INK, loc="left")


def shade(ax: Axes, probabilities: Tensor) -> None:
    """Colour the plane by the most probable class, the paler the less probable it is."""
    p, colours = on_grid(probabilities), np.array([to_rgb(c) for c in COLOURS])
    strength = ((p.max(-1) - 1 / 3) / (2 / 3))[..., None]
    image = 1 - 0.75 * strength * (1 - colours[p.argmax(-1)])
    ax.imshow(image, extent=(-REACH, REACH, -REACH, REACH), origin="lower", zorder=0)
    ticks = np.linspace(-REACH, REACH, GRID)
    lines = ax.contour(ticks, ticks, p.max(-1), levels=(0.6, 0.75, 0.9), colors=INK, linewidths=0.7, zorder=2)
    ax.clabel(lines, fmt=lambda value: f"{100 * value:.0f} %", fontsize=7.5)


def boundaries(ax: Axes, logits: Tensor, style: str, colour: str) -> None:
    """Draw where the most probable class changes."""
    ticks, best = np.linspace(-REACH, REACH, GRID), on_grid(logits)
    for index in range(3):
        others = np.delete(best, index, axis=-1).max(-1)
        ax.contour(
            ticks,
            ticks,
            best[..., index] - others,
            levels=(0,),
            colors=colour,
            linestyles=style,
            linewidths=1.6,
        )


def row(count: int) -> tuple[Figure, Sequence[Axes]]:
    """Return a figure with so many square panels."""
    figure = Figure(figsize=(3.3 * count, 3.6), layout="constrained")
    axes = figure.subplots(1, count)
    return figure, (axes if count > 1 else [axes])


def lda_plugin() -> Figure:
    """The search for the MAP beside the class means that replace it."""
    support, labels = examples(SHOTS, seed=3)
    points = plane()
    searched = adapted("laplace", support, labels, newton_steps=20)
    closed = adapted("gpldla", support, labels)
    figure, axes = row(2)
    for ax, posterior, title in (
        (axes[0], searched, "MAP: 20 Newton steps"),
        (axes[1], closed, "LDA plugin: class means"),
    ):
        panel(ax, title, support, labels)
        boundaries(ax, mean_logits(posterior, points), "solid", INK)
    means = torch.stack([support[labels == index].mean(0) for index in range(3)])
    axes[1].scatter(means[:, 0], means[:, 1], marker="x", s=70, color=INK, zorder=5)
    for mean, colour in zip(means, COLOURS):
        axes[1].annotate(
            "", mean.tolist(), (0, 0), arrowprops={"arrowstyle": "->", "color": colour, "lw": 1.6}
        )
    return figure


def prior_norm() -> Figure:
    """The same directions with the norm that priors of three scales expect."""
    support, labels = examples(SHOTS, seed=3)
    points = plane()
    figure, axes = row(3)
    for ax, beta in zip(axes, (0.3, 1.0, 4.0)):
        posterior = adapted("gpldla", support, labels, beta=beta)
        panel(ax, f"β = {beta:g}", support, labels)
        shade(ax, mean_logits(posterior, points).softmax(-1))
    return figure


def laplace_variance() -> Figure:
    """The mode alone, and the average over the posterior, from few examples and from many."""
    points = plane()
    figure, axes = row(3)
    few, many = examples(1, seed=5), examples(30, seed=3)
    for ax, title, (support, labels), averaged in (
        (axes[0], "1 example each, mode alone", few, False),
        (axes[1], "1 example each, averaged", few, True),
        (axes[2], "30 examples each, averaged", many, True),
    ):
        posterior = adapted("gpldla", support, labels, beta=2.0)
        panel(ax, title, support, labels)
        with torch.no_grad():
            p = posterior.log_prob(points).exp() if averaged else mean_logits(posterior, points).softmax(-1)
        shade(ax, p)
    return figure


FIGURES = {"method-lda": lda_plugin, "method-norm": prior_norm, "method-variance": laplace_variance}


def main() -> None:
    """Draw all of them."""
    for name, draw in FIGURES.items():
        draw().savefig(IMAGES / f"{name}.png", dpi=130, metadata={"Software": None})


if __name__ == "__main__":
    main()
