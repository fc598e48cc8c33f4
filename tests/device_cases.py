"""Run models on the CPU and on another device; print their largest differences.

    python device_cases.py DEVICE NAME ...

prints one line of JSON for each case of `CASES` that is named: {"name", "counts",
"differences"}, or {"name", "error"}. The last line is "done". DEVICE is "second", the
device of ``second_device.py``, which is tested itself first, or one of PyTorch, such as
"cuda". Without names all cases run.
"""

import contextlib
import json
import os
import sys
import traceback
import warnings

import numpy as np
import pandas as pd
import torch

if sys.argv[1] == "second":  # before sklearn_mpt
    from second_device import second_device as count_operations
    from second_device import test_mixes_and_read_backs

    test_mixes_and_read_backs()
else:
    count_operations = contextlib.nullcontext

from sklearn.datasets import load_digits, load_iris

from sklearn_mpt import (
    MPTDeepVAE,
    MPTImputer,
    MPTItemResponse,
    MPTLinearVAE,
    MPTMaskedAutoencoder,
    MPTMixture,
    MPTProbabilisticPCA,
    lml_samples,
    mpt_curve,
    order_log_prob,
)
from sklearn_mpt._likelihoods import Bernoulli

IRIS = load_iris().data[::3]
GAPS = IRIS.copy()
GAPS[::7, 1] = np.nan
BINARY = (load_digits().data[:40, 18:24] > 8).astype(float)
LEVELS = np.round(IRIS[:, :3]) - np.round(IRIS[:, :3]).min(axis=0)
TABLE = np.column_stack([GAPS[:, :2], LEVELS[:, 2], BINARY[np.arange(50) % 40, 1]])
KINDS = ["gaussian", "gaussian", "categorical", "bernoulli"]
INTERVALS = pd.DataFrame(GAPS[:, :3], columns=list("abc")).assign(
    classes=pd.arrays.IntervalArray.from_arrays(*np.floor(IRIS[:, [3, 3]] + [0, 1]).T)
)
SHORT = {"max_iter": 2, "random_state": 0}
OWN = {"random_state": 0, "max_iter": 1}
NET = {"hidden_layer_sizes": (6,), **OWN}
N_ROWS = 4  # that are scored


class OwnBernoulli(Bernoulli):
    """A likelihood of a user, which has a tensor."""

    def __init__(self):
        super().__init__()
        self.register_buffer("factor", torch.ones(1, dtype=torch.float64))

    def entry_log_prob(self, X, location):
        return self.factor * super().entry_log_prob(X, location)


def use_estimator(make, X, device, with_orders):
    """Yield what an estimator computes: names, and arrays.

    A GPU draws other masks of training than the CPU. There all but fits is that of a
    model of the CPU.

    with_orders : whether to score along orders, which takes long where that is
        integration.
    """
    rows = X[:N_ROWS]
    model = make(device).fit(X)
    part = make(device).partial_fit(X).partial_fit(X[::2])
    if "cuda" in sys.argv:
        assert np.isfinite([model.score(X), part.score(X)]).all()
        model = part = make("cpu").fit(X).set_params(device=device)
    mask = np.random.default_rng(0).random(rows.shape) < 0.4
    gaps = np.where(mask, np.nan, rows)
    yield "fit", model.score_samples(rows)
    yield "partial_fit", part.score_samples(rows)
    yield "conditional_log_prob", model.conditional_log_prob(rows, mask)
    yield "impute", model.impute(gaps)
    yield "draws", model.impute(gaps, method="sample", random_state=0)
    drawn = model.sample(4, random_state=0)
    yield "sample", drawn[0] if isinstance(drawn, tuple) else drawn
    yield "transform", model.transform(rows)
    yield "mpt_curve", mpt_curve(model, rows, n_masks=2, random_state=0).scores
    if with_orders:
        yield "lml_samples", lml_samples(model, rows, n_orders=1, random_state=0)
        yield "order_log_prob", order_log_prob(model, rows, "left_to_right")


def estimator(estimator_class, X, *args, with_orders=False, **parameters):
    """Return a case: a function of the device that yields names and arrays."""

    def case(device):
        def make(device):
            return estimator_class(*args, device=device, **parameters)

        return use_estimator(make, X, device, with_orders)

    return case


