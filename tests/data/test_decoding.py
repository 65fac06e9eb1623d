import numpy as np
import pytest
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from gpldla.data.decoding import in_mode, read_picture, read_square, upright


def test_a_program_is_no_picture(tmp_path):
    """Pillow would hand EPS to Ghostscript."""
    (tmp_path / "a.jpg").write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"
    )
    with pytest.raises(UnidentifiedImageError):
        read_picture(tmp_path / "a.jpg", "RGB")


def test_32_bit_numbers_have_no_known_range(tmp_path):
    Image.fromarray(np.full((4, 4), 200, np.int32)).save(tmp_path / "a.tiff")
    with pytest.raises(ValueError, match="32-bit numbers of no known range"):
        read_picture(tmp_path / "a.tiff", "L")


def photograph(file, *, side=160, **options):
    """A picture of smooth waves, with some noise."""
    rows, columns = np.mgrid[:side, : side * 2]
    waves = np.stack([np.sin(rows / 9), np.cos(columns / 7), np.sin((rows + columns) / 11)], -1)
    noise = np.random.default_rng(0).normal(0, 5, waves.shape)
    Image.fromarray((127 + 100 * waves + noise).clip(0, 255).astype(np.uint8)).save(file, **options)
    return file


class TestReading:
    def test_the_first_version_is_the_plain_way(self, tmp_path):
        """What old classifier files were made with must not change by a single level."""
        for name, options in (("a.jpg", {"exif": turned(6)}), ("b.png", {}), ("c.webp", {"lossless": True})):
            file = photograph(tmp_path / name, **options)
            with Image.open(file) as opened:
                plain = ImageOps.exif_transpose(opened).convert("RGB").resize((20, 20), Image.BILINEAR)
            np.testing.assert_array_equal(read_square(file, "RGB", 20, "bilinear", 1), plain)

    def test_the_second_is_nearly_the_same(self, tmp_path):
        for name in ("a.jpg", "b.png"):
            file = photograph(tmp_path / name, side=400)
            one, two = (
                np.asarray(read_square(file, "RGB", 20, "bilinear", reading), float) for reading in (1, 2)
            )
            assert 0 < np.abs(one - two).mean() < 1.5
            assert one.std() > 20

    def test_the_second_decodes_a_jpeg_at_a_reduced_scale(self, tmp_path, monkeypatch):
        decoded = []
        load = Image.Image.load
        monkeypatch.setattr(Image.Image, "load", lambda self: (decoded.append(self.size), load(self))[1])
        file = photograph(tmp_path / "a.jpg", side=400)
        for reading in (1, 2):
            decoded.clear()
            read_square(file, "RGB", 20, "bilinear", reading)
            assert max(decoded) == ((800, 400) if reading == 1 else (100, 50))

    def test_small_pictures_are_the_same_in_both(self, tmp_path):
        file = photograph(tmp_path / "a.jpg", side=50)
        one, two = (np.asarray(read_square(file, "L", 40, "bicubic", reading)) for reading in (1, 2))
        assert np.abs(one.astype(int) - two).max() <= 1  # grey by the decoder or afterwards


def turned(orientation):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    return exif


def test_a_picture_in_memory_is_not_changed():
    rng = np.random.default_rng(0)
    picture = Image.fromarray(rng.integers(0, 256, (9, 7, 3), dtype=np.uint8))
    before = picture.tobytes()
    assert in_mode(upright(picture), "RGB").tobytes() == before
    assert in_mode(upright(picture), "L").mode == "L"
    assert (picture.tobytes(), picture.size, picture.mode) == (before, (7, 9), "RGB")


def test_sixteen_bits_are_rounded_to_eight(tmp_path):
    levels = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    Image.fromarray(levels).save(tmp_path / "a.png")
    expected = (levels / 257).round().astype(np.uint8)
    np.testing.assert_array_equal(read_picture(tmp_path / "a.png", "L"), expected)
