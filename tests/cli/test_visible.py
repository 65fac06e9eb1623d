import errno
import os

import numpy as np
import pytest
from PIL import Image

from gpldla.utils.files import write_atomically
from gpldla.utils.visible import visible

EVIL = "cat\x1b]0;owned\x07\x1b[2J\x9b31m"


def test_control_codes_are_written_out():
    assert visible("a\tb\nc é") == "a\tb\nc é"
    assert visible("\x1b[2J\x07\x9b\x7f\r") == r"\x1b[2J\x07\x9b\x7f\x0d"


@pytest.mark.skipif(os.name == "nt", reason="names of files cannot hold control codes")
def test_escape_codes_in_names_do_not_reach_the_terminal(run, tmp_path):
    for name, grey in ((EVIL, 40), ("dog", 200)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(3):
            noise = np.random.default_rng(number).integers(-30, 30, (32, 32))
            picture = Image.fromarray((grey + noise).clip(0, 255).astype(np.uint8))
            picture.save(tmp_path / "photos" / name / f"{number}{name if number else ''}.png")
    file = tmp_path / "c.safetensors"
    cache = ["--cache", tmp_path / "cache"]
    said = [
        run("fit", tmp_path / "photos", "-o", file, "--model", "pixels", *cache),
        run("predict", file, tmp_path / "photos", *cache),
        run("info", file),
        run("info", file, "--items"),
        run("predict", file, tmp_path / f"missing{EVIL}.png", *cache),
    ]
    assert [code for code, _, _ in said] == [0, 0, 0, 0, 2]
    for _, out, err in said:
        assert not set(out + err) & {"\x1b", "\x07", "\x9b"}
    assert r"cat\x1b" in "".join(out for _, out, _ in said)


def test_a_full_disk_is_reported_with_the_file(tmp_path, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=f"No space left on device: '{tmp_path / 'file'}'"):
        write_atomically(tmp_path / "file", b"content")
