"""Templates, data statistics, sampling and exact enumeration."""

import re
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest
from conftest import by_parts, close_to, draw, once, uniform

from imir.basis import Basis, Frame, basis_of
from imir.canonical import canonical
from imir.prompts import Prompts
from imir.tasks.enumeration import LIMIT, TooManyPrompts, _Plan, enumerate_prompts
from imir.tasks.outcomes import Question, ask, odds, sample
from imir.tasks.outcomes import draw as draw_outcome
from imir.tasks.task import Task
from imir.tasks.template import Block, Template, named, parse
from imir.ties import Tie, free

pytestmark = pytest.mark.usefixtures("float64")

NAMED = {
    "recall": "a b | a -> b",
    "2hop": "a b; b c | a -> c",
    "3gram": "a b c | a b -> c",
    "inversion": "a b | b -> a",
    "retrieval": "a b c | a * *; * b * | a b -> c",
    "ioi": "{a b} | a -> b",
}
BLOCKS = {"recall": 4, "2hop": 5, "3gram": 3, "inversion": 4, "retrieval": 4, "ioi": 4}
SIZE = 4000


def mixed(name: str) -> Task:
    """A small task with every kind of chance: rare and contrary tokens, bursts, absent answers."""
    return Task(
        name,
        blocks=BLOCKS[name],
        burstiness=2,
        context_fraction=0.7,
        rare_fraction=0.3,
        variability=0.4,
        vocabulary=48,
    )


# Templates


@pytest.mark.parametrize("name", NAMED)
def test_named_tasks_are_those_of_the_paper(name: str):
    assert named(name) == parse(NAMED[name])
    assert str(named(name)) == NAMED[name]
    assert Task(name).template == Task(NAMED[name]).template == named(name)


def test_a_template_is_read_in_full():
    template = parse(" first  x2;{x2 *} |first * ; * y |  first->y2 ".replace("y2", "x2").replace(
        "y", "x2"
    ))  # fmt: skip
    assert template == Template(
        (Block(("first", "x2")), Block(("x2", "*"), shuffled=True)),
        (Block(("first", "*")), Block(("*", "x2"))),
        ("first",),
        "x2",
    )
    assert template.letters == ("first", "x2")


@pytest.mark.parametrize(
    ("name", "template"),
    [
        ("1hop", "a b | a -> b"),
        ("4hop", "a b; b c; c d; d e | a -> e"),
        ("2gram", "a b | a -> b"),
        ("4gram", "a b c d | a b c -> d"),
    ],
)
def test_hops_and_grams_come_in_any_length(name: str, template: str):
    assert str(named(name)) == template


@pytest.mark.parametrize(
    ("name", "hops"), [("recall", 1), ("2hop", 2), ("3gram", 1), ("inversion", 1), ("4hop", 4)]
)
def test_hops_count_associations_to_the_nearest_query_letter(name: str, hops: int):
    assert named(name).hops == hops


