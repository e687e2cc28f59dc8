"""`imir basis`: the directions of the manifold."""

from dataclasses import dataclass, replace

from imir.basis import basis_of
from imir.cli.options import ModelOptions, task_of
from imir.cli.report import Report, save_report


@dataclass(frozen=True)
class Basis(ModelOptions):
    """List the basis of the invariant manifold: every direction that a gradient can reach.

    Example: imir basis --task recall --layers 2 --heads 1
    """

    def report(self) -> Report:
        basis = basis_of(task_of(self), self.layers, self.heads, self.frame)
        literal = replace(basis, shifts="literal")
        elements = [
            {
                "layer": "output" if e.head is None else e.layer,
                "head": e.head,
                "query_path": [list(step) for step in e.query_path],
                "selection": basis.selections[e.selection].name,
                "key_path": [list(step) for step in e.key_path],
                "latex": basis.latex(e),
            }
            for e in basis.elements
        ]
        counts = {"count": len(elements), "count_literal": len(literal.elements)}
        named = zip(basis.names, basis.elements, strict=True)
        lines = [f"{name:<44} {basis.latex(e)}" for name, e in named]
        total = f"{len(elements)} elements (the paper's literal set: {len(literal.elements)})"
        report = Report("\n".join([*lines, total]), {**counts, "elements": elements})
        return save_report(self, report)
