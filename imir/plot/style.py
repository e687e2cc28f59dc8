"""Colours, lines and files that all figures share."""

import matplotlib
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Apart for every common colour vision, and evenly apart in lightness for print.
COLOURS = {
    "neither": "#f7f7f7",
    "ICL": "#003f72",
    "IWL": "#d55e00",
    "both": "#7fc8f0",
    "transient": "#f0e442",
}
FAILED = "#000000"
# Okabe and Ito's palette, with line styles that repeat what the colours say.
LINES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
STYLES = ("-", "--", "-.", ":")


def axes_of(ax: Axes | None) -> Axes:
    """The axes given, or new ones."""
    return ax if ax is not None else plt.subplots(layout="constrained")[1]


def save(figure: Figure, stem: str) -> list[str]:
    """Write `stem`.png and `stem`.pdf, and close the figure."""
    files = [f"{stem}.png", f"{stem}.pdf"]
    with matplotlib.rc_context({"pdf.fonttype": 42}):
        for file in files:
            figure.savefig(file, dpi=160)
    plt.close(figure)
    return files
