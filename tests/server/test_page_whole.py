"""The page's other half: relabelling, quality, files, texts, the keyboard alone, and who reads it."""

import re
from pathlib import Path

import httpx
import pytest

from gpldla.classifier.few_shot import FewShotClassifier
from tests.server.browser import Visit, browsing, drawn, served

expect = pytest.importorskip("playwright.sync_api").expect

AXE = (Path(__file__).parent / "axe" / "axe.min.js").read_text()
PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}


@pytest.fixture(scope="module")
def address():
    with served() as address:
        yield address


@pytest.fixture(scope="module")
def browser():
    with browsing() as browser:
        yield browser


@pytest.fixture
def visiting(browser, address):
    """Visits in contexts of their own; no script may fail in any."""
    visits = []

    def visit(at=address, **options):
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        visits.append((context, Visit(context.new_page(), at)))
        return visits[-1][1]

    yield visit
    for context, one in visits:
        assert one.errors == []
        context.close()


def violations(page):
    """What axe-core finds, by rule, with the elements."""
    page.evaluate(AXE)
    found = page.evaluate("async () => (await axe.run()).violations")
    return {one["id"]: [node["target"] for node in one["nodes"]] for one in found}


class TestRelabelling:
    def test_by_dragging(self, visiting):
        visit = visiting()
        visit.teach()
        visit.examples("black").first.drag_to(visit.card("white"))
        expect(visit.examples("white")).to_have_count(4)
        expect(visit.examples("black")).to_have_count(2)
        visit.undo()
        expect(visit.examples("black")).to_have_count(3)

    def test_by_the_menu_with_the_keyboard_alone(self, visiting):
        visit = visiting()
        visit.teach()
        keyboard = visit.page.keyboard
        visit.examples("black").first.focus()
        keyboard.press("ArrowRight")
        expect(visit.examples("black").nth(1)).to_be_focused()
        keyboard.press("Enter")
        expect(visit.page.get_by_role("menuitem", name="white")).to_be_focused()
        keyboard.press("Enter")
        expect(visit.examples("white")).to_have_count(4)
        keyboard.press("Control+z")
        expect(visit.examples("white")).to_have_count(3)

    def test_classes_are_merged_and_taken_apart(self, visiting):
        visit = visiting()
        visit.teach()
        visit.card("black").get_by_role("button", name="More about black").click()
        visit.page.get_by_role("menuitem", name="Merge into white").click()
        expect(visit.examples("white")).to_have_count(6)
        expect(visit.cards).to_have_count(1)
        visit.undo()
        expect(visit.examples("black")).to_have_count(3)
        expect(visit.examples("white")).to_have_count(3)

    def test_names_that_cannot_be_are_refused_at_once(self, visiting):
        visit = visiting()
        field = visit.card("Class 1").get_by_role("textbox")
        for wrong in ("", "  ", "unsure"):
            field.fill(wrong)
            field.press("Enter")
            expect(field).to_have_value("Class 1")
        expect(visit.page.get_by_role("alert")).to_contain_text("unsure")

    def test_a_removed_class_comes_back_with_a_name_that_needs_escaping(self, visiting):
        visit = visiting()
        name = "<b>50 % / ünï?</b>"
        visit.rename("Class 1", name)
        visit.add(name, drawn("black", 2))
        expect(visit.examples(name)).to_have_count(2)
        visit.card(name).get_by_role("button", name="More about").click()
        visit.page.get_by_role("menuitem", name="Remove this class").click()
        expect(visit.card(name)).to_have_count(0)
        visit.undo()
        expect(visit.examples(name)).to_have_count(2)

    def test_an_answer_is_corrected_by_teaching_it(self, visiting):
        visit = visiting()
        visit.teach()
        visit.attempt(drawn("grey", 1))
        visit.page.get_by_role("group", name="Teach the right class").get_by_text("black").click()
        expect(visit.examples("black")).to_have_count(4)
        expect(visit.answer).to_be_hidden()

    def test_what_is_of_no_class_begins_a_new_one(self, visiting):
        visit = visiting()
        visit.teach()
        visit.attempt(drawn("grey", 1))
        visit.page.get_by_role("button", name="Another class").click()
        expect(visit.examples("Class 3")).to_have_count(1)
        expect(visit.card("Class 3").get_by_role("textbox")).to_be_focused()
        visit.page.keyboard.type("grey")
        visit.page.keyboard.press("Enter")
        expect(visit.examples("grey")).to_have_count(1)
        for _ in range(3):
            visit.undo()
            expect(visit.page.get_by_role("status").last).to_contain_text("Undone")
        expect(visit.cards).to_have_count(2)

    def test_of_several_pictures_the_one_that_teaches_most_is_offered(self, visiting, address):
        visit = visiting()
        visit.teach()
        pool = [*drawn("black", 1, seed=50), *drawn("grey", 2, seed=60), *drawn("white", 1, seed=50)]
        task = visit.page.evaluate("() => JSON.parse(localStorage['gpldla.page.images']).task")
        sent = [("files", (one["name"], one["buffer"])) for one in pool]
        ranked = httpx.post(f"{address}/v1/tasks/{task}/suggest", files=sent).json()["suggestions"]
        best, worst = ranked[0]["name"], ranked[-1]["name"]
        visit.attempt(pool)
        visit.page.get_by_role("button", name=worst).click()
        offered = visit.page.get_by_role("button", name="it teaches most")
        expect(offered).to_contain_text(best)
        offered.click()
        chosen = visit.page.get_by_role("list", name="Pictures tried").get_by_role("button", name=best)
        expect(chosen).to_have_attribute("aria-pressed", "true")
        expect(offered).to_be_hidden()

    def test_nothing_is_lost_while_the_server_is_away(self, visiting):
        visit = visiting()
        visit.teach()
        visit.attempt(drawn("black", 1, seed=50))
        expect(visit.answer).to_contain_text("black")
        visit.page.context.set_offline(True)
        visit.examples("black").first.focus()
        visit.page.keyboard.press("Delete")
        expect(visit.page.get_by_role("alert")).to_contain_text("does not answer")
        expect(visit.examples("black")).to_have_count(3)
        visit.page.context.set_offline(False)
        visit.page.keyboard.press("Delete")
        expect(visit.examples("black")).to_have_count(2)
        expect(visit.answer).to_contain_text("black")


