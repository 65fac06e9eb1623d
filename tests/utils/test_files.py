import json
import math
import os
import pickle
from pathlib import Path

import pytest
import torch

from gpldla.utils.checksums import CHECKSUM
from gpldla.utils.errors import UserError
from gpldla.utils.files import (
    check_output,
    check_writable,
    read_json,
    read_tensors,
    require_finite,
    write_atomically,
    write_json,
    write_tensors,
)


class TestAtomicWriting:
    def test_replaces_the_file(self, tmp_path):
        for content in (b"old", b"new and longer", b""):
            write_atomically(tmp_path / "file", content)
            assert (tmp_path / "file").read_bytes() == content

    def test_makes_the_folders_above(self, tmp_path):
        write_atomically(tmp_path / "a" / "b" / "file", b"content")
        assert (tmp_path / "a" / "b" / "file").read_bytes() == b"content"

    @pytest.mark.parametrize("failing", ["os.fsync", "pathlib.Path.replace", "pathlib.Path.chmod"])
    @pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()], ids=["error", "ctrl-c"])
    def test_a_failure_keeps_the_old_file_and_leaves_no_other(self, tmp_path, monkeypatch, failing, error):
        write_atomically(tmp_path / "file", b"old")

        def fail(*args):
            raise error

        monkeypatch.setattr(failing, fail)
        with pytest.raises(type(error)):
            write_atomically(tmp_path / "file", b"new")
        monkeypatch.undo()
        assert [path.name for path in tmp_path.iterdir()] == ["file"]
        assert (tmp_path / "file").read_bytes() == b"old"

    def test_content_is_on_disk_before_the_name_is(self, tmp_path, monkeypatch):
        order, fsync, replace = [], os.fsync, Path.replace
        monkeypatch.setattr(os, "fsync", lambda handle: (order.append("content"), fsync(handle)))
        monkeypatch.setattr(Path, "replace", lambda *paths: (order.append("name"), replace(*paths)))
        write_atomically(tmp_path / "file", b"content")
        assert order == ["content", "name"]

    def test_others_may_read_the_file(self, tmp_path):
        write_atomically(tmp_path / "file", b"content")
        assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644

    @pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
    def test_a_new_file_has_the_permissions_of_new_files(self, tmp_path, umask, mode):
        before = os.umask(umask)
        try:
            write_atomically(tmp_path / "file", b"content")
        finally:
            os.umask(before)
        assert (tmp_path / "file").stat().st_mode & 0o777 == mode

    def test_an_old_file_keeps_its_permissions(self, tmp_path):
        (tmp_path / "file").write_bytes(b"old")
        (tmp_path / "file").chmod(0o640)
        write_atomically(tmp_path / "file", b"new")
        assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640

    def test_what_a_link_points_to_is_replaced(self, tmp_path):
        (tmp_path / "link").symlink_to("target")
        for content in (b"first", b"second"):
            write_atomically(tmp_path / "link", content)
            assert (tmp_path / "link").is_symlink()
            assert (tmp_path / "target").read_bytes() == content

    def test_a_pipe_is_no_file(self, tmp_path):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(UserError, match="pipe is a device or a pipe, not a file"):
            write_atomically(tmp_path / "pipe", b"content")
        assert (tmp_path / "pipe").is_fifo()


class TestCheckOutput:
    def test_a_file_that_is_there_or_can_be_made_is_fine(self, tmp_path):
        (tmp_path / "old").touch()
        check_output(tmp_path / "old", tmp_path / "other", tmp_path)
        check_output(tmp_path / "folder" / "new", tmp_path / "old")

    def test_what_is_read_is_not_written(self, tmp_path):
        (tmp_path / "input").touch()
        (tmp_path / "link").symlink_to("input")
        for name in ("input", "link"):
            with pytest.raises(UserError, match=f"{name} is an input; write to another file"):
                check_output(tmp_path / name, tmp_path / "input")

    def test_a_folder_is_no_file(self, tmp_path):
        with pytest.raises(UserError, match="is a folder; name a file in it"):
            check_output(tmp_path)


