from gpldla.reports.short_names import LINE, short_names


def test_the_folder_that_all_long_paths_share_goes_to_the_caption():
    folder = "/home/somebody/pictures/of/the/year"
    paths = [f"{folder}/wren/1.jpg", f"{folder}/robin/2.PNG"]
    assert short_names(paths) == (["wren/1.jpg", "robin/2.PNG"], f"in {folder}")
    assert short_names(paths[:1]) == (["1.jpg"], f"in {folder}/wren")


def test_other_names_stay():
    short, apart = ["photos/wren/1.jpg", "photos/robin/2.jpg"], [f"/a/{'x' * 50}.jpg", "/b/y.jpg"]
    mixed = [f"/{'x' * 50}/1.jpg", f"{'x' * 50}/1.jpg"]  # one absolute and one relative
    for names in ([], short, apart, mixed):
        assert short_names(names) == (names, None)


def test_texts_are_one_line():
    names, caption = short_names(["one\n\ttwo", "photo.jpg\nis missing", "x" * 1000])
    assert names[:2] == ["one two", "photo.jpg is missing"]
    assert len(names[2]) == LINE
    assert caption is None