class TestQuality:
    def test_is_shown_in_numbers_and_plots(self, visiting):
        visit = visiting()
        visit.teach()
        quality = visit.page.get_by_role("region", name="How good is it?")
        expect(quality).to_contain_text("6 of 6")
        expect(quality.get_by_role("img", name="No example was taken for another class.")).to_be_visible()
        expect(quality.get_by_role("img", name="Reliability.")).to_be_visible()

    def test_an_example_in_the_wrong_class_is_found_and_moved(self, visiting):
        visit = visiting()
        visit.teach()
        visit.add("black", [*drawn("black", 4, seed=20), *drawn("white", 1, seed=30)])
        visit.add("white", drawn("white", 4, seed=40))
        visit.page.get_by_role("button", name="Move to white").click()
        expect(visit.examples("white")).to_have_count(8)
        expect(visit.examples("black")).to_have_count(7)


class TestFiles:
    def test_a_classifier_is_downloaded_and_opened_again(self, visiting, tmp_path):
        visit = visiting()
        visit.teach()
        with visit.page.expect_download() as waiting:
            visit.page.get_by_role("button", name="Download classifier").click()
        file = tmp_path / waiting.value.suggested_filename
        waiting.value.save_as(file)
        assert sorted(map(str, FewShotClassifier.load(file).classes.tolist())) == ["black", "white"]
        visit.page.get_by_role("button", name="Start anew").click()
        expect(visit.card("Class 1")).to_be_visible()
        with visit.page.expect_file_chooser() as chooser:
            visit.page.get_by_role("button", name="Open a classifier").locator("visible=true").click()
        chooser.value.set_files(file)
        expect(visit.examples("black")).to_have_count(3)
        visit.attempt(drawn("black", 1, seed=50))
        expect(visit.answer).to_contain_text("black")

    def test_the_onnx_form_runs(self, visiting, tmp_path):
        onnxruntime = pytest.importorskip("onnxruntime")
        visit = visiting()
        visit.teach()
        with visit.page.expect_download(timeout=30_000) as waiting:
            visit.page.get_by_role("button", name="Download ONNX").click()
        assert waiting.value.suggested_filename == "my-pictures.onnx"
        file = tmp_path / "classifier.onnx"
        waiting.value.save_as(file)
        session = onnxruntime.InferenceSession(file)
        assert session.get_inputs()
        assert session.get_outputs()

    def test_a_file_of_something_else_is_refused_in_a_sentence(self, visiting, tmp_path):
        visit = visiting()
        file = tmp_path / "letter.safetensors"
        file.write_bytes(b"Dear reader")
        with visit.page.expect_file_chooser() as chooser:
            visit.page.get_by_role("button", name="Open a classifier").locator("visible=true").click()
        chooser.value.set_files(file)
        expect(visit.page.get_by_role("alert")).to_contain_text("safetensors")


