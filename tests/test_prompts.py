"""Random numbers without repetition, and symmetric images of prompts."""

from functools import cache
from itertools import permutations, product
from math import factorial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import once, plain_logits, uniform

from imir.basis import Basis, Frame
from imir.prompts import (
    Prompts,
    distinct,
    orbit,
    orbit_size,
    random_image,
    symmetries,
)
from imir.prompts import uniform as equally_weighted
from imir.relations import Configuration, Motif, Relation, cycle, single

pytestmark = pytest.mark.usefixtures("float64")


def draws(below: int, count: int, size: int) -> np.ndarray:
    keys = jax.random.split(jax.random.key(3), size)
    return np.asarray(once(jax.vmap(lambda key: distinct(key, below, count)), keys))


def test_distinct_is_uniform_over_ordered_choices():
    found, counts = np.unique(draws(5, 3, 6000), axis=0, return_counts=True)
    assert found.tolist() == [list(p) for p in permutations(range(5), 3)]
    assert uniform(counts)


def test_distinct_can_choose_everything():
    found, counts = np.unique(draws(4, 4, 2400), axis=0, return_counts=True)
    assert found.tolist() == [list(p) for p in permutations(range(4))]
    assert uniform(counts)


def test_distinct_among_many_spreads_over_all_of_them():
    values = draws(10**6, 20, 500)
    assert all(len(set(row)) == 20 for row in values.tolist())
    assert 0 <= values.min() < values.max() < 10**6
    assert uniform(np.histogram(values, 20, (0, 10**6))[0])


TOKENS = (Relation("rare", single(), 7), Relation("common", cycle(2), 5))
RINGS = Relation("position", cycle(5), 4)


def prompt() -> Prompts:
    """Two rare tokens, a linked pair, one partner on its own; the target is the absent partner."""
    return Prompts(
        tokens=jnp.array([0, 7, 8, 1, 9, 0, 9]),
        block=jnp.array([0, 0, 1, 1, 2, 2, 3]),
        offset=jnp.array([0, 1, 0, 1, 0, 1, 0]),
        target=jnp.array(10),
        weight=jnp.array(1.0),
    )


def relations_of(one: Prompts, tokens=TOKENS, rings=RINGS) -> tuple[np.ndarray, np.ndarray]:
    """Orbitals of all pairs of tokens (with the target) and of places."""

    def table(config: Configuration, elements: np.ndarray) -> np.ndarray:
        sizes = np.concatenate([np.repeat(r.motif.size, r.size) for r in config.relations])
        first = np.concatenate([np.repeat(config.first(i), r.size)
                                for i, r in enumerate(config.relations)])  # fmt: skip
        relation = np.repeat(range(len(config.relations)), [r.size for r in config.relations])
        role = (elements - first[elements]) % sizes[elements]
        copy = elements - role
        node = np.array([config.node(r, x) for r, x in zip(relation[elements], role, strict=True)])
        return config.table[(copy[:, None] == copy).astype(int), node[:, None], node]

    both = np.append(np.asarray(one.tokens), np.asarray(one.target))
    place = np.asarray(one.block) * rings.motif.size + np.asarray(one.offset)
    return table(Configuration(tokens), both), table(Configuration((rings,)), place)


@cache
def images() -> Prompts:
    copies = jax.tree.map(lambda x: jnp.repeat(x[None], 3000, axis=0), prompt())
    moved = once(lambda key: random_image(key, copies, TOKENS, RINGS), jax.random.key(1))
    return jax.tree.map(np.asarray, moved)


def one_of(prompts: Prompts, i: int) -> Prompts:
    return jax.tree.map(lambda x: x[i], prompts)


def test_random_images_keep_every_relation():
    expected = relations_of(prompt())
    for i in range(200):
        found = relations_of(one_of(images(), i))
        assert all((a == b).all() for a, b in zip(found, expected, strict=True))


def test_random_images_are_uniform_over_tokens_and_places():
    moved = images()
    for column, (first, count) in {0: (0, 7), 1: (7, 10), 4: (7, 10)}.items():
        counts = np.bincount(moved.tokens[:, column] - first, minlength=count)
        assert len(counts) == count
        assert uniform(counts)
    assert uniform(np.bincount(moved.target - 7, minlength=10))
    for column in (0, 6):
        place = moved.block[:, column] * 5 + moved.offset[:, column]
        assert uniform(np.bincount(place, minlength=20))


def test_random_images_turn_copies_independently():
    """The roles of two tokens of different pairs, and the turns of two rings, are independent."""
    moved = images()
    roles = (moved.tokens[:, [1, 4]] - 7) % 2
    assert uniform(np.bincount(2 * roles[:, 0] + roles[:, 1], minlength=4))
    assert uniform(np.bincount(5 * moved.offset[:, 0] + moved.offset[:, 2], minlength=25))