@pytest.mark.parametrize(
    ("text", "place", "found"),
    [
        ("a b", 4, "the end: a template needs `blocks | query -> answer`"),
        ("a b | c | d | a -> b", 21, "the end: a template needs `blocks | query -> answer`"),
        ("a b | a b", 10, "the end, without an arrow `->` before the answer"),
        ("a b -> b | a", 13, "the end, without an arrow `->` before the answer"),
        ("a b | a -> a b", 11, "an answer of 2 tokens instead of one"),
        ("a b | a -> b -> a", 14, "'-'"),
        ("a b | a ->", 11, "no token"),
        ("a b | -> b", 7, "no token"),
        ("| a -> b", 1, "no token"),
        ("a b; | a -> b", 6, "no token"),
        ("a b || a -> b", 6, "no token"),
        ("a b; {} | a -> b", 7, "no token"),
        ("c; {a b | a -> b", 4, "a brace that is not closed at the block's end"),
        ("{a b} c | a -> b", 1, "a brace that is not closed at the block's end"),
        ("a b} | a -> b", 4, "'}'"),
        ("a {b} | a -> b", 3, "'{'"),
        ("a, b | a -> b", 2, "','"),
        ("a 2b | a -> b", 3, "'2'"),
        ("a b | a; b -> b", 8, "';'"),
        ("a b | a -> {b}", 12, "'{'"),
        ("é b | b -> b", 1, "'é'"),
    ],
)
def test_an_unreadable_template_is_told_where(text: str, place: int, found: str):
    with pytest.raises(ValueError, match=r"^Argument `task` must be a name or a") as error:
        named(text)
    assert str(error.value).endswith(f"but {text!r} has {found} at character {place}.")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("recal", "be a template or one of recall, inversion, retrieval, ioi, 2hop (any khop), "
         "3gram (any kgram), but is 'recal'"),
        ("", "be a template or one of recall, inversion, retrieval, ioi, 2hop (any khop), "
         "3gram (any kgram), but is ''"),
        ("0hop", "be a template or one of recall, inversion, retrieval, ioi, 2hop (any khop), "
         "3gram (any kgram), but is '0hop'"),
        ("1gram", "be a template or one of recall, inversion, retrieval, ioi, 2hop (any khop), "
         "3gram (any kgram), but is '1gram'"),
        ("a b | c -> b", "bind every letter in a relevant block, but 'c' is bound nowhere "
         "in 'a b | c -> b'"),
        ("a b | a -> c", "bind every letter in a relevant block, but 'c' is bound nowhere "
         "in 'a b | a -> c'"),
        ("a b | d * | a -> b", "bind every letter in a relevant block, but 'd' is bound nowhere "
         "in 'a b | d * | a -> b'"),
        ("a b | * -> b", "ask with letters and for a letter, but has '*' in the query or the "
         "answer of 'a b | * -> b'"),
        ("a b * | a -> *", "ask with letters and for a letter, but has '*' in the query or the "
         "answer of 'a b * | a -> *'"),
        ("a b | a b -> b", "have a query shorter than its longest block of 2, but 'a b' has "
         "2 tokens"),
        ("a | a -> a", "have a query shorter than its longest block of 1, but 'a' has 1 tokens"),
    ],
)  # fmt: skip
def test_a_template_without_sense_is_refused(text: str, message: str):
    with pytest.raises(ValueError, match=rf"^{re.escape(f'Argument `task` must {message}.')}$"):
        Task(text)


# Data statistics


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context_fraction": 1.5}, "`context_fraction` must lie between 0 and 1, but is 1.5."),
        ({"rare_fraction": -0.1}, "`rare_fraction` must lie between 0 and 1, but is -0.1."),
        ({"variability": float("nan")}, "`variability` must lie between 0 and 1, but is nan."),
        ({"blocks": 0}, "`blocks` must be at least 1, but is 0."),
        ({"burstiness": 0}, "`burstiness` must be at least 1, but is 0."),
        (
            {"burstiness": 9},
            "`blocks` must be at least 9 for burstiness 9 (1 relevant blocks each, 0 decoys), "
            "but is 8.",
        ),
        (
            {"text": "retrieval", "blocks": 2},
            "`blocks` must be at least 3 for burstiness 1 (1 relevant blocks each, 2 decoys), "
            "but is 2.",
        ),
        (
            {"vocabulary": 31},
            "`vocabulary` must be a positive multiple of 2 (the tokens of one association), "
            "but is 31.",
        ),
        (
            {"text": "2hop", "vocabulary": 64},
            "`vocabulary` must be a positive multiple of 3 (the tokens of one association), "
            "but is 64.",
        ),
        (
            {"vocabulary": 0},
            "`vocabulary` must be a positive multiple of 2 (the tokens of one association), "
            "but is 0.",
        ),
        (
            {"rare_vocabulary": -3},
            "`rare_vocabulary` must be a positive multiple of 1 (the tokens of one association), "
            "but is -3.",
        ),
        (
            {"frequency_bins": ((0.5, 40), (0.4, 40))},
            "`frequency_bins` must have positive shares that sum to 1, but has [0.5, 0.4].",
        ),
        (
            {"frequency_bins": ((1.2, 40), (-0.2, 40))},
            "`frequency_bins` must have positive shares that sum to 1, but has [1.2, -0.2].",
        ),
        (
            {"frequency_bins": ((0.5, 40), (0.5, 41))},
            "`frequency_bins` must be a positive multiple of 2 (the tokens of one association), "
            "but is 41.",
        ),
        (
            {"frequency_bins": ((1.0, 40),), "vocabulary": 40},
            "`vocabulary` must be left out where `frequency_bins` are given, but is 40.",
        ),
        (
            {"vocabulary": 14},
            "`vocabulary` must be at least 16 for a prompt of 17 different tokens, but is 14.",
        ),
        (
            {"vocabulary": 30, "variability": 0.5},
            "`vocabulary` must be at least 32 for a prompt of 17 different tokens, but is 30.",
        ),
        (
            {"rare_fraction": 0.5, "rare_vocabulary": 15},
            "`rare_vocabulary` must be at least 16 for a prompt of 17 different tokens, but is 15.",
        ),
        (
            {"frequency_bins": ((0.5, 14), (0.5, 40))},
            "`frequency_bins` must be at least 16 for a prompt of 17 different tokens, but is 14.",
        ),
        (
            {"vocabulary": 62, "variability": 0.99},
            "`variability` must be at most 0.983607 for 62 common tokens, but is 0.99.",
        ),
    ],
)
def test_impossible_statistics_are_refused(options: dict, message: str):
    with pytest.raises(ValueError, match=rf"^{re.escape(f'Argument {message}')}$"):
        Task(**{"text": "recall", **options})


