"""Basis elements and their Gram matrix against counts by hand and dense traces; ties."""

import numpy as np
import pytest
from conftest import as_jax, plain_dense, plain_logits, small_basis

from imir.basis import Basis, Element, basis_of
from imir.canonical import canonical
from imir.relations import Motif, Relation, cycle, single
from imir.tasks.enumeration import enumerate_prompts
from imir.tasks.outcomes import Question
from imir.tasks.task import Task
from imir.ties import free, tie

pytestmark = pytest.mark.usefixtures("float64")

RARE = (Relation("rare", single(), 6),)
PAIRS = (Relation("pairs", cycle(2), 3),)
BOTH = (Relation("rare", single(), 3), Relation("common", cycle(2), 2))
EDGES = (Relation("names", Motif(2, frozenset({(0, 1)})), 2),)
NAMED = ["recall", "inversion", "2hop", "3gram", "ioi", "retrieval"]


def per_layer(basis: Basis) -> list[int]:
    layers = [e.layer for e in basis.elements]
    return [layers.count(layer) for layer in range(1, basis.layers + 2)]


@pytest.mark.parametrize(
    ("options", "counts"),
    [
        ({"shifts": "literal"}, [4, 16, 8]),
        ({"shifts": "literal", "classes": RARE}, [3, 12, 4]),
        ({"shifts": "reachable"}, [4, 18, 8]),
        ({"shifts": "all"}, [5, 20, 8]),
    ],
)
def test_two_layers_on_pairs_have_the_counts_of_the_paper(options: dict, counts: list[int]):
    assert per_layer(small_basis(**options)) == counts


@pytest.mark.parametrize(("layers", "heads", "k"), [(1, 1, 2), (3, 1, 2), (2, 2, 3), (2, 3, 2)])
@pytest.mark.parametrize("shifts", ["literal", "reachable", "all"])
def test_counts_follow_from_the_numbers_of_paths(layers: int, heads: int, k: int, shifts: str):
    rings = Relation("position", cycle(2 * k + 1), 3)
    basis = small_basis(layers, heads, block_size=k, positions=rings, shifts=shifts)
    T, forward, backward = 2, k, k - 1
    paths = [(heads + 1) ** below for below in range(layers + 1)]
    late = {"literal": 0, "reachable": 1, "all": 1}[shifts]
    early = {"literal": 0, "reachable": 0, "all": 1}[shifts]
    expected = [
        heads * u * (u * (T + forward) + backward * (late * (u - 1) + early)) for u in paths[:-1]
    ]
    assert per_layer(basis) == [*expected, paths[-1] * T]


def test_paths_grow_in_layer_and_are_all_there():
    paths = small_basis(3, 2).paths(4)
    assert paths[0] == ()
    assert len(set(paths)) == len(paths) == 3**3
    assert all([layer for layer, _ in p] == sorted({layer for layer, _ in p}) for p in paths)
    assert {step for path in paths for step in path} == {(i, h) for i in (1, 2, 3) for h in (1, 2)}


def plain_matrix(basis: Basis, element: Element) -> np.ndarray:
    """V_u S V_vᵀ: S in the block row of u and the block column of v, zero elsewhere."""
    paths = basis.paths(basis.layers + 1)
    S = np.tensordot(basis.values[element.selection], plain_dense(basis.configuration), 1)
    unit = np.zeros((len(paths), len(paths)))
    unit[paths.index(element.query_path), paths.index(element.key_path)] = 1
    return np.kron(unit, S)


BASES = {
    "pairs": {},
    "two heads": {"layers": 1, "heads": 2},
    "rare and common": {"layers": 1, "classes": BOTH},
    "edges": {"layers": 1, "classes": EDGES},
    "a single pair": {"layers": 1, "classes": (Relation("pairs", cycle(2), 1),)},
    "a single token beside pairs": {"layers": 1, "classes": (Relation("r", single(), 1), *PAIRS)},
    "a single named pair": {"layers": 1, "classes": (Relation("names", EDGES[0].motif, 1),)},
    "the smallest ring": {"layers": 1, "positions": Relation("position", cycle(4), 2)},
}


