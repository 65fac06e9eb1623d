"""ONNX files that give this package's probabilities without it, in any ONNX runtime.

`export_fitted` writes what `gpldla fit` has made. `export_classifier` and `export_feature_classifier` write a
classifier adapted to a task, from pictures or from features to probabilities. `export_adaptable` writes the
method itself: one file that takes the labelled examples of any task and answers for its queries. `graph_of`
returns the graph that a classifier's own file may hold.

Nothing is implemented a second time: torch traces what networks, heads and posteriors compute. The metadata
of a file are JSON values: format, version, kind, temperature, half, and for classifiers also classes and
preprocessing.
"""

from gpldla.export.classifiers import (
    export_adaptable,
    export_classifier,
    export_feature_classifier,
    export_fitted,
)
from gpldla.export.stored_graph import graph_of

__all__ = ["export_adaptable", "export_classifier", "export_feature_classifier", "export_fitted", "graph_of"]
