"""Fits step times to published figures, and writes the files and pages that have the results.

    python -m scripts.step_times.fit

It reads the figures (training.csv, decoding.csv) and the counts of their steps (counts.csv); `rule`
decides which figures are used. It writes `lightning_gaudi/tools/plan/fitted.json`, which a plan
reads, and the page docs/reference/step-times.md with its picture. A test compares these files with
what this writes.

The rates of a card are fitted by least squares of the relative errors, and none is negative. Each
figure is judged by a fit without the figures of its body: of models of its architecture and size.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

from lightning_gaudi.hardware import GAUDIS, Gaudi
from lightning_gaudi.tools.plan.cards import CARDS
from lightning_gaudi.tools.plan.published import step_seconds
from lightning_gaudi.tools.plan.request import Counted, Rehearsed
from lightning_gaudi.tools.plan.step_times import (
    DECODING,
    DECODING_8X,
    TRAINING,
    Fit,
    counts_of,
    extent_of,
)
from scripts.step_times import count, registries
from scripts.step_times.models import DECODERS
from scripts.step_times.rule import Row, read, why_no_decoding, why_no_training

ROOT = Path(__file__).parents[2]
FITTED = ROOT / "lightning_gaudi/tools/plan/fitted.json"
PAGE = ROOT / "docs/reference/step-times.md"
REPRINT = ROOT / "benchmarks/README.md"
PICTURE = ROOT / "docs/pictures/step-times.svg"
_SHARE = 0.8
"""The share of the figures that lie in a range."""
_LEAST_FIGURES = 5
"""If there are fewer figures of a card, nothing is fitted."""


@dataclass(frozen=True)
class Figure:
    """A published figure, and its estimate."""

    kind: str
    row: Row
    body: str
    counted: Counted | None
    """The counts of its step; None if its settings are not known well enough."""
    seconds: float
    """The published time of a step, or of a token."""
    why_not: str
    """Why the rule does not use it; empty if it does."""
    predicted: float | None = None

    @property
    def card(self) -> str:
        """The key of its card."""
        return self.row["card"]

    @property
    def error(self) -> float:
        """The relative error of the estimate."""
        assert self.predicted is not None
        return self.predicted / self.seconds - 1

    @property
    def least_seconds(self) -> float:
        """The least time that a plan gives."""
        assert self.counted is not None
        held = Rehearsed(batch_size=1, peak_bytes=0, setup_bytes=0)
        return step_seconds(CARDS[self.card], held, self.counted)[0]


def training_figures() -> list[Figure]:
    """Returns all figures of training."""
    rows, counts = read("training"), {count.key_of(row): row for row in read("counts")}
    found = []
    for row in rows:
        counted = counts.get(count.key_of(row)) if count.is_counted(row) else None
        samples = int(row["batch"] or 0) * int(row["accumulation"] or 0) * int(row["cards"])
        found.append(
            Figure(
                TRAINING,
                row,
                row["body"],
                counted and count.count_training(row, counted),
                samples / float(row["samples_per_s"]),
                why_no_training(row, rows),
            )
        )
    return found


def decoding_figures() -> list[Figure]:
    """Returns all figures of decoding."""
    rows = read("decoding")
    found = []
    for row in rows:
        is_known = row["model"] in DECODERS and row["precision"] == "bf16" and not row["prompt"]
        is_known |= row["model"] in DECODERS and row["prompt"] == "7"
        figure = Figure(
            DECODING if row["cards"] == "1" else DECODING_8X,
            row,
            str(DECODERS.get(row["model"], row["model"])),
            count.count_decoding(row) if is_known else None,
            int(row["batch"]) / float(row["tokens_per_s"]),
            "",
        )
        least = figure.least_seconds if figure.counted else 0.0
        why_not = why_no_decoding(row, rows, is_known=row["model"] in DECODERS, least_seconds=least)
        found.append(replace(figure, why_not=why_not))
    return found


def judged(figures: Sequence[Figure]) -> tuple[dict[tuple[str, str], Fit], list[Figure]]:
    """Fits each kind and card, and estimates each figure without those of its body.

    For decoding on several cards there are so few figures that all are used, without a rule.
    """
    fits: dict[tuple[str, str], Fit] = {}
    found: list[Figure] = []
    for kind in (TRAINING, DECODING, DECODING_8X):
        for card in GAUDIS:
            group = [each for each in figures if (each.kind, each.card) == (kind, card)]
            used = [each for each in group if each.counted and _is_used(each)]
            bodies = {each.body for each in used}
            if len(used) < _LEAST_FIGURES or len(bodies) < 3:
                found += group
                continue
            estimated = [_estimated(each, used) for each in group]
            found += estimated
            ratios = [
                each.seconds / each.predicted
                for each in estimated
                if _is_used(each) and each.predicted
            ]
            errors = np.array(
                [abs(each.error) for each in estimated if _is_used(each) and each.predicted]
            )
            extents = [extent_of(kind, each.counted) for each in used if each.counted]
            releases = sorted({tuple(map(int, each.row["release"].split("."))) for each in used})
            fits[kind, card] = Fit(
                rates=_rates(used),
                low=_rounded(np.quantile(ratios, (1 - _SHARE) / 2)),
                high=_rounded(np.quantile(ratios, (1 + _SHARE) / 2)),
                least={name: _rounded(min(each[name] for each in extents)) for name in extents[0]},
                most={name: _rounded(max(each[name] for each in extents)) for name in extents[0]},
                num_figures=len(used),
                num_models=len(bodies),
                releases=tuple(".".join(map(str, releases[at])) for at in (0, -1)),  # type: ignore[arg-type]
                median_error=_rounded(np.median(errors)),
                share_within=_rounded(np.mean(errors <= 0.25)),
            )
    return fits, found


def _is_used(figure: Figure) -> bool:
    if figure.kind == DECODING_8X:
        is_new = tuple(map(int, figure.row["release"].split("."))) >= (1, 10)
        return figure.counted is not None and is_new and "copy" not in figure.why_not
    return not figure.why_not


def _estimated(figure: Figure, used: Sequence[Figure]) -> Figure:
    others = [each for each in used if each.body != figure.body]
    if figure.counted is None or not others:
        return figure
    rates = _rates(others)
    counts = counts_of(figure.kind, figure.counted)
    return replace(figure, predicted=sum(rates[name] * counts[name] for name in rates))


def _rates(figures: Sequence[Figure]) -> dict[str, float]:
    """Returns the rates that fit the figures of a kind and a card best."""
    counts = [counts_of(each.kind, each.counted) for each in figures if each.counted]
    names = [*counts[0]]
    table = np.array([[each[name] for name in names] for each in counts], dtype=float)
    # Counts are from 1 to 1e15. Unscaled, the arithmetic would lose the small ones.
    scales = np.where(table.max(axis=0) > 0, table.max(axis=0), 1.0)
    relative = table / scales / np.array([[each.seconds] for each in figures])
    rates, _ = nnls(relative, np.ones(len(figures)))
    return {name: _rounded(rate) for name, rate in zip(names, rates / scales, strict=True)}


def _rounded(value: Any) -> float:
    return float(f"{float(value):.4g}")


def data(fits: dict[tuple[str, str], Fit]) -> str:
    """Returns the JSON file that a plan reads."""
    by_kind: dict[str, dict[str, Any]] = {}
    for (kind, card), fit in fits.items():
        by_kind.setdefault(kind, {})[card] = asdict(fit)
    references = {
        name: {each: getattr(counted, each) for each in _COUNTED}
        for name, counted in count.read_references().items()
    }
    found = {"fits": by_kind, "later": read("later"), "references": references}
    return json.dumps(found, indent=1) + "\n"


_COUNTED = (*count.REFERENCE_COUNTS, "flops_of", "is_trained")
"""The counts of a reference step that are not the defaults."""
_COLOURS = {"gaudi1": "#c27c0e", "gaudi2": "#0068b5", "gaudi3": "#5b2c83"}


def picture(figures: Sequence[Figure]) -> str:
    """Returns an SVG: each figure's time, as published and as estimated without its model."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure as Drawing

    drawing = Drawing(figsize=(11, 5.6), layout="constrained")
    FigureCanvasSVG(drawing)
    panels = drawing.subplots(1, 2)
    parts = (("Training: a step", (TRAINING,)), ("Decoding: a token", (DECODING, DECODING_8X)))
    for axes, (title, kinds) in zip(panels, parts, strict=True):
        shown = [each for each in figures if each.kind in kinds and each.predicted]
        ends = [
            min(min(each.seconds, each.predicted or 1) for each in shown) / 1.3,
            max(max(each.seconds, each.predicted or 1) for each in shown) * 1.3,
        ]
        axes.plot(ends, ends, color="#444444", linewidth=0.8)
        axes.fill_between(
            ends, [end * 0.75 for end in ends], [end * 1.25 for end in ends],
            color="#444444", alpha=0.12, linewidth=0, label="within 25 %",
        )  # fmt: skip
        for card, colour in _COLOURS.items():
            for is_used, marker in ((True, "o"), (False, "x")):
                group = [each for each in shown if each.card == card and _is_used(each) == is_used]
                what = "" if is_used else ", not fitted"
                axes.plot(
                    [each.seconds for each in group],
                    [each.predicted for each in group],
                    marker, color=colour, markersize=4.5, label=f"{GAUDIS[card].title}{what}",
                )  # fmt: skip
        axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, title=title)
        axes.set_xlabel("seconds, as published")
        axes.set_ylabel("seconds, estimated without its model")
        axes.legend(fontsize=8, loc="upper left", frameon=False)
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "step times"}):
        drawing.savefig(buffer, format="svg", metadata={"Date": None})
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


