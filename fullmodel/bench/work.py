"""What both sides of a benchmark work on: one task, the same prompts, the same starting point."""

from functools import partial

import equinox as eqx
import jax
from jaxtyping import Array, Float, Int, Key

from imir import population
from imir.basis import basis_of
from imir.canonical import canonical
from imir.population import View
from imir.prompts import ONCE, Prompts, uniform
from imir.tasks.outcomes import odds, sample
from imir.tasks.task import Task
from imir.ties import Tie, free

# Scale of random coordinates at which softmaxes are neither flat nor saturated.
SCALE = 0.3
# Prompts that a score is measured on, at least.
ASKED = 256


class Work(eqx.Module):
    """`size` prompts for each step: the same ones, or one batch after another.

    `seen` is what the reduced model sees of the same ones, looked up once before the first step;
    batches are looked up at every step. `asked` are prompts for a score.
    """

    task: Task = eqx.field(static=True)
    tie: Tie = eqx.field(static=True)
    size: int = eqx.field(static=True)
    start: Float[Array, " C"]
    prompts: Prompts
    seen: View | None = None
    asked: Prompts | None = None

    def prompts_at(self, step: Int[Array, ""]) -> Prompts:
        """The prompts of a step, for the full model."""
        if self.seen is not None:
            return self.prompts
        return jax.tree.map(lambda x: x[step % len(x)], self.prompts)

    def seen_at(self, step: Int[Array, ""]) -> View:
        """The same prompts, for the reduced model."""
        if self.seen is not None:
            return self.seen
        return population.view(self.tie, self.task, self.prompts_at(step))

    @property
    def vocabulary(self) -> int:
        """V, all tokens."""
        return sum(relation.size for relation in self.task.classes)

    @property
    def width(self) -> int:
        """d, the width of the full model's residual stream: one copy of the embeddings per path."""
        basis = self.tie.basis
        return basis.configuration.size * len(basis.paths(basis.layers + 1))


def whole_manifold(task: Task, size: int) -> Work:
    """The same sample of prompts at every step, every direction of two layers of one head."""
    tie = free(basis_of(task, layers=2, heads=1))
    prompts = jax.tree.map(lambda x: x[0], _batches(task, jax.random.key(0), size, 1))
    return Work(task, tie, size, _start(tie), prompts, population.fixed(tie, prompts).at())


def canonical_exact(task: Task) -> Work:
    """The exact expectation in (α, β, γ, δ): the weighted list of all prompts up to symmetry."""
    tie = canonical(task)
    exact = population.exact(tie, task)
    assert exact.listed is not None
    prompts = exact.listed.weighted(odds(task))
    return Work(task, tie, exact.size, _start(tie), prompts, exact.at())


def in_batches(task: Task, size: int, batches: int) -> Work:
    """Batches of prompts, and every direction of two layers of one head, from near zero."""
    tie = free(basis_of(task, layers=2, heads=1))
    drawn = _batches(task, jax.random.key(0), size, batches + -(-ASKED // size))
    rows = jax.tree.map(lambda x: x[:batches], drawn)
    asked = jax.tree.map(lambda x: x[batches:].reshape(-1, *x.shape[2:]), drawn)
    return Work(task, tie, size, _start(tie) / 10, rows, asked=uniform(asked))


@partial(jax.jit, static_argnums=(0, 2, 3), compiler_options=ONCE)
def _batches(task: Task, key: Key[Array, ""], size: int, batches: int) -> Prompts:
    keys = jax.random.split(key, batches)
    return jax.lax.map(lambda k: sample(task, k, size, odds(task)), keys)


def _start(tie: Tie) -> Float[Array, " C"]:
    return SCALE * jax.random.normal(jax.random.key(1), (len(tie.names),))


def in_pairs(blocks: int, vocabulary: int) -> Task:
    """Associative recall where every token has an associate: the most coordinates."""
    return Task("recall", blocks=blocks, vocabulary=vocabulary)


def in_context(blocks: int, vocabulary: int) -> Task:
    """Associative recall that only the context answers: in-context learning must emerge."""
    return Task("recall", blocks=blocks, rare_fraction=1.0, rare_vocabulary=vocabulary)