@pytest.mark.parametrize("frame", ["centered", "onehot"])
@pytest.mark.parametrize("name", BASES)
def test_gram_is_the_traces_of_the_dense_matrices(name: str, frame: str):
    basis = small_basis(**{"frame": frame, "shifts": "all", **BASES[name]})
    flat = np.array([plain_matrix(basis, e).ravel() for e in basis.elements])
    weights = np.array([[e.layer, e.head or 0] for e in basis.elements])
    shared = (weights[:, None] == weights).all(-1)
    assert np.allclose(basis.gram, flat @ flat.T * shared, rtol=0, atol=1e-12)
    assert np.linalg.eigvalsh(basis.gram)[0] > 0.1


@pytest.mark.parametrize("frame", ["centered", "onehot"])
def test_dense_matrices_stand_in_their_paths_places(frame: str):
    basis = small_basis(frame=frame)
    for element in basis.elements[:: 1 if frame == "centered" else 5]:
        assert np.allclose(basis.matrix(element), plain_matrix(basis, element), rtol=0, atol=1e-15)


def test_the_shift_of_one_reaches_the_place_before():
    """M couples query index i with key index i − 1 of the same block."""
    basis = small_basis(frame="onehot")
    matrix = basis.matrix(basis.elements[basis.names.index("layer1.head1 () M ()")])[:21, :21]
    rings = np.kron(np.eye(3), np.roll(np.eye(5), 1, axis=0))
    assert (matrix[6:, 6:] == rings).all()
    assert matrix[6 + 1, 6 + 0] == 1
    assert matrix.sum() == 15


def test_onehot_selections_partition_all_pairs():
    """Tokens, positions within reach, and couplings: every pair but the rings' far shifts once."""
    basis = small_basis(1, frame="onehot", shifts="all", classes=BOTH)
    values = basis.values
    assert (values.sum(0) <= 1).all()
    missing = [basis.configuration.orbitals[o] for o in np.flatnonzero(values.sum(0) == 0)]
    ring = basis.configuration.orbit_of_node[-1]
    assert all(S.same and S.source == S.target == ring for S in missing)
    assert len(missing) == 5 - 3


@pytest.mark.parametrize("frame", ["centered", "onehot"])
@pytest.mark.parametrize("classes", [PAIRS, BOTH, EDGES, RARE, (*BOTH, *EDGES)])
def test_names_and_formulas_are_unique(classes: tuple[Relation, ...], frame: str):
    basis = small_basis(2, 2, classes=classes, frame=frame)
    assert len(set(basis.names)) == len(basis.elements)
    formulas = {(e.layer, e.head, basis.latex(e)) for e in basis.elements}
    assert len(formulas) == len(basis.elements)


@pytest.mark.parametrize(
    ("classes", "element", "name", "latex"),
    [
        (PAIRS, Element(2, 1, (), 0, ((1, 1),)), "layer2.head1 () I (1.1)",
         r"I \left(V^{(1,1)}\right)^{\top}"),
        (PAIRS, Element(3, None, (), 1, ()), "output C ()", "C"),
        (PAIRS, Element(2, 1, ((1, 1),), 2, ()), "layer2.head1 (1.1) M^-1 ()", "V^{(1,1)} M^{-1}"),
        (PAIRS, Element(1, 1, (), 4, ()), "layer1.head1 () M ()", "M"),
        (PAIRS, Element(3, None, (), 0, ((1, 1), (2, 1))), "output I (1.1,2.1)",
         r"I \left(V^{(2,1)} V^{(1,1)}\right)^{\top}"),
        (BOTH, Element(3, None, (), 2, ()), "output C[common] ()", r"C_{\mathrm{common}}"),
        (EDGES, Element(3, None, (), 1, ()), "output 0->1 ()", r"0\to 1"),
    ],
)  # fmt: skip
def test_elements_read_as_names_and_formulas(
    classes: tuple[Relation, ...], element: Element, name: str, latex: str
):
    basis = small_basis(classes=classes)
    assert basis.name(element) == name
    assert basis.latex(element) == latex


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": 0}, "Argument `layers` must be at least 1, but is 0."),
        ({"heads": 0}, "Argument `heads` must be at least 1, but is 0."),
        (
            {"frame": "polar"},
            "Argument `frame` must be one of centered, onehot, but is 'polar'.",
        ),
        (
            {"shifts": "some"},
            "Argument `shifts` must be one of reachable, literal, all, but is 'some'.",
        ),
        (
            {"positions": Relation("position", cycle(3), 3)},
            "Argument `positions` must have rings of at least 4 places for blocks of 2, "
            "but they have 3.",
        ),
    ],
)
def test_impossible_bases_are_refused(options: dict, message: str):
    with pytest.raises(ValueError, match=f"^{message}$"):
        small_basis(**options)


