"""Contact sheets: one picture that shows what a data set looks like."""

from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from gpldla.data.store import ImageSet

BACKGROUND = (238, 238, 238)
DARK, GREY = (34, 34, 34), (102, 102, 102)
CELL = 56  # pixels a picture is enlarged to, about
GAP = 6
MARGIN = 20
LABEL_SIZE, TITLE_SIZE = 15, 20


def contact_sheet(
    image_set: ImageSet,
    *,
    classes: int = 12,
    samples: int = 12,
    seed: int = 0,
    scale: int | None = None,
) -> Image.Image:
    """Show `classes` classes, evenly spread over the set, one a row, with `samples` random images each.

    A class with fewer images leaves the rest of its row empty. `scale` enlarges the images; None
    brings small ones to a size that is easy to look at.
    """
    height, width = image_set.images.shape[2:]
    if scale is None:
        scale = max(1, round(CELL / height))
    cell_width, cell_height = width * scale + GAP, height * scale + GAP
    n_classes = len(image_set.class_names)
    rows = np.unique(np.linspace(0, n_classes - 1, min(classes, n_classes)).round().astype(int))

    label_font, title_font = _font(LABEL_SIZE), _font(TITLE_SIZE)
    title = image_set.name
    facts = f"{n_classes:,} classes, {len(image_set.images):,} images"
    label_width = int(max(label_font.getlength(image_set.class_names[row]) for row in rows)) + 2 * GAP
    facts_left = MARGIN + int(title_font.getlength(title)) + 2 * GAP
    facts_right = facts_left + int(label_font.getlength(facts))
    left, top = MARGIN + label_width, MARGIN + 2 * TITLE_SIZE
    sheet_width = max(left + samples * cell_width - GAP, facts_right) + MARGIN
    sheet_height = top + len(rows) * cell_height - GAP + MARGIN
    sheet = Image.new("RGB", (sheet_width, sheet_height), BACKGROUND)

    draw = ImageDraw.Draw(sheet)
    baseline = MARGIN + TITLE_SIZE
    draw.text((MARGIN, baseline), title, fill=DARK, font=title_font, anchor="ls")
    draw.text((facts_left, baseline), facts, fill=GREY, font=label_font, anchor="ls")
    rng = np.random.default_rng(seed)
    for place, row in enumerate(rows):
        y = top + place * cell_height
        middle = y + (cell_height - GAP) // 2
        draw.text((MARGIN, middle), image_set.class_names[row], fill=DARK, font=label_font, anchor="lm")
        count = int(image_set.counts[row])
        chosen = np.sort(rng.permutation(count)[:samples]) + image_set.offsets[row]
        for column, index in enumerate(chosen):
            sheet.paste(_picture(image_set.images[index], scale), (left + column * cell_width, y))
    return sheet


def _picture(image: np.ndarray, scale: int) -> Image.Image:
    """Turn uint8 [1 or 3, height, width] to a picture `scale` times as large."""
    picture = Image.fromarray(np.broadcast_to(image.transpose(1, 2, 0), (*image.shape[1:], 3)).copy())
    return picture.resize((picture.width * scale, picture.height * scale), Image.Resampling.LANCZOS)


def _font(size: int) -> ImageFont.FreeTypeFont:
    """Return DejaVu Sans, which matplotlib ships and which has the letters of all our class names."""
    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
    return ImageFont.truetype(str(path), size)
