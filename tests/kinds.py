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
