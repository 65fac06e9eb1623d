import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from PIL import Image

from gpldla.data import pixel_budget
from gpldla.data.decoding import read_picture, square_pixels
from gpldla.data.pictures import picture_pixels
from gpldla.data.pixel_budget import PixelBudget
from gpldla.data.preprocessing import Preprocessing
from gpldla.utils.errors import UserError

SMALL = Preprocessing(8, 3, (0.5,) * 3, (0.5,) * 3)


def most_held_at_once(budget, sizes):
    """Hold these numbers of pixels in one thread each; return the largest sum that was held."""
    held, largest, lock = [0], [0], threading.Lock()

    def work(pixels):
        with budget.hold(pixels):
            with lock:
                held[0] += pixels
                largest[0] = max(largest[0], held[0])
            time.sleep(0.01)
            with lock:
                held[0] -= pixels

    threads = [threading.Thread(target=work, args=(pixels,)) for pixels in sizes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)
    return largest[0]


def test_the_sum_is_bounded_and_used():
    assert 50 < most_held_at_once(PixelBudget(100), [30] * 12) <= 100


def test_one_that_is_larger_than_all_is_held_alone():
    assert most_held_at_once(PixelBudget(100), [10, 500, 10, 500, 10]) == 500


def test_an_error_gives_the_room_back():
    budget = PixelBudget(10)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), budget.hold(10):
            raise ZeroDivisionError
    assert most_held_at_once(budget, [10, 10]) == 10


def test_a_picture_with_too_many_pixels_is_refused_before_it_is_decoded(tmp_path, monkeypatch):
    file = tmp_path / "large.png"
    Image.new("RGB", (40, 30)).save(file)
    monkeypatch.setenv("GPLDLA_MAX_PIXELS", "1200")
    assert read_picture(file, "RGB").size == (40, 30)
    monkeypatch.setenv("GPLDLA_MAX_PIXELS", "1199")
    monkeypatch.setattr(Image.Image, "convert", pytest.fail)
    message = r"it has 1,200 pixels, and GPLDLA_MAX_PIXELS allows 1,199"
    with pytest.raises(UserError, match=message):
        picture_pixels(file, SMALL)
    for read in (lambda: read_picture(file, "RGB"), lambda: square_pixels(file.read_bytes(), 3, 8)):
        with pytest.raises(ValueError, match=message):
            read()


@pytest.mark.parametrize("value", ["0", "-5", "many", "1e6", "1.5"])
def test_a_wrong_limit_is_named(tmp_path, monkeypatch, value):
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    monkeypatch.setenv("GPLDLA_MAX_PIXELS", value)
    with pytest.raises(UserError, match="GPLDLA_MAX_PIXELS must be a whole number"):
        read_picture(tmp_path / "a.png", "RGB")


def test_a_higher_limit_holds_for_pillow_too(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    Image.new("RGB", (30, 30)).save(tmp_path / "a.png")
    with pytest.raises(Image.DecompressionBombError):
        read_picture(tmp_path / "a.png", "RGB")
    monkeypatch.setenv("GPLDLA_MAX_PIXELS", "1000")
    assert read_picture(tmp_path / "a.png", "RGB").size == (30, 30)


def test_a_reduced_jpeg_counts_as_many_pixels_as_are_decoded(tmp_path, monkeypatch):
    file = tmp_path / "a.jpg"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (160, 160, 3), dtype=np.uint8)).save(file)
    monkeypatch.setenv("GPLDLA_MAX_PIXELS", str(80 * 80))
    reduced = Preprocessing(8, 3, (0.5,) * 3, (0.5,) * 3, reading=2)
    assert picture_pixels(file, reduced).shape == (9, 9, 3)
    with pytest.raises(UserError, match="it has 25,600 pixels"):
        picture_pixels(file, SMALL)


BOMBS = """
import resource, sys
from gpldla.backbones import create_backbone
from gpldla.classifier.features import embed
network = create_backbone("pixels")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
embed(network, sys.argv[1:])
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted in other units elsewhere")
def test_many_large_pictures_at_once_take_the_memory_of_few(tmp_path, monkeypatch):
    """Eight pictures of 36 million pixels would take 1.2 GB as bytes alone."""
    files = [tmp_path / f"{number}.png" for number in range(8)]
    Image.new("RGB", (6000, 6000)).save(files[0], compress_level=1)
    for file in files[1:]:
        os.link(files[0], file)
    program = f"import gpldla.classifier.features as f; f.READERS = 8\n{BOMBS}"
    done = subprocess.run([sys.executable, "-c", program, *files], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 650


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_has_its_whole_budget(tmp_path):
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    with pixel_budget._process.budget.hold(pixel_budget.PIXELS_AT_ONCE):
        child = os.fork()
        if child == 0:
            with pixel_budget._process.budget.hold(1):  # would wait for ever
                os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
