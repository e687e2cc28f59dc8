"""Coordinates of any attention-only model, in a basis built from its own embedding.

A path u writes the embedding of token or place x as F_u[x] = V_u e_x; its dual D_u is the
pseudo-inverse, F_u D_uᵀ = 1 up to rank. The elements of a head and of the output are

    B = D_uᵀ S D_v     (the score of writings u and v is S)         B = S D_v     (the logits are S)

and coordinates are the nearest in Frobenius norm: θ = G⁻¹ ⟨B_e, W⟩ with the elements' own Gram
matrix G. With orthonormal embeddings and fresh copies of them for each path, these are the basis
and the Gram matrix of arXiv 2607.11875 (section 3).

Shapes: `V` tokens, `p` places, `N` = V + p, `L` layers, `H` heads, `d` dimensions, `U` paths,
`S` selections, `E` elements.
"""

from dataclasses import dataclass
from itertools import product

import numpy as np
from jaxtyping import Float, Int

from fullmodel.frames import writings
from imir.basis import Basis, Element
from imir.flow.metric import orthogonal_groups

# Eigenvalues of a Gram matrix, and singular values, below this share of the largest are zero.
CUTOFF = 1e-9
# Overlaps below this share of the largest are rounding.
ROUNDING = 1e-13
# A model of whose weights the basis explains less than this has learned something else.
LITTLE = 0.05


@dataclass(frozen=True)
class Network:
    """The weights of a model that are not ours: scores x_iᵀ W x_j, heads write V x, logits U x.

    Rows of `tokens` and `unembedding` are the tokens of the basis in their order; row i of
    `positions` embeds the place `places[i]` = block · ring + offset.
    """

    tokens: Float[np.ndarray, "V d"]
    positions: Float[np.ndarray, "p d"]
    places: Int[np.ndarray, " p"]
    key_query: Float[np.ndarray, "L H d d"]
    output_value: Float[np.ndarray, "L H d d"]
    unembedding: Float[np.ndarray, "V d"]


@dataclass(frozen=True)
class Projection:
    """Coordinates of a model, and how much of it they are.

    `explained` is the share ‖Σ θ_e B_e‖² / ‖W‖² of each head, `explained_output` of the
    unembedding; `expected` and `expected_output` are the shares of as many random directions.
    `share` and `expected_share` are those of all weights together. `defect` is the sine of the
    angle between the Gram matrix of all writings F and that of an orthonormal frame of the same
    rank: 0 where each path writes an orthonormal copy of the embedding, up to one scale.
    """

    coefficients: Float[np.ndarray, " E"]
    names: tuple[str, ...]
    explained: Float[np.ndarray, "L H"]
    expected: Float[np.ndarray, "L H"]
    explained_output: float
    expected_output: float
    share: float
    expected_share: float
    defect: float

    @property
    def shares(self) -> list[float]:
        """The share explained of each head, of the output, and of all together."""
        return [*self.explained.ravel().tolist(), self.explained_output, self.share]

    @property
    def chances(self) -> list[float]:
        """What as many random directions would explain of each."""
        return [*self.expected.ravel().tolist(), self.expected_output, self.expected_share]

    @property
    def strange(self) -> bool:
        """Is the share explained near zero, or no more than chance?"""
        return self.share < max(LITTLE, 3 * self.expected_share)

    def __str__(self) -> str:
        names = *matrices_of(*self.explained.shape), "all weights"
        rows = [
            f"{name}: {share:.4f} explained ({chance:.1e} by chance)"
            for name, share, chance in zip(names, self.shares, self.chances, strict=True)
        ]
        if self.strange:
            rows.append("The basis of this task explains next to nothing of these weights.")
        return "\n".join([*rows, f"embedding: {self.defect:.2g} from orthonormal"])


def matrices_of(layers: int, heads: int) -> tuple[str, ...]:
    """Names of the heads' matrices, and of the output's."""
    each = product(range(1, layers + 1), range(1, heads + 1))
    return *(f"layer {layer}, head {head}" for layer, head in each), "output"


