"""The full side: transformers with explicit weights, and how they meet the invariant manifold.

It imports `imir`; `imir` never imports it.
"""
