import os
import sqlite3
import subprocess
import sys
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from gpldla.backbones import Backbone, TextBackbone, create_backbone
from gpldla.classifier import features as embedding
from gpldla.classifier.feature_cache import FeatureCache
from gpldla.classifier.features import embed
from gpldla.data.augment.transforms import evaluation_images
from gpldla.data.paths import DataPaths
from gpldla.data.pictures import picture_tensor
from gpldla.data.preprocessing import Preprocessing, TextPreprocessing
from gpldla.utils.errors import UserError
from gpldla.utils.progress import Reporter

SIZE, WIDTH = 8, 5


class Small(Backbone):
    """A linear layer and a dropout on pictures of 8 px, which counts how many it saw in each call."""

    preprocessing = Preprocessing(SIZE, 3, (0.4, 0.5, 0.6), (0.2, 0.3, 0.4))
    feature_dim = WIDTH
    map_shape = (3, SIZE, SIZE)

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.layer = nn.Linear(3 * SIZE**2, WIDTH)
        self.dropout = nn.Dropout(0.5)
        self.seen = []
        self.eval()

    def maps(self, images):
        return images

    def forward(self, images):
        self.seen.append(len(images))
        return self.layer(self.dropout(images.flatten(1)))


class Wider(Small):
    preprocessing = Preprocessing(SIZE, 3, (0.5, 0.5, 0.5), (0.2, 0.3, 0.4))


class Letters(TextBackbone):
    """Counts the letters a to e."""

    preprocessing = TextPreprocessing(100)
    feature_dim = WIDTH

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.seen = []
        self.eval()

    def forward(self, texts):
        self.seen.append(texts)
        return self.scale * torch.tensor([[float(text.count(c)) for c in "abcde"] for text in texts])


def pixels(n, side=12):
    return list(np.random.default_rng(0).integers(0, 256, (n, side, side, 3), dtype=np.uint8))


@pytest.fixture
def paths(tmp_path):
    files = [tmp_path / f"{number}.png" for number in range(5)]
    for file, array in zip(files, pixels(5)):
        Image.fromarray(array).save(file)
    return files


@pytest.fixture
def said():
    return []


@pytest.fixture
def cache_of(tmp_path, said):
    """Make the cache of a backbone in this test's own folder; what it says is in `said`."""
    return lambda backbone: FeatureCache.of(
        backbone, DataPaths(chosen_cache=tmp_path / "cache"), warn=said.append
    )


def only_file(tmp_path):
    (file,) = (tmp_path / "cache" / "features").iterdir()
    return file


class TestValues:
    def test_features_are_the_networks_on_evaluation_images(self, paths):
        backbone = Small().eval()
        stacked = torch.stack([picture_tensor(path, backbone.preprocessing) for path in paths])
        with torch.no_grad():
            expected = backbone(evaluation_images(stacked, backbone.preprocessing))
        features = embed(backbone, paths)
        assert features.dtype == torch.float32
        assert torch.equal(features, expected)
        assert features.std() > 0.1

    def test_a_picture_may_come_in_any_form(self, paths):
        backbone = Small()
        expected = embed(backbone, paths)
        arrays = pixels(5)
        opened = [Image.open(path) for path in paths]  # not yet decoded
        for form in (list(map(str, paths)), opened, arrays, np.stack(arrays), np.array(paths), tuple(paths)):
            assert torch.equal(embed(backbone, form), expected)
        assert torch.equal(embed(backbone, [opened[0]] * 3), expected[[0, 0, 0]])

    def test_batches_are_at_most_as_large_as_asked(self, paths):
        backbone = Small()
        whole = embed(backbone, paths)
        torch.testing.assert_close(embed(backbone, paths, batch_size=2), whole)
        assert backbone.seen == [5, 2, 2, 1]

    def test_large_pictures_go_through_a_cpu_a_few_at_a_time(self, paths, monkeypatch):
        backbone = Small()
        monkeypatch.setattr(embedding, "CPU_MIN_BATCH", 2)
        monkeypatch.setattr(embedding, "CPU_BATCH_PIXELS", 3 * SIZE**2)
        embed(backbone, paths)
        monkeypatch.setattr(embedding, "CPU_BATCH_PIXELS", 1)
        embed(backbone, paths)
        assert backbone.seen == [3, 2, 2, 2, 1]

    def test_texts_keep_their_order_though_short_ones_go_first(self):
        backbone = Letters()
        texts = np.array(["aaab", "", "ee", "bcd"])
        expected = [[3, 1, 0, 0, 0], [0] * 5, [0, 0, 0, 0, 2], [0, 1, 1, 1, 0]]
        assert embed(backbone, texts, batch_size=2).tolist() == expected
        assert backbone.seen == [["", "ee"], ["bcd", "aaab"]]

    def test_nothing_gives_no_rows(self, cache_of):
        for backbone in (Small(), Letters()):
            assert embed(backbone, []).shape == (0, WIDTH)
            assert embed(backbone, [], cache=cache_of(backbone)).shape == (0, WIDTH)
            assert backbone.seen == []

    def test_training_flags_stay_and_there_are_no_gradients(self, paths):
        backbone = Small().train()
        backbone.layer.eval()
        first = embed(backbone, paths)
        assert torch.equal(embed(backbone, paths), first)  # the dropout was off
        assert not first.requires_grad
        assert (backbone.training, backbone.layer.training, backbone.dropout.training) == (True, False, True)
        with pytest.raises(UserError):
            embed(backbone, [*paths, "nowhere.png"])
        assert (backbone.training, backbone.layer.training, backbone.dropout.training) == (True, False, True)

    def test_reduced_precision_around_it_does_not_count(self, paths):
        expected = embed(Small(), paths)
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(embed(Small(), paths), expected)

    def test_progress_counts_every_item_once(self, paths, cache_of):
        done = []

        class Recorder(Reporter):
            @contextmanager
            def bar(self, label, total):
                done.append(total)
                yield done.append

        backbone = Small()
        cache = cache_of(backbone)
        embed(backbone, paths[:2], cache=cache)
        embed(backbone, paths, cache=cache, batch_size=2, reporter=Recorder())
        assert done == [5, 2, 2, 1]


