"""One picture as a path, a file object, bytes or a Pillow picture: the same features, the right way up."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from gpldla import FewShotModel
from gpldla.classifier.feature_cache import FeatureCache
from gpldla.classifier.features import embed
from gpldla.data import decoding
from gpldla.data.user_files import ignored_files, pictures_below
from gpldla.utils.errors import UserError

SIDEWAYS = 6  # EXIF orientation: to be turned by 90° clockwise


@pytest.fixture(scope="module")
def network():
    return FewShotModel("pixels", "protonet").backbone


@pytest.fixture
def photograph(tmp_path):
    """A photograph as a phone stores it: sideways, with a note to turn it."""
    upright = np.zeros((40, 60), np.uint8)
    upright[:20, :30] = 255
    exif = Image.Exif()
    exif[0x0112] = SIDEWAYS
    file = tmp_path / "a phone, in 100 % ünicode.png"
    Image.fromarray(np.rot90(upright)).save(file, exif=exif)
    return file, upright


def kinds(file: Path):
    content = file.read_bytes()
    read_before = io.BytesIO(content)
    read_before.read()
    return {
        "path": file,
        "string": str(file),
        "file URL": file.as_uri(),
        "bytes": content,
        "file object": io.BytesIO(content),
        "file object at its end": read_before,
        "Pillow picture": Image.open(file),
    }


@pytest.mark.parametrize("cached", [False, True])
def test_all_are_seen_alike_and_upright(network, photograph, tmp_path, cached):
    file, upright = photograph
    cache = FeatureCache(tmp_path / "cache.sqlite") if cached else None
    expected = embed(network, [upright])
    assert not torch.allclose(expected, embed(network, [np.rot90(upright).copy()]))
    for _ in range(2):  # the second time from the cache
        for kind, item in kinds(file).items():
            assert torch.equal(embed(network, [item], cache=cache), expected), kind


def test_a_turned_picture_is_not_turned_again(network, photograph):
    file, upright = photograph
    with Image.open(file) as opened:
        from PIL import ImageOps

        turned = ImageOps.exif_transpose(opened)
    assert torch.equal(embed(network, [turned]), embed(network, [upright]))


def test_a_classifier_takes_them_together(photograph):
    file, _ = photograph
    other = np.random.default_rng(0).integers(0, 256, (40, 60), dtype=np.uint8)
    model = FewShotModel("pixels", "gpldla-auto")
    classifier = model.adapt([*kinds(file).values(), other], ["a"] * 7 + ["b"])
    assert classifier.names == (str(file), str(file), str(file), "", "", "", "", "")
    assert classifier.predict(list(kinds(file).values())).tolist() == ["a"] * 7


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (b"no picture", r"pictures\[0\] cannot be read as an image"),
        (io.BytesIO(b""), r"pictures\[0\] cannot be read as an image"),
        ("https://example.org/1.jpg", "https://example.org/1.jpg is not downloaded; save the picture"),
        (io.StringIO("text"), "must be opened for bytes, not str"),
    ],
    ids=["bytes", "empty file object", "URL", "text file object"],
)
def test_what_holds_no_picture_is_named(network, item, message):
    with pytest.raises(UserError, match=message):
        embed(network, [item])


class TestHeic:
    @pytest.fixture
    def file(self, tmp_path):
        heif = pytest.importorskip("pillow_heif")
        picture = Image.fromarray(np.linspace(0, 255, 64 * 64).reshape(64, 64).astype(np.uint8)).convert(
            "RGB"
        )
        heif.from_pillow(picture).save(tmp_path / "phone.HEIC", quality=95)
        return tmp_path / "phone.HEIC"

    def test_is_read_where_its_decoder_is_installed(self, network, file):
        assert pictures_below(file.parent) == [file]
        assert ignored_files(file.parent) == ""
        picture = np.linspace(0, 255, 64 * 64).reshape(64, 64).astype(np.uint8)
        torch.testing.assert_close(embed(network, [file]), embed(network, [picture]), atol=0.05, rtol=0)

    def test_else_a_sentence_says_what_to_install(self, network, file, monkeypatch):
        monkeypatch.setattr(decoding, "reads_heic", lambda: False)
        monkeypatch.setattr("gpldla.data.source_files.reads_heic", lambda: False)
        assert pictures_below(file.parent) == []
        assert "pip install 'gpldla[heic]'" in ignored_files(file.parent)
        with pytest.raises(UserError, match=r"phone\.HEIC cannot be read .*pip install 'gpldla\[heic\]'"):
            embed(network, [file])