def test_a_single_pair_has_no_other_label():
    with pytest.raises(ValueError, match=r"^Argument `v"):
        Task("recall", blocks=1, vocabulary=2, variability=0.1)


@pytest.mark.parametrize("template", ["recall", "3gram"])
@pytest.mark.parametrize("variability", [0.0, 1e-9, 0.3, 0.8, 1 - 1 / 58])
def test_variability_is_that_of_the_labels_distribution(template: str, variability: float):
    """f_v = 1 − Σ p(y|x)² of the partner with 1 − q, else each token of the other copies."""
    task = Task(template, blocks=3, vocabulary=60, variability=variability)
    (q,) = task.unlinked
    m = task.motif_size
    labels = np.array([1 - q, *[q / (60 - m)] * (60 - m)])
    expected = min(variability, 1 - 1 / (60 - m + 1))
    assert 0 <= q <= 1
    assert np.isclose(labels.sum(), 1)
    assert 1 - np.sum(labels**2) == pytest.approx(expected, abs=1e-12)


def test_the_largest_possible_variability_is_that_of_uniform_labels():
    task = Task("recall", blocks=3, vocabulary=60, variability=1 - 1 / 59)
    assert task.unlinked[0] == pytest.approx(58 / 59, abs=1e-7)


def test_classes_are_rare_tokens_then_frequency_bins():
    bins = ((0.75, 40), (0.25, 80))
    task = Task("recall", blocks=3, rare_fraction=0.2, frequency_bins=bins, rare_vocabulary=30)
    assert [(r.name, r.motif.size, r.copies) for r in task.classes] == [
        ("rare", 1, 30),
        ("common1", 2, 20),
        ("common2", 2, 40),
    ]
    assert task.shares == pytest.approx((0.2, 0.6, 0.2))
    assert sum(task.shares) == pytest.approx(1)


@pytest.mark.parametrize(("rare", "names"), [(0.0, ["common"]), (1.0, ["rare"])])
def test_classes_that_never_occur_are_left_out(rare: float, names: list[str]):
    task = Task("recall", rare_fraction=rare)
    assert [r.name for r in task.classes] == names
    assert task.shares == (1.0,)
    assert task.classes[0].size == 512