class TestTexts:
    def test_are_taught_and_tried_in_their_own_tab(self, visiting):
        visit = visiting()
        visit.page.get_by_role("tab", name="Texts").click()
        for name, lines in (("Class 1", "aaa\naa ab\nab aa"), ("Class 2", "zzz\nzz yz\nyz zz")):
            area = visit.card(name).get_by_role("textbox", name="Texts of")
            area.fill(lines)
            area.press("Enter")
            expect(visit.examples(name)).to_have_count(3)
        visit.page.get_by_label("A text to try").fill("zz zz z")
        expect(visit.answer).to_contain_text("Class 2")
        visit.page.get_by_label("A text to try").fill("aaab")
        expect(visit.answer).to_contain_text("Class 1")
        visit.page.reload()
        expect(visit.answer).to_contain_text("Class 1")


class TestReaders:
    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_axe_finds_nothing(self, visiting, scheme):
        visit = visiting(color_scheme=scheme, reduced_motion="reduce")
        assert violations(visit.page) == {}
        visit.page.get_by_role("button", name="Try the bird example").click()
        visit.page.locator(".plot.reliability").wait_for()
        expect(visit.answer).to_be_visible()
        assert violations(visit.page) == {}
        visit.examples("Robin").first.click()
        assert violations(visit.page) == {}

    def test_axe_finds_nothing_among_texts_and_with_the_camera(self, visiting):
        visit = visiting(reduced_motion="reduce")
        visit.page.get_by_role("button", name="Camera for Class 1").click()
        visit.page.get_by_role("dialog").wait_for()
        assert violations(visit.page) == {}
        visit.page.keyboard.press("Escape")
        visit.page.get_by_role("tab", name="Texts").click()
        visit.page.get_by_role("button", name="Try the message example").click()
        expect(visit.answer).to_be_visible()
        assert violations(visit.page) == {}

    def test_nothing_is_wider_than_a_phone(self, visiting):
        visit = visiting(**PHONE)
        wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert visit.page.evaluate(wide) == 0
        visit.rename("Class 1", "a" * 100)
        visit.add("a" * 100, drawn("black", 3))
        visit.add("Class 2", drawn("white", 3))
        visit.attempt(drawn("white", 1, seed=9))
        expect(visit.answer).to_be_visible()
        visit.page.locator(".plot.reliability").wait_for()
        assert visit.page.evaluate(wide) == 0

    def test_a_visit_with_the_keyboard_alone(self, visiting):
        visit = visiting()
        keyboard = visit.page.keyboard
        example = visit.page.get_by_role("button", name="Try the bird example")
        for _ in range(10):
            keyboard.press("Tab")
            if example.evaluate("one => one === document.activeElement"):
                break
        keyboard.press("Enter")
        expect(visit.answer).to_be_visible(timeout=30_000)  # it draws, teaches and asks, beside other tests
        expect(visit.examples("Robin")).to_have_count(4)


