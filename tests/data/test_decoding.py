import numpy as np
import pytest
from PIL import Image, UnidentifiedImageError

from gpldla.data.decoding import read_picture


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