@pytest.mark.parametrize(
    ("name", "length"),
    [("recall", 9), ("2hop", 11), ("3gram", 11), ("inversion", 9), ("retrieval", 14), ("ioi", 9)],
)
def test_length_counts_blocks_and_query(name: str, length: int):
    assert mixed(name).length == length
    assert draw(mixed(name), SIZE).tokens.shape == (SIZE, length)


# Sampling


def answer_in(name: str, blocks: list[tuple[int, ...]], query: tuple[int, ...]) -> set[int]:
    """What the context says, by reading its blocks; empty where it says nothing."""
    if name == "recall":
        return {y for x, y in blocks if x == query[0]}
    if name == "inversion":
        return {x for x, y in blocks if y == query[0]}
    if name == "ioi":
        return {({x, y} - {query[0]}).pop() for x, y in blocks if query[0] in (x, y)}
    if name == "2hop":
        return {z for x, y in blocks if x == query[0] for w, z in blocks if w == y}
    return {z for x, y, z in blocks if (x, y) == query}


def blocks_of(tokens: np.ndarray, block: np.ndarray) -> list[tuple[int, ...]]:
    places = dict.fromkeys(block.tolist())
    return [tuple(tokens[block == place].tolist()) for place in places]


def facts(name: str) -> list[tuple[list[tuple[int, ...]], tuple[int, ...], int]]:
    """(blocks, query, target) of each sampled prompt."""
    drawn = draw(mixed(name), SIZE)
    found = []
    for tokens, block, target in zip(drawn.tokens, drawn.block, drawn.target, strict=True):
        *context, query = blocks_of(tokens, block)
        found.append((context, query, int(target)))
    return found


@pytest.mark.parametrize("name", NAMED)
def test_the_context_answers_when_it_is_there_and_never_contradicts(name: str):
    """Present with the context fraction, b times, and otherwise nothing can be looked up."""
    present = []
    for blocks, query, target in facts(name):
        answers = answer_in(name, blocks, query)
        assert answers in (set(), {target})
        present.append(bool(answers))
        counts = [blocks.count(block) for block in set(blocks)]
        relevant = len(named(name).relevant)
        if name != "ioi":
            assert sorted(counts, reverse=True)[:relevant] == [2 if answers else 1] * relevant
            assert counts.count(2) == (relevant if answers else 0)
    assert close_to(np.array(present, float), 0.7)


@pytest.mark.parametrize("name", NAMED)
def test_tokens_differ_except_where_a_letter_repeats(name: str):
    task = mixed(name)
    letters = task.motif_size
    template = task.template
    here = letters + sum(b.tokens.count("*") for b in template.decoys)
    standing = 2 * sum(len(b.tokens) for b in template.relevant)
    distractors = task.distractors * task.block_size
    bound = {x for b in template.decoys for x in b.tokens} | {*template.query, template.answer}
    away = len(bound - {"*"}) + here - letters + standing
    for blocks, query, target in facts(name):
        different = len({t for block in (*blocks, query, (target,)) for t in block})
        present = bool(answer_in(name, blocks, query))
        assert different == distractors + (here if present else away)


def test_decoys_share_one_letter_each_with_the_query():
    for blocks, (a, b), _ in facts("retrieval"):
        assert sum(x == a and y != b for x, y, _ in blocks) == 1
        assert sum(x != a and y == b for x, y, _ in blocks) == 1


def test_braces_put_either_token_first():
    relevant = [
        [block.index(query[0]) for block in blocks if query[0] in block]
        for blocks, query, _ in facts("ioi")
    ]
    both = np.array([places for places in relevant if places])
    counts = np.bincount(2 * both[:, 0] + both[:, 1], minlength=4)
    assert counts.sum() > 2000
    assert uniform(counts)


@pytest.mark.parametrize("name", NAMED)
def test_blocks_hold_consecutive_places_of_a_ring_of_their_own(name: str):
    task, drawn = mixed(name), draw(mixed(name), SIZE)
    K = task.positions.motif.size
    same = drawn.block[:, 1:] == drawn.block[:, :-1]
    step = (drawn.offset[:, 1:] - drawn.offset[:, :-1]) % K
    assert (step[same] == 1).all()
    assert (same.sum(1) == task.length - task.blocks - 1).all()
    assert all(len(set(row)) == task.blocks + 1 for row in drawn.block.tolist())
    assert np.allclose(drawn.weight, 1 / SIZE)