@pytest.mark.parametrize("frame", ["centered", "onehot"])
def test_logits_follow_a_random_image(frame: Frame):
    """A symmetry of the tokens moves the logits with them; one of the places changes nothing."""
    basis = Basis(TOKENS, RINGS, 2, 2, 1, frame)
    moved = jax.tree.map(lambda x: x[:50], images())
    one = jax.tree.map(lambda x: np.asarray(x)[None], prompt())
    theta = np.random.default_rng(0).normal(size=len(basis.elements))
    before, after = plain_logits(basis, theta, one)[0], plain_logits(basis, theta, moved)
    assert np.ptp(before) > 0.5
    for name in ("tokens", "target"):
        x, y = (np.asarray(getattr(p, name)) for p in (one, moved))
        followed = np.take_along_axis(after, y.reshape(50, -1), axis=1)
        assert np.allclose(followed, before[x], rtol=0, atol=1e-13)
    assert np.allclose(np.sort(after), np.sort(before), rtol=0, atol=1e-13)


def test_equal_weights_sum_to_one():
    assert np.allclose(equally_weighted(images()).weight, 1 / 3000)


SMALL = (Relation("rare", single(), 4), Relation("common", cycle(2), 3))
SMALL_RINGS = Relation("position", cycle(4), 2)


def small_prompt() -> Prompts:
    return Prompts(
        tokens=jnp.array([0, 4, 6]),
        block=jnp.array([0, 0, 1]),
        offset=jnp.array([0, 1, 0]),
        target=jnp.array(5),
        weight=jnp.array(1.0),
    )


def rows_of(prompts: Prompts) -> np.ndarray:
    parts = (prompts.tokens, prompts.block, prompts.offset, prompts.target[:, None])
    return np.concatenate([np.asarray(x) for x in parts], axis=1)


def test_the_whole_orbit_has_every_image_once():
    whole = orbit(small_prompt(), SMALL, SMALL_RINGS, whole=True)
    sizes = [orbit_size(SMALL[0], 1), orbit_size(SMALL[1], 2), orbit_size(SMALL_RINGS, 2)]
    assert sizes == [4, 3 * 2 * 2**2, 2 * 4**2]
    assert len(whole) == len(np.unique(rows_of(whole), axis=0)) == np.prod(sizes)
    assert np.allclose(whole.weight.sum(), 1)
    expected = relations_of(small_prompt(), SMALL, SMALL_RINGS)
    for i in range(0, len(whole), 97):
        found = relations_of(one_of(whole, i), SMALL, SMALL_RINGS)
        assert all((a == b).all() for a, b in zip(found, expected, strict=True))


def image_of(relation: Relation, copies: np.ndarray, turns: np.ndarray) -> np.ndarray:
    """Where a symmetry sends the elements of the first copies."""
    turned = np.array(relation.motif.automorphisms)[turns]
    return (copies[:, None] * relation.motif.size + turned).ravel()


def pair_shares(relation: Relation, used: int, whole: bool) -> np.ndarray:
    """Share of the symmetries that send (x, y) to (x', y'), for all x, y of the used copies."""
    moved = np.array([image_of(relation, *s) for s in symmetries(relation, used, whole)])
    size, count = relation.size, moved.shape[1]
    shares = np.zeros((count, count, size, size))
    for x, y in product(range(count), repeat=2):
        np.add.at(shares[x, y], (moved[:, x], moved[:, y]), 1 / len(moved))
    return shares


@pytest.mark.parametrize(
    ("relation", "used", "part"),
    [
        (Relation("tokens", single(), 5), 4, 5 * 4),
        (Relation("tokens", single(), 7), 3, 7 * 6),
        (Relation("pairs", cycle(2), 5), 3, 5 * 4 * 4),
        (Relation("pairs", cycle(2), 4), 4, factorial(4) * 8),
        (Relation("triples", cycle(3), 3), 3, 6 * 9),
        (Relation("rings", cycle(5), 3), 3, 6 * 25),
        (Relation("rings", cycle(4), 3), 3, 6 * 64),
        (Relation("stars", Motif(3, frozenset({(1, 0), (2, 0)})), 3), 2, 6 * 4),
    ],
)
def test_a_part_of_the_symmetries_treats_pairs_as_all_do(relation: Relation, used: int, part: int):
    assert len(symmetries(relation, used, whole=False)) == part
    whole = len(symmetries(relation, used, whole=True))
    assert whole == orbit_size(relation, used) >= part
    expected, found = pair_shares(relation, used, True), pair_shares(relation, used, False)
    assert np.allclose(found, expected, rtol=0, atol=1e-13)


def test_the_whole_group_spreads_a_pair_over_its_orbital():
    """Two elements of different copies reach every such pair, of one copy those of its shift."""
    shares = pair_shares(Relation("rings", cycle(3), 3), 2, True)
    apart = np.kron(1 - np.eye(3), np.ones((3, 3)))
    assert np.allclose(shares[0, 3], apart / 54)
    shift = np.kron(np.eye(3), np.roll(np.eye(3), 1, axis=1))
    assert np.allclose(shares[0, 1], shift / 9)
