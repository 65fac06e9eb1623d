"""How well a row fits a known class, compared with being of a class that nobody has seen.

In the space of a task let class means be N(0, ρv I) and examples of a class N(its mean, (1 − ρ)v I): the
two-covariance model of probabilistic LDA. Given the mean m of N examples of a class, its true mean is likely
near s·m, s = Nρ / (1 + (N − 1)ρ), a new row of it is N(s·m, (1 − ρs)v I), one of an unseen class N(0, v I).
Twice their log ratio, per dimension, is, with v now the mean squared length,

    fit_j(x) = −log(1 − ρs_j) + (2s_j x·m_j − s_j²‖m_j‖² − ρs_j‖x‖²) / (v(1 − ρs_j))

So a row far from the centre is not taken for a known class because it lies in the right direction, as it is
with a cosine: with ρ near 1 the fit is minus the squared distance to the nearest class, and with ρ near 0 an
inner product. Rows are not scaled to unit length in this space; lengths are what tells.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from gpldla.heads.base import KnownClasses, NoveltyScores
from gpldla.heads.gp.leave_one_out import LeftOutProducts, left_out_products
from gpldla.heads.gp.strangers import effective_shots, likeness_of_single_examples
from gpldla.heads.gp.task_space import TaskSpace, class_means, positive

# ρ, chosen with one, two and five examples per class on 36 kinds of features; without a kind it is the same.
CLASS_SHARE = 0.6
MAX_FOLDS = 10  # groups of classes that are left out in turn
MIN_CLASSES = 3  # with fewer, no class is left to compare a left-out class with
# Of three unrelated rows of length 1, around the centre of two and whitened by these, ‖x‖² is 3/2, ‖m‖² 1/4,
# v 1/2, and s is ρ. That is the fit of the third to the other two.
FIT_OF_UNRELATED = -math.log(1 - CLASS_SHARE**2) - CLASS_SHARE**2 * (1 / 4 + 3 / 2) * 2 / (1 - CLASS_SHARE**2)
# Of two classes with more examples none can be left out either. Rows of other classes then have much the same
# fit in all 15 domains in which it was measured: its mean, for N examples per class, and its deviation.
MEAN_FIT_OF_OTHERS, PER_DOUBLED_SHOTS, DEVIATION_OF_OTHERS = -0.5, -0.1, 0.35
MOST_SHOTS = 32.0  # for which the mean is extrapolated


def novelty_scores(
    rows: Tensor,
    member: Tensor,
    kept: Tensor | None,
    *,
    fit_space: Callable[[Tensor, Tensor], TaskSpace],
    before_space: Callable[[Tensor], Tensor],
    centred: bool,
    whiten: bool,
) -> NoveltyScores:
    """Return the fits of left-out examples [n, d], rooted already, with member [n, C].

    Known ones are empty where all classes have single examples, and unknown ones, without a centre, where
    there are two classes.
    kept: the examples that are left out in turn, of which the task then consists; None: all
    fit_space: finds the space of a task; before_space: what its rows are before they are centred and whitened
    """
    classes = some = known_classes(fit_space(rows, member)(rows), member, centred=centred)
    if kept is not None:
        rows, member = rows[kept], member[kept]
        some = known_classes(fit_space(rows, member)(rows), member, centred=centred)
    z, weight = before_space(rows), member.sum(-1)
    products = left_out_products(z, member, recentre=centred, whiten=whiten, whole=centred)
    counted = products.left > 0
    known = fit_of_left_out(products, member, some, centred=centred)[counted]
    unknown, unknown_weight = fit_without_class(rows, member, fit_space, centred=centred)
    unit = 1.0
    if not len(known):
        unit = likeness_of_single_examples(z, member, whiten=whiten).sqrt().item()
    return NoveltyScores(known, unknown, weight[counted], unknown_weight, unit, classes)


def known_classes(z: Tensor, member: Tensor, *, centred: bool) -> KnownClasses:
    """Return what rows are compared with: examples [..., n, d] in the task's space, member [..., n, C]."""
    shots = effective_shots(member) if centred else member.sum(-2)
    weight, n_present = member.sum(-1), (shots > 0).sum(-1)
    # Around their own centre C unrelated rows have 1 − 1/C of their squared length.
    lost = (1 - 1 / n_present).clamp_min(0.5) if centred else torch.ones_like(weight[..., 0])
    spread = (z.square().sum(-1) * weight).sum(-1) / weight.sum(-1) / lost
    return KnownClasses(class_means(z, member), _shrinkage(shots), spread)


