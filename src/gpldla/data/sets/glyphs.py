"""The data set `glyphs`: letters of six scripts, drawn from the fonts that come with matplotlib.

It needs no download, and it is a real few-shot problem: the letters of the novel scripts are never seen in
training, and `groups` are the font families, so that support and query can come from different ones.
matplotlib has Armenian, Georgian and Lao in DejaVu alone, so for validation and novel classes the families
are DejaVu Sans, Sans Mono and Serif.
"""

import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.ft2font import FT2Font
from PIL import Image, ImageDraw, ImageFont, ImageOps

from gpldla.data.sets.base import BundledSet, register_dataset
from gpldla.data.store import ImageSet, image_set_from_classes
from gpldla.utils.errors import UserError

# Scripts that share letters (A is Latin, Greek and Cyrillic) stay in one part.
SCRIPTS_OF_PART: dict[str, tuple[str, ...]] = {
    "base": ("Latin", "Greek", "Cyrillic"),
    "validation": ("Armenian",),
    "novel": ("Georgian", "Lao"),
}
SCRIPTS = tuple(script for scripts in SCRIPTS_OF_PART.values() for script in scripts)

# Slants and weights of one design are siblings: their images form one group.
FAMILIES: dict[str, tuple[str, ...]] = {
    "DejaVu Sans": ("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique"),
    "DejaVu Sans Mono": (
        "DejaVuSansMono",
        "DejaVuSansMono-Bold",
        "DejaVuSansMono-Oblique",
        "DejaVuSansMono-BoldOblique",
    ),
    "DejaVu Serif": ("DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "DejaVuSerif-BoldItalic"),
    "STIX": ("STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "STIXGeneralBolIta"),
    "Computer Modern": ("cmr10", "cmb10", "cmss10", "cmti10", "cmtt10"),
}
# Letters that look alike in one of these are one class.
REFERENCE_FONTS = ("DejaVuSans", "DejaVuSansMono", "DejaVuSerif")

# What the images depend on. Lengths are pixels of the finished image, angles are degrees.
SETTINGS: dict[str, Any] = {
    "version": 1,  # increase it when anything else in this file changes the images
    "seed": 0,
    "size": 32,
    "variants_a_font": 4,
    "fonts_a_class": 8,  # at least; a test on one family of 4 then leaves 16 images to learn from
    "rotation": 10.0,
    "shear": 0.15,
    "half_extent": (10.0, 12.5),  # centre of the ink to its farthest side ...
    "shift": 1.5,  # ... which with the shift is 14: a centre crop to 28 pixels never cuts the ink
    "same_shape": 0.01,  # share of stray ink up to which two letters have one shape
    # Unicode has a thousand accented letters, most of them alike at this size: none of the later blocks.
    "accented_letters_below": 0x0530,
}

FONT_SIZE = 64  # letters are drawn at about twice the size they end up with, then reduced
OVERSAMPLING = 2
BORDER = 2  # black pixels around the ink, from which slanted edges get their smoothness


class Font:
    """One font file: its letters and their drawings."""

    def __init__(self, file_name: str, family: int) -> None:
        path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{file_name}.ttf"
        if not path.exists():
            raise UserError(
                f"The data set glyphs needs {path}, which matplotlib ships; reinstall matplotlib."
            )
        self.family = family
        self._characters = set(FT2Font(str(path)).get_charmap())
        if file_name.startswith("cm"):  # beyond ASCII their tables hold TeX's symbols at Latin code points
            self._characters = {code for code in self._characters if code < 128}
        # The basic layout engine: the other one, Raqm, is not in every build of Pillow.
        self._face = ImageFont.truetype(str(path), FONT_SIZE, layout_engine=ImageFont.Layout.BASIC)

    def has(self, letter: str) -> bool:
        """Return whether the font has a drawing of `letter`."""
        return ord(letter) in self._characters

    def ink(self, letter: str) -> Image.Image:
        """Draw `letter` bright on black, cropped to its ink and a border."""
        left, top, right, bottom = self._face.getbbox(letter)
        image = Image.new("L", (int(right - left) + 4, int(bottom - top) + 4))  # the box is not always exact
        ImageDraw.Draw(image).text((2 - left, 2 - top), letter, fill=255, font=self._face)
        return ImageOps.expand(image.crop(image.getbbox()), BORDER)


def make() -> ImageSet:
    """Draw the whole set: uint8 images [n, 1, 32, 32], dark ink on light paper, by script and code point."""
    fonts = [Font(name, family) for family, names in enumerate(FAMILIES.values()) for name in names]
    covered = [x for x in _candidates() if sum(font.has(x) for font in fonts) >= SETTINGS["fonts_a_class"]]
    letters = sorted(_distinct(covered), key=lambda letter: (SCRIPTS.index(script_of(letter)), letter))
    images, groups = [], []
    for letter in letters:
        owners = [font for font in fonts if font.has(letter)]
        images.append(_variants(letter, owners))
        groups.append(np.repeat([font.family for font in owners], SETTINGS["variants_a_font"]))
    return image_set_from_classes("glyphs", [f"{script_of(x)} {x}" for x in letters], images, groups)


@register_dataset
class Glyphs(BundledSet):
    """Split by script, so that the scripts of the novel part were never seen."""

    name = "glyphs"
    default_size = 28
    drawing = SETTINGS

    def make(self) -> ImageSet:
        """Draw all letters."""
        return make()

    def parts(self, class_names: Sequence[str]) -> dict[str, tuple[int, ...]]:
        """Assign classes by the script in their names."""
        script_of_class = [name.split()[0] for name in class_names]
        return {
            part: tuple(index for index, script in enumerate(script_of_class) if script in scripts)
            for part, scripts in SCRIPTS_OF_PART.items()
        }


def script_of(letter: str) -> str:
    """Return the script of `letter`, the first word of its Unicode name: "Latin", "Georgian" ..."""
    return unicodedata.name(letter, "none").split()[0].capitalize()


def _candidates() -> list[str]:
    """Return the letters of our scripts by preference: plain ones, by script, then accented ones."""
    letters = [chr(code) for code in range(0x10000) if _is_candidate(chr(code))]
    return sorted(letters, key=lambda x: (unicodedata.decomposition(x) != "", SCRIPTS.index(script_of(x)), x))


def _is_candidate(letter: str) -> bool:
    if unicodedata.category(letter) not in ("Lu", "Ll", "Lo") or script_of(letter) not in SCRIPTS:
        return False
    decomposition = unicodedata.decomposition(letter)
    if decomposition.startswith("<") or "LIGATURE" in unicodedata.name(letter):  # "<": a variant, such as ſ
        return False
    return not decomposition or ord(letter) < SETTINGS["accented_letters_below"]


def _distinct(letters: list[str]) -> list[str]:
    """Keep of each shape the first letter: one of A, Α and А, and one of x and X, for size is normalised.

    Letters with one shape in any of the reference fonts count as the same.
    """
    same = np.zeros((len(letters), len(letters)), dtype=bool)
    for font in (Font(name, family=0) for name in REFERENCE_FONTS):
        present = np.array([index for index, letter in enumerate(letters) if font.has(letter)])
        distances = shape_distances([font.ink(letters[index]) for index in present])
        same[np.ix_(present, present)] |= distances <= SETTINGS["same_shape"]
    kept: list[int] = []
    for index in range(len(letters)):
        if not same[index, kept].any():
            kept.append(index)
    return [letters[index] for index in kept]


def shape_distances(inks: list[Image.Image], size: int = 48, tolerance: int = 2) -> np.ndarray:
    """Compare shapes pairwise: the share of ink farther than `tolerance` pixels from the other's ink.

    Weight and small misfits do not count, a hook or a bar does. Returns float32 [n, n], symmetric.
    """
    none, half_extent = np.zeros((1, 2)), np.full(1, 0.42 * size)  # no slant, no shift
    placed = [_place(ink, none, half_extent, none, size)[0] for ink in inks]
    ink_of = np.stack(placed) > 100  # bool [n, size, size]
    near = ink_of.copy()
    for axis in (1, 2):
        steps = range(-tolerance, tolerance + 1)
        near = np.any([np.roll(near, step, axis) for step in steps], axis=0)  # the margin keeps edges apart
    ink_flat = ink_of.reshape(len(inks), -1).astype(np.float32)
    far_flat = (~near).reshape(len(inks), -1).astype(np.float32)
    stray = ink_flat @ far_flat.T / ink_flat.sum(axis=1, keepdims=True)
    distances: np.ndarray = np.maximum(stray, stray.T)
    return distances


def _variants(letter: str, fonts: list[Font]) -> np.ndarray:
    """Draw `letter` in each font with small random changes, uint8 [n_fonts * variants, 1, size, size]."""
    # One generator per letter: its images do not depend on the other letters of the set.
    rng = np.random.default_rng([SETTINGS["seed"], ord(letter)])
    n, size = SETTINGS["variants_a_font"], SETTINGS["size"]
    smallest, largest = SETTINGS["half_extent"]
    images = []
    for font in fonts:
        slant = rng.uniform(-1, 1, (n, 2)) * [np.deg2rad(SETTINGS["rotation"]), SETTINGS["shear"]]
        half_extent = rng.uniform(smallest, largest, n)
        shift = rng.uniform(-1, 1, (n, 2)) * SETTINGS["shift"]
        images.append(_place(font.ink(letter), slant, half_extent, shift, size))
    return 255 - np.concatenate(images)[:, None]


def _place(
    ink: Image.Image, slant: np.ndarray, half_extent: np.ndarray, shift: np.ndarray, size: int
) -> np.ndarray:
    """Map the ink's box, slanted and scaled, to the middle of square images.

    ink:         bright on black, cropped to its box and a border
    slant:       [n, 2] rotation in radians and shear
    half_extent: [n] middle to the farthest side of the slanted box, in pixels
    shift:       [n, 2] of the box's middle, in pixels

    Returns uint8 [n, size, size], bright ink on black.
    """
    cos, sin, shear = np.cos(slant[:, 0]), np.sin(slant[:, 0]), slant[:, 1]
    forward = np.stack([cos, cos * shear - sin, sin, sin * shear + cos], axis=1).reshape(-1, 2, 2)
    source_middle = np.array(ink.size) / 2
    scale = half_extent / (np.abs(forward) @ (source_middle - BORDER)).max(axis=1)
    # Pillow asks where in the source each target pixel comes from, hence the inverse.
    backward = np.linalg.inv(forward * scale[:, None, None] * OVERSAMPLING)
    middle = (size / 2 + shift) * OVERSAMPLING
    offset = source_middle - np.einsum("nij,nj->ni", backward, middle)
    large = (size * OVERSAMPLING, size * OVERSAMPLING)
    images = []
    # Rounded, so that the last bits of one machine's linear algebra never become grey levels.
    for six in np.concatenate([backward, offset[:, :, None]], axis=2).reshape(-1, 6).round(6).tolist():
        placed = ink.transform(large, Image.Transform.AFFINE, six, Image.Resampling.BICUBIC)
        images.append(np.asarray(placed.reduce(OVERSAMPLING)))
    return np.stack(images)