class TestJson:
    def test_names_that_are_no_unicode_come_back(self, tmp_path):
        value = {"name": "caf\udce9", "other": "Ω"}
        write_json(tmp_path / "file.json", value)
        assert read_json(tmp_path / "file.json") == value

    def test_brackets_without_end_are_no_json(self, tmp_path):
        (tmp_path / "file.json").write_text("[" * 100_000)
        with pytest.raises(UserError, match="is not readable JSON"):
            read_json(tmp_path / "file.json")

    def test_round_trip(self, tmp_path):
        value = {"name": "Ω ქ", "numbers": [1, 0.1, 1e-300], "nothing": None, "flag": True}
        write_json(tmp_path / "x.json", value)
        assert read_json(tmp_path / "x.json") == value

    def test_what_json_cannot_hold_keeps_the_old_file(self, tmp_path):
        write_json(tmp_path / "x.json", {"old": 1})
        with pytest.raises(TypeError):
            write_json(tmp_path / "x.json", {"new": object()})
        assert read_json(tmp_path / "x.json") == {"old": 1}

    def test_a_missing_file_is_named(self, tmp_path):
        with pytest.raises(UserError, match=f"There is no file {tmp_path / 'x.json'}."):
            read_json(tmp_path / "x.json")

    @pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe\x00", b"{'a': 1}"], ids=repr)
    def test_a_damaged_file_is_named(self, tmp_path, content):
        (tmp_path / "x.json").write_bytes(content)
        with pytest.raises(UserError, match=rf"{tmp_path / 'x.json'} is not readable JSON \("):
            read_json(tmp_path / "x.json")

    def test_a_folder_is_no_file(self, tmp_path):
        with pytest.raises(UserError, match="is not readable JSON"):
            read_json(tmp_path)


