"""
=================================
Choosing the number of components
=================================

The score of a model is the log marginal likelihood (LML) of the rows. On training rows
it rises with every additional component. On validation rows it is highest at the number
from which on the model describes noise, which is the true number in this example. So a
grid search only needs ``score``.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.model_selection import GridSearchCV

from sklearn_mpt import MPTProbabilisticPCA

# %%
# Two hundred rows of 20 features depend on 4 latent variables.

N_TRUE = 4
rng = np.random.default_rng(0)
joint = rng.normal(size=(200, N_TRUE))
X = joint @ rng.normal(size=(N_TRUE, 20)) + rng.normal(size=(200, 20))

# %%
# All features have one unit and one noise variance here, so they need no scaling.

search = GridSearchCV(
    MPTProbabilisticPCA(random_state=0),
    {"n_components": range(1, 8)},
    cv=5,
    return_train_score=True,
)
results = search.fit(X).cv_results_
n_components = results["param_n_components"].astype(int)
training, held_out = results["mean_train_score"], results["mean_test_score"]
for row in zip(n_components, training, held_out, strict=True):
    print("{} components: LML {:.2f} in training, {:.2f} held out".format(*row))
print(f"Best held out: {search.best_params_}, generated with {N_TRUE}")

# %%
# The rows of some splits are less likely than those of others under all models. The
# band is the standard error of the difference to the best model, which this does not
# affect.

splits = np.array([results[f"split{i}_test_score"] for i in range(5)])
loss = splits - splits[:, [search.best_index_]]
error = loss.std(axis=0, ddof=1) / np.sqrt(len(splits))

figure, ax = plt.subplots(layout="constrained")
ax.plot(n_components, training, color="C0", marker="s", label="training")
ax.plot(n_components, held_out, color="C1", marker="o", label="held out")
band = (held_out - error, held_out + error)
ax.fill_between(n_components, *band, color="C1", alpha=0.25, linewidth=0)
ax.axvline(N_TRUE, color="0.5", linestyle="--", label="true number")
ax.set(xlabel="Number of components", ylabel="LML (nats per row)")
ax.legend()
plt.show()