def test_a_task_brings_its_classes_and_positions():
    task = Task("3gram", blocks=3, rare_fraction=0.5)
    basis = basis_of(task, 2, 1)
    assert basis.classes == task.classes
    assert basis.positions == Relation("position", cycle(7), 4)
    assert basis.block_size == 3


def test_a_tie_moves_its_members_together():
    basis = small_basis()
    names = ["layer1.head1 () M ()", "layer1.head1 () M^0 ()"]
    tied = tie(basis, {"shift": names, "copy": ["output I ()"]})
    expected = np.zeros((30, 2))
    expected[[basis.names.index(n) for n in names], 0] = 1
    expected[basis.names.index("output I ()"), 1] = 1
    assert (tied.matrix == expected).all()
    assert np.allclose(tied.metric, expected.T @ basis.gram @ expected, rtol=1e-14)
    assert tied.names == ("shift", "copy")


def test_the_whole_manifold_is_a_tie_of_single_elements():
    basis = small_basis()
    assert free(basis).names == basis.names
    assert (free(basis).matrix == np.eye(30)).all()


def test_unknown_elements_cannot_be_tied():
    message = r"^Argument `groups` must name elements of the basis, but has 'output D \(\)'.$"
    with pytest.raises(ValueError, match=message):
        tie(small_basis(), {"alpha": ["output I ()", "output D ()"]})


CANONICAL_DELTA = {
    "recall": "output C[common] ()",
    "inversion": "output C[common] ()",
    "ioi": "output C[common] ()",
    "2hop": "output C[common] ()",
    "3gram": "output C^2[common] ()",
    "retrieval": "output C^2[common] ()",
}


@pytest.mark.parametrize("name", NAMED)
def test_canonical_coordinates_are_the_induction_head_and_the_associate(name: str):
    tied = canonical(Task(name, blocks=6, rare_fraction=0.5))
    members = {
        n: [tied.basis.names[i] for i in m] for n, m in zip(tied.names, tied.members, strict=True)
    }
    assert members == {
        "alpha": ["layer1.head1 () M ()"],
        "beta": ["layer2.head1 () I[rare] (1.1)", "layer2.head1 () I[common] (1.1)"],
        "gamma": ["output I[rare] (2.1)", "output I[common] (2.1)"],
        "delta": [CANONICAL_DELTA[name]],
    }


@pytest.mark.parametrize("name", ["recall", "2hop", "retrieval"])
def test_there_is_no_associate_among_rare_tokens(name: str):
    assert canonical(Task(name, blocks=6, rare_fraction=1.0)).names == ("alpha", "beta", "gamma")


@pytest.mark.parametrize("name", NAMED)
def test_delta_raises_the_associate_and_nothing_else(name: str):
    """The answer of a query whose letters are all associated is the associate."""
    task = Task(name, blocks=3, vocabulary=60)
    tied = canonical(task)
    listed = enumerate_prompts(task, tied, Question(linked=True)).prompts
    prompts = as_jax(listed)
    delta = np.array([float(n == "delta") for n in tied.names])
    out = plain_logits(tied.basis, tied.matrix @ delta, prompts)
    assert (out == np.eye(60)[np.asarray(prompts.target)]).all()


@pytest.mark.parametrize("name", ["recall", "3gram"])
def test_a_strong_induction_head_copies_what_followed_the_query(name: str):
    """Also where the associate is another token: the context decides.

    Where the context begins with the query, its first token has only itself to attend to: then
    the second layer attends to it as well.
    """
    task = Task(name, blocks=3, vocabulary=60, variability=0.5)
    tied = canonical(task)
    prompts = enumerate_prompts(task, tied, Question(linked=False)).prompts
    strong = np.array([{"alpha": 30, "beta": 30, "gamma": 5}.get(n, 0.0) for n in tied.names])
    out = plain_logits(tied.basis, tied.matrix @ strong, prompts)
    tokens, target = np.asarray(prompts.tokens), np.asarray(prompts.target)
    first = tokens[:, 0] == tokens[:, -1]
    expected = 5 * np.eye(60)[target]
    expected[first] = (expected[first] + 5 * np.eye(60)[tokens[first, -1]]) / 2
    assert first.any() == (name == "recall")
    assert np.allclose(out, expected, rtol=0, atol=1e-6)