LONG = Task("a b c; c d | {a *} | a b -> d", blocks=4, vocabulary=64, context_fraction=0.5)


def test_blocks_of_different_lengths_stand_in_one_prompt():
    drawn, present = draw(LONG, 1000), []
    for tokens, block, target in zip(drawn.tokens, drawn.block, drawn.target, strict=True):
        *context, query = blocks_of(tokens, block)
        assert sorted(map(len, context)) == [2, 2, 3, 3]
        found = {x[2] for x in context if x[:2] == query}
        answers = {x[1] for x in context if x[0] in found and len(x) == 2}
        assert answers in (set(), {int(target)})
        present.append(bool(answers))
    assert close_to(np.array(present, float), 0.5)


def test_braces_shuffle_decoys_as_well():
    drawn, first = draw(LONG, 1000), []
    for tokens, block in zip(drawn.tokens, drawn.block, strict=True):
        *context, (a, _) = blocks_of(tokens, block)
        first += [x.index(a) == 0 for x in context if a in x and len(x) == 2]
    assert len(first) == 1000
    assert close_to(np.array(first, float), 0.5)


def test_letters_that_do_not_appear_have_tokens_of_their_own():
    """Three letters and four stand-ins are seven rare tokens, of which the prompt shows six."""
    task = Task("2hop", blocks=2, context_fraction=0.0, rare_fraction=1.0)
    drawn = draw(task, 20)
    different = [
        len({*row, t}) for row, t in zip(drawn.tokens.tolist(), drawn.target.tolist(), strict=True)
    ]
    assert different == [6] * 20


STATISTICS = mixed("recall")


def pairs_of(drawn: Any) -> np.ndarray:
    """(prompt, block, place in the block) of the context's tokens."""
    return drawn.tokens[:, :-1].reshape(len(drawn.tokens), -1, 2)


def test_blocks_are_rare_with_the_rare_fraction_independently():
    drawn = draw(STATISTICS, SIZE)
    rare, query = pairs_of(drawn) < 48, drawn.tokens[:, -1] < 48
    assert (rare[..., 0] == rare[..., 1]).all()
    for block in range(4):
        assert close_to(rare[:, block, 0].astype(float), 0.3)
    assert close_to(query.astype(float), 0.3)
    other = pairs_of(drawn)[:, 0, 0] != drawn.tokens[:, -1]
    assert close_to((rare[:, 0, 0] & query)[other].astype(float), 0.09)


def test_common_tokens_are_followed_by_their_associate_with_one_minus_q():
    drawn, q = draw(STATISTICS, SIZE), STATISTICS.unlinked[1]
    asked = np.stack([drawn.tokens[:, -1], drawn.target], axis=1)
    pairs = np.concatenate([pairs_of(drawn), asked[:, None]], axis=1) - 48
    common = pairs.min(2) >= 0
    partner = pairs[..., 0] + 1 - 2 * (pairs[..., 0] % 2)
    linked = pairs[..., 1] == partner
    for block in range(5):
        assert close_to(linked[common[:, block], block].astype(float), 1 - q)


def test_labels_vary_with_the_requested_variability():
    """1 − Σ_y p(y|x)², estimated without bias by how often two prompts' labels agree."""
    drawn = draw(STATISTICS, SIZE)
    estimates = []
    for x, y in zip(np.split(drawn.tokens[:, -1], 10), np.split(drawn.target, 10), strict=True):
        table = np.zeros((96, 96))
        np.add.at(table, (x, y), 1)
        common = table[48:]
        count = common.sum(1)
        estimates.append(1 - np.sum(common * (common - 1)) / np.sum(count * (count - 1)))
    assert close_to(np.array(estimates), 0.4)