class TestOthers:
    def test_a_served_file_can_be_tried_but_not_taught(self, visiting, address, tmp_path):
        visit = visiting()
        visit.teach()
        with visit.page.expect_download() as waiting:
            visit.page.get_by_role("button", name="Download classifier").click()
        file = tmp_path / "shades.safetensors"
        waiting.value.save_as(file)
        with served(file=str(file)) as reading:
            context = visit.page.context.browser.new_context()
            page = context.new_page()
            page.goto(reading)
            page.get_by_label("Pictures to try").set_input_files(drawn("white", 1, seed=50))
            expect(page.locator(".headline")).to_contain_text("white")
            expect(page.locator("main")).to_contain_text("2 classes apart: black, white")
            expect(page.get_by_role("button", name="Add a class")).to_have_count(0)
            assert violations(page) == {}
            context.close()

    def test_a_pasted_picture_is_tried_or_goes_to_the_class_with_the_focus(self, visiting):
        visit = visiting()
        visit.teach()
        paste = """([where, bytes]) => {
            const data = new DataTransfer();
            data.items.add(new File([new Uint8Array(bytes)], "pasted.png", {type: "image/png"}));
            const event = new ClipboardEvent("paste", {clipboardData: data, bubbles: true, cancelable: true});
            document.querySelector(where).dispatchEvent(event);
        }"""
        content = list(drawn("black", 1, seed=80)[0]["buffer"])
        visit.page.mouse.move(0, 0)
        visit.page.evaluate(paste, ["main", content])
        expect(visit.answer).to_contain_text("black")
        visit.card("white").get_by_role("button", name="Choose pictures").focus()
        visit.page.evaluate(paste, ["main", content])
        expect(visit.examples("white")).to_have_count(4)

    def test_what_others_have_changed_is_taken_up(self, visiting, address):
        visit = visiting()
        visit.teach()
        task = visit.page.evaluate("() => JSON.parse(localStorage['gpldla.page.images']).task")
        first, *_ = httpx.get(f"{address}/v1/tasks/{task}/examples").json()["examples"]
        httpx.patch(f"{address}/v1/tasks/{task}/examples/{first['id']}", json={"label": "somebody else's"})
        visit.page.evaluate("() => document.dispatchEvent(new Event('visibilitychange'))")
        expect(visit.examples("somebody else's")).to_have_count(1)
        expect(visit.examples("black")).to_have_count(2)

    def test_what_the_server_has_lost_is_said(self, browser):
        with served() as address:
            context = browser.new_context()
            visit = Visit(context.new_page(), address)
            visit.add("Class 1", drawn("black", 2))
            expect(visit.examples("Class 1")).to_have_count(2)
            task = visit.page.evaluate("() => JSON.parse(localStorage['gpldla.page.images']).task")
            assert httpx.delete(f"{address}/v1/tasks/{task}").status_code == 204
            visit.page.reload()
            expect(visit.page.get_by_role("status").last).to_contain_text("no longer has what was taught")
            visit.add("Class 1", drawn("black", 2))
            expect(visit.examples("Class 1")).to_have_count(2)
            context.close()


class TestToken:
    def test_is_asked_for_until_it_is_right(self, browser):
        with served(token="a-long-secret-token") as address:
            context = browser.new_context()
            page = context.new_page()
            page.goto(address)
            for given in ("wrong", "a-long-secret-token"):
                page.get_by_label("The server's token").fill(given)
                page.keyboard.press("Enter")
                if given == "wrong":
                    expect(page.get_by_role("alert")).to_contain_text("not the server's token")
            page.locator(".card").first.wait_for()
            page.get_by_role("button", name="Try the bird example").click()
            shot = page.locator(".shot:not(.pending) img").first
            expect(shot).to_have_attribute("src", re.compile("^blob:"))
            page.wait_for_function("() => document.querySelector('.shot:not(.pending) img').naturalWidth > 0")
            context.close()
