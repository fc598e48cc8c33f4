"""
===============================
Look at what has been filled in
===============================

An imputer answers for values that nobody has seen, so look at them before you use them.
:class:`ImputationDisplay` shows what is filled in beside what was observed.
"""

import numpy as np
import pandas as pd
from sklearn.datasets import load_wine

from sklearn_mpt import ImputationDisplay, MPTImputer

# %%
# The table has six measurements of 178 wines and the grape that each is made of. Some
# entries are missing at random. The last two measurements come from one device, which
# was often broken, above all on days with strong wines. And the proportion of
# flavanoids is not reported where it lies below a detection limit of 1.

wine = load_wine(as_frame=True)
names = ["alcohol", "malic_acid", "flavanoids", "color_intensity", "hue", "proline"]
truth = wine.data[names].assign(
    grape=pd.Categorical(wine.target.map(dict(enumerate("ABC"))))
)
rng = np.random.default_rng(0)
table = truth.mask(rng.random(truth.shape) < 0.08)
is_broken = rng.random(len(table)) < 1 / (1 + np.exp(-3 * (truth["alcohol"] - 13.5)))
table.loc[is_broken, ["hue", "proline"]] = np.nan
is_below = truth["flavanoids"] < 1
table["flavanoids"] = truth["flavanoids"].mask(is_below)
print(table.head().to_string(na_rep=""))

# %%
# All missing flavanoids lie below the limit, so that is their bound. The values filled
# in need not be like those observed. Proline is filled in where wines are strong, and
# so it is high; flavanoids lie below the limit, where nothing was observed.

imputer = MPTImputer(max_value={"flavanoids": 1.0}, max_models=4, random_state=0).fit(
    table
)
display = ImputationDisplay.from_estimator(imputer, table, random_state=0)

# %%
# Here the truth is known. Proline is missing above all where it is high: the mean of
# the entries that are left is too low, and that of the filled table is not.

filled = imputer.transform(table)
for name in ["proline", "flavanoids"]:
    true, seen, whole = (frame[name].mean() for frame in (truth, table, filled))
    print(f"{name}: true {true:.2f}, observed {seen:.2f}, filled {whole:.2f}")
