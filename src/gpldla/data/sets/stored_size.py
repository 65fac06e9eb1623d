"""The side of stored images, by the input size of the backbone that will see them.

Training crops boxes of down to 8 % of the area out of photographs, so stored images must be larger than the
input. How much larger was measured on CUB's validation classes: docs/data.md.
"""

from gpldla.data.preprocessing import resized_side

STORED_OVER_INPUT = 1.9  # ratio of the sides, about
STEP = 16  # stored sides are multiples of this, for aligned memory access
LARGEST_SIDE = 384  # about the shorter side of the photographs in these sets: enlarging gains nothing


def photograph_side(size: int) -> int:
    """Return the stored side for photographs, which training crops at random: 160 for 84, 384 for 224."""
    return max(resized_side(size), min(STEP * round(size * STORED_OVER_INPUT / STEP), LARGEST_SIDE))
