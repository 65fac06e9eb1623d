import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
import zlib
from collections import namedtuple
from io import BytesIO, StringIO

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from gpldla.data import Access, DataPaths, load_protocol, load_set, packing
from gpldla.data.decoding import square_pixels
from gpldla.data.sets.stored_size import photograph_side
from gpldla.data.source_files import SourceFile
from gpldla.data.store import read_manifest
from gpldla.utils.errors import UserError
from gpldla.utils.progress import Reporter
from tests.data.trees import listing, pictures, save, write_class, write_cub, write_folder, write_root, zip_up

TYPES = ["jpg", "png", "webp", "bmp", "gif", "tiff", "ppm"]


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def pets(tmp_path):
    """Four classes of three images."""
    return write_folder(tmp_path / "pets", n_classes=4)


@pytest.fixture
def pack(cache, tmp_path):
    """Open a folder as a data set, with a console whose text is in `pack.said`."""
    said = StringIO()

    def run(folder, *, skip_bad=False, size=None):
        report = Reporter(Console(file=said, width=1000))
        access = Access(DataPaths(tmp_path, cache), report, skip_bad)
        return load_set(f"folder:{folder}", size=size, access=access)

    run.said = said
    return run


def stores(cache):
    """Everything in the cache, also what is hidden."""
    return sorted(path.name for path in cache.iterdir()) if cache.exists() else []


def encoded(picture, kind, **options):
    buffer = BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def decoded(picture, kind, *, channels=3, **options):
    pixels, _ = square_pixels(encoded(picture, kind, **options), channels, picture.width)
    return pixels