class TestCache:
    def test_what_is_known_is_neither_decoded_nor_computed(self, paths, cache_of, monkeypatch, said):
        backbone = Small()
        cache = cache_of(backbone)
        first = embed(backbone, paths, cache=cache)
        assert torch.equal(first, embed(Small(), paths))
        monkeypatch.setattr(embedding, "picture_pixels", None)
        assert torch.equal(embed(backbone, paths[::-1], cache=cache), first.flip(0))
        assert torch.equal(embed(backbone, paths, cache=cache_of(Small())), first)  # another object, as later
        assert backbone.seen == [5]
        assert said == []

    def test_only_what_is_new_is_computed(self, paths, cache_of):
        backbone = Small()
        embed(backbone, [paths[1], paths[3]], cache=cache_of(backbone))
        features = embed(backbone, paths, cache=cache_of(backbone))
        torch.testing.assert_close(features, embed(Small(), paths))
        assert backbone.seen == [2, 3]

    def test_what_was_computed_before_an_error_is_kept(self, paths, cache_of):
        backbone, bad = Small(), paths[0].with_name("bad.png")
        bad.write_bytes(b"no picture")
        with pytest.raises(UserError, match=r"bad\.png"):
            embed(backbone, [*paths, bad], cache=cache_of(backbone), batch_size=2)
        torch.testing.assert_close(embed(backbone, paths, cache=cache_of(backbone)), embed(Small(), paths))
        assert backbone.seen == [2, 2, 1]

    def test_content_counts_and_names_do_not(self, paths, cache_of):
        backbone = Small()
        first = embed(backbone, paths, cache=cache_of(backbone))
        moved = paths[0].rename(paths[0].with_name("moved.png"))
        assert torch.equal(embed(backbone, [moved], cache=cache_of(backbone)), first[:1])
        assert backbone.seen == [5]
        Image.new("RGB", (9, 9), "red").save(moved)
        assert not torch.allclose(embed(backbone, [moved], cache=cache_of(backbone)), first[:1])
        assert backbone.seen == [5, 1]

    def test_pictures_in_memory_are_known_by_their_pixels(self, cache_of):
        backbone = Small()
        arrays = pixels(3)
        pictures = [Image.fromarray(array) for array in arrays]
        for items in (arrays, pictures):
            first = embed(backbone, items, cache=cache_of(backbone))
            again = [item.copy() for item in items]
            assert torch.equal(embed(backbone, again, cache=cache_of(backbone)), first)
        assert backbone.seen == [3, 3]
        turned = embed(backbone, [arrays[0][::-1]], cache=cache_of(backbone))
        assert torch.equal(turned, embed(Small(), [arrays[0][::-1].copy()]))
        assert backbone.seen == [3, 3, 1]

    @pytest.mark.parametrize("change", ["palette", "transparency", "shape", "type"])
    def test_what_changes_the_picture_changes_its_name(self, cache_of, change):
        square = np.arange(144, dtype=np.uint8).reshape(12, 12)
        one = two = Image.fromarray(square)
        if change in ("palette", "transparency"):
            one = Image.frombytes("P", (12, 12), square.tobytes())
            one.putpalette([level for index in range(256) for level in (index, 0, 0)])
            two = one.copy()
        if change == "palette":
            two.putpalette([level for index in range(256) for level in (0, index, 0)])
        elif change == "transparency":
            two.info["transparency"] = 7
        elif change == "shape":
            one, two = square, square.reshape(6, 24)
        else:
            one, two = np.zeros((4, 4), np.uint8), np.zeros((4, 4), np.int8)
        backbone = Small()
        a, b = (embed(backbone, [item], cache=cache_of(backbone)) for item in (one, two))
        assert backbone.seen == [1, 1]
        assert torch.equal(a, b) == (change == "type")

    def test_texts(self, cache_of):
        backbone = Letters()
        embed(backbone, ["abc", "cab"], cache=cache_of(backbone))
        assert embed(backbone, ["cab", "ee"], cache=cache_of(backbone)).tolist() == [
            [1, 1, 1, 0, 0],
            [0] * 4 + [2],
        ]
        assert backbone.seen == [["abc", "cab"], ["ee"]]

    def test_every_network_has_its_own(self, paths, cache_of, tmp_path):
        for count, backbone in enumerate([Small(), Small(seed=1), Wider()], start=1):
            expected = embed(backbone, paths)
            assert torch.equal(embed(backbone, paths, cache=cache_of(backbone)), expected)
            assert len(list((tmp_path / "cache" / "features").iterdir())) == count
        assert (tmp_path / "cache" / "features" / f"{Wider().fingerprint()}.sqlite").is_file()

    def test_it_lies_in_the_cache_folder_of_the_environment(self, paths, tmp_path, monkeypatch):
        monkeypatch.setenv("GPLDLA_CACHE", str(tmp_path / "elsewhere"))
        embed(Small(), paths, cache=FeatureCache.of(Small()))
        assert len(list((tmp_path / "elsewhere" / "features").iterdir())) == 1


