"""How much of a network's learning lies in the span of Theorem 1, in its own embedding.

Where the task's symmetries hold, the expected gradient of key-query matrices and of the readout
(logit_t = token_t · R · x) is a combination of

    F_uᵀ S F_v   (heads)        E_tokensᵀ S F_v   (readout)        F_u = E V_uᵀ, writings of path u

for any embedding E and any output-value maps V. Coordinates are the nearest in Frobenius norm. In
the exact frame this span is the manifold; the span of `own_basis`, F's dual, is what *scores* in a
network are, and the same where embeddings are orthonormal. This one also makes sense where tokens
and places outnumber dimensions.

Shapes as in `own_basis`; `E` elements.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from fullmodel.confinement.own_basis import (
    CUTOFF,
    Network,
    Part,
    Projection,
    defect,
    gram_of,
    least_squares,
    overlaps,
    places_of,
    products_of,
    selections,
    share_of,
    together,
)
from fullmodel.frames import writings
from imir.basis import Basis, Element


@dataclass(frozen=True)
class Span:
    """Writings, selections and Gram matrices of a network's span; from `span_of`."""

    basis: Basis
    F: Float[np.ndarray, "U N d"]
    tokens: Float[np.ndarray, "1 N d"]
    S: Float[np.ndarray, "S N N"]
    grams: tuple[np.ndarray, ...]
    defect: float


def span_of(basis: Basis, network: Network) -> Span:
    """The span that a network's embeddings and output-value maps make."""
    F, S = writings(basis, network), selections(basis, network.places)
    N, V = F.shape[1], len(network.tokens)
    tokens = np.where(np.arange(N)[:, None] < V, F[0], 0.0)[None]
    P = overlaps(F)
    heads = [gram_of(P[:u, :u], S, P[:u, :u]) for u in _below(basis)]
    D = np.linalg.pinv(F, rcond=CUTOFF).swapaxes(1, 2)
    return Span(basis, F, tokens, S, (*heads, gram_of(overlaps(tokens), S, P)), defect(F, D))


def captured(
    span: Span, key_query: Float[np.ndarray, "L H d d"], readout: Float[np.ndarray, "d d"]
) -> Projection:
    """Coordinates and shares of matrices, their movements or gradients; chance beside each share.

    A share is ‖Σ θ_e B_e‖²/‖W‖², and `expected` that of as many random directions.
    """
    parts = _parts(span, key_query, readout, span.basis.elements)
    return together(span.basis, parts, span.defect)


def captured_by(
    span: Span,
    elements: Sequence[Element],
    key_query: Float[np.ndarray, "L H d d"],
    readout: Float[np.ndarray, "d d"],
) -> tuple[float, float]:
    """The share of all matrices together that some directions capture, and that of as many random
    ones."""
    return share_of(_parts(span, key_query, readout, elements))


def _parts(span: Span, key_query, readout, elements: Sequence[Element]) -> list[Part]:
    """Each head's, and the readout's."""
    heads = [
        _part(span, span.F[:u], span.F[:u], W, gram, _at(elements, layer, head))
        for layer, (u, gram, matrices) in enumerate(
            zip(_below(span.basis), span.grams, key_query, strict=False), 1
        )
        for head, W in enumerate(matrices, 1)
    ]
    output = _at(elements, span.basis.layers + 1, None)
    return [*heads, _part(span, span.tokens, span.F, readout, span.grams[-1], output)]


def _part(span: Span, query, key, W, gram, elements: list[Element]) -> Part:
    products = products_of(W, query, key, span.S)
    return least_squares(W, products, gram, places_of(span.basis, elements))


def _at(elements: Sequence[Element], layer: int, head: int | None) -> list[Element]:
    return [e for e in elements if (e.layer, e.head) == (layer, head)]


def _below(basis: Basis) -> list[int]:
    """How many paths a head of each layer reads."""
    return [len(basis.paths(layer)) for layer in range(1, basis.layers + 1)]