class TestTensors:
    @pytest.mark.parametrize(
        "tensor",
        [
            torch.randn(3, 4),
            torch.randn(3, 4, dtype=torch.float64),
            torch.randn(3, 4).bfloat16(),
            torch.arange(5),
            torch.tensor([True, False]),
            torch.tensor(2.5, dtype=torch.float64),
            torch.empty(0, 3),
            torch.get_rng_state(),
            torch.randn(4, 6).T,
            torch.randn(4, 6)[:, ::2],
            torch.randn(1, 6).expand(4, 6),
            torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        ],
        ids=lambda t: f"{t.dtype}-{tuple(t.shape)}-{t.stride()}",
    )
    def test_round_trip(self, tmp_path, tensor):
        write_tensors(tmp_path / "x.safetensors", {"t": tensor})
        read, info = read_tensors(tmp_path / "x.safetensors")
        assert read["t"].dtype == tensor.dtype
        assert torch.equal(read["t"], tensor)
        assert list(info) == [CHECKSUM]

    def test_tensors_that_share_memory_come_back_as_two(self, tmp_path):
        whole = torch.arange(6.0)
        write_tensors(tmp_path / "x.safetensors", {"whole": whole, "part": whole[2:], "same": whole})
        read, _ = read_tensors(tmp_path / "x.safetensors")
        assert read["part"].tolist() == [2, 3, 4, 5]
        read["whole"].zero_()
        assert read["same"].tolist() == whole.tolist()

    def test_parameters_are_written_without_their_gradients(self, tmp_path):
        write_tensors(tmp_path / "x.safetensors", {"p": torch.nn.Parameter(torch.ones(2))})
        assert not read_tensors(tmp_path / "x.safetensors")[0]["p"].requires_grad

    def test_info_travels_with_them(self, tmp_path):
        info = {"recipe": {"ways": 5}, "name": "Ω", "best": 0.1}
        write_tensors(tmp_path / "x.safetensors", {"t": torch.ones(1)}, info)
        digest = write_tensors(tmp_path / "y.safetensors", {"t": torch.ones(1)}, info)
        assert read_tensors(tmp_path / "x.safetensors")[1] == {**info, CHECKSUM: digest}

    def test_files_of_other_programs_are_read(self, tmp_path):
        from safetensors.torch import save_file

        save_file({"t": torch.ones(2)}, tmp_path / "x.safetensors")
        read, info = read_tensors(tmp_path / "x.safetensors")
        assert read["t"].tolist() == [1, 1]
        assert info == {}

    @pytest.mark.parametrize(
        "content",
        [b"", b"garbage", bytes(64), b"\xff" * 64, pickle.dumps({"a": 1}), json.dumps({"a": 1}).encode()],
        ids=["empty", "text", "zeros", "ones", "pickle", "json"],
    )
    def test_a_foreign_file_is_refused_in_a_sentence(self, tmp_path, content):
        (tmp_path / "x.safetensors").write_bytes(content)
        with pytest.raises(
            UserError, match=rf"{tmp_path / 'x.safetensors'} is not a readable safetensors file \("
        ):
            read_tensors(tmp_path / "x.safetensors")

    def test_a_file_of_torch_is_refused_and_not_unpickled(self, tmp_path):
        torch.save({"t": torch.ones(2)}, tmp_path / "x.safetensors")
        with pytest.raises(UserError, match="is not a readable safetensors file"):
            read_tensors(tmp_path / "x.safetensors")

    @pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
    def test_a_truncated_file_is_refused(self, tmp_path, share):
        path = tmp_path / "x.safetensors"
        write_tensors(path, {"t": torch.ones(1000)})
        path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
        with pytest.raises(UserError, match="is not a readable safetensors file"):
            read_tensors(path)

    def test_info_that_is_no_json_is_refused(self, tmp_path):
        from safetensors.torch import save_file

        save_file({"t": torch.ones(2)}, tmp_path / "x.safetensors", {"info": "{"})
        with pytest.raises(UserError, match="is not a readable safetensors file"):
            read_tensors(tmp_path / "x.safetensors")

    def test_no_flipped_bit_goes_unnoticed(self, tmp_path):
        """Of any byte; what a flip in the header leaves readable, such as white space, says the same."""
        path, tensors = tmp_path / "x.safetensors", {"a": torch.randn(3), "b": torch.arange(4)}
        write_tensors(path, tensors, {"best": 0.1})
        whole, info = path.read_bytes(), read_tensors(path)[1]
        length = 8 + int.from_bytes(whole[:8], "little")
        unnoticed = []
        for place in range(len(whole)):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
            try:
                read, read_info = read_tensors(path)
            except UserError:
                continue
            same = all(torch.equal(read.get(n, torch.empty(0)), t) for n, t in tensors.items())
            if place >= length or (CHECKSUM in read_info and not (same and read_info == info)):
                unnoticed.append(place)
        assert unnoticed == []

    def test_numbers_that_are_not_finite_are_named(self, tmp_path):
        require_finite(tmp_path / "x", {"a": torch.ones(2), "b": torch.arange(3)})
        for number in (math.nan, math.inf):
            with pytest.raises(UserError, match="x is damaged: its tensor b holds numbers that are infinite"):
                require_finite(tmp_path / "x", {"a": torch.ones(2), "b": torch.tensor([0, number])})

    def test_a_missing_file_is_named(self, tmp_path):
        with pytest.raises(UserError, match=f"There is no file {tmp_path / 'none'}."):
            read_tensors(tmp_path / "none")

    def test_a_failure_keeps_the_old_file(self, tmp_path):
        write_tensors(tmp_path / "x.safetensors", {"t": torch.ones(2)})
        with pytest.raises(TypeError):
            write_tensors(tmp_path / "x.safetensors", {"t": torch.zeros(2)}, {"not": object()})
        assert read_tensors(tmp_path / "x.safetensors")[0]["t"].tolist() == [1, 1]


class TestCheckWritable:
    def test_a_folder_that_is_there_or_can_be_made_is_fine(self, tmp_path):
        check_writable(tmp_path)
        check_writable(tmp_path / "new" / "folder")
        assert list(tmp_path.iterdir()) == []

    def test_a_relative_folder_is_fine(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        check_writable(Path("new/folder"))

    @pytest.mark.parametrize("below", ["", "folder", "deep/folder"])
    def test_a_file_in_the_way_is_named(self, tmp_path, below):
        (tmp_path / "file").write_text("here already")
        with pytest.raises(
            UserError, match=rf"{tmp_path / 'file' / below} .*is not a folder.*choose another"
        ):
            check_writable(tmp_path / "file" / below)

    def test_a_folder_without_permission_is_named(self, tmp_path, monkeypatch):
        monkeypatch.setattr(os, "access", lambda path, mode: False)
        with pytest.raises(UserError, match=rf"{tmp_path} .*is not writable.*choose another"):
            check_writable(tmp_path)

    def test_an_impossible_name_is_refused(self, tmp_path):
        with pytest.raises(UserError, match="choose another folder"):
            check_writable(tmp_path / ("x" * 300) / "folder")