_BEGIN, _END = "<!-- written by scripts/step_times/fit.py -->", "<!-- to here -->"


def page(figures: Sequence[Figure], fits: dict[tuple[str, str], Fit]) -> str:
    """Returns the page with its tables written anew."""
    return _written(PAGE, tables(figures, fits))


def reprint(figures: Sequence[Figure]) -> str:
    """Returns the page of the benchmarks with the errors written anew."""
    return _written(REPRINT, [*_errors(figures), "", *_rules(figures)])


def _written(path: Path, lines: Sequence[str]) -> str:
    head, _, rest = path.read_text().partition(_BEGIN)
    _, _, tail = rest.partition(_END)
    return "".join([head, _BEGIN, "\n\n", "\n".join(lines), "\n\n", _END, tail])


def tables(figures: Sequence[Figure], fits: dict[tuple[str, str], Fit]) -> list[str]:
    """Returns the lines of all tables of the page: the fits, their errors, and every figure."""
    return [
        *_errors(figures),
        "",
        *_rules(figures),
        "",
        *_fits(fits),
        "",
        "### Training, every figure",
        "",
        "| model | task | trained | cards | batch | length | on | published | estimated | error | "
        "release | not fitted because |",
        "|" + "---|" * 12,
        *(_training(each) for each in figures if each.kind == TRAINING),
        "",
        "### Decoding, every figure",
        "",
        "| model | cards | batch | prompt | new tokens | in | on | published | estimated | error | "
        "release | not fitted because |",
        "|" + "---|" * 12,
        *(_decoding(each) for each in figures if each.kind != TRAINING),
        "",
        "### The recipes' published runs",
        "",
        *_registries(),
        "",
        "### The same run with two releases",
        "",
        "| run | on | batch | release | samples/s | release | samples/s | change |",
        "|" + "---|" * 8,
        *(_older(row) for row in read("older")),
    ]


