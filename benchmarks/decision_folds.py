"""Gains of the decision corpus out of fold, by problem and by family: a part of `decisions.py`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fuseledger.clock.library_fit import PRIORS
from fuseledger.validate.decisions import decision_priors
from fuseledger.validate.figures import choices, spearman
from fuseledger.validate.folds import by_class, by_problem
from fuseledger.validate.run import read_corpus
from fuseledger.validate.score import pairs

LOSSES = """\
- **Cross entropy forward and backward, 2048×32000 on B200 (0.80×).** The fused option, nine
  launches of an autograd step, takes 97 µs longer than the unfused five; its bytes take a third of
  its time. Host work may be the rest; the source does not say.
- **SwiGLU MLP on A100, 4,096 and 8,192 tokens (0.90×, 0.92×).** One run of each; two and four times
  the tokens gave 1.01×. Both options run the same three GEMMs, which are 95 % of the time.
- **Linear + GELU in cuBLASLt on RTX 5090 (0.80×).** The library picks a poor kernel for this
  epilogue on this architecture, says the source; no mechanism foresees it.
- **Fused decode attention on RTX 3090, 32,768 keys (0.91×).** 797 µs between 318 µs at half the
  keys and 1,223 µs at twice of them: off its own series.
- **GEMM + bias on B200, 4096×7168×16384 (1.043×).** Called a little above the line of 1.05.
- **Decode attention on H200, 4,096 keys (0.83×) and 4 sequences of 16,384 (0.90×).** Printed to
  10 µs. The first is host work, 60 against 50 µs, where two launches are taken for 51.6 µs. In the
  second 128 blocks fill the machine and FlashAttention's heuristic would not split, yet 20 µs more
  were measured.

The width of the prior of an implementation's deviation (0.8) was chosen after widths of 0.1, 0.3,
0.5 and 1.0 had been looked at: the side of losses and ties was right in 0.32, 0.37, 0.58 and 0.68
of those that are no splits; true fusions did not change."""
FOLDS_WORDS = """All records with formulas or a split. *Problem*: ten folds, a family's other sizes
are in the fit. *Family*: the whole family is left out, so what its kernels reach of the bandwidth
is unknown. Splits are fitted on nothing."""


def validation(path: Path) -> list[str]:
    """How far off gains are, out of fold by problem and by family, and side by side per family."""
    corpus = read_corpus(path).rows
    fitted = [m for m in corpus if m.priced_us is None]
    priced = [m for m in corpus if m.priced_us is not None]
    priors = decision_priors(corpus, PRIORS)
    measured = [*fitted, *priced]
    given = [m.priced_us for m in priced]
    folds = {
        "problem": [*by_problem(fitted, priors).times_us, *given],
        "family": [*by_class(fitted, priors).times_us, *given],
    }
    pairs_ = pairs(measured)
    times = np.array([m.time_us for m in measured])
    fused, plain = np.array(list(pairs_)), np.array(list(pairs_.values()))
    true = times[plain] / times[fused]
    gains = {name: (np.array(us)[plain] / np.array(us)[fused]) for name, us in folds.items()}
    tables = [measured[i].tables[0].removeprefix("decisions, ") for i in fused.tolist()]
    families = [measured[i].class_ for i in fused.tolist()]
    out = ["\n## Out of fold\n", FOLDS_WORDS, ""]
    out.append("| records | n | left out | rank correlation | median abs. log error | side right |")
    out.append("|---|---|---|---|---|---|")
    for table_ in ("true fusions", "losses and ties", "splits that pay"):
        rows_ = np.array([i for i, each in enumerate(tables) if each == table_])
        for fold, said in gains.items():
            rank = spearman(said[rows_], true[rows_])
            error = float(np.median(np.abs(np.log(said[rows_] / true[rows_]))))
            right = float(np.mean(choices(said[rows_]) == choices(true[rows_])))
            out.append(
                f"| {table_} | {len(rows_)} | {fold} | {rank:.2f} | {error:.3f} | {right:.2f} |"
            )
    out += ["", "| family | n | median gain, measured | predicted | abs. log error | side right |"]
    out.append("|---|---|---|---|---|---|")
    said = gains["problem"]
    for family in sorted(set(families)):
        rows_ = np.array([i for i, each in enumerate(families) if each == family])
        error = float(np.median(np.abs(np.log(said[rows_] / true[rows_]))))
        right = float(np.mean(choices(said[rows_]) == choices(true[rows_])))
        out.append(
            f"| {family} | {len(rows_)} | {np.median(true[rows_]):.2f} "
            f"| {np.median(said[rows_]):.2f} | {error:.3f} | {right:.2f} |"
        )
    return out
