"""Orbitals against brute force under the explicit group, coefficients against dense matrices."""

from itertools import permutations, product

import numpy as np
import pytest
from conftest import once, plain_dense
from hypothesis import given, settings
from hypothesis import strategies as st

from imir.relations import Configuration, Motif, Relation, cycle, single

EDGE = Motif(2, frozenset({(0, 1)}))
IN_STAR = Motif(3, frozenset({(1, 0), (2, 0)}))
EMPTY = Motif(3, frozenset())


def brute_automorphisms(motif: Motif) -> set[tuple[int, ...]]:
    """All permutations of the nodes that keep the set of edges."""
    return {
        p
        for p in permutations(range(motif.size))
        if {(p[x], p[y]) for x, y in motif.edges} == motif.edges
    }


def generators(relations: tuple[Relation, ...]) -> list[np.ndarray]:
    """Permutations that generate the group: one copy turned, two neighbouring copies swapped."""
    size = sum(r.motif.size * r.copies for r in relations)
    found, first = [], 0
    for r in relations:
        m = r.motif.size
        for p in brute_automorphisms(r.motif):
            turned = np.arange(size)
            turned[first : first + m] = first + np.array(p)
            found.append(turned)
        for c in range(r.copies - 1):
            swapped, a = np.arange(size), first + c * m
            swapped[a : a + 2 * m] = np.roll(swapped[a : a + 2 * m], m)
            found.append(swapped)
        first += r.copies * m
    return found


def brute_orbitals(relations: tuple[Relation, ...]) -> set[frozenset[tuple[int, int]]]:
    """Orbits of the generated group on pairs, by following the generators from each pair."""
    size = sum(r.motif.size * r.copies for r in relations)
    moves, left, orbits = generators(relations), set(product(range(size), repeat=2)), set()
    while left:
        orbit, front = set(), [min(left)]
        while front:
            x, y = front.pop()
            if (x, y) not in orbit:
                orbit.add((x, y))
                front += [(int(g[x]), int(g[y])) for g in moves]
        orbits.add(frozenset(orbit))
        left -= orbit
    return orbits


def motifs(most: int = 3) -> st.SearchStrategy[Motif]:
    def with_size(size: int) -> st.SearchStrategy[Motif]:
        node = st.integers(0, size - 1)
        return st.frozensets(st.tuples(node, node)).map(lambda edges: Motif(size, edges))

    return st.integers(1, most).flatmap(with_size)


def configurations() -> st.SearchStrategy[Configuration]:
    relation = st.builds(Relation, st.just("r"), motifs(), st.integers(1, 3))
    return st.lists(relation, min_size=1, max_size=2).map(lambda rs: Configuration(tuple(rs)))


EXAMPLES = {
    "pairs": Configuration((Relation("p", cycle(2), 3),)),
    "one pair": Configuration((Relation("p", cycle(2), 1),)),
    "triples and rare": Configuration((Relation("t", cycle(3), 2), Relation("r", single(), 4))),
    "names and rings": Configuration((Relation("n", EDGE, 3), Relation("ring", cycle(5), 2))),
    "stars and one token": Configuration((Relation("s", IN_STAR, 2), Relation("r", single(), 1))),
}


@pytest.fixture(params=EXAMPLES)
def config(request: pytest.FixtureRequest) -> Configuration:
    return EXAMPLES[request.param]


@given(motifs(4))
@settings(max_examples=60, deadline=None)
def test_automorphisms_are_the_permutations_that_keep_the_edges(motif: Motif):
    assert set(motif.automorphisms) == brute_automorphisms(motif)
    assert len(motif.automorphisms) == len(set(motif.automorphisms))


@pytest.mark.parametrize(
    ("motif", "count"),
    [
        (single(), 1),
        (cycle(2), 2),
        (cycle(3), 3),
        (cycle(7), 7),
        (EDGE, 1),
        (EMPTY, 6),
        (IN_STAR, 2),
    ],
)
def test_known_motifs_have_known_numbers_of_automorphisms(motif: Motif, count: int):
    assert len(motif.automorphisms) == count


@given(configurations())
@settings(max_examples=60, deadline=None)
def test_orbitals_are_the_orbits_of_the_wreath_product(config: Configuration):
    dense = plain_dense(config)
    found = [frozenset((int(x), int(y)) for x, y in np.argwhere(S)) for S in dense]
    assert len(found) == len(set(found))
    assert set(found) == brute_orbitals(config.relations)


