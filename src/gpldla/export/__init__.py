"""ONNX files that give this package's probabilities without it, in any ONNX runtime.

`export_fitted` writes what `gpldla fit` has made. `export_classifier`, `export_text_classifier` and
`export_feature_classifier` write a classifier adapted to a task, from pictures, tokens or features to
probabilities, "none of these" and "unsure", see `Decision`. `export_adaptable` writes the method itself: one
file that takes the labelled examples of any task and answers for its queries. `graph_of` returns the graph
that a classifier's own file may hold, and `export_page` writes a page that runs a classifier in a browser.

Nothing is implemented a second time: torch traces what networks, heads and posteriors compute. The metadata
of a file are JSON values: format, version, kind, temperature, half, and for classifiers also classes,
max_error, prevalence, and preprocessing or tokenizer.
"""

from gpldla.export.browser_page import export_page
from gpldla.export.classifiers import (
    export_adaptable,
    export_classifier,
    export_feature_classifier,
    export_fitted,
    export_text_classifier,
)
from gpldla.export.decision import Decision
from gpldla.export.stored_graph import graph_of

__all__ = [
    "Decision",
    "export_adaptable",
    "export_classifier",
    "export_feature_classifier",
    "export_fitted",
    "export_page",
    "export_text_classifier",
    "graph_of",
]
