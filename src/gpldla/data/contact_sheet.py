"""Contact sheets: one picture with samples of a data set."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from gpldla.data.store import ImageSet

BACKGROUND = (238, 238, 238)
DARK, GREY = (34, 34, 34), (102, 102, 102)
SMALL_CELL, LARGE_CELL = 56, 88  # pixels of a picture's longer side, for characters and for photographs
GAP = 6
MARGIN = 20
LABEL_SIZE, TITLE_SIZE = 15, 20
LONGEST_LABEL = 36  # letters


@dataclass(frozen=True)
class Section:
    """Some classes of an image set under a title, such as the part of a protocol."""

    title: str
    image_set: ImageSet
    classes: Sequence[int]

    @property
    def facts(self) -> str:
        """Numbers of classes and images, as text."""
        images = int(self.image_set.counts[list(self.classes)].sum())
        return f"{len(self.classes):,} classes, {images:,} images"


def contact_sheet(
    name: str, sections: Sequence[Section], *, classes: int = 12, samples: int = 12, seed: int = 0
) -> Image.Image:
    """Show in each section `classes` classes, evenly spread, one per row, with `samples` random images each.

    A class with fewer images leaves the rest of its row empty. Pictures have the shape that they had before
    they were stored as squares.
    """
    small = all(max(section.image_set.images.shape[2:]) <= SMALL_CELL for section in sections)
    cell = SMALL_CELL if small else LARGE_CELL
    label_font, title_font = _font(LABEL_SIZE), _font(TITLE_SIZE)
    rows = [(section, _spread(section.classes, classes)) for section in sections]
    labels = [_label(section.image_set.class_names[c]) for section, chosen in rows for c in chosen]
    titles = [f"{name} {section.title}".strip() for section in sections]
    left = MARGIN + int(max(label_font.getlength(label) for label in labels)) + 2 * GAP
    facts_left = MARGIN + int(max(title_font.getlength(title) for title in titles)) + 2 * GAP
    facts_width = int(max(label_font.getlength(section.facts) for section in sections))
    sheet_width = max(left + samples * (cell + GAP) - GAP, facts_left + facts_width) + MARGIN
    heading = 2 * TITLE_SIZE
    heights = [heading + len(chosen) * (cell + GAP) - GAP + MARGIN for _, chosen in rows]
    sheet = Image.new("RGB", (sheet_width, MARGIN + sum(heights)), BACKGROUND)

    draw = ImageDraw.Draw(sheet)
    rng = np.random.default_rng(seed)
    top = MARGIN
    for (section, chosen), title, height in zip(rows, titles, heights):
        draw.text((MARGIN, top + TITLE_SIZE), title, fill=DARK, font=title_font, anchor="ls")
        draw.text((facts_left, top + TITLE_SIZE), section.facts, fill=GREY, font=label_font, anchor="ls")
        for row, class_index in enumerate(chosen):
            y = top + heading + row * (cell + GAP)
            label = _label(section.image_set.class_names[class_index])
            draw.text((MARGIN, y + cell // 2), label, fill=DARK, font=label_font, anchor="lm")
            for column, picture in enumerate(_pictures(section.image_set, class_index, samples, cell, rng)):
                x = left + column * (cell + GAP)
                sheet.paste(picture, (x + (cell - picture.width) // 2, y + (cell - picture.height) // 2))
        top += height
    return sheet


def _spread(classes: Sequence[int], wanted: int) -> list[int]:
    """Choose some of the classes, evenly spread."""
    indices = np.linspace(0, len(classes) - 1, min(wanted, len(classes))).round().astype(int)
    return [classes[index] for index in np.unique(indices)]


def _label(class_name: str) -> str:
    # Names of folders may contain line breaks and bytes that are not UTF-8.
    name = " ".join(class_name.replace("_", " ").split()).encode("utf-8", "replace").decode()
    return name if len(name) <= LONGEST_LABEL else name[: LONGEST_LABEL - 1] + "…"


def _pictures(
    image_set: ImageSet, class_index: int, samples: int, cell: int, rng: np.random.Generator
) -> list[Image.Image]:
    """Return random images of a class, each as large as the cell allows in its own shape."""
    chosen = np.sort(rng.permutation(int(image_set.counts[class_index]))[:samples])
    indices = chosen + image_set.offsets[class_index]
    squares = np.broadcast_to(
        image_set.read(indices).transpose(0, 2, 3, 1), (len(indices), *image_set.images.shape[2:], 3)
    )
    shapes = [squares.shape[1:3]] * len(indices) if image_set.shapes is None else image_set.shapes[indices]
    pictures = []
    for square, (height, width) in zip(squares, shapes):
        scale = cell / max(height, width)
        size = (max(1, round(width * scale)), max(1, round(height * scale)))
        pictures.append(Image.fromarray(square.copy()).resize(size, Image.Resampling.LANCZOS))
    return pictures


def _font(size: int) -> ImageFont.FreeTypeFont:
    """Return DejaVu Sans, which matplotlib ships and which has the letters of all bundled class names."""
    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
    return ImageFont.truetype(str(path), size)
