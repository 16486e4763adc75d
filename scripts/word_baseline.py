"""Error of logistic regression on words and word pairs, on the splits that `transfer` trains on.

    python scripts/word_baseline.py DATA_DIR [LABELLED ...]

Needs scikit-learn, which transfer itself does not. Prints mean and deviation over seeds 0, 1, 2;
the strength of the regularisation is chosen on the validation split.
"""

import statistics
import sys
from pathlib import Path

from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression

from transfer_cli.tasks.trec import Trec

SEEDS = (0, 1, 2)


def error(data_dir: Path, labelled: int | None, seed: int) -> float:
    """Return the test error in percent."""
    data = Trec(labelled=labelled).load(data_dir, seed)
    words = CountVectorizer(ngram_range=(1, 2), tokenizer=str.split, token_pattern=None)
    texts = {name: [e.text for e in examples] for name, examples in data.splits.items()}
    labels = {name: [e.label for e in examples] for name, examples in data.splits.items()}
    counted = {"train": words.fit_transform(texts["train"])}
    counted |= {name: words.transform(texts[name]) for name in ("validation", "test")}
    fitted = [
        LogisticRegression(C=strength, max_iter=2000).fit(counted["train"], labels["train"])
        for strength in (0.3, 1, 3, 10, 30)
    ]
    best = max(fitted, key=lambda m: m.score(counted["validation"], labels["validation"]))
    return 100 * (1 - best.score(counted["test"], labels["test"]))


def main() -> None:
    """Print a line for each number of labels; 0 stands for all."""
    data_dir = Path(sys.argv[1])
    for labelled in [int(word) for word in sys.argv[2:]] or [100, 0]:
        errors = [error(data_dir, labelled or None, seed) for seed in SEEDS]
        print(
            f"{labelled or 0:>5} labels  {statistics.mean(errors):.1f} ± "
            f"{statistics.stdev(errors):.1f} % error"
        )


main()
