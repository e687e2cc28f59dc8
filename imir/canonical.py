"""(α, β, γ, δ): in-context against in-weights learning (arXiv 2607.11875, section 4).

Two layers of one head. The induction head: α (layer 1: attend to the token before), β (layer 2:
the query attends to places that layer 1 filled with its own token), γ (output: copy what layer 2
attends to). Memorisation: δ (output: the query's associate). Rare and common classes move together.
"""

from collections.abc import Iterable
from functools import cache

from imir.basis import Basis, Element, basis_of
from imir.tasks.task import Task
from imir.ties import Tie

ALPHA, BETA, GAMMA, DELTA = "alpha", "beta", "gamma", "delta"


@cache
def canonical(task: Task) -> Tie:
    """The submanifold of (α, β, γ, δ) in the one-hot frame.

    One-hot kernels see neither the class of a distractor nor its associate, so that a prompt
    matters only through the places of the relevant blocks and the kind of query, and the exact
    expectation stays small. δ exists where a common class does. The associate is the first role
    after the query's last letter that the answer stands in.
    """
    basis = basis_of(task, layers=2, heads=1, frame="onehot")
    letters = task.template.letters
    step = (letters.index(task.template.answer) - letters.index(task.template.query[-1])) % len(
        letters
    )
    # Rows are predicted tokens: they stand `step` roles after the query, so the query −step after.
    associate = {f"C^{-step % len(letters)}"} | ({"C"} if -step % len(letters) == 1 else set())
    first, second = ((1, 1),), ((2, 1),)
    members = {
        ALPHA: _find(
            basis.elements, 1, (), (), {s.name for s in basis.selections if s.shift == 1}, basis
        ),
        BETA: _find(basis.elements, 2, (), first, {"I"}, basis),
        GAMMA: _find(basis.elements, 3, (), second, {"I"}, basis),
        DELTA: _find(basis.elements, 3, (), (), associate, basis),
    }
    kept = {name: found for name, found in members.items() if found}
    return Tie(basis, tuple(kept), tuple(kept.values()))


def induction(basis: Basis) -> tuple[Element, ...]:
    """The directions of α, β and γ in every head of two layers that could take a part of theirs."""
    output = basis.layers + 1

    def is_one(e: Element) -> bool:
        selection, own = basis.selections[e.selection], not e.query_path
        same = selection.name.split("[")[0] == "I"
        if e.layer == 1:
            return selection.shift == 1
        one_head = own and same and [layer for layer, _ in e.key_path] == [e.layer - 1]
        return one_head and e.layer in (2, output)

    return tuple(e for e in basis.elements if is_one(e))


def _find(elements: Iterable[Element], layer: int, query, key, symbols, basis) -> tuple[int, ...]:
    return tuple(
        i
        for i, e in enumerate(elements)
        if (e.layer, e.query_path, e.key_path) == (layer, query, key)
        and basis.selections[e.selection].name.split("[")[0] in symbols
    )
