"""The page in a real browser: what a visitor does, and what is there after a reload."""

import httpx
import pytest

from tests.server.browser import Visit, browsing, drawn, served

expect = pytest.importorskip("playwright.sync_api").expect


@pytest.fixture(scope="module")
def address():
    with served() as address:
        yield address


@pytest.fixture(scope="module")
def browser():
    with browsing() as browser:
        yield browser


@pytest.fixture
def visit(browser, address):
    """A first visit; no script may fail in it."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    visit = Visit(context.new_page(), address)
    yield visit
    assert visit.errors == []
    context.close()


def task_of(visit, address):
    """The task of the pictures, as the server has it."""
    kept = visit.page.evaluate("JSON.parse(localStorage.getItem('gpldla.page.images')).task")
    return httpx.get(f"{address}/v1/tasks/{kept}").json()


def counts(visit, address):
    return {one["name"]: one["examples"] for one in task_of(visit, address)["classes"]}


class TestVisit:
    def test_a_stranger_teaches_and_gets_an_answer(self, visit, address):
        visit.teach()
        visit.attempt(drawn("white", 1, seed=50))
        expect(visit.answer).to_contain_text("white")
        assert counts(visit, address) == {"black": 3, "white": 3}
        shown = visit.page.locator(".bar-share").all_inner_texts()
        shares = [float(share.strip("<> %")) for share in shown[:2]]
        assert shares == sorted(shares, reverse=True)
        assert sum(shares) == pytest.approx(100, abs=2)
        expect(visit.page.locator(".nearest li")).to_have_count(5)

    def test_the_answer_follows_every_change(self, visit):
        visit.teach()
        visit.attempt(drawn("grey", 1, seed=60))
        expect(visit.answer).to_be_visible()
        visit.page.get_by_role("button", name="Add a class").click()
        visit.add("Class 3", drawn("grey", 3, seed=70))
        expect(visit.answer).to_contain_text("Class 3")

    def test_what_was_removed_comes_back(self, visit, address):
        visit.teach()
        visit.examples("black").first.focus()
        visit.page.keyboard.press("Delete")
        expect(visit.examples("black")).to_have_count(2)
        assert counts(visit, address) == {"black": 2, "white": 3}
        expect(visit.examples("black").first).to_be_focused()
        visit.undo()
        expect(visit.examples("black")).to_have_count(3)
        assert counts(visit, address) == {"black": 3, "white": 3}

    def test_everything_is_there_after_a_reload(self, visit, address):
        visit.teach()
        visit.page.get_by_role("button", name="Add a class").click()
        visit.attempt(drawn("black", 1, seed=50))
        expect(visit.answer).to_contain_text("black")
        visit.examples("white").first.focus()
        visit.page.keyboard.press("Delete")
        expect(visit.examples("white")).to_have_count(2)
        visit.page.reload()
        expect(visit.examples("white")).to_have_count(2)
        expect(visit.card("Class 3")).to_be_visible()
        expect(visit.answer).to_contain_text("black")
        visit.undo()
        expect(visit.examples("white")).to_have_count(3)
        assert counts(visit, address) == {"black": 3, "white": 3}

    def test_a_file_that_is_no_picture_is_named_and_the_others_arrive(self, visit):
        bad = {"name": "notes.png", "mimeType": "image/png", "buffer": b"not a picture"}
        visit.add("Class 1", [*drawn("black", 2), bad])
        expect(visit.examples("Class 1")).to_have_count(2)
        expect(visit.page.get_by_role("alert")).to_contain_text("notes.png")

    def test_the_camera_takes_pictures_of_a_class(self, visit):
        visit.page.get_by_role("button", name="Camera for Class 1").click()
        dialog = visit.page.get_by_role("dialog")
        dialog.get_by_role("button", name="Take a picture").click()
        expect(dialog).to_contain_text("1 picture taken")
        visit.page.keyboard.press("Escape")
        expect(visit.examples("Class 1")).to_have_count(1)

    def test_nothing_is_asked_of_other_sites_or_refused_by_the_policy(self, browser, address):
        asked = []
        context = browser.new_context()
        page = context.new_page()
        page.on("request", lambda request: asked.append(request.url))
        visit = Visit(page, address)
        visit.teach()
        assert asked
        assert all(url.startswith((address, "blob:")) for url in asked)
        assert visit.errors == []
        context.close()