def standard_errors(X, **parameters):
    """Return a case: the standard errors of a model that the CPU fitted."""

    def case(device):
        # at its maximum, where the information has an inverse
        model = MPTLinearVAE(1, device="cpu", random_state=0, **parameters).fit(X)
        yield from model.set_params(device=device).standard_errors(X).items()

    return case


def intervals(device):
    """Models of a table with a column of intervals, which need a DataFrame."""
    settings = {"likelihood": "from_dtype", "device": device, **SHORT}
    for model in (
        MPTLinearVAE(1, **settings),
        MPTMixture(2, covariance_type="diag", **settings),
    ):
        rows, name = INTERVALS[:N_ROWS], type(model).__name__
        yield f"{name}, fit", model.fit(INTERVALS).score_samples(rows)
        hidden = model.conditional_log_prob(rows, np.ones(4, bool))
        yield f"{name}, conditionals", hidden
        yield f"{name}, impute", model.impute(rows).to_numpy()
        drawn = model.impute(rows, method="sample", random_state=0)
        yield f"{name}, draws", drawn.to_numpy()


def net_of(n_inputs, n_outputs):
    return torch.nn.Sequential(
        torch.nn.Linear(n_inputs, 5), torch.nn.SiLU(), torch.nn.Linear(5, n_outputs)
    )


def own_decoder(device):
    """A net of a user is trained and scored where the model works."""
    model = MPTDeepVAE(decoder=net_of, device=device, **OWN).fit(IRIS)
    if "cuda" in sys.argv:
        assert np.isfinite(model.score(IRIS))
        model = MPTDeepVAE(decoder=net_of, device="cpu", **OWN).fit(IRIS)
        model.set_params(device=device)
    yield "fit", model.score_samples(IRIS[:N_ROWS])


class Conditionals(torch.nn.Module):
    """A module of a user with ``conditional_log_prob``'s arguments, on any device."""

    def __init__(self):
        super().__init__()
        self.mean = torch.nn.Parameter(torch.tensor(IRIS.mean(axis=0)))

    def forward(self, X, mask):
        seen = torch.where(mask, 0.0, X - self.mean)
        location = self.mean + seen.mean(1, keepdim=True)
        return torch.where(mask, -((X - location) ** 2), 0.0)


def measured_module(device):
    """A module is measured where its parameters are."""
    module, X = Conditionals().to(device), IRIS[:N_ROWS]
    yield "mpt_curve", mpt_curve(module, X, n_masks=2, random_state=0).scores
    yield "lml_samples", lml_samples(module, X, n_orders=2, random_state=0)
    yield "order_log_prob", order_log_prob(module, X, "left_to_right")


def imputer(X, make):
    """Return a case: an imputer of a given model works where that model does."""

    def case(device):
        fitted = MPTImputer(make(device), n_imputations=2, random_state=0).fit(X)
        yield "transform", fitted.transform(X)
        yield "transform_multiple", np.stack(fitted.transform_multiple(X))

    return case


def principal_components(device):
    return MPTProbabilisticPCA(2, objective="lml", device=device, **SHORT)


def scorer(method):
    """Return a case for one way to score texts."""

    def case(device):
        from text_models import TEXTS, make_model, make_tokenizer  # loads long

        from sklearn_mpt import MPTScorer

        model = MPTScorer(make_model(), make_tokenizer(), method=method, device=device)
        model.fit(TEXTS)
        yield "score_samples", model.score_samples(TEXTS)
        if method == "mpt":
            yield "transform", model.transform(TEXTS)
            yield "mpt_curve", mpt_curve(model, TEXTS, random_state=0).scores
            filled = model.fill(["the [MASK] sat"], random_state=0)
            yield "fill", np.array(filled[0][0].log_prob)

    return case


