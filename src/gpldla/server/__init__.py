"""The HTTP server: tasks that are taught live, over the package's own classifiers."""
