"""Small pictures and texts, and a server without a network port."""

from contextlib import contextmanager
from io import BytesIO

import numpy as np
import torch
from PIL import Image
from starlette.testclient import TestClient

from gpldla.backbones.base import _BACKBONES, TextBackbone, register_backbone
from gpldla.data.preprocessing import TextPreprocessing
from gpldla.server.app import create_app
from gpldla.server.settings import Settings

COLOURS = {"black": 20, "white": 235, "grey": 128}


class Letters(TextBackbone):
    """How often each letter occurs in a text, 26 features: a network that needs no weights."""

    pretrained = True
    preprocessing = TextPreprocessing(max_tokens=256)
    feature_dim = 26

    def forward(self, texts):
        counts = [[text.lower().count(chr(97 + i)) for i in range(26)] for text in texts]
        return torch.tensor(counts, dtype=torch.float32).reshape(len(texts), 26)


@contextmanager
def letter_counts():
    """Register the network of texts for as long as this lasts: other tests list all that there are."""
    register_backbone("letter-counts")(Letters)
    yield
    del _BACKBONES["letter-counts"]


def picture(colour="black", seed=0, *, size=(40, 30), kind="PNG", **options):
    """The bytes of a picture with a pattern of its colour's class, and noise."""
    rng = np.random.default_rng(seed)
    width, height = size
    x, y = np.meshgrid(np.linspace(0, 3, width), np.linspace(0, 3, height))
    wave = {"black": np.sin(2 * x), "white": np.sin(2 * y), "grey": np.sin(x * y)}[colour]
    pixels = COLOURS[colour] + 15 * wave + rng.normal(0, 4, (height, width))
    buffer = BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).convert("RGB").save(buffer, kind, **options)
    return buffer.getvalue()


def files(*pictures, name="picture.png"):
    """Files of a form."""
    return [("files", (name, content, "application/octet-stream")) for content in pictures]


def small(**settings):
    """Settings of a server with small networks."""
    return Settings(**{"image_model": "pixels", "text_model": "letter-counts", "device": "cpu", **settings})


def client_of(settings=None, **options):
    """A client of a server in this process; use it as a context, which starts and ends the server."""
    return TestClient(create_app(settings or small()), base_url="http://127.0.0.1:8000", **options)


def new_task(client, kind="images", name="Shades"):
    return client.post("/v1/tasks", json={"kind": kind, "name": name}).json()["id"]


def teach(client, task, label, count=3, seed=0):
    """Add pictures of a class; return what was answered."""
    pictures = [picture(label, seed + i) for i in range(count)]
    answer = client.post(f"/v1/tasks/{task}/examples", data={"label": label}, files=files(*pictures))
    assert answer.status_code == 201, answer.text
    return answer.json()
