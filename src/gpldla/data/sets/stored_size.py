"""How large images are stored, by the input size of the backbone that will see them.

Training cuts boxes of down to 8 % of the area out of photographs, so what is stored must be larger than the
input. How much larger was measured on CUB's validation classes: docs/data.md.
"""

from gpldla.data.preprocessing import resized_side

ROOM = 1.9  # stored side over input side, about
STEP = 16  # stored sides are multiples of it, which is what memory is fastest with
LARGEST_SIDE = 384  # about the shorter side of the photographs in these sets: more would only enlarge them


def photograph_side(size: int) -> int:
    """Return the stored side for photographs, which training crops at random: 160 for 84, 384 for 224."""
    return max(resized_side(size), min(STEP * round(size * ROOM / STEP), LARGEST_SIDE))
