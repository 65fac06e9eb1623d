"""Tools that know nothing of few-shot learning: errors, files, progress, processes, timing."""
