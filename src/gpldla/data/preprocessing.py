"""What images and texts are turned into before a network sees them; the facts are stored with its weights."""

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from gpldla.utils.errors import UserError

Reads = Literal["pictures", "texts"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
INTERPOLATIONS = ("bilinear", "bicubic")
READINGS = (1, 2)  # versions of how picture files are decoded; a file without one was made with the first
ZOOM = 1.15  # the usual enlargement of images before the centre crop


def resized_side(size: int, zoom: float = ZOOM) -> int:
    """Return the side of an image before the centre crop: 96 for 84, 32 for 28, 257 for 224."""
    return int(size * zoom)


@dataclass(frozen=True, kw_only=True)
class ImageSettings:
    """The part of the preprocessing that a recipe may choose.

    A field that is added here becomes a setting of recipes and an argument of `FewShotModel`. Where it is not
    the default, models and classifiers store it, and features are cached separately.

    zoom:          images are resized to zoom × the input size of the network, which then sees the centre
    mirrored:      outside of training, features are the mean of those of an image and of its mirror image
    interpolation: with which images are resized, "bilinear" or "bicubic", both antialiased
    reading:       version of how picture files are decoded: 1 decodes all pixels, 2 decodes large JPEGs at a
                   reduced scale, see `gpldla.data.decoding.read_square`
    """

    zoom: float = ZOOM
    mirrored: bool = False
    interpolation: str = "bilinear"
    reading: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.zoom, bool) or not isinstance(self.zoom, (int, float)) or not 1 <= self.zoom <= 2:
            raise UserError(f"zoom must be a number from 1 to 2, not {self.zoom!r}.")
        if not isinstance(self.mirrored, bool):
            raise UserError(f"mirrored must be true or false, not {self.mirrored!r}.")
        if self.interpolation not in INTERPOLATIONS:
            words = " or ".join(INTERPOLATIONS)
            raise UserError(f"interpolation must be {words}, not {self.interpolation!r}.")
        if isinstance(self.reading, bool) or self.reading not in READINGS:
            raise UserError(f"reading must be 1 or 2, not {self.reading!r}.")

    def unusual_settings(self) -> dict[str, Any]:
        """Return the settings that are not the default."""
        values = {field.name: (getattr(self, field.name), field.default) for field in fields(ImageSettings)}
        return {name: value for name, (value, default) in values.items() if value != default}

    @staticmethod
    def settings_in(facts: dict[str, Any]) -> dict[str, Any]:
        """Return the settings among the facts of a config.json."""
        return {field.name: facts[field.name] for field in fields(ImageSettings) if field.name in facts}


@dataclass(frozen=True)
class Preprocessing(ImageSettings):
    """What images must be turned into before a backbone sees them; stored with the weights.

    Images are resized on both sides, cropped at the centre to size × size pixels, and standardised with one
    mean and one standard deviation per channel.

    before_crop: side of the image before the crop, instead of zoom × size
    keep_aspect: the shorter side of a picture becomes that side, and what is beyond a square is cut off;
                 otherwise the picture is stretched to a square
    """

    size: int
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    before_crop: int | None = None
    keep_aspect: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.before_crop is not None and self.before_crop < self.size:
            raise UserError(
                f"before_crop must be at least the size, {self.size} pixels, not {self.before_crop}."
            )

    def as_json(self) -> dict[str, object]:
        """Return the facts for a model's config.json; settings are left out where they are the default."""
        facts: dict[str, object] = {
            "size": self.size,
            "channels": self.channels,
            "mean": list(self.mean),
            "std": list(self.std),
        }
        if self.before_crop is not None:
            facts["before_crop"] = self.before_crop
        if self.keep_aspect:
            facts["keep_aspect"] = True
        return facts | self.unusual_settings()

    @property
    def resized(self) -> int:
        """Side of the image before the centre crop."""
        return resized_side(self.size, self.zoom) if self.before_crop is None else self.before_crop

    @property
    def margin(self) -> int:
        """Pixels that the centre crop leaves out at the left and at the top."""
        return (self.resized - self.size) // 2

    def with_size(self, size: int) -> "Preprocessing":
        """Return the same for another input size; what is cropped away stays the same share."""
        before = None if self.before_crop is None else round(self.before_crop * size / self.size)
        return replace(self, size=size, before_crop=before)

    def with_settings(self, settings: dict[str, Any]) -> "Preprocessing":
        """Return the same with other values of `ImageSettings`."""
        base = replace(self, before_crop=None) if "zoom" in settings else self
        return replace(base, **settings)


@dataclass(frozen=True)
class TextPreprocessing:
    """What texts are truncated to before a backbone sees them."""

    max_tokens: int

    def as_json(self) -> dict[str, object]:
        """Return the facts for a model's config.json."""
        return {"max_tokens": self.max_tokens}
