"""Ties: linear maps from a few coordinates to the basis' coefficients. Submanifolds are ties.

With coefficients θ = T φ, gradient flow restricted to the submanifold reads
φ̇ = −(TᵀGT)⁻¹ ∇_φ L, the orthogonal projection of the full flow.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from jaxtyping import Float

from imir.basis import Basis, Path


@dataclass(frozen=True)
class Term:
    """One coordinate's share in a head's scores or in the output: V_u K V_vᵀ."""

    layer: int
    head: int | None
    query_path: Path
    kernel: int
    key_path: Path
    coordinate: int


@dataclass(frozen=True)
class Tie:
    """Named coordinates, each a sum of basis elements (indices into `basis.elements`)."""

    basis: Basis
    names: tuple[str, ...]
    members: tuple[tuple[int, ...], ...]

    @cached_property
    def matrix(self) -> Float[np.ndarray, "E C"]:
        """T: 1 where an element moves with a coordinate."""
        T = np.zeros((len(self.basis.elements), len(self.names)))
        for c, elements in enumerate(self.members):
            T[list(elements), c] = 1.0
        return T

    @cached_property
    def metric(self) -> Float[np.ndarray, "C C"]:
        """TᵀGT, the Gram matrix of the coordinates' directions, place by place."""
        metric = np.zeros((len(self.names),) * 2)
        for values in self._at_places.values():
            coordinates, selections = np.array(values).T
            block = self.basis.selection_gram[selections[:, None], selections]
            np.add.at(metric, (coordinates[:, None], coordinates), block)
        return metric

    @cached_property
    def _at_places(self) -> dict[tuple[int, int | None, Path, Path], list[tuple[int, int]]]:
        """(coordinate, selection) of every element in each place (layer, head, u, v)."""
        found: dict[tuple[int, int | None, Path, Path], list[tuple[int, int]]] = {}
        for c, elements in enumerate(self.members):
            for e in (self.basis.elements[i] for i in elements):
                place = (e.layer, e.head, e.query_path, e.key_path)
                found.setdefault(place, []).append((c, e.selection))
        return found

    @cached_property
    def _sums(self) -> dict[tuple[int, int | None, Path, Path, int], np.ndarray]:
        """Sum of the selections that move together in one place, by (layer, head, u, v, c)."""
        sums: dict[tuple[int, int | None, Path, Path, int], np.ndarray] = {}
        for c, elements in enumerate(self.members):
            for e in (self.basis.elements[i] for i in elements):
                place = (e.layer, e.head, e.query_path, e.key_path, c)
                sums[place] = sums.get(place, 0.0) + self.basis.values[e.selection]
        return sums

    @cached_property
    def kernels(self) -> Float[np.ndarray, "K O"]:
        """The different sums of selections that move together, as values on the orbitals."""
        return np.array(list(dict.fromkeys(map(tuple, self._sums.values()))))

    @cached_property
    def terms(self) -> tuple[Term, ...]:
        """All terms of the forward pass; their sum over a place is Σ_S θ_{uSv} S."""
        number = {tuple(kernel): k for k, kernel in enumerate(self.kernels)}
        return tuple(
            Term(layer, head, u, number[tuple(values)], v, c)
            for (layer, head, u, v, c), values in self._sums.items()
        )

    def sight(self, copies: list[int], nodes: list[int]) -> tuple[object, ...]:
        """What the submanifold sees of a block's tokens that share no copy with other blocks.

        Two blocks with equal sights give the same logits up to relabelling tokens: kernels among
        their own tokens, with tokens of other copies and with positions, and with absent tokens
        of their own copies.
        """
        table = self.basis.configuration.table
        seen, predicted = self._columns
        everywhere = range(self.basis.configuration.nodes)
        pairs = [
            seen[table[int(c == d), x, y]]
            for c, x in zip(copies, nodes, strict=True)
            for d, y in zip(copies, nodes, strict=True)
        ]
        others = [
            (predicted[table[0, x, y]], predicted[table[0, y, x]])
            for x in nodes
            for y in everywhere
        ]
        absent = [
            sorted(
                (seen[table[1, y, x]], seen[table[0, y, x]])
                for y in everywhere
                if table[1, y, x] >= 0 and y != x and seen[table[1, y, x]] != seen[table[0, y, x]]
            )
            for x in nodes
        ]
        return (tuple(pairs), tuple(others), tuple(map(tuple, absent)))

    @cached_property
    def _columns(self) -> tuple[list[int], list[int]]:
        """Orbitals with equal numbers have equal kernels: away from the last row, and anywhere.

        Output elements with the empty path only ever look at the last token.
        """
        last = [t for t in self.terms if t.head is None and not t.key_path]
        away = [self.kernels[t.kernel] * (t not in last) for t in self.terms]
        anywhere = [self.kernels[t.kernel] for t in self.terms]
        return _numbered(np.array(away)), _numbered(np.array(anywhere))


def _numbered(rows: Float[np.ndarray, "R O"]) -> list[int]:
    """A number for each distinct column; the last entry stands for pairs that do not exist."""
    columns = [tuple(column) for column in rows.T]
    return [*map(columns.index, columns), -1]


def free(basis: Basis) -> Tie:
    """Every basis element a coordinate of its own: the whole manifold."""
    return Tie(basis, basis.names, tuple((i,) for i in range(len(basis.elements))))


def short(basis: Basis, steps: int = 1) -> Tie:
    """Only elements whose query and key paths go through at most so many heads.

    One step is enough for every canonical circuit of the named tasks, k hops in k + 1 layers
    included: a head finds the block whose first token the last hop has brought, and brings the
    next. What two and more heads in a row have written is left out. Raises `ValueError` for
    negative `steps`.
    """
    if steps < 0:
        raise ValueError(f"Argument `steps` must be at least 0, but is {steps}.")
    kept = [
        i for i, e in enumerate(basis.elements) if max(len(e.query_path), len(e.key_path)) <= steps
    ]
    return Tie(basis, tuple(basis.names[i] for i in kept), tuple((i,) for i in kept))


# Ways to reduce a deep basis, by the name that a command offers.
REDUCTIONS: dict[str, Callable[[Basis], Tie]] = {
    "all": free,
    "one-step": short,
    "two-step": partial(short, steps=2),
}


def tie(basis: Basis, groups: Mapping[str, list[str]]) -> Tie:
    """Coordinates by the names of the elements that move together (`basis.names`)."""
    for name in (name for names in groups.values() for name in names):
        if name not in basis.names:
            raise ValueError(
                f"Argument `groups` must name elements of the basis, but has {name!r}."
            )
    members = tuple(tuple(basis.names.index(n) for n in names) for names in groups.values())
    return Tie(basis, tuple(groups), members)