def class_fit(z: Tensor, classes: KnownClasses) -> Tensor:
    """Return the fit of rows in the task's space to the class that they fit best, [..., q, d] → [..., q]."""
    s = classes.shrink.unsqueeze(-2)
    means = classes.means
    fit = _fit(z @ means.mT, means.square().sum(-1).unsqueeze(-2), z.square().sum(-1), s, classes.spread)
    return (fit - (1 - CLASS_SHARE * s).log()).masked_fill(s == 0, -torch.inf).amax(-1)


def fit_of_left_out(
    products: LeftOutProducts, member: Tensor, classes: KnownClasses, *, centred: bool
) -> Tensor:
    """Return the fit of each example [n] to the classes without it; −inf if there is none.

    Its class has one example less, which is no handicap as each class has the same −log(1 − ρs) as with all.
    """
    own, left = (member > 0).to(member.dtype), products.left
    if centred:  # effective numbers, see `effective_shots`
        squares = (own @ member.square().sum(-2).unsqueeze(-1)).squeeze(-1) - member.sum(-1).square()
        left = left.square() / positive(squares)
    fewer = _shrinkage(left) * (products.left > 0)
    s = torch.where(own > 0, fewer.unsqueeze(-1), classes.shrink)
    fit = _fit(products.dots, products.mean_norm2, products.norm2, s, classes.spread)
    fit = fit - (1 - CLASS_SHARE * classes.shrink).log()
    return fit.masked_fill(s == 0, -torch.inf).amax(-1)


def fit_without_class(
    rows: Tensor,
    member: Tensor,
    fit_space: Callable[[Tensor, Tensor], TaskSpace],
    *,
    centred: bool,
) -> tuple[Tensor, Tensor]:
    """Return the fit of examples [n, d] to a task without their class, and their weights.

    Of two classes none can be left out; instead there are fits that rows of other classes usually have.
    """
    present = torch.nonzero(member.sum(-2) > 0).flatten()
    weight, fits, weights = member.sum(-1), [rows.new_empty(0)], [rows.new_empty(0)]
    folds = present.tensor_split(min(MAX_FOLDS, len(present))) if len(present) >= MIN_CLASSES else ()
    for fold in folds:
        out = (member[:, fold] > 0).any(-1)
        space = fit_space(rows[~out], member[~out])
        rest = known_classes(space(rows[~out]), member[~out], centred=centred)
        fits.append(class_fit(space(rows[out]), rest))
        weights.append(weight[out])
    if centred and len(present) == 2:
        fits = [fits_of_others(effective_shots(member)[present].mean().item()).to(rows)]
        weights = [torch.ones_like(fits[0])]
    return torch.cat(fits), torch.cat(weights)


def fits_of_others(shots: float) -> Tensor:
    """Return the fits that rows of other classes usually have to two classes with so many examples each."""
    if shots == 1:
        return torch.tensor([FIT_OF_UNRELATED])
    mean = MEAN_FIT_OF_OTHERS + PER_DOUBLED_SHOTS * math.log2(min(shots, MOST_SHOTS))
    return torch.tensor([mean - DEVIATION_OF_OTHERS, mean + DEVIATION_OF_OTHERS])


def _shrinkage(shots: Tensor) -> Tensor:
    """Return s of classes with so many examples; 0 for none."""
    return shots * CLASS_SHARE / (1 + (shots - 1) * CLASS_SHARE).clamp_min(1e-9)


def _fit(dots: Tensor, mean_norm2: Tensor, norm2: Tensor, s: Tensor, spread: Tensor) -> Tensor:
    """Return the part of the fit that depends on the row, [..., q, C]; norm2 [..., q], spread [...]."""
    odds = 2 * s * dots - s.square() * mean_norm2 - CLASS_SHARE * s * norm2.unsqueeze(-1)
    return odds / (1 - CLASS_SHARE * s) / positive(spread)[..., None, None]