def test_relevant_blocks_stand_anywhere():
    drawn = draw(STATISTICS, SIZE)
    place = pairs_of(drawn)[:, :, 0] == drawn.tokens[:, -1:]
    present = place.any(1)
    orders = place[present] @ (2 ** np.arange(4))
    counts = np.bincount(orders)
    assert np.flatnonzero(counts).tolist() == [3, 5, 6, 9, 10, 12]
    assert uniform(counts[counts > 0])


BINS = Task(
    "recall",
    blocks=4,
    rare_fraction=0.2,
    variability=0.1,
    frequency_bins=((0.5, 20), (0.3, 40), (0.2, 10**6)),
    rare_vocabulary=10**6,
)


def test_frequency_bins_have_their_shares_and_uniform_tokens():
    drawn, sizes = draw(BINS, SIZE), np.array([10**6, 20, 40, 10**6])
    first = np.cumsum([0, *sizes])
    for tokens in (pairs_of(drawn)[:, 2, 0], drawn.tokens[:, -1]):
        for c, share in enumerate((0.2, 0.4, 0.24, 0.16)):
            inside = (first[c] <= tokens) & (tokens < first[c + 1])
            assert close_to(inside.astype(float), share)
            cells = np.linspace(first[c], first[c + 1], 1 + min(20, int(sizes[c])))
            assert uniform(np.histogram(tokens[inside], cells)[0])
    assert drawn.tokens.min() >= 0
    assert drawn.tokens.max() < first[-1]
    assert {len(set(row)) for row in drawn.tokens.tolist()} == {8}


def test_a_sample_can_have_the_probabilities_of_another_task():
    bins = ((0.1, 20), (0.1, 40), (0.8, 10**6))
    drawn = draw(BINS, SIZE, like=replace(BINS, rare_fraction=0.6, frequency_bins=bins))
    assert close_to((drawn.tokens[:, -1] < 10**6).astype(float), 0.6)
    assert close_to((drawn.tokens[:, -1] >= 10**6 + 60).astype(float), 0.4 * 0.8)


def test_a_class_that_another_task_lacks_never_occurs():
    both = mixed("recall")
    for rare, shares in {0.0: [0, 1], 1.0: [1, 0]}.items():
        lacking = Task("recall", rare_fraction=rare, vocabulary=48)
        assert np.asarray(odds(lacking, both).shares).tolist() == shares


QUESTIONS = [
    (Question(), [0.7, 0.3, None]),
    (Question(present=False), [0.0, 0.3, None]),
    (Question(True, "rare"), [1.0, 1.0, None]),
    (Question(None, "common", linked=True), [0.7, 0.0, 1.0]),
    (Question(True, "common", linked=False), [1.0, 0.0, 0.0]),
]


def test_questions_fix_what_they_ask_and_leave_the_rest_to_chance():
    """Shares of present answers, of rare letters, and of associates among common letters."""
    task = mixed("recall")

    def asked(key):
        outcome = draw_outcome(key, task, odds(task))
        return [ask(task, question, outcome) for question, _ in QUESTIONS]

    outcomes = once(jax.vmap(asked), jax.random.split(jax.random.key(2), 1000))
    for out, (_, shares) in zip(outcomes, QUESTIONS, strict=True):
        common = np.asarray(out.classes)[:, 0] == 1
        facts = [out.present, ~common, np.asarray(out.links)[common, 0, 1]]
        for values, share in zip(facts, shares, strict=True):
            expected = 1 - task.unlinked[1] if share is None else share
            values = np.asarray(values, float)
            constant = expected in (0.0, 1.0) or not len(values)
            assert (values == expected).all() if constant else close_to(values, expected)


def largest(jaxpr) -> int:
    """Size of the largest array anywhere in a jaxpr."""
    sizes = [v.aval.size for v in jaxpr.constvars]
    for equation in jaxpr.eqns:
        sizes += [v.aval.size for v in equation.outvars]
        for value in equation.params.values():
            for part in value if isinstance(value, tuple | list) else [value]:
                inner = getattr(part, "jaxpr", part)
                sizes += [largest(inner)] if hasattr(inner, "eqns") else []
    return max(sizes, default=0)


