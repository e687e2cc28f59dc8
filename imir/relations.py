"""Relations: tokens and positions are the same kind of thing (arXiv 2607.11875, section 2).

A *relation* is a number of disjoint copies of a small *motif* digraph. Its symmetry group is the
wreath product Aut(motif) ≀ Sym(copies). A *configuration* is the disjoint union of relations; the
orbits of its group on pairs of elements are the *orbitals*, which form a coherent configuration:
constant row sums, closed under product, transpose and entrywise product.

Shapes: `N` elements, `m` motif nodes, `O` orbitals. Element `copy * m + role` of a relation is the
node `role` of one copy; relations stand one after the other.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, product

import jax.numpy as jnp
import networkx as nx
import numpy as np
from jaxtyping import Array, Float, Int


@dataclass(frozen=True)
class Motif:
    """A small digraph on the nodes 0 … size − 1."""

    size: int
    edges: frozenset[tuple[int, int]]

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"Argument `size` must be at least 1, but is {self.size}.")
        if stray := sorted(e for e in self.edges if not all(0 <= x < self.size for x in e)):
            raise ValueError(
                f"Argument `edges` must join nodes 0 to {self.size - 1}, but holds {stray[0]}."
            )

    @cached_property
    def automorphisms(self) -> tuple[tuple[int, ...], ...]:
        """All permutations of the nodes that map edges to edges."""
        graph = nx.DiGraph(list(self.edges))
        graph.add_nodes_from(range(self.size))
        matcher = nx.algorithms.isomorphism.DiGraphMatcher(graph, graph)
        maps = matcher.isomorphisms_iter()
        return tuple(sorted(tuple(f[x] for x in range(self.size)) for f in maps))

    @cached_property
    def is_cycle(self) -> bool:
        return self.edges == cycle(self.size).edges


def cycle(size: int) -> Motif:
    """The directed cycle 0 → 1 → … → 0: associated pairs (2), triples (3), position rings (K)."""
    return Motif(size, frozenset((i, (i + 1) % size) for i in range(size) if size > 1))


def single() -> Motif:
    """One node without a relation: the motif of rare (lexinvariant) tokens."""
    return cycle(1)


@dataclass(frozen=True)
class Relation:
    """`copies` disjoint copies of `motif`."""

    name: str
    motif: Motif
    copies: int

    def __post_init__(self) -> None:
        if self.copies < 1:
            raise ValueError(f"Argument `copies` must be at least 1, but is {self.copies}.")

    @property
    def size(self) -> int:
        return self.motif.size * self.copies


@dataclass(frozen=True)
class Orbital:
    """One orbit of the group on ordered pairs of elements.

    `pairs` are its node pairs (global node indices), `same` says whether both elements lie in the
    same copy, `source` and `target` are the orbits of its elements, `size` counts its pairs, and
    `row_sum` counts the partners of one source element.
    """

    same: bool
    source: int
    target: int
    pairs: tuple[tuple[int, int], ...]
    size: int
    row_sum: int


@dataclass(frozen=True)
class Configuration:
    """The coherent configuration of several relations side by side."""

    relations: tuple[Relation, ...]

    @cached_property
    def node_relation(self) -> np.ndarray:
        """Relation of each node; nodes are the motifs' nodes, one motif after the other."""
        sizes = [r.motif.size for r in self.relations]
        return np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)

    @cached_property
    def _starts(self) -> np.ndarray:
        """First element, first copy and first node of each relation, with the totals at the end."""
        sizes = [(r.size, r.copies, r.motif.size) for r in self.relations]
        starts = accumulate(sizes, lambda a, b: np.add(a, b), initial=(0, 0, 0))
        # 32-bit in every precision: a trace may otherwise keep constants of another precision.
        return np.array([*starts], np.int32)

    @property
    def size(self) -> int:
        return int(self._starts[-1, 0])

    @property
    def nodes(self) -> int:
        return int(self._starts[-1, 2])

    def node(self, relation: int, role: int) -> int:
        return int(self._starts[relation, 2]) + role

    def first(self, relation: int) -> int:
        """First element of a relation."""
        return int(self._starts[relation, 0])

    @cached_property
    def orbit_of_node(self) -> np.ndarray:
        """Orbit of each node under the group (orbits never cross relations)."""
        label = [
            (i, min(f[x] for f in r.motif.automorphisms))
            for i, r in enumerate(self.relations)
            for x in range(r.motif.size)
        ]
        return np.array([sorted(set(label)).index(x) for x in label])

    @cached_property
    def orbit_sizes(self) -> np.ndarray:
        """Number of elements of each orbit."""
        copies = np.array([self.relations[i].copies for i in self.node_relation])
        return np.bincount(self.orbit_of_node, weights=copies).astype(int)

    @cached_property
    def orbitals(self) -> tuple[Orbital, ...]:
        """All orbitals: within a copy first (relation by relation), then across copies."""
        return (*self._within_copies(), *self._across_copies())

    def _within_copies(self) -> Iterator[Orbital]:
        for i, relation in enumerate(self.relations):
            seen: set[tuple[int, int]] = set()
            for x, y in product(range(relation.motif.size), repeat=2):
                if (x, y) not in seen:
                    orbit = {(f[x], f[y]) for f in relation.motif.automorphisms}
                    seen |= orbit
                    pairs = tuple(sorted((self.node(i, a), self.node(i, b)) for a, b in orbit))
                    yield self._orbital(True, pairs, relation.copies * len(pairs))

    def _across_copies(self) -> Iterator[Orbital]:
        for a, b in product(range(len(self.orbit_sizes)), repeat=2):
            sources, targets = (np.flatnonzero(self.orbit_of_node == o) for o in (a, b))
            size = int(self.orbit_sizes[a] * self.orbit_sizes[b])
            i, j = self.node_relation[sources[0]], self.node_relation[targets[0]]
            if i == j:
                size -= self.relations[i].copies * len(sources) * len(targets)
            if size:
                pairs = tuple((int(x), int(y)) for x, y in product(sources, targets))
                yield self._orbital(False, pairs, size)

    def _orbital(self, same: bool, pairs: tuple[tuple[int, int], ...], size: int) -> Orbital:
        source, target = (int(self.orbit_of_node[x]) for x in pairs[0])
        row_sum = size // int(self.orbit_sizes[source])
        return Orbital(same, source, target, pairs, size, row_sum)

    @cached_property
    def table(self) -> Int[np.ndarray, "2 nodes nodes"]:
        """Orbital of two nodes: `table[1]` in the same copy, `table[0]` in different ones.

        −1 where no such pair exists.
        """
        table = np.full((2, self.nodes, self.nodes), -1, np.int32)
        for o, orbital in enumerate(self.orbitals):
            rows, columns = zip(*orbital.pairs, strict=True)
            table[int(orbital.same), rows, columns] = o
        return table

    @cached_property
    def elements(self) -> tuple[Int[np.ndarray, " N"], Int[np.ndarray, " N"]]:
        """Copy and node of every element, as `locate` finds them; for small configurations only."""
        copies = [np.arange(r.copies).repeat(r.motif.size) for r in self.relations]
        roles = [np.tile(np.arange(r.motif.size), r.copies) for r in self.relations]
        starts = self._starts[:-1]
        copy = [x + start for x, start in zip(copies, starts[:, 1], strict=True)]
        node = [x + start for x, start in zip(roles, starts[:, 2], strict=True)]
        return np.concatenate(copy), np.concatenate(node)

    def locate(self, element: Int[Array, "*n"]) -> tuple[Int[Array, "*n"], Int[Array, "*n"]]:
        """Copy (numbered across relations) and node of each element; no table of size N."""
        starts = jnp.asarray(self._starts)
        relation = jnp.searchsorted(starts[1:, 0], element, side="right")
        size = jnp.asarray([r.motif.size for r in self.relations])[relation]
        within = element - starts[relation, 0]
        return starts[relation, 1] + within // size, starts[relation, 2] + within % size

    def orbital_of(self, x: Int[Array, "*n"], y: Int[Array, "*n"]) -> Int[Array, "*n"]:
        """Orbital of each pair of elements (broadcasting), by a table look-up."""
        (copy_x, node_x), (copy_y, node_y) = self.locate(x), self.locate(y)
        return jnp.asarray(self.table)[(copy_x == copy_y).astype(int), node_x, node_y]

    def transpose(self, orbital: int) -> int:
        """The orbital of the swapped pairs."""
        x, y = self.orbitals[orbital].pairs[0]
        return int(self.table[int(self.orbitals[orbital].same), y, x])

    def multiply(self, first: int, second: int) -> Int[np.ndarray, " O"]:
        """Matrix product of two orbitals as integer coefficients of all orbitals.

        S_i S_j = Σ_k p_ij^k S_k with the intersection numbers
        p_ij^k = #{z : (x, z) ∈ S_i, (z, y) ∈ S_j} for any (x, y) ∈ S_k.
        """
        return np.array([self._through(first, second, k) for k in range(len(self.orbitals))])

    def _through(self, first: int, second: int, k: int) -> int:
        """Number of middle elements: in x's copy, in y's, in a third one."""
        x, y = self.orbitals[k].pairs[0]
        same = self.orbitals[k].same
        count = 0
        for z in range(self.nodes):
            in_x = self.node_relation[z] == self.node_relation[x]
            in_y = self.node_relation[z] == self.node_relation[y]
            third = self.relations[self.node_relation[z]].copies - int(in_x)
            third -= 0 if same else int(in_y)
            places = [(True, same, in_x), (same, True, in_y and not same), (False, False, third)]
            count += sum(
                int(n) * (self.table[int(a), x, z] == first and self.table[int(b), z, y] == second)
                for a, b, n in places
            )
        return count

    def inner(
        self, first: Float[np.ndarray, "*a O"], second: Float[np.ndarray, "*b O"]
    ) -> Float[np.ndarray, "..."]:
        """Frobenius inner products ⟨A, B⟩ = Σ_o |S_o| A_o B_o of matrices A = Σ_o A_o S_o."""
        sizes = np.array([float(o.size) for o in self.orbitals])
        return np.tensordot(first * sizes, second, axes=(-1, -1))

    def centered(self, orbital: int, within: str) -> Float[np.ndarray, " O"]:
        """Coefficients of an orbital centred between one-hot vectors minus a mean.

        `within="orbit"`: S − r/N on all pairs of its two orbits, r its row sum and N the size of
        the target orbit. `within="copy"`: S − r/m on the pairs of one copy, m the target orbit's
        nodes in a copy. Both annihilate constant vectors, on the orbit or on every copy.
        """
        S = self.orbitals[orbital]
        same_orbits = [(o.source, o.target) == (S.source, S.target) for o in self.orbitals]
        in_copy = np.array([o.same for o in self.orbitals])
        nodes = np.count_nonzero(self.orbit_of_node == S.target)
        scope = np.array(same_orbits) & (in_copy if within == "copy" else True)
        size = nodes if within == "copy" else self.orbit_sizes[S.target]
        return np.eye(len(self.orbitals))[orbital] - scope * (S.row_sum / size)

    def dense(self, coefficients: Float[np.ndarray, "*s O"]) -> Float[np.ndarray, "*s N N"]:
        """Explicit N × N matrices Σ_o c_o S_o; for small configurations only."""
        copy, node = self.elements
        same = (copy[:, None] == copy).astype(int)
        return coefficients[..., self.table[same, node[:, None], node]]