class TestTroubleWithTheCache:
    def works(self, backbone, paths, cache):
        """Compute everything, twice; the cache may help but must not hurt."""
        expected = embed(Small(), paths)
        for _ in range(2):
            assert torch.equal(embed(backbone, paths, cache=cache), expected)

    @pytest.mark.parametrize(
        "damage",
        [
            pytest.param(lambda content: b"not a database " * 100, id="no database"),
            pytest.param(lambda content: content[: len(content) // 2], id="half of it"),
            pytest.param(
                lambda content: content[:100] + b"\xff" * (len(content) - 100), id="all but the header"
            ),
        ],
    )
    def test_a_damaged_file_is_named_once_and_left_alone(
        self, paths, cache_of, tmp_path, said, damage, monkeypatch
    ):
        embed(Small(), paths, cache=cache_of(Small()))
        file = only_file(tmp_path)
        file.write_bytes(damage(file.read_bytes()))
        backbone = Small()
        cache = cache_of(backbone)
        self.works(backbone, paths, cache)
        assert sum(backbone.seen) == 10
        monkeypatch.setattr(sqlite3, "connect", pytest.fail)
        self.works(backbone, paths, cache)
        (line,) = said
        assert line.startswith(f"The feature cache {file} cannot be used (")
        assert line.endswith("; delete it if it is damaged.")

    def test_a_changed_number_is_noticed_and_mended(self, paths, cache_of, tmp_path, said):
        first = embed(Small(), paths, cache=cache_of(Small()))
        file = only_file(tmp_path)
        content, value = file.read_bytes(), first[2].numpy().tobytes()
        assert content.count(value) == 1
        file.write_bytes(content.replace(value, value[:-1] + bytes([value[-1] ^ 1])))
        backbone = Small()
        torch.testing.assert_close(embed(backbone, paths, cache=cache_of(backbone)), first)
        embed(backbone, paths, cache=cache_of(backbone))
        assert backbone.seen == [1]
        assert said == []

    def test_a_value_of_another_length_or_kind_is_not_taken(self, paths, cache_of, tmp_path):
        first = embed(Small(), paths, cache=cache_of(Small()))
        connection = sqlite3.connect(only_file(tmp_path))
        with connection:
            connection.execute("UPDATE features SET value = 'text' WHERE rowid = 1")
            connection.execute("UPDATE features SET value = x'00', checksum = 3523407757 WHERE rowid = 2")
        connection.close()
        backbone = Small()
        torch.testing.assert_close(embed(backbone, paths, cache=cache_of(backbone)), first)
        assert backbone.seen == [2]

    def test_another_programs_database(self, paths, cache_of, tmp_path, said):
        embed(Small(), paths, cache=cache_of(Small()))
        file = only_file(tmp_path)
        file.unlink()
        connection = sqlite3.connect(file)
        connection.execute("CREATE TABLE features (name TEXT)")
        connection.close()
        backbone = Small()
        self.works(backbone, paths, cache_of(backbone))
        assert len(said) == 1

    def test_no_folder_can_be_made(self, paths, tmp_path, cache_of, said):
        (tmp_path / "cache").write_text("a file in the way")
        backbone = Small()
        self.works(backbone, paths, cache_of(backbone))
        assert len(said) == 1
        assert str(tmp_path / "cache") in said[0]

    def test_a_read_only_cache_is_read(self, paths, cache_of, tmp_path, monkeypatch, said):
        embed(Small(), paths[:3], cache=cache_of(Small()))
        connect = sqlite3.connect
        monkeypatch.setattr(
            sqlite3, "connect", lambda file, timeout: connect(f"{Path(file).as_uri()}?mode=ro", uri=True)
        )
        backbone = Small()
        cache = cache_of(backbone)
        embed(backbone, paths[:3], cache=cache)
        assert said == []
        torch.testing.assert_close(embed(backbone, paths, cache=cache), embed(Small(), paths))
        embed(backbone, paths, cache=cache)
        assert backbone.seen == [2, 2]  # what is there still counts, what is not there is not kept
        only_file(tmp_path).write_bytes(b"and then it is damaged too " * 100)
        self.works(backbone, paths, cache)
        assert len(said) == 1
        assert "readonly" in said[0]

    @pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
    def test_a_folder_without_the_right_to_write(self, paths, cache_of, tmp_path, said):
        (tmp_path / "cache").mkdir(mode=0o500)
        backbone = Small()
        self.works(backbone, paths, cache_of(backbone))
        assert len(said) == 1

    def test_python_users_are_warned(self, paths, tmp_path):
        (tmp_path / "cache").write_text("a file in the way")
        cache = FeatureCache.of(Small(), DataPaths(chosen_cache=tmp_path / "cache"))
        with pytest.warns(UserWarning, match="cannot be used"):
            embed(Small(), paths, cache=cache)

    def test_several_processes_share_it(self, tmp_path):
        program = """
import sys
from pathlib import Path
import numpy as np
from gpldla.classifier.feature_cache import FeatureCache

def refuse(message):
    raise SystemExit(message)

first, file = int(sys.argv[1]), Path(sys.argv[2])
cache = FeatureCache(file, warn=refuse)
keys = [number.to_bytes(32, "big") for number in range(first, first + 300)]
rows = np.arange(first, first + 300, dtype=np.float32)[:, None].repeat(1280, 1)
for start in range(0, 300, 4):
    cache.add(keys[start : start + 4], rows[start : start + 4])
    missing = cache.fill(np.empty_like(rows), keys)
    assert missing == list(range(min(start + 4, 300), 300)), missing
"""
        file = tmp_path / "features" / "shared.sqlite"
        command = [sys.executable, "-c", program]
        running = [
            subprocess.Popen([*command, str(first), str(file)], stderr=subprocess.PIPE, text=True)
            for first in (0, 1000)
        ]
        assert [process.communicate()[1] for process in running] == ["", ""]
        numbers = [*range(300), *range(1000, 1300)]
        features = np.empty((600, 1280), np.float32)
        keys = [number.to_bytes(32, "big") for number in numbers]
        assert FeatureCache(file, warn=pytest.fail).fill(features, keys) == []
        assert (features == np.array(numbers)[:, None]).all()


class Table:
    columns = ["text", "label"]

    def __iter__(self):
        return iter(self.columns)


def cut_short(paths):
    return Image.open(BytesIO(paths[0].read_bytes()[:200]))


class TestWrongInput:
    @pytest.mark.parametrize("cached", [True, False], ids=["cache", "no cache"])
    @pytest.mark.parametrize(
        ("items", "message"),
        [
            (lambda paths: [*paths, "nowhere.png"], r"^nowhere\.png cannot be read as an image"),
            (lambda paths: [paths[0], __file__], r"test_features\.py cannot be read as an image"),
            (lambda paths: [paths[0].parent], "cannot be read as an image"),
            (lambda paths: [paths[0], 3], r"^pictures\[1\]: An image must be .* not int"),
            (lambda paths: [paths[0], None], r"^pictures\[1\]: .*NoneType"),
            (lambda paths: [paths[0], np.zeros((2, 2, 9))], r"^pictures\[1\]: An image array must be"),
            (lambda paths: [paths[0], Image.new("F", (4, 4))], r"^pictures\[1\] cannot be read as an image"),
            (lambda paths: [cut_short(paths)], r"^pictures\[0\] cannot be read as an image"),
            (lambda paths: str(paths[0]), "^Give a list of pictures, not a single one"),
            (lambda paths: paths[0], "^Give a list of pictures, not a single one"),
            (lambda paths: Image.open(paths[0]), "^Give a list of pictures, not a single one"),
            (lambda paths: pixels(1)[0], "^Give a list of pictures, not a single one"),
            (lambda paths: Table(), r"^Give one column of pictures, not a table .*\['text', 'label'\]"),
        ],
    )
    def test_pictures(self, paths, cache_of, items, message, cached):
        backbone = Small()
        with pytest.raises(UserError, match=message):
            embed(backbone, items(paths), cache=cache_of(backbone) if cached else None)

    @pytest.mark.parametrize(
        ("items", "message"),
        [
            (["a", 3], r"^texts\[1\] is of type int, not a string"),
            (["a", "b", float("nan")], r"^texts\[2\] is of type float"),
            (["a", None], r"^texts\[1\] is of type NoneType"),
            ([b"a"], r"^texts\[0\] is of type bytes"),
            (["a", "b\ud800"], r"^texts\[1\] is not valid Unicode"),
            (np.array([["a"], ["b"]]), r"^texts\[0\] is of type ndarray"),
            ("a", "^Give a list of texts, not a single one"),
            (None, "^Give a list of texts, not a single one"),
            (np.array("a"), "^Give a list of texts, not a single one"),
            (Table(), "^Give one column of texts"),
        ],
    )
    def test_texts(self, items, message):
        with pytest.raises(UserError, match=message):
            embed(Letters(), items)

    @pytest.mark.parametrize("batch_size", [0, -1, 2.5, None])
    def test_batch_size(self, batch_size):
        with pytest.raises(UserError, match="batch_size must be a whole number from 1 on"):
            embed(Letters(), ["a"], batch_size=batch_size)


class TestFingerprint:
    def test_it_is_that_of_the_weights(self):
        assert Small().fingerprint() == Small().fingerprint()
        assert len(Small().fingerprint()) == 64
        changed = Small()
        with torch.no_grad():
            changed.layer.bias[0].add_(1e-6)
        assert changed.fingerprint() != Small().fingerprint()

    def test_preprocessing_precision_and_buffers_count(self):
        fingerprints = {Small().fingerprint(), Wider().fingerprint(), Small().double().fingerprint()}
        network = create_backbone("conv4s")
        fingerprints.add(network.fingerprint())
        network.blocks[0][1].running_mean.add_(1)
        fingerprints.add(network.fingerprint())
        assert len(fingerprints) == 5

    def test_networks_with_the_same_weights_that_compute_otherwise_differ(self):
        pools, compares = create_backbone("conv4"), create_backbone("conv4np")
        compares.load_state_dict(pools.state_dict())
        assert compares.fingerprint() != pools.fingerprint()

    def test_neither_memory_format_nor_training_mode_nor_gradients_count(self):
        network = create_backbone("conv4")
        first = network.fingerprint()
        assert network.to(memory_format=torch.channels_last).fingerprint() == first
        assert network.eval().requires_grad_(False).fingerprint() == first

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
    def test_the_device_does_not_count(self, paths, cache_of):
        network = Small()
        first, expected = network.fingerprint(), embed(network, paths, cache=cache_of(network))
        assert network.cuda().fingerprint() == first
        features = embed(network, paths, cache=cache_of(network))
        assert features.is_cuda
        torch.testing.assert_close(features.cpu(), expected, rtol=1e-3, atol=1e-3)
        assert network.seen == [5, 5]  # a GPU's numbers are its own