@dataclass(frozen=True)
class Part:
    """Coordinates of one matrix, its squared norm and the explained part; dimension of the span."""

    theta: Float[np.ndarray, " e"]
    square: float
    explained: float
    rank: int
    size: int


def project_own(basis: Basis, network: Network) -> Projection:
    """Coordinates of a model in the basis that its own embedding makes.

    Raises `ValueError` where arrays do not fit the basis, or where the embeddings' rank is too low
    to tell its tokens and places apart.
    """
    _check(basis, network)
    F = writings(basis, network)
    D = np.linalg.pinv(F, rcond=CUTOFF).swapaxes(1, 2)
    S = selections(basis, network.places)
    _check_rank(F[0], D[0], S)
    heads = [
        _head(basis, layer, head, W, S, D)
        for layer, matrices in enumerate(network.key_query, 1)
        for head, W in enumerate(matrices, 1)
    ]
    return together(basis, [*heads, _output(basis, network.unembedding, S, D)], defect(F, D))


def _check(basis: Basis, network: Network) -> None:
    V, d = basis.configuration.first(len(basis.classes)), network.tokens.shape[-1]
    layers = (basis.layers, basis.heads, d, d)
    shapes = {
        "tokens": (V, d),
        "positions": (len(network.places), d),
        "key_query": layers,
        "output_value": layers,
        "unembedding": (V, d),
    }
    for name, shape in shapes.items():
        found = getattr(network, name)
        if found.shape != shape:
            raise ValueError(
                f"Argument `network` must have {name} of shape {shape} for this task, "
                f"but of {found.shape}."
            )
        if not np.all(np.isfinite(found)):
            raise ValueError(f"Argument `network` must be finite, but its {name} are not.")


def selections(basis: Basis, places: Int[np.ndarray, " p"]) -> Float[np.ndarray, "S N N"]:
    """Every selection on the tokens and on the places that are embedded."""
    first = basis.configuration.first(len(basis.classes))
    kept = np.append(np.arange(first), first + places)
    return basis.configuration.dense(basis.values)[:, kept[:, None], kept]


def _check_rank(F: Float[np.ndarray, "N d"], D, S: Float[np.ndarray, "S N N"]) -> None:
    """Embeddings must carry every selection: F B Fᵀ = S for B = Dᵀ S D."""
    P = F @ D.T
    if not np.allclose(P @ S @ P.T, S, rtol=0, atol=1e-6):
        raise ValueError(
            f"Argument `network` must embed {len(F)} tokens and places independently, but its "
            f"embeddings in {F.shape[1]} dimensions have rank {round(np.trace(P))}."
        )


def _head(basis: Basis, layer: int, head: int, W, S, D) -> Part:
    D = D[: len(basis.paths(layer))]
    places = places_of(basis, [e for e in basis.elements if (e.layer, e.head) == (layer, head)])
    P = overlaps(D)
    return least_squares(W, products_of(W, D, D, S), gram_of(P, S, P), places)


def products_of(W, D: Float[np.ndarray, "u N d"], Q: Float[np.ndarray, "v N d"], S):
    """⟨D_uᵀ S Q_v, W⟩ for all u, S, v."""
    flat, other = (x.reshape(-1, x.shape[-1]) for x in (D, Q))
    blocks = (flat @ W @ other.T).reshape(len(D), D.shape[1], len(Q), -1)
    return np.einsum("uivj,sij->usv", blocks, S, optimize=True)


def _output(basis: Basis, unembedding, S, D) -> Part:
    """Logits are read off without a dual on their side: rows of S are the tokens themselves."""
    V, N = len(unembedding), D.shape[1]
    places = places_of(basis, [e for e in basis.elements if e.head is None])
    rows = np.einsum("ta,vja->vtj", unembedding, D)
    products = np.einsum("vtj,stj->sv", rows, S[:, :V])[None]
    tokens = np.diag(np.arange(N) < V).astype(float)[None, None]
    return least_squares(unembedding, products, gram_of(tokens, S, overlaps(D)), places)