def _registries() -> list[str]:
    """Returns the table of the recipes' runs, with a plan's range beside each published figure.

    A range is bold if the figure does not lie in it.
    """
    lines = [
        "| recipe | run | on | published | as public runs were | why not |",
        "|" + "---|" * 6,
    ]
    are_in_range: list[bool] = []
    for (recipe, name), run in registries.runs().items():
        for each, _ in registries.figures_of(run):
            span = "-"
            if each.likely is not None:
                low, high = each.likely
                are_in_range.append(low <= each.figure.value <= high)
                span = f"{low:.4g} to {high:.4g}"
                span = span if are_in_range[-1] else f"**{span}**"
            lines.append(
                f"| {recipe} | {name} | {GAUDIS[each.card].title} | {each.figure.name} "
                f"{each.figure.value:g} | {span} | {each.why_not_likely} |"
            )
    said = (
        f"What a plan of each says beside the figures that a step gives. {sum(are_in_range)} of "
        f"{len(are_in_range)} lie in their range. These runs\nwere chosen by no rule: many are of "
        "2022 and 2023, or of rows of many lengths, of which a plan has the longest."
    )
    return [said, "", *lines]


def _errors(figures: Sequence[Figure]) -> list[str]:
    lines = [
        "| judged by the rule | figures | models | median error | within 25 % | worst |",
        "|---|---|---|---|---|---|",
    ]
    for kind in (TRAINING, DECODING):
        used = [each for each in figures if each.kind == kind and not each.why_not]
        sizes = np.array([abs(each.error) for each in used])
        worst = used[int(sizes.argmax())]
        lines.append(
            f"| {kind} | {len(used)} | {len({each.body for each in used})} | "
            f"{np.median(sizes):.1%} | {np.sum(sizes <= 0.25)} ({np.mean(sizes <= 0.25):.0%}) | "
            f"{worst.error:+.0%} ({worst.row['model']}, {GAUDIS[worst.card].title}) |"
        )
    return lines


def _rate(name: str, rate: float, card: Gaudi) -> str:
    """Returns a rate in words; empty for a rate of 0."""
    shown = {
        "operations": lambda: f"{1 / rate / card.peaks['bfloat16']:.0%} of the peak in products",
        "memory": lambda: f"{1 / rate / 1e12:.2f} TB/s of memory",
        "reduced": lambda: f"{1 / rate / 1e9:.0f} GB/s of links, reducing",
        "reduced and gathered": lambda: f"{1 / rate / 1e9:.0f} GB/s of links, gathering",
        "weights": lambda: f"{1 / rate / 1e12:.2f} TB/s of weights",
        "layers": lambda: f"{rate * 1e6:.0f} µs a layer",
        "tokens": lambda: f"{rate * 1e3:.1f} ms a token",
    }
    return shown[name]() if rate else ""