@given(configurations())
@settings(max_examples=60, deadline=None)
def test_orbitals_have_constant_row_sums_sizes_and_transposes(config: Configuration):
    dense, orbit = plain_dense(config), config.orbit_of_node
    nodes = np.concatenate(
        [np.tile(range(config.node(i, 0), config.node(i, 0) + r.motif.size), r.copies)
         for i, r in enumerate(config.relations)]
    )  # fmt: skip
    for o, (S, matrix) in enumerate(zip(config.orbitals, dense, strict=True)):
        assert matrix.sum() == S.size
        assert (matrix.sum(1) == np.where(orbit[nodes] == S.source, S.row_sum, 0)).all()
        assert (matrix.any(0) == (orbit[nodes] == S.target)).all()
        assert (dense[config.transpose(o)] == matrix.T).all()


@given(configurations(), st.data())
@settings(max_examples=40, deadline=None)
def test_products_of_orbitals_are_products_of_matrices(config: Configuration, data: st.DataObject):
    dense, orbital = plain_dense(config), st.integers(0, len(config.orbitals) - 1)
    i, j = data.draw(orbital), data.draw(orbital)
    assert (np.tensordot(config.multiply(i, j), dense, 1) == dense[i] @ dense[j]).all()


def test_locating_elements_agrees_with_dense_matrices(config: Configuration):
    dense, elements = plain_dense(config), np.arange(config.size)
    found, (copy, node) = once(
        lambda x: (config.orbital_of(x[:, None], x), config.locate(x)), elements
    )
    assert (found == dense.argmax(0)).all()
    copies = sum(r.copies for r in config.relations)
    assert len(set(zip(copy.tolist(), node.tolist(), strict=True))) == config.size
    assert set(copy.tolist()) == set(range(copies))
    assert (np.diff(copy) >= 0).all()


def test_inner_products_are_traces(config: Configuration):
    A, B = np.random.default_rng(0).normal(size=(2, 3, len(config.orbitals)))
    dense_A, dense_B = (np.tensordot(c, plain_dense(config), 1) for c in (A, B))
    traces = np.einsum("aij,bij->ab", dense_A, dense_B)
    assert np.allclose(config.inner(A, B), traces, rtol=1e-13, atol=1e-13)


def means(config: Configuration, within: str) -> np.ndarray:
    """Projection onto vectors that are constant on each orbit, or on its part in each copy."""
    dense = plain_dense(config)
    same = [S.source == S.target and (S.same or within == "orbit") for S in config.orbitals]
    together = dense[same].sum(0)
    return together / together.sum(1)


@pytest.mark.parametrize("within", ["orbit", "copy"])
def test_centred_orbitals_are_projected_matrices(config: Configuration, within: str):
    dense, P = plain_dense(config), np.eye(config.size) - means(config, within)
    for o, S in enumerate(config.orbitals):
        if within == "orbit" or S.same:
            centred = np.tensordot(config.centered(o, within), dense, 1)
            assert np.allclose(centred, P @ dense[o] @ P, rtol=0, atol=1e-14)


def test_centred_kernels_of_pairs_are_those_of_the_design():
    """[orbital] − r/N on all pairs, [same block]·([i − i' = j] − 1/K) on rings; tr I = V − 1."""
    pairs, ring = EXAMPLES["pairs"], Configuration((Relation("ring", cycle(5), 2),))
    both = np.array([pairs.centered(o, "orbit") for o in pairs.table[1, 0]])
    matrix = np.tensordot(both[1], plain_dense(pairs), 1)
    assert np.allclose(matrix[0], [-1 / 6, 5 / 6, -1 / 6, -1 / 6, -1 / 6, -1 / 6])
    assert np.allclose(pairs.inner(both, both), [[5, -1], [-1, 5]])
    shift = np.tensordot(ring.centered(ring.table[1, 0, 2], "copy"), plain_dense(ring), 1)
    assert np.allclose(shift[1], [-0.2, -0.2, -0.2, 0.8, -0.2, 0, 0, 0, 0, 0])


def test_centring_removes_constants(config: Configuration):
    for o, S in enumerate(config.orbitals):
        per_orbit = np.tensordot(config.centered(o, "orbit"), plain_dense(config), 1)
        assert np.abs(per_orbit @ means(config, "orbit")).max() < 1e-14
        if S.same:
            per_copy = np.tensordot(config.centered(o, "copy"), plain_dense(config), 1)
            assert np.abs(per_copy @ means(config, "copy")).max() < 1e-14


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Motif(0, frozenset()), "Argument `size` must be at least 1, but is 0."),
        (
            lambda: Motif(2, frozenset({(0, 1), (1, 2)})),
            r"Argument `edges` must join nodes 0 to 1, but holds \(1, 2\).",
        ),
        (
            lambda: Motif(2, frozenset({(-1, 0)})),
            r"Argument `edges` must join nodes 0 to 1, but holds \(-1, 0\).",
        ),
        (lambda: Relation("x", cycle(2), 0), "Argument `copies` must be at least 1, but is 0."),
    ],
)
def test_impossible_relations_are_refused(make, message: str):
    with pytest.raises(ValueError, match=f"^{message}$"):
        make()