def trained_language_model(device):
    """Steps on masks of the collator, as a training loop of one's own takes them."""
    from text_models import TEXTS, make_model, make_tokenizer

    from sklearn_mpt import DataCollatorForMPT, mpt_loss

    model = make_model().eval().to(device)  # devices draw their own dropout
    model.tie_weights()  # a move to a device of another type of tensors unties them
    tokenizer = make_tokenizer()
    collate = DataCollatorForMPT(tokenizer, random_state=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(3):
        batch = collate([tokenizer(text) for text in TEXTS])
        labels = batch["labels"]
        batch["labels"] = labels.as_subclass(torch.Tensor)
        batch = {name: tensor.to(device) for name, tensor in batch.items()}
        batch["labels"].weights = labels.weights  # a move of `labels` keeps them
        loss = mpt_loss(model(**batch), batch["labels"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    yield "loss", loss.item()
    yield "weights", model.bert.embeddings.word_embeddings.weight.detach().cpu().numpy()


TABLES = {
    "ppca": estimator(MPTProbabilisticPCA, IRIS, **SHORT),
    "ppca, gaps": estimator(MPTProbabilisticPCA, GAPS, with_orders=True, **SHORT),
    "ppca, rate": estimator(MPTProbabilisticPCA, GAPS, mask_rate=0.5, **SHORT),
    "factors": estimator(MPTLinearVAE, GAPS, noise="per_feature", **SHORT),
    "binary": estimator(MPTLinearVAE, BINARY, likelihood="bernoulli", **SHORT),
    "binary, 4": estimator(MPTLinearVAE, BINARY, 4, likelihood="bernoulli", **SHORT),
    "binary, rate": estimator(
        MPTLinearVAE,
        BINARY,
        1,
        likelihood="bernoulli",
        mask_rate=0.5,
        init="pca",
        **SHORT,
    ),
    "ordinal": estimator(MPTLinearVAE, LEVELS, 1, likelihood="ordinal", **SHORT),
    "kinds": estimator(MPTLinearVAE, TABLE, 1, likelihood=KINDS, **SHORT),
    "intervals": intervals,
    "mixture": estimator(MPTMixture, GAPS, 2, with_orders=True, **SHORT),
    "mixture, kinds": estimator(MPTMixture, TABLE, 2, likelihood=KINDS, **SHORT),
    "mixture, rate": estimator(MPTMixture, GAPS, 2, mask_rate=0.5, **SHORT),
    "mixture, own": estimator(
        MPTMixture, BINARY, 2, likelihood=OwnBernoulli(), n_init=2, **SHORT
    ),
    "items": estimator(MPTItemResponse, BINARY, slope_prior=1.0, **SHORT),
    "errors": standard_errors(IRIS, noise="per_feature"),
    "errors, binary": standard_errors(BINARY, likelihood="bernoulli"),
    "imputer": imputer(GAPS, principal_components),
    "module": measured_module,
}
NETS = {
    "deep": estimator(MPTDeepVAE, GAPS, **NET),
    "deep, binary": estimator(MPTDeepVAE, BINARY, likelihood="bernoulli", **NET),
    "deep, kinds": estimator(MPTDeepVAE, TABLE, 1, likelihood=KINDS, **NET),
    "deep, rate": estimator(MPTDeepVAE, GAPS, mask_rate=0.5, **NET),
    "deep, own": own_decoder,
    "masked": estimator(
        MPTMaskedAutoencoder,
        GAPS,
        n_orders=2,
        mask_blocks=[0, 1, 1, 0],
        with_orders=True,
        **NET,
    ),
    "masked, rate": estimator(MPTMaskedAutoencoder, GAPS, mask_rate=0.5, **NET),
    "masked, own": estimator(MPTMaskedAutoencoder, IRIS, net=net_of, n_orders=2, **OWN),
}
LANGUAGE = {
    **{f"texts, {m}": scorer(m) for m in ("mpt", "pll", "chain", "ordered")},
    "texts, training": trained_language_model,
}
CASES = TABLES | NETS | LANGUAGE


def run(case, device):
    """Return the largest difference of each result between the devices."""
    here = dict(case("cpu"))
    with count_operations() as counts:
        there = dict(case(device))
    differences = {
        name: float(np.nanmax(np.abs(np.subtract(here[name], there[name]))))
        for name in here
    }
    return {"counts": dict(counts or {}), "differences": differences}


def main(device, *names):
    warnings.simplefilter("ignore")
    for name in names or CASES:
        try:
            result = run(CASES[name], device)
        except Exception:
            result = {"error": traceback.format_exc()}
        print(json.dumps({"name": name, **result}), flush=True)
    print("done", flush=True)
    os._exit(0)  # threads of the device may not end by themselves


if __name__ == "__main__":
    main(*sys.argv[1:])
