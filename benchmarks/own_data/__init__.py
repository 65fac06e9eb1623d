"""The user's own pictures and texts: GPLDLAClassifier and scikit-learn's classifiers on the same features.

    python -m benchmarks.own_data [--features FILE.npz] [--only PART ...] [--episodes SCALE]
    python -m benchmarks.own_data --render

Photographs: CUB through EfficientNet-Lite0, tasks of its 50 novel classes; the base classes are used only
by `meta_fit`. Text: the categories of ICD-10-CM by chapter (PyPI package simple-icd-10-cm) through MiniLM.
Beyond: "none of these", abstaining, and the full covariance beside the diagonal one. Results are saved
after every cell; those of parts that are not measured stay. --render writes the tables to docs/own-data.md
and measures nothing.

FILE.npz holds X, float32 [n, d], and names [n], paths whose parent folder is the class. If the file
does not exist, the images of the data root are embedded, in ten minutes on two cores, and written to it.
"""