def places_of(basis: Basis, elements: list[Element]) -> Int[np.ndarray, "e 3"]:
    """Where elements stand in a table (u, S, v)."""
    number = {path: i for i, path in enumerate(basis.paths(basis.layers + 1))}
    return np.array(
        [(number[e.query_path], e.selection, number[e.key_path]) for e in elements]
    ).reshape(-1, 3)


def overlaps(D: Float[np.ndarray, "U N d"]) -> Float[np.ndarray, "U U N N"]:
    """D_u D_u'ᵀ without rounding: the identity and zeros in an orthonormal frame."""
    flat = D.reshape(-1, D.shape[-1])
    overlaps = (flat @ flat.T).reshape(*D.shape[:2], *D.shape[:2]).swapaxes(1, 2)
    return np.where(np.abs(overlaps) > ROUNDING * np.abs(overlaps).max(), overlaps, 0.0)


def gram_of(P, S: Float[np.ndarray, "S N N"], Q) -> Float[np.ndarray, "u S v u S v"]:
    """⟨D_uᵀ S D_v, D_u'ᵀ S' D_v'⟩ = ⟨S, P_uu' S' Q_v'v⟩, from the overlaps of the two sides."""
    gram = np.zeros((len(P), len(S), len(Q), len(P), len(S), len(Q)))
    for u, w in np.argwhere(np.abs(P).max(axis=(2, 3)) > 0):
        moved = np.einsum("ab,tbc->tac", P[u, w], S)
        pairs = np.einsum("tac,sad->stcd", moved, S, optimize=True)
        gram[u, :, :, w] = np.einsum("stcd,xvcd->svtx", pairs, Q, optimize=True)
    return gram


def least_squares(W, products, gram, places: Int[np.ndarray, "e 3"]) -> Part:
    """Coordinates of W; directions that the model cannot write have coordinate zero."""
    kept = tuple(places.T)
    b, rows = products[kept], np.atleast_1d(np.ravel_multi_index(kept, products.shape))
    G = gram.reshape(products.size, -1)[np.ix_(rows, rows)]
    theta, rank, most = np.zeros(len(b)), 0, float(np.max(np.diag(G), initial=0))
    for group in orthogonal_groups(G):
        values, vectors = np.linalg.eigh(G[np.ix_(group, group)])
        real = values > CUTOFF * most
        theta[group] = vectors[:, real] @ ((vectors[:, real].T @ b[group]) / values[real])
        rank += int(real.sum())
    return Part(theta, float(np.sum(W**2)), float(b @ theta), rank, W.size)


def together(basis: Basis, parts: list[Part], defect: float) -> Projection:
    share, chance = (np.array(x) for x in zip(*(share_of([p]) for p in parts), strict=True))
    shape = basis.layers, basis.heads
    all_shares = share_of(parts)
    return Projection(
        coefficients=np.concatenate([p.theta for p in parts]),
        names=basis.names,
        explained=share[:-1].reshape(shape),
        expected=chance[:-1].reshape(shape),
        explained_output=float(share[-1]),
        expected_output=float(chance[-1]),
        share=all_shares[0],
        expected_share=all_shares[1],
        defect=defect,
    )


def share_of(parts: list[Part]) -> tuple[float, float]:
    """What is explained of all together, and what as many random directions would explain."""
    explained, square, rank, size = (
        sum(getattr(p, x) for p in parts) for x in ("explained", "square", "rank", "size")
    )
    return explained / square if square else 0.0, rank / size


def defect(F: Float[np.ndarray, "U N d"], D: Float[np.ndarray, "U N d"]) -> float:
    """Sine of the angle between F Fᵀ and the projections P_u = F_u D_uᵀ on its diagonal blocks.

    Their inner product is ‖F‖², as P_u F_u = F_u.
    """
    flat = F.reshape(-1, F.shape[-1])
    cosine = np.sum(F**2) / np.sqrt(np.sum((flat @ flat.T) ** 2) * np.einsum("uia,uia->", F, D))
    return float(np.sqrt(max(0.0, 1 - cosine**2)))
