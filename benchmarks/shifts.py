"""Domains unlike home: what becomes of pictures when something about them changes that no label knows.

    python -m benchmarks.shifts MODEL

prints by how much log T differs from home on each of them, and the root mean square, which is AWAY in
src/gpldla/classifier/task_temperature.py. A shift turns pictures of C classes with m pictures each, float
[C, m, c, h, w] in [0, 1], into those of another domain: coarser or finer, of another style or of less
quality. They are made of validation classes, or of nothing, and stand for domains that nobody has data of.
"""

import argparse
import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gpldla.classifier.calibration import fit_temperature
from gpldla.classifier.model import FewShotModel
from gpldla.data import load_protocol
from gpldla.data.augment.transforms import centre_crop, grey, resized_images, standardise_

Shift = Callable[[Tensor, torch.Generator], Tensor]


def shifts(channels: int) -> dict[str, Shift]:
    """Return the shifts for pictures with so many channels, by name; "home" changes nothing."""
    return {name: shift for name, shift in SHIFTS.items() if channels == 3 or name not in OF_COLOUR}


# ---- style


def _inverted(x: Tensor, generator: torch.Generator) -> Tensor:
    return 1 - x


def _without_colour(x: Tensor, generator: torch.Generator) -> Tensor:
    return grey(x.flatten(0, 1)).expand(-1, x.shape[2], -1, -1).view_as(x)


def _other_colours(x: Tensor, generator: torch.Generator) -> Tensor:
    """Mix the channels of each picture by a random rotation around their mean."""
    n = x.shape[0] * x.shape[1]
    mixing = torch.linalg.qr(torch.randn(n, 3, 3, generator=generator))[0]
    centred = x.flatten(0, 1) - 0.5
    return (torch.einsum("nij,njhw->nihw", mixing, centred) + 0.5).clamp(0, 1).view_as(x)


def _edges(x: Tensor, generator: torch.Generator) -> Tensor:
    """Draw dark lines on paper where the grey level changes."""
    levels = _levels(x)
    kernel = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]])
    both = torch.stack([kernel, kernel.T]).unsqueeze(1)
    size = F.conv2d(F.pad(levels, (1, 1, 1, 1), mode="replicate"), both).norm(dim=1, keepdim=True)
    return _as_pictures(1 - (size / _quantile(size, 0.97)).clamp(max=1), x)


def _bilevel(x: Tensor, generator: torch.Generator) -> Tensor:
    """Leave black and white, as a copying machine does."""
    levels = _levels(x)
    return _as_pictures((levels > _quantile(levels, 0.5)).float(), x)


def _posterised(x: Tensor, generator: torch.Generator) -> Tensor:
    return (3 * x).round() / 3


# ---- quality