def test_sampling_never_holds_a_vocabulary():
    jaxpr = jax.make_jaxpr(lambda key: sample(BINS, key, 3, odds(BINS)))(jax.random.key(0))
    assert 3 * 9 <= largest(jaxpr.jaxpr) < 2000


# Enumeration


def listed(task: Task, tie: Tie | None, question: Question = Question()) -> Any:
    found = enumerate_prompts(task, tie, question)
    weight = once(found.weights, odds(task))
    return eqx.tree_at(lambda p: p.weight, jax.tree.map(np.asarray, found.prompts), weight)


def expectation(tie: Tie, coordinates: np.ndarray, prompts: Prompts) -> float:
    return float(np.asarray(prompts.weight) @ by_parts(tie, coordinates, prompts))


@pytest.mark.parametrize("name", NAMED)
def test_the_exact_expectation_is_that_of_every_prompt_and_of_samples(name: str):
    task = mixed(name)
    tie, coordinates = canonical(task), np.array([1.3, 1.1, 2.0, 0.9])
    merged, every = listed(task, tie), listed(task, None)
    assert len(merged) < len(every)
    for prompts in (merged, every):
        assert np.sum(prompts.weight) == pytest.approx(1, abs=1e-13)
    exact = expectation(tie, coordinates, merged)
    assert exact == pytest.approx(expectation(tie, coordinates, every), abs=1e-13)
    losses = by_parts(tie, coordinates, draw(task, SIZE))
    assert losses.std() > 0.1
    assert close_to(losses, exact)


def test_shuffled_decoys_and_blocks_of_different_lengths_are_listed():
    """24 orders and two of the decoy's; without the answer, two blocks of each length alike."""
    tie = free(basis_of(LONG, 2, 1))
    coordinates = np.random.default_rng(2).normal(size=len(tie.names))
    prompts = listed(LONG, tie)
    assert len(prompts) == 24 * 2 + 12 * 2
    assert np.sum(prompts.weight) == pytest.approx(1, abs=1e-13)
    losses = by_parts(tie, coordinates, draw(LONG, 1000))
    assert losses.std() > 0.1
    assert close_to(losses, expectation(tie, coordinates, prompts))


SMALL = {
    "pairs": Task("recall", blocks=2, rare_fraction=0.3, variability=0.3, vocabulary=24,
                  context_fraction=0.6),
    "triples": Task("3gram", blocks=2, rare_fraction=0.3, variability=0.3, vocabulary=45,
                    context_fraction=0.6),
    "two hops": Task("2hop", blocks=3, rare_fraction=0.2, variability=0.3, vocabulary=48),
    "bins": Task("recall", blocks=2, variability=0.3, frequency_bins=((0.7, 20), (0.3, 30))),
}  # fmt: skip


def random_tie(basis: Basis, generator: np.random.Generator) -> Tie:
    """Two coordinates in heads and one in the output, each of one symbol for all classes."""
    groups: dict[tuple, list[int]] = {}
    for i, e in enumerate(basis.elements):
        symbol = basis.selections[e.selection].name.split("[")[0]
        groups.setdefault((e.head is None, e.layer, e.query_path, e.key_path, symbol), []).append(i)
    heads, output = ([tuple(g) for key, g in groups.items() if key[0] == x] for x in (False, True))
    chosen = [heads[i] for i in generator.choice(len(heads), 2, replace=False)]
    return Tie(basis, ("p", "q", "r"), (*chosen, output[generator.integers(len(output))]))


@pytest.mark.parametrize("frame", ["centered", "onehot"])
@pytest.mark.parametrize("name", SMALL)
def test_prompts_are_merged_only_where_no_selection_tells_them_apart(name: str, frame: Frame):
    task, generator = SMALL[name], np.random.default_rng(7)
    every, basis = listed(task, None), basis_of(task, 2, 1, frame)
    ties = [random_tie(basis, generator) for _ in range(16)]
    merging = [t for t in ties if _Plan(task, t, Question()).count() < len(every)]
    assert len(merging) >= 2
    for tie in merging:
        coordinates = generator.normal(size=3)
        merged, expected = listed(task, tie), expectation(tie, coordinates, every)
        assert expectation(tie, coordinates, merged) == pytest.approx(expected, abs=1e-13)


