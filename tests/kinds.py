"""The names of all kinds of columns, as an error message gives them."""

import re

import numpy as np

from sklearn_mpt import MPTDeepVAE, MPTLinearVAE


def all_kinds(model=MPTDeepVAE):
    """Return the names that `likelihood` takes, so that tests have new kinds, too."""
    try:
        model(likelihood="none").fit(np.eye(3))
    except ValueError as error:
        allowed = str(error).partition(", got ")[0]
    names = re.findall(r"'(\w+)'", allowed)
    return [name for name in names if name != "from_dtype"]


KINDS = all_kinds()
LINEAR_KINDS = all_kinds(MPTLinearVAE)


def rows_of_all_kinds(n_rows=150):
    """One column of each kind of `KINDS`, all of which depend on z."""
    rng = np.random.default_rng(1)
    z = rng.normal(size=n_rows)
    amount = np.exp(0.5 * z + 0.3 * rng.normal(size=n_rows))
    level = np.clip(np.round(z + 1.5), 0, 3)
    of_kind = {
        "gaussian": z + rng.normal(size=n_rows),
        "bernoulli": z > 0,
        "categorical": rng.integers(0, 3, n_rows),
        "ordinal": level,
        "partial_credit": level[::-1],
        "poisson": rng.poisson(amount),
        "negative_binomial": rng.poisson(amount * rng.gamma(2, 0.5, n_rows)),
        "lognormal": amount,
    }
    return np.column_stack([of_kind[kind] for kind in KINDS]).astype(float)
