"""Tools that do not depend on few-shot learning: errors, files, plugins, progress, processes, timing."""
