"""A classifier as one page that runs it in any browser: the graph, the runtime and what shows the answers.

Everything is in the file, so it works without a server and without a network, and its Content-Security-Policy
allows no request. The runtime is onnxruntime-web, which `make browser-runtime` puts into `page/runtime`.
"""

import base64
import gzip
import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from gpldla import __version__
from gpldla.classifier.abstention import MAX_ERROR, PREVALENCE
from gpldla.classifier.few_shot import FewShotClassifier
from gpldla.export.classifiers import export_fitted
from gpldla.utils.errors import UserError
from gpldla.utils.files import write_atomically

PAGE = Path(__file__).parent / "page"
RUNTIME = PAGE / "runtime"
RUNTIME_FILES = {"runtime": "ort.wasm.bundle.min.mjs", "wasm": "ort-wasm-simd-threaded.wasm"}
SCRIPTS = ("pixels.js", "tokens.js", "page.js")
KINDS = {"image classifier": "picture", "text classifier": "text"}


def export_page(
    classifier: FewShotClassifier,
    path: str | Path,
    *,
    half: bool = False,
    max_error: float = MAX_ERROR,
    prevalence: float = PREVALENCE,
) -> None:
    """Write a fitted classifier of pictures or texts as a page; the options are those of `export_fitted`."""
    import onnx

    _check_runtime()
    path = Path(path)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "classifier.onnx"
        export_fitted(classifier, file, half=half, max_error=max_error, prevalence=prevalence)
        graph = onnx.load(file)
        content = file.read_bytes()
    facts = {prop.key: json.loads(prop.value) for prop in graph.metadata_props}
    if facts["kind"] not in KINDS or not _is_readable(facts.get("tokenizer")):
        raise UserError(
            f"A page needs a network in its graph and its tokens, which {classifier.model.backbone_name} does"
            " not have; choose a model of pictures, or all-minilm-l6-v2."
        )
    write_atomically(path, page_of(content, facts, path.stem).encode())


def _check_runtime() -> None:
    missing = [name for name in RUNTIME_FILES.values() if not (RUNTIME / name).is_file()]
    if missing:
        raise UserError(
            f"This installation has no runtime for browsers ({missing[0]} is missing); run"
            " `make browser-runtime` in a checkout, or install a released wheel."
        )


def _is_readable(tokenizer: dict[str, Any] | None) -> bool:
    """Return whether `page/tokens.js` follows the rules of a tokenizer.json; pictures have none."""
    if tokenizer is None:
        return True
    kinds = [(tokenizer.get(part) or {}).get("type") for part in ("model", "normalizer", "pre_tokenizer")]
    ends = (tokenizer.get("post_processor") or {}).get("type")
    is_bert = kinds == ["WordPiece", "BertNormalizer", "BertPreTokenizer"]
    return is_bert and ends in (None, "BertProcessing", "TemplateProcessing")


def page_of(graph: bytes, facts: dict[str, Any], title: str) -> str:
    """Return the page of a graph with these facts."""
    environment = Environment(
        loader=PackageLoader("gpldla.export", "page"),
        autoescape=select_autoescape(),
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    script = "\n".join((PAGE / name).read_text("utf-8") for name in SCRIPTS)
    style = (PAGE / "page.css").read_text("utf-8")
    kind = KINDS[facts["kind"]]
    wanted = ("classes", "preprocessing" if kind == "picture" else "tokenizer")
    shown = {"kind": kind, **{name: facts[name] for name in wanted}}
    parts = {name: _embedded((RUNTIME / file).read_bytes()) for name, file in RUNTIME_FILES.items()}
    return environment.get_template("page.html").render(
        title=title,
        kind=kind,
        classes=[str(name) for name in facts["classes"]],
        max_error=facts["max_error"],
        version=__version__,
        runtime_version=(RUNTIME / "VERSION").read_text("utf-8").strip(),
        facts=Markup(json.dumps(shown).replace("<", "\\u003c")),
        graph=_embedded(graph),
        script=Markup(script),
        style=Markup(style),
        script_hash=Markup(_hash(script)),
        style_hash=Markup(_hash(style)),
        **parts,
    )


def _embedded(content: bytes) -> Markup:
    return Markup(base64.b64encode(gzip.compress(content, mtime=0)).decode())


def _hash(text: str) -> str:
    """Return what a Content-Security-Policy allows a script by."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
