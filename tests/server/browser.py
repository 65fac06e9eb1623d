"""A real browser before a real server: Debian's Chromium, driven by Playwright."""

import shutil
import threading
import time
from contextlib import contextmanager

import pytest
import uvicorn

from gpldla.server.app import create_app
from tests.server.helpers import picture, small
from tests.server.processes import free_port

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ("--no-sandbox", "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")


@contextmanager
def browsing():
    """Start a browser; skips where there is none."""
    driver = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("there is no chromium on this machine")
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


@contextmanager
def served(**settings):
    """Serve small networks in a thread; yields the address."""
    port = free_port()
    app = create_app(small(**settings))
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_config=None))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.02)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(20)


def drawn(colour, count, seed=0):
    """Pictures of a class, as Playwright takes files."""
    return [
        {"name": f"{colour}-{seed + i}.png", "mimeType": "image/png", "buffer": picture(colour, seed + i)}
        for i in range(count)
    ]


class Visit:
    """What a visitor does and sees; errors of the page's scripts are collected."""

    def __init__(self, page, address):
        self.page, self.errors = page, []
        page.set_default_timeout(40_000)  # a busy machine may take that long
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", self._noted)
        page.goto(address)
        page.locator(".card").first.wait_for()

    def _noted(self, message):
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.errors.append(message.text)

    @property
    def cards(self):
        return self.page.locator("[role=tabpanel]:not([hidden]) .card")

    def card(self, name):
        return self.page.get_by_role("region", name=f"Class {name}", exact=True)

    def examples(self, name):
        return self.card(name).locator("li:not(.pending) .example")

    def add(self, name, files):
        self.card(name).locator("input[type=file]").set_input_files(files)

    def rename(self, old, new):
        field = self.card(old).get_by_role("textbox", name="Name of the class")
        field.fill(new)
        field.press("Enter")
        self.card(new).wait_for()

    def undo(self):
        self.page.get_by_role("button", name="Undo").first.click()

    def teach(self):
        """Teach two classes of three pictures."""
        self.rename("Class 1", "black")
        self.rename("Class 2", "white")
        for name in ("black", "white"):
            self.add(name, drawn(name, 3))
            self.examples(name).nth(2).wait_for()

    def attempt(self, files):
        self.page.get_by_label("Pictures to try").set_input_files(files)

    @property
    def answer(self):
        return self.page.locator("[role=tabpanel]:not([hidden]) .headline")
