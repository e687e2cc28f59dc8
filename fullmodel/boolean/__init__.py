"""Boolean functions in the parameter space of transformers (arXiv 2606.08768)."""