def test_the_whole_manifold_sees_every_kind_of_distractor():
    task = mixed("recall")
    tie = free(basis_of(task, 2, 1))
    merged = listed(task, tie)
    assert len(merged) == 3 * 3**2 * 6 + 3 * 3**4
    coordinates = np.random.default_rng(1).normal(size=len(tie.names))
    losses = by_parts(tie, coordinates, draw(task, SIZE))
    assert close_to(losses, expectation(tie, coordinates, merged))


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({}, 32),
        ({"context_fraction": 0.5}, 33),
        ({"variability": 0.2}, 2 * 32),
        ({"rare_fraction": 0.5}, 2 * 32),
        ({"rare_fraction": 0.5, "variability": 0.2, "context_fraction": 0.5}, 3 * 33),
        ({"burstiness": 2}, 32 * 31 // 2),
        ({"context_fraction": 0.0}, 1),
    ],
)
def test_recall_on_the_canonical_submanifold_has_few_prompts(options: dict, count: int):
    """N places of the relevant block, and one where it is absent, for each kind of query."""
    task = Task("recall", blocks=32, **options)
    plan = _Plan(task, canonical(task), Question())
    assert plan.count() == count
    assert len(list(plan.rows())) == count


def test_too_many_prompts_are_counted_not_listed():
    task = Task("recall", blocks=12, rare_fraction=0.3, variability=0.2)
    count = 3 * 12 * 3**11
    message = (
        f"Argument `task` must have at most {LIMIT} prompts up to symmetry for an exact "
        f"expectation, but has {count}; take a sample instead."
    )
    with pytest.raises(ValueError, match=f"^{message}$") as error:
        enumerate_prompts(task, free(basis_of(task, 2, 1)))
    assert error.type is TooManyPrompts
    with pytest.raises(TooManyPrompts, match=r"at most 31 prompts .* but has 32;"):
        enumerate_prompts(Task("recall", blocks=32), canonical(Task("recall", blocks=32)), limit=31)


def test_other_odds_give_the_weights_of_their_own_enumeration():
    task = mixed("recall")
    other = replace(task, rare_fraction=0.6, variability=0.2, context_fraction=0.1)
    found, own = (enumerate_prompts(t, canonical(t)) for t in (task, other))
    weights = once(found.weights, odds(other, task))
    assert np.allclose(weights, once(own.weights, odds(other)), rtol=1e-14, atol=0)
    assert not np.allclose(weights, once(found.weights, odds(task)), rtol=0.1)
    assert (found.prompts.tokens == own.prompts.tokens).all()


@pytest.mark.parametrize("question", [question for question, _ in QUESTIONS])
def test_a_questions_prompts_are_those_of_the_task_that_ask_it(question: Question):
    """Conditional expectation: the task's own prompts, restricted and weighted anew."""
    task = SMALL["pairs"]
    tie, coordinates = canonical(task), np.array([1.3, 1.1, 2.0, 0.9])
    asked, every = listed(task, tie, question), listed(task, tie)
    x, y = every.tokens[:, -1], every.target
    rare, linked = x < 24, (x // 2 == y // 2) & (x >= 24)
    kept = np.ones(len(every), bool)
    if question.present is not None:
        kept &= (every.tokens[:, :-1] == x[:, None]).any(1) == question.present
    if question.class_name is not None:
        kept &= rare == (question.class_name == "rare")
    if question.linked is not None:
        kept &= rare | (linked == question.linked)
    weight = np.where(kept, every.weight, 0)
    losses = by_parts(tie, coordinates, every)
    assert np.sum(asked.weight) == pytest.approx(1, abs=1e-13)
    expected = weight @ losses / weight.sum()
    assert expectation(tie, coordinates, asked) == pytest.approx(expected, abs=1e-13)