def _blurred(x: Tensor, generator: torch.Generator) -> Tensor:
    return _at_side(x, max(4, x.shape[-1] // 9))


def _coarse(x: Tensor, generator: torch.Generator) -> Tensor:
    """Make pixels as large as an eighth of a picture."""
    return F.interpolate(_small(x, 8), x.shape[-2:], mode="nearest").view_as(x)


def _noisy(x: Tensor, generator: torch.Generator) -> Tensor:
    return (x + 0.25 * torch.randn(x.shape, generator=generator)).clamp(0, 1)


def _pale(x: Tensor, generator: torch.Generator) -> Tensor:
    return 0.45 + 0.2 * x


def _covered(x: Tensor, generator: torch.Generator) -> Tensor:
    """Cover a random half of the fields of a 4 × 4 grid with grey."""
    mask = (torch.rand(*x.shape[:2], 4, 4, generator=generator) < 0.5).float().flatten(0, 1).unsqueeze(1)
    mask = F.interpolate(mask, x.shape[-2:], mode="nearest").view(*x.shape[:2], 1, *x.shape[-2:])
    return torch.lerp(x, torch.full_like(x, 0.5), mask)


# ---- layout


def _shuffled(fields: int) -> Shift:
    """Return the shift that puts the fields of a grid in another order, another one for each picture."""

    def shuffle(x: Tensor, generator: torch.Generator) -> Tensor:
        n, side = x.shape[0] * x.shape[1], x.shape[-1] // fields
        cut = x.flatten(0, 1)[..., : side * fields, : side * fields]
        pieces = F.unfold(cut, side, stride=side)  # [n, c · side², fields²]
        order = torch.rand(n, 1, fields**2, generator=generator).argsort(-1).expand_as(pieces)
        joined = F.fold(pieces.gather(-1, order), cut.shape[-2:], side, stride=side)
        return F.interpolate(joined, x.shape[-2:], mode="bilinear", align_corners=False).view_as(x)

    return shuffle


def _turned(x: Tensor, generator: torch.Generator) -> Tensor:
    """Turn each picture by a random angle."""
    angle = 2 * math.pi * torch.rand(x.shape[:2].numel(), generator=generator)
    return _affine(x, torch.cos(angle), torch.sin(angle), torch.zeros(len(angle), 2))


def _upside_down(x: Tensor, generator: torch.Generator) -> Tensor:
    return x.flip(-2)


def _close_up(x: Tensor, generator: torch.Generator) -> Tensor:
    """Cut a random window of two fifths of the side from each picture."""
    n = x.shape[:2].numel()
    where = 1.2 * torch.rand(n, 2, generator=generator) - 0.6
    return _affine(x, torch.full((n,), 0.4), torch.zeros(n), where)


def _far_away(x: Tensor, generator: torch.Generator) -> Tensor:
    """Show each picture at half its side, somewhere on white paper."""
    n = x.shape[:2].numel()
    where = 1.6 * torch.rand(n, 2, generator=generator) - 0.8
    return 1 - _affine(1 - x, torch.full((n,), 2.0), torch.zeros(n), where, padding="zeros")


def _warped(x: Tensor, generator: torch.Generator) -> Tensor:
    """Bend each picture smoothly."""
    n = x.shape[:2].numel()
    bend = F.interpolate(
        0.25 * torch.randn(n, 2, 4, 4, generator=generator), x.shape[-2:], mode="bicubic", align_corners=True
    )
    grid = F.affine_grid(torch.eye(2, 3).expand(n, 2, 3), [n, 1, *x.shape[-2:]], align_corners=False)
    return _sampled(x, grid + bend.movedim(1, -1))


# ---- content: other classes, or none of the classes' own


def _mixed(x: Tensor, generator: torch.Generator) -> Tensor:
    """Lay a random other picture over each one."""
    return torch.lerp(x, _others(x, generator), 0.5)


def _in_a_corner(x: Tensor, generator: torch.Generator) -> Tensor:
    """Show each picture in a quarter of another one, which has nothing to do with the class."""
    small = _small(x, x.shape[-1] // 2).view(*x.shape[:3], *([x.shape[-1] // 2] * 2))
    framed = _others(x, generator).clone()
    framed[..., : small.shape[-2], : small.shape[-1]] = small
    return framed


def _merged(x: Tensor, generator: torch.Generator) -> Tensor:
    """Make one class of three."""
    kept = len(x) // 3 * 3
    merged: Tensor = x[:kept].unflatten(0, (-1, 3)).transpose(1, 2).flatten(1, 2)[:, : x.shape[1]]
    return merged


def _split(x: Tensor, generator: torch.Generator) -> Tensor:
    """Make a class of each picture, whose members are views of it."""
    chosen = x[:, : max(1, 64 // len(x) + 1)].flatten(0, 1)[:64]
    views = chosen.unsqueeze(1).expand(-1, x.shape[1], -1, -1, -1)
    n = views.shape[:2].numel()
    where = 0.8 * torch.rand(n, 2, generator=generator) - 0.4
    angle = 0.5 * torch.randn(n, generator=generator)
    return _affine(views, 0.6 * torch.cos(angle), 0.6 * torch.sin(angle), where)


def _half_wrong(x: Tensor, generator: torch.Generator) -> Tensor:
    """Replace half of the pictures of each class by pictures of any class."""
    wrong = torch.rand(x.shape[:2], generator=generator) < 0.5
    return _others(x, generator).where(wrong[..., None, None, None], x)


def _drawn(looseness: float, strokes: int = 3, width: float = 0.07, inverted: bool = False) -> Shift:
    """Return the shift to drawings: a class is a few strokes, its members are drawn with a loose hand."""

    def draw(x: Tensor, generator: torch.Generator) -> Tensor:
        (C, m), shape = x.shape[:2], (strokes, 3, 2)  # three points make a stroke
        points = 1.6 * torch.rand(C, 1, *shape, generator=generator) - 0.8
        loose = points + looseness * torch.randn(C, m, *shape, generator=generator)
        t = torch.linspace(0, 1, 12).view(-1, 1)
        a, b, c = (loose[..., i, :].unsqueeze(-2) for i in range(3))
        path = (
            ((1 - t) ** 2 * a + 2 * t * (1 - t) * b + t**2 * c).flatten(2, 3).flatten(0, 1)
        )  # [n, points, 2]
        axis = torch.linspace(-1, 1, x.shape[-1])
        across, down = (-((axis - path[..., i, None]) ** 2) / width**2 for i in range(2))
        ink = (across.unsqueeze(-2) + down.unsqueeze(-1)).amax(1, keepdim=True).exp()  # [n, 1, h, w]
        return _as_pictures(ink if inverted else 1 - ink, x)

    return draw


def _woven(x: Tensor, generator: torch.Generator) -> Tensor:
    """Replace pictures by textures: a class is a direction, a width and a colour of stripes."""
    (C, m, c, _, _), axis = x.shape, torch.linspace(-1, 1, x.shape[-1])
    wave = torch.randn(C, 1, 2, generator=generator) * 9
    wave = wave + 2.5 * torch.randn(C, m, 2, generator=generator)
    phase = 6.3 * torch.rand(C, m, 1, 1, generator=generator)
    stripes = torch.sin(wave[..., 0, None, None] * axis.view(-1, 1) + wave[..., 1, None, None] * axis + phase)
    colour = torch.randn(C, 1, c, 1, 1, generator=generator) + torch.randn(C, m, c, 1, 1, generator=generator)
    noise = 0.1 * torch.randn(x.shape, generator=generator)
    return (0.5 + 0.2 * stripes.unsqueeze(2) + 0.12 * colour + noise).clamp(0, 1)


SHIFTS: dict[str, Shift] = {
    "home": lambda x, generator: x,
    "inverted": _inverted,
    "without colour": _without_colour,
    "other colours": _other_colours,
    "edges": _edges,
    "bilevel": _bilevel,
    "posterised": _posterised,
    "blurred": _blurred,
    "coarse": _coarse,
    "noisy": _noisy,
    "pale": _pale,
    "covered": _covered,
    "shuffled quarters": _shuffled(2),
    "shuffled pieces": _shuffled(6),
    "turned": _turned,
    "upside down": _upside_down,
    "close-up": _close_up,
    "far away": _far_away,
    "warped": _warped,
    "mixed": _mixed,
    "in a corner": _in_a_corner,
    "merged": _merged,
    "split": _split,
    "half wrong": _half_wrong,
    "drawn": _drawn(0.1),
    "drawn loosely": _drawn(0.3),
    "drawn with chalk": _drawn(0.2, strokes=2, inverted=True),
    "drawn with a pen": _drawn(0.2, strokes=5, width=0.04),
    "drawn with a brush": _drawn(0.2, width=0.15),
    "woven": _woven,
}
OF_COLOUR = {"without colour", "other colours"}


# ---- helpers


def _levels(x: Tensor) -> Tensor:
    """Return grey levels, [C, m, c, h, w] → [C · m, 1, h, w]."""
    flat = x.flatten(0, 1)
    return flat if flat.shape[1] == 1 else grey(flat)


def _as_pictures(levels: Tensor, like: Tensor) -> Tensor:
    return levels.expand(-1, like.shape[2], -1, -1).reshape(like.shape)


def _quantile(levels: Tensor, q: float) -> Tensor:
    return levels.flatten(1).quantile(q, dim=1).clamp_min(1e-3).view(-1, 1, 1, 1)


def _small(x: Tensor, side: int) -> Tensor:
    return F.interpolate(x.flatten(0, 1), (side, side), mode="bilinear", antialias=True, align_corners=False)


def _at_side(x: Tensor, side: int) -> Tensor:
    return F.interpolate(_small(x, side), x.shape[-2:], mode="bilinear", align_corners=False).view_as(x)


def _others(x: Tensor, generator: torch.Generator) -> Tensor:
    """Return a random picture in place of each one."""
    flat = x.flatten(0, 1)
    return flat[torch.randint(len(flat), (len(flat),), generator=generator)].view_as(x)


def _affine(x: Tensor, cos: Tensor, sin: Tensor, where: Tensor, padding: str = "reflection") -> Tensor:
    """Look at each of n = C · m pictures through a window at [n, 2], turned and scaled by cos, sin [n]."""
    theta = torch.stack([cos, -sin, where[:, 0], sin, cos, where[:, 1]], 1).view(-1, 2, 3)
    grid = F.affine_grid(theta, [len(theta), 1, *x.shape[-2:]], align_corners=False)
    return _sampled(x, grid, padding)


def _sampled(x: Tensor, grid: Tensor, padding: str = "reflection") -> Tensor:
    flat = x.flatten(0, 1)
    sampled = F.grid_sample(flat, grid, mode="bilinear", padding_mode=padding, align_corners=False)
    return sampled.view_as(x)


# ---- the measurement

CLASSES, PICTURES, SHOTS, TASKS = 30, 12, 5, 150


@torch.no_grad()
def log_temperatures(name: str) -> dict[str, float]:
    """Return log T that is best for 5-way tasks with five shots, by shift."""
    model, generator = FewShotModel.from_pretrained(name), torch.Generator().manual_seed(0)
    facts = model.preprocessing
    part = load_protocol(model.info["recipe"]["dataset"], size=facts.size).part("validation")
    ends = part.counts.cumsum()
    indices = [int(end - count) + i for end, count in zip(ends, part.counts) for i in range(PICTURES)]
    pixels = torch.from_numpy(part.read(np.array(indices[: CLASSES * PICTURES])))
    pictures = resized_images(pixels, facts).unflatten(0, (-1, PICTURES))
    found = {}
    for shift, change in shifts(facts.channels).items():
        changed = change(pictures, generator)
        images = standardise_(centre_crop(changed.flatten(0, 1).clone(), facts), facts)
        rows = torch.cat([model.represent(some) for some in images.split(32)]).unflatten(0, changed.shape[:2])
        found[shift] = math.log(_best_temperature(model, rows, generator))
        print(f"{shift:20} {found[shift]:6.2f}", flush=True)
    return found


def _best_temperature(model: FewShotModel, rows: Tensor, generator: torch.Generator) -> float:
    """Return the temperature that suits random tasks from features of classes [C, m, d]."""
    C, m, _ = rows.shape
    classes = torch.rand(TASKS, C, generator=generator).argsort(-1)[:, :5, None]
    pictures = torch.rand(TASKS, 5, m, generator=generator).argsort(-1)
    drawn, labels = rows[classes, pictures], torch.arange(5)  # [TASKS, 5, m, d]
    support = drawn[:, :, :SHOTS].flatten(1, 2)
    posterior = model.posterior(support, labels.repeat_interleave(SHOTS).expand(TASKS, -1), 5)
    log_prob = posterior.log_prob(drawn[:, :, SHOTS:].flatten(1, 2))
    return fit_temperature(log_prob.flatten(0, 1), labels.repeat_interleave(m - SHOTS).repeat(TASKS))


def main() -> None:
    """Measure a model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", metavar="MODEL")
    found = log_temperatures(parser.parse_args().model)
    differences = torch.tensor([value - found["home"] for name, value in found.items() if name != "home"])
    print(f"root mean square difference from home {differences.clamp(-3, 3).square().mean().sqrt():.2f}")


if __name__ == "__main__":
    main()
