"""HTML pages, each one self-contained file."""

import base64
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from PIL import Image

from gpldla.utils.files import write_atomically


@dataclass(frozen=True)
class DrawnQuery:
    """One query of a drawn episode: its picture, the index of its class, and all probabilities."""

    image: np.ndarray  # uint8 [1, h, w]
    truth: int
    probabilities: np.ndarray  # [ways]


@dataclass(frozen=True)
class DrawnEpisode:
    """An episode to be shown: its support images per class, and some of its queries."""

    title: str
    class_names: list[str]
    support: list[list[np.ndarray]]  # per class, its images
    queries: list[DrawnQuery]


def write_demo_report(path: Path, facts: dict[str, Any]) -> None:
    """Write the page of the demo."""
    _write_page(path, "demo.html", facts)


def write_comparison_report(path: Path, facts: dict[str, Any]) -> None:
    """Write the page of the comparison."""
    _write_page(path, "compare.html", facts)


def write_fit_report(path: Path, facts: dict[str, Any]) -> None:
    """Write the page of a fitted classifier."""
    _write_page(path, "fit.html", facts)


def write_answers_report(path: Path, facts: dict[str, Any]) -> None:
    """Write the page of answers for new items."""
    _write_page(path, "predict.html", facts)


def _write_page(path: Path, template: str, facts: dict[str, Any]) -> None:
    environment = Environment(
        loader=PackageLoader("gpldla.reports"),
        autoescape=select_autoescape(),
        undefined=StrictUndefined,  # a missing fact is an error, not a gap in the page
        trim_blocks=True,
    )
    environment.filters["picture"] = picture_uri
    page = environment.get_template(template).render(facts)
    write_atomically(path, page.encode())


def picture_uri(image: np.ndarray) -> str:
    """Encode uint8 [1, h, w] as a data URI."""
    buffer = io.BytesIO()
    Image.fromarray(image[0]).save(buffer, format="PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
