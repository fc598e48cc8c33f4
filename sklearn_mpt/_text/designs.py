"""Choice between the designs of masks for "mpt", by the variance of some scores."""

import numpy as np

from sklearn_mpt._text.masks import DESIGNS, Draw
from sklearn_mpt._text.scoring import score_windows

N_DRAWS = 4  # orders, or masks of each size
N_TEXTS = (4, 32)  # fewest and most texts to measure
N_TOKENS = 2**17  # at most, in all rows


def choose_design(language_model, windows, seed, n_jobs):
    """Return the design with the smaller variance, and the variance with each.

    Without enough texts, the design is "chain", and the variances are None.
    """
    windows = _pick(windows, seed)
    if len(windows) < N_TEXTS[0]:
        return "chain", None
    (chain, noise), (others, noise_of_others) = (
        _score(language_model, windows, Draw("mpt", seed, N_DRAWS, design=d), n_jobs)
        for d in DESIGNS
    )
    # the spread of four orders alone gives a variance that is often too small
    with np.errstate(invalid="ignore"):  # from tokens of probability 0
        difference = np.mean((chain - others) ** 2) - noise_of_others.mean()
    variances = {
        "chain": float((noise.mean() + max(difference, 0)) / 2),
        "independent": float(noise_of_others.mean()),
    }
    is_worse = variances["independent"] < variances["chain"]
    return "independent" if is_worse else "chain", variances


def _pick(windows, seed):
    """Pick random windows of more than one token, until they are many or long."""
    picked, n_tokens = [], 0
    for index in np.random.default_rng(seed).permutation(len(windows)):
        window = windows[index]
        n_tokens += 2 * N_DRAWS * len(window.places) * len(window)
        if len(picked) == N_TEXTS[1] or n_tokens > N_TOKENS:
            break
        if len(window.places) > 1:
            picked.append(window)
    return picked


def _score(language_model, windows, draw, n_jobs):
    """Return the scores of windows, and their variances over masks."""
    scores = score_windows(language_model, windows, draw, n_jobs)
    parts = [(s.parts.sum(), np.sum(s.contrasts**2)) for s in scores]
    return np.transpose(parts)
