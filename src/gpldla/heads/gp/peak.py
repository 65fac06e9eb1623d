"""The maximum of a function that is known on an even grid."""

from torch import Tensor


def parabola_peak(score: Tensor, at: Tensor) -> Tensor:
    """Return where the parabola through the largest score [..., k] and its neighbours peaks: [...]."""
    middle = score.argmax(-1, keepdim=True).clamp(1, score.shape[-1] - 2)
    left, centre, right = (score.gather(-1, middle + offset).squeeze(-1) for offset in (-1, 0, 1))
    bend = (left - 2 * centre + right).clamp(max=-1e-9)
    offset = (0.5 * (left - right) / bend).clamp(-1, 1)
    peak: Tensor = at.gather(-1, middle).squeeze(-1) + offset * (at[..., 1] - at[..., 0])
    return peak
