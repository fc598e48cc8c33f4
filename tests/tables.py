"""A small table of several kinds of columns."""

import numpy as np
import pandas as pd


def some_table(n=200, seed=0):
    rng = np.random.default_rng(seed)
    z = rng.normal(size=n)
    level = np.digitize(z + 0.5 * rng.normal(size=n), [-0.5, 0.7])
    return pd.DataFrame(
        {
            "height": 170 + 10 * z + 3 * rng.normal(size=n),
            "smokes": rng.random(n) < 1 / (1 + np.exp(-2 * z)),
            "level": pd.Categorical(np.array(["low", "mid", "high"])[level]),
            "visits": rng.poisson(np.exp(0.7 * z + 0.5)),
        }
    )


def with_gaps(frame, share=0.2, seed=1):
    return frame.mask(np.random.default_rng(seed).random(frame.shape) < share)


def codes_of(rows):
    """Numbers as they are, and the places of categories in their order."""
    codes = {"high": 0, "low": 1, "mid": 2}
    return rows.assign(level=rows["level"].map(codes)).to_numpy(float)
