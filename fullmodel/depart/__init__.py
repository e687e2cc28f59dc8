"""What each departure from the theorem's assumptions costs, one at a time (arXiv 2607.11875).

- `rows`: the departures, each a setting that differs in one thing from its neighbours;
- `runs`: full runs beside the reduced one, kept in files;
- `table`: how much of what was learned is in the span, and how well emergence was predicted;
- `laws`: exponents over batch size and width;
- `attraction`: whether what is off the manifold shrinks;
- `adam`: the ε from which Adam stays on the manifold in floating-point numbers;
- `regimes`: the regime reached against the one predicted, over a grid of data statistics.
"""
