"""Speed side by side, in one run: what `gpldla bench` measures."""