def halves(left, right, mode="RGB", side=16):
    """A square picture, one colour on the left, another on the right."""
    picture = Image.new(mode, (side, side), left)
    picture.paste(right, (side // 2, 0, side, side))
    return picture


def halves_of(pixels):
    """Mean colours of the left and the right quarter, so that blur at the edge does not count."""
    quarter = pixels.shape[2] // 4
    return pixels[:, :, :quarter].mean((1, 2)), pixels[:, :, -quarter:].mean((1, 2))


class TestKindsOfImages:
    @pytest.mark.parametrize("kind", TYPES)
    def test_every_common_type_is_read(self, tmp_path, pack, kind):
        save(halves((200, 30, 60), (20, 160, 220)), tmp_path / "set" / "a" / f"1.{kind}")
        left, right = halves_of(pack(tmp_path / "set").images[0])
        np.testing.assert_allclose(left, (200, 30, 60), atol=12)
        np.testing.assert_allclose(right, (20, 160, 220), atol=12)

    def test_endings_in_capitals_and_types_that_the_ending_hides(self, tmp_path, pack):
        content = encoded(next(pictures("a", 1, 16, 16)), "png")
        (tmp_path / "set" / "a").mkdir(parents=True)
        (tmp_path / "set" / "a" / "1.JPG").write_bytes(content)  # a PNG by its content
        assert pack(tmp_path / "set").images.shape == (1, 3, 16, 16)

    def test_a_palette_gives_its_colours(self):
        picture = halves((200, 30, 60), (20, 160, 220)).quantize(4)
        assert picture.mode == "P"
        left, right = halves_of(decoded(picture, "png"))
        np.testing.assert_allclose(left, (200, 30, 60), atol=2)
        np.testing.assert_allclose(right, (20, 160, 220), atol=2)

    def test_what_is_transparent_lies_on_white_paper(self):
        left, right = halves_of(decoded(halves((255, 0, 0, 0), (0, 0, 255, 255), "RGBA"), "png"))
        np.testing.assert_array_equal(left, (255, 255, 255))
        np.testing.assert_array_equal(right, (0, 0, 255))

    def test_what_is_half_transparent_lets_the_paper_through(self):
        left, _ = halves_of(decoded(halves((0, 0, 0, 128), (0, 0, 0, 255), "RGBA"), "png"))
        np.testing.assert_allclose(left, 127, atol=1)

    def test_a_transparent_colour_of_a_palette_is_white(self):
        picture = Image.new("P", (16, 16), 1)
        picture.putpalette([0, 0, 0, 200, 30, 60])
        picture.paste(0, (8, 0, 16, 16))
        left, right = halves_of(decoded(picture, "png", transparency=0))
        np.testing.assert_array_equal(left, (200, 30, 60))
        np.testing.assert_array_equal(right, (255, 255, 255))

    def test_sixteen_bits_become_eight(self):
        picture = Image.fromarray(np.tile(np.array([0, 65535], np.uint16).repeat(8), (16, 1)))
        assert picture.mode.startswith("I")
        for channels in (1, 3):
            left, right = halves_of(decoded(picture, "png", channels=channels))
            np.testing.assert_array_equal(left, [0] * channels)
            np.testing.assert_array_equal(right, [255] * channels)

    def test_grey_levels_of_sixteen_bits_are_kept(self):
        picture = Image.fromarray(np.full((16, 16), 200 * 257, np.uint16))
        np.testing.assert_array_equal(decoded(picture, "png"), 200)

    def test_a_cmyk_jpeg_gives_its_colours(self):
        picture = halves((200, 30, 60), (20, 160, 220)).convert("CMYK")
        left, right = halves_of(decoded(picture, "jpeg", quality=95))
        np.testing.assert_allclose(left, (200, 30, 60), atol=12)
        np.testing.assert_allclose(right, (20, 160, 220), atol=12)

    def test_one_bit_is_black_and_white(self):
        left, right = halves_of(decoded(halves(0, 1, "1"), "png", channels=1))
        assert (left, right) == (0, 255)

    def test_a_grey_image_has_three_equal_channels(self):
        np.testing.assert_array_equal(decoded(Image.new("L", (16, 16), 77), "png"), 77)

    def test_an_animation_shows_its_first_frame(self):
        frames = [Image.new("RGB", (16, 16), colour) for colour in ("red", "blue")]
        pixels = decoded(frames[0], "gif", save_all=True, append_images=frames[1:])
        np.testing.assert_array_equal(pixels[:, 0, 0], (255, 0, 0))

    def test_a_photograph_is_turned_as_its_exif_note_says(self):
        exif = Image.Exif()
        exif[0x0112] = 6  # the camera was turned: the top of what is stored is the right side
        content = encoded(halves("black", "white").crop((0, 0, 16, 8)), "jpeg", exif=exif)
        pixels, shape = square_pixels(content, 3, 16)
        assert shape == (16, 8)
        assert pixels[:, :4].mean() < 30
        assert pixels[:, -4:].mean() > 225


class TestSizes:
    def test_images_are_not_enlarged(self, tmp_path, pack):
        image_set = pack(write_folder(tmp_path / "set", n_classes=3, side=16))
        assert image_set.images.shape[2:] == (16, 16)

    def test_the_largest_side_of_all_is_the_side_of_the_store(self, tmp_path, pack):
        for number, (height, width) in enumerate([(10, 12), (9, 20), (15, 11)]):
            save(next(pictures("a", 1, height, width)), tmp_path / "set" / "a" / f"{number}.png")
        image_set = pack(tmp_path / "set")
        assert image_set.images.shape == (3, 3, 20, 20)
        assert image_set.shapes.tolist() == [[10, 12], [9, 20], [15, 11]]

    def test_large_images_are_reduced_to_what_the_backbone_needs(self, tmp_path, pack):
        save(next(pictures("a", 1, 90, 120)), tmp_path / "set" / "a" / "1.png")
        image_set = pack(tmp_path / "set", size=28)
        assert image_set.images.shape == (1, 3, photograph_side(28), photograph_side(28))
        assert image_set.shapes.tolist() == [[90, 120]]

    def test_images_of_the_right_size_are_stored_as_they_are(self, pets, pack):
        image_set = pack(pets)
        for number in range(3):
            expected = np.asarray(Image.open(pets / "kind-00" / f"{number}.png")).transpose(2, 0, 1)
            np.testing.assert_array_equal(image_set.images[number], expected)

    def test_another_backbone_has_another_store(self, tmp_path, pack, cache):
        save(next(pictures("a", 1, 90, 90)), tmp_path / "set" / "a" / "1.png")
        assert pack(tmp_path / "set", size=28).images.shape[2] == photograph_side(28)
        assert pack(tmp_path / "set", size=14).images.shape[2] == photograph_side(14)
        assert len(stores(cache)) == 2

    def test_the_true_shape_of_a_large_jpeg_is_noted(self, tmp_path, pack):
        save(next(pictures("a", 1, 300, 400)), tmp_path / "set" / "a" / "1.jpg")
        assert pack(tmp_path / "set", size=28).shapes.tolist() == [[300, 400]]


def bomb():
    """A PNG of a few bytes that claims to be 30,000 pixels wide and high."""
    header = b"IHDR" + struct.pack(">2I5B", 30_000, 30_000, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    return b"\x89PNG\r\n\x1a\n" + chunk + struct.pack(">I", 9) + b"IDAT"


# Contents of bad files, and a word of what is said of each.
FAULTS = {
    "truncated": (encoded(next(pictures("a", 1, 32, 32)), "jpeg")[:-100], "truncated"),
    "no image": (b"<html>404 Not Found</html>", "cannot identify"),
    "empty": (b"", "cannot identify"),
    "bomb": (bomb(), "decompression bomb"),
}


def spoil(folder, fault="empty"):
    """Put a bad file in the place of the second image of the second class."""
    (folder / "kind-01" / "1.png").unlink()
    path = folder / "kind-01" / "1.jpg"
    path.write_bytes(FAULTS[fault][0])
    return path


class TestBadFiles:
    @pytest.mark.parametrize("fault", FAULTS)
    def test_the_error_names_the_file_and_the_way_out(self, pets, pack, cache, fault):
        path = spoil(pets, fault)
        with pytest.raises(UserError) as error:
            pack(pets)
        message = str(error.value)
        assert message.startswith(f"{path} cannot be read as an image (")
        assert FAULTS[fault][1] in message
        assert "0x" not in message  # where a buffer lies is nobody's concern
        way_out = f"gpldla data prepare folder:{pets} --side 160 --skip-bad"
        assert message.endswith(f", or leave faulty files out with `{way_out}`.")
        assert stores(cache) == []

    @pytest.mark.parametrize("fault", FAULTS)
    def test_what_is_bad_can_be_left_out(self, pets, pack, cache, fault):
        path = spoil(pets, fault)
        image_set = pack(pets, skip_bad=True)
        assert image_set.counts.tolist() == [3, 2, 3, 3]
        assert len(image_set.images) == len(image_set.shapes) == 11
        (store,) = stores(cache)
        (left_out,) = read_manifest(cache / store)["source"]["left_out"]
        assert left_out.startswith(f"{path} cannot be read")
        assert "1 in all" in pack.said.getvalue()
        assert left_out in pack.said.getvalue()

    @pytest.mark.parametrize("kind", TYPES)
    def test_half_a_file_is_never_taken_for_an_image(self, kind):
        content = encoded(next(pictures("a", 1, 48, 48)), {"jpg": "jpeg"}.get(kind, kind))
        with pytest.raises((OSError, ValueError, SyntaxError, EOFError)):
            square_pixels(content[: len(content) // 2], 3, 48)

    def test_the_images_after_a_bad_one_keep_their_classes(self, tmp_path, pack):
        folder = write_folder(tmp_path / "set", n_classes=3, images_per_class=10)  # two tasks
        whole = pack(folder).images[:]
        for name in ("kind-00/0.png", "kind-02/0.png"):
            (folder / name).write_bytes(b"")
        (folder / "new").write_text("so that the stamp changes")
        image_set = pack(folder, skip_bad=True)
        assert image_set.counts.tolist() == [9, 10, 9]
        np.testing.assert_array_equal(image_set.images, np.delete(whole, [0, 20], axis=0))

    def test_a_class_without_a_readable_image_is_left_out(self, pets, pack, cache):
        for file in (pets / "kind-02").iterdir():
            file.write_bytes(b"")
        image_set = pack(pets, skip_bad=True)
        assert image_set.class_names == ("kind-00", "kind-01", "kind-03")
        assert image_set.counts.tolist() == [3, 3, 3]
        (store,) = stores(cache)
        left_out = read_manifest(cache / store)["source"]["left_out"]
        assert len(left_out) == 4
        assert "Class 'kind-02'" in left_out[-1]

    def test_a_class_without_images_is_an_error_and_can_be_left_out(self, pets, pack):
        (pets / "kind-09").mkdir()
        with pytest.raises(UserError, match=r"kind-09 is a class without images.*--skip-bad"):
            pack(pets)
        assert len(pack(pets, skip_bad=True).class_names) == 4

    def test_a_set_without_a_readable_image_is_an_error_all_the_same(self, tmp_path, pack, cache):
        for file in write_class(tmp_path / "set" / "a", ending=".jpg").iterdir():
            file.write_bytes(b"")
        with pytest.raises(UserError, match=r"has no readable image; the first fault: .*/0\.jpg cannot"):
            pack(tmp_path / "set", skip_bad=True)
        assert stores(cache) == []

    def test_a_set_of_bad_zips_only_is_an_error_all_the_same(self, tmp_path, pack):
        (tmp_path / "set").mkdir()
        (tmp_path / "set" / "x.zip").write_bytes(b"no zip")
        with pytest.raises(UserError, match=r"has no readable image; .*x\.zip cannot be read as a zip"):
            pack(tmp_path / "set", skip_bad=True)

    def test_a_bad_zip_is_an_error_and_can_be_left_out(self, pets, pack):
        (pets / "more.zip").write_bytes(b"no zip")
        with pytest.raises(UserError, match=r"more\.zip cannot be read as a zip.*--skip-bad"):
            pack(pets)
        assert pack(pets, skip_bad=True).counts.tolist() == [3, 3, 3, 3]

    def test_further_faults_are_counted(self, pets, pack):
        for name in ("x", "y", "z"):
            (pets / name).mkdir()
        with pytest.raises(UserError, match=r"\(3 faults in all\.\)"):
            pack(pets)

    def test_a_member_of_a_zip_is_named(self, pets, pack):
        path = spoil(pets).relative_to(pets)
        (archive,) = zip_up(pets)
        with pytest.raises(UserError) as error:
            pack(pets)
        assert str(error.value).startswith(f"{archive}/{path} cannot be read as an image")

    def test_what_was_left_out_once_stays_left_out(self, pets, pack):
        spoil(pets)
        pack(pets, skip_bad=True)
        assert pack(pets).counts.tolist() == [3, 2, 3, 3]


class TestStore:
    def test_zipped_or_not_the_images_are_the_same(self, pets, pack):
        unpacked = pack(pets)
        before = unpacked.images[:].copy(), unpacked.class_names
        zip_up(pets, into=3)
        packed = pack(pets)
        np.testing.assert_array_equal(packed.images, before[0])
        assert packed.class_names == before[1]

    def test_order_and_checksum_do_not_depend_on_the_cores(self, tmp_path, monkeypatch):
        folder = write_folder(tmp_path / "set", n_classes=30, images_per_class=5)  # ten tasks
        sums = set()
        for cores in (1, 2, 7):
            monkeypatch.setattr(packing, "_cores", lambda n=cores: n)
            cache = tmp_path / f"cache-{cores}"
            load_set(f"folder:{folder}", access=Access(DataPaths(tmp_path, cache)))
            sums.add(read_manifest(next(cache.iterdir()))["sha256"])
        assert len(sums) == 1

    def test_images_come_in_the_order_of_classes_and_names(self, tmp_path, pack):
        for name in ("b", "a"):
            for number in (10, 2, 1):
                colour = (number * 20, 0, 255 if name == "b" else 0)
                save(Image.new("RGB", (4, 4), colour), tmp_path / "set" / name / f"{number}.png")
        images = pack(tmp_path / "set").images
        assert images[:, 0, 0, 0].tolist() == [20, 200, 40] * 2  # 1.png, 10.png, 2.png
        assert images[:, 2, 0, 0].tolist() == [0] * 3 + [255] * 3

    def test_the_manifest_says_where_the_images_come_from(self, pets, pack, cache):
        pack(pets)
        (store,) = stores(cache)
        source = read_manifest(cache / store)["source"]
        assert source["folder"] == str(pets)
        assert source["left_out"] == []
        assert source["settings"]["wanted_side"] == photograph_side(84)
        assert {"stamp", "pillow"} <= source.keys()

    def test_the_second_time_nothing_is_packed(self, pets, pack):
        pack(pets)
        said = pack.said.getvalue()
        assert "Preparing" in said
        pack(pets)
        assert pack.said.getvalue() == said

    def test_a_changed_folder_is_packed_anew(self, pets, pack):
        pack(pets)
        write_class(pets / "kind-09")
        assert len(pack(pets).class_names) == 5

    def test_nothing_is_written_to_the_data_root(self, tmp_path):
        root = write_root(tmp_path / "root", classes_per_part=1, images_per_class=2, side=8)
        zip_up(root / "cub")
        before = listing(root)
        for path in [root, *root.rglob("*")]:
            path.chmod(0o555 if path.is_dir() else 0o444)
        try:
            for name in (
                "cub",
                "omniglot-emnist",
                "miniimagenet",
                "tieredimagenet",
                f"folder:{root / 'pets'}",
            ):
                load_protocol(name, access=Access(DataPaths(root, tmp_path / "cache")))
        finally:
            for path in [root, *root.rglob("*/")]:
                path.chmod(0o755)
        assert listing(root) == before


class TestInterruption:
    def test_it_leaves_no_store_and_nothing_unfinished(self, pets, pack, cache, monkeypatch):
        read, unfinished = SourceFile.read, []

        def interrupted(file):
            if file.path == pets / "kind-03" / "0.png" and stores(cache):  # not at the look at sizes before
                unfinished.extend(stores(cache))
                raise KeyboardInterrupt
            return read(file)

        monkeypatch.setattr(SourceFile, "read", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pack(pets)
        assert len(unfinished) == 1
        assert stores(cache) == []
        monkeypatch.undo()
        assert pack(pets).counts.tolist() == [3, 3, 3, 3]

    def test_a_full_disk_is_said_before_anything_is_written(self, pets, pack, cache, monkeypatch):
        usage = namedtuple("usage", "total used free")
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9, 9000))
        with pytest.raises(UserError, match=r"has 0\.0 GB left, and the store needs 0\.0 GB; .*--cache"):
            pack(pets)  # 12 images of 3 × 16 × 16 bytes
        assert stores(cache) == []
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9, 9216))
        assert len(pack(pets).images) == 12

    def test_a_cache_that_cannot_be_written_is_named(self, pets, tmp_path):
        (tmp_path / "file").write_text("in the way")
        with pytest.raises(UserError, match=r"cannot be written .*choose another cache folder"):
            load_set(f"folder:{pets}", access=Access(DataPaths(tmp_path, tmp_path / "file" / "cache")))

    def test_two_processes_may_pack_the_same_at_the_same_time(self, tmp_path, cache):
        root = tmp_path / "root"
        write_cub(root / "cub", classes_per_part=20, images_per_class=5)
        script = (
            "from gpldla.data import load_set, Access, DataPaths\n"
            f"image_set = load_set('cub', access=Access(DataPaths({str(root)!r}, {str(cache)!r})))\n"
            "print(len(image_set.images), int(image_set.images.astype('int64').sum()))\n"
        )
        command = [sys.executable, "-c", script]
        processes = [
            subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ, text=True) for _ in range(2)
        ]
        answers = [process.communicate(timeout=60)[0] for process in processes]
        assert [process.returncode for process in processes] == [0, 0]
        assert answers[0] == answers[1]
        assert answers[0].startswith("300 ")
        (store,) = stores(cache)
        assert json.loads((cache / store / "manifest.json").read_text("utf-8"))["shape"][0] == 300


def test_pixels_of_no_known_range_are_a_fault(pets, pack):
    Image.fromarray(np.full((8, 8), 0.5, np.float32)).save(pets / "kind-00" / "float.tiff")
    with pytest.raises(UserError, match=r"float\.tiff cannot be read as an image \(its pixels are floating"):
        pack(pets)


def test_a_photograph_of_100_million_pixels_is_packed_without_a_warning(pets, pack, recwarn):
    Image.new("L", (10_000, 10_000)).save(pets / "kind-00" / "large.png")
    pack(pets)
    assert not [w for w in recwarn if issubclass(w.category, Image.DecompressionBombWarning)]


@pytest.mark.parametrize("signal_name", ["SIGINT", "SIGTERM"])
def test_a_signal_leaves_nothing_behind(tmp_path, signal_name):
    write_folder(tmp_path / "pets", n_classes=4, images_per_class=800, side=64)
    cache = tmp_path / "cache"
    command = [sys.executable, "-m", "gpldla", "data", "prepare", f"folder:{tmp_path / 'pets'}"]
    process = subprocess.Popen([*command, "--cache", str(cache)], stderr=subprocess.DEVNULL)
    while process.poll() is None and not list(cache.glob(".folder-*/images.u8")):
        time.sleep(0.005)
    process.send_signal(signal.Signals[signal_name])
    assert process.wait(timeout=60) == 130
    assert list(cache.iterdir()) == []