def _rules(figures: Sequence[Figure]) -> list[str]:
    """Returns the table of the errors that fits to the figures of other rules would have."""

    def is_new(each: Figure) -> bool:
        return each.row["table"] == "newest" and "copy" not in each.why_not

    rules: dict[str, Callable[[Figure], bool]] = {
        "the rule": lambda each: not each.why_not,
        "also those taken over less than ten seconds": lambda each: (
            not each.why_not or "taken over" in each.why_not
        ),
        "the newest table alone, of any duration, texts and ViT": lambda each: (
            is_new(each) and (each.row["kind"] == "text" or each.row["model"] == "vit-base")
        ),
        "the newest table alone, of any duration, texts, ViT and Swin": lambda each: (
            is_new(each) and each.row["kind"] in ("text", "vision")
        ),
    }
    lines = [
        "| training, by another rule | figures | models | median error | within 25 % |",
        "|" + "---|" * 5,
    ]
    for name, is_chosen in rules.items():
        group = [
            replace(each, why_not="" if each.counted and is_chosen(each) else "another rule")
            for each in figures
            if each.kind == TRAINING
        ]
        used = [each for each in judged(group)[1] if not each.why_not and each.predicted]
        sizes = np.array([abs(each.error) for each in used])
        lines.append(
            f"| {name} | {len(used)} | {len({each.body for each in used})} | "
            f"{np.median(sizes):.1%} | {np.sum(sizes <= 0.25)} ({np.mean(sizes <= 0.25):.0%}) |"
        )
    return lines


def _fits(fits: dict[tuple[str, str], Fit]) -> list[str]:
    lines = [
        "| fitted | on | figures | models | rates | eight of ten took | median | within 25 % |",
        "|" + "---|" * 8,
    ]
    for (kind, key), fit in fits.items():
        shown = [_rate(name, rate, GAUDIS[key]) for name, rate in fit.rates.items()]
        rates = ", ".join(filter(None, shown))
        lines.append(
            f"| {kind} | {GAUDIS[key].title} | {fit.num_figures} | {fit.num_models} | {rates} | "
            f"{fit.low:.2f} to {fit.high:.2f} times the estimate | {fit.median_error:.0%} | "
            f"{fit.share_within:.0%} |"
        )
    return lines


def _training(each: Figure) -> str:
    row = each.row
    micro = "" if row["accumulation"] in ("", "1") else f"x{row['accumulation']}"
    batch = row["batch"] + micro
    trained = row["trained"].split()[0] + (", recomputing" if row["checkpointing"] == "yes" else "")
    samples = each.seconds * float(row["samples_per_s"])
    estimated = f"{samples / each.predicted:.5g}" if each.predicted and samples else "-"
    return (
        f"| {row['model']} | {row['task']} | {trained} | {row['cards']} {row['strategy']} | "
        f"{batch} | {row['length']} | {GAUDIS[each.card].title} | "
        f"{float(row['samples_per_s']):.5g}/s | {estimated} | {_error(each)} | {row['release']} | "
        f"{each.why_not} |"
    )


def _decoding(each: Figure) -> str:
    row = each.row
    estimated = f"{int(row['batch']) / each.predicted:.5g}" if each.predicted else "-"
    return (
        f"| {row['model']} | {row['cards']} | {row['batch']} | {row['prompt']} | "
        f"{row['new_tokens']} | {row['precision']} | {GAUDIS[each.card].title} | "
        f"{float(row['tokens_per_s']):.5g}/s | {estimated} | {_error(each)} | {row['release']} | "
        f"{each.why_not} |"
    )


def _error(each: Figure) -> str:
    """Returns the error as text; bold if a figure that was used is missed by over a quarter."""
    if not each.predicted or not each.seconds:
        return "-"
    shown = f"{each.error:+.0%}"
    return f"**{shown}**" if _is_used(each) and abs(each.error) > 0.25 else shown


def _older(row: Row) -> str:
    first, last = float(row["samples_per_s"]), float(row["later_samples_per_s"])
    return (
        f"| {row['run']}, {row['task']}, {row['cards'].replace('_', ' ')} | "
        f"{GAUDIS[row['card']].title} | {row['batch']} | {row['release']} | {first:.5g} | "
        f"{row['later_release']} | {last:.5g} | {last / first - 1:+.0%} |"
    )


def main() -> int:
    """Writes the file of the fits, the pages and the picture."""
    fits, figures = judged(training_figures() + decoding_figures())
    FITTED.write_text(data(fits))
    PAGE.write_text(page(figures, fits))
    REPRINT.write_text(reprint(figures))
    PICTURE.write_text(picture(figures))
    print("\n".join(_errors(figures)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
