"""Masked autoencoders: how they start, are trained, and become a density."""

import numpy as np
import torch

from sklearn_mpt._checks import (
    check_bool,
    check_choice,
    check_int,
    check_real,
    warn_caller,
    warn_constant,
)
from sklearn_mpt._frames import plain
from sklearn_mpt._latent.fitting import Family
from sklearn_mpt._latent.model import Units, as_tensor
from sklearn_mpt._masked.columns import WIDTH_FLOOR
from sklearn_mpt._masked.density import MaskedDensity
from sklearn_mpt._masked.linear_start import count_factors, fit_linear
from sklearn_mpt._masked.module import NUMBERS, MaskedModule
from sklearn_mpt._masked.net import ResidualNet
from sklearn_mpt._masked.recipe import recipe_for
from sklearn_mpt._masked.training import MaskedSolver, MaskSizes, Rows

OFTEN = 0.1  # share of the entries of a column at the floor that deserves a warning


class MaskedFamily(Family):
    """Nets that give the conditionals of hidden columns.

    Parameters
    ----------
    columns : Columns
        The kinds of the columns, and checks of their values.
    """

    objectives = ("mpt",)

    def __init__(self, columns):
        self.columns = columns

    def check_parameters(self, settings, n_features):
        _check_widths(settings.hidden_layer_sizes)
        check_int(settings.n_mixtures, "n_mixtures")
        check_int(settings.n_orders, "n_orders")
        _check_dropout(settings.dropout)
        check_bool(settings.early_stopping, "early_stopping")
        check_real(settings.validation_fraction, "validation_fraction", "neither", 1)

    def check_rows(self, X):
        self.columns.check_rows(X)

    def check_fitted(self, settings, fitted):
        sizes = settings.hidden_layer_sizes
        if not isinstance(sizes, str) and list(sizes) != fitted["hidden_layer_sizes_"]:
            raise ValueError(
                f"hidden_layer_sizes={plain(sizes)!r} differs from the "
                f"{fitted['hidden_layer_sizes_']} of the fitted model that training "
                "goes on with; set warm_start=False, or clone the estimator, to start "
                "anew."
            )

    def n_components(self, fitted):
        sizes = fitted["hidden_layer_sizes_"]
        if sizes:
            return sizes[-1]
        return fitted["_net"]["last.weight"].shape[1]

    def start(self, settings, X, rng, weight=None):
        recipe = recipe_for(len(X), self._n_inputs)
        widths, dropout = settings.hidden_layer_sizes, settings.dropout
        widths = recipe.widths if isinstance(widths, str) else tuple(widths)
        dropout = recipe.dropout if isinstance(dropout, str) else float(dropout)
        weight = np.ones(len(X)) if weight is None else weight / weight.mean()
        shift, scale = self.columns.units(X, weight)
        fitted = {
            "lml_method_": "exact",
            "hidden_layer_sizes_": [int(width) for width in widths],
            "dropout_": dropout,
            "n_mixtures_": int(settings.n_mixtures),
            "orders_": _draw_orders(settings.n_orders, X.shape[1], rng),
            "_shift": shift,
            "_scale": scale,
            "_constant": np.flatnonzero(self.columns.constant(X)),
            "_batch_size": recipe.batch_size,
            "_at_floor": np.zeros(X.shape[1]),
        }
        numbers = np.flatnonzero([kind == NUMBERS for kind in self.columns.kinds])
        rows = (X[:, numbers].astype(np.float64) - shift[numbers]) / scale[numbers]
        n_factors = count_factors(len(X), len(numbers))
        if len(numbers):
            fitted["_linear"] = list(fit_linear(rows, weight, n_factors, rng))
        else:
            fitted["_linear"] = [np.zeros((0, 0)), np.zeros(0)]
        module = self._empty_module(fitted)
        intercept = module.start(X, weight)
        net = self._empty_net(module, fitted).initialise(rng, intercept)
        return fitted | {"_net": _arrays(net)}

    @property
    def _n_inputs(self):
        """Numbers by which the columns enter a net, without their indicators."""
        return sum(self.columns.n_categories)

    def _empty_module(self, fitted):
        kinds, counts = self.columns.kinds, self.columns.n_categories
        return MaskedModule(kinds, counts, fitted["n_mixtures_"], fitted["_linear"])

    def _empty_net(self, module, fitted):
        widths, dropout = fitted["hidden_layer_sizes_"], fitted["dropout_"]
        return ResidualNet(module.n_inputs, module.n_outputs, widths, dropout)

    def module(self, fitted):
        """Return the fitted module, on the CPU and in single precision."""
        module = self._empty_module(fitted)
        module.net = self._empty_net(module, fitted)
        module.net.load_state_dict(
            {name: torch.tensor(array) for name, array in fitted["_net"].items()}
        )
        return module

    def model(self, settings, fitted, device):
        module = self.module(fitted).to(device).double()
        orders = torch.tensor(fitted["orders_"], device=device)
        return MaskedDensity(module, Units.of(fitted, device), orders)

    def solver(self, settings, problem):
        fitted, device = problem.fitted, problem.device
        units = Units.of(fitted, device)
        X = as_tensor(problem.X, device)
        weight = torch.ones(len(X)).to(X)
        if problem.weight is not None:
            weight = as_tensor(problem.weight / problem.weight.mean(), device)
        log_scale = float(((~X.isnan() * units.log_scale).sum(1) * weight).mean())
        X, weight = units.standardise(X).float(), weight.float()
        chosen, others = _split(settings, problem)
        rows = Rows(X[chosen], weight[chosen])
        held_out = Rows(X[others], weight[others]) if len(others) else None
        generator = torch.Generator(device=device)
        generator.manual_seed(int(problem.rng.integers(2**63)))
        batch_size, n_masks = settings.batch_size, settings.n_masks
        return MaskedSolver(
            self.module(fitted).to(device),
            rows,
            held_out,
            sizes=MaskSizes(settings.mask_rate, X.shape[1]),
            generator=generator,
            batch_size=fitted["_batch_size"] if batch_size == "auto" else batch_size,
            n_masks=None if n_masks == "auto" else int(n_masks),
            learning_rate=settings.learning_rate,
            log_scale=log_scale,
            tol=settings.tol,
            n_iter_no_change=settings.n_iter_no_change,
            is_part=not problem.is_all,
        )

    def trained_attributes(self, module, fitted):
        return {"_net": _arrays(module.net), "_at_floor": module.share_at_floor()}

    def warn(self, fitted, n_samples):
        numbers = [kind == NUMBERS for kind in self.columns.kinds]
        if not any(numbers):
            return
        constant, at_floor = fitted["_constant"], fitted["_at_floor"]
        warn_constant(constant, fitted)
        often = np.flatnonzero(at_floor > OFTEN)
        often = np.setdiff1d(often, constant)
        if len(often):
            names = fitted.get("feature_names_in_", np.arange(len(at_floor)))
            warn_caller(
                f"Column(s) {names[often[:10]].tolist()} of X have conditionals of the "
                f"least width, {WIDTH_FLOOR} standard deviations, for more than "
                f"{OFTEN:.0%} of their entries: they hold few distinct values, or are "
                "functions of other columns, and their densities have no upper bound. "
                "Values that are few may be 'categorical'.",
            )


def _arrays(net):
    state = net.state_dict()
    return {name: tensor.cpu().numpy().copy() for name, tensor in state.items()}


def _draw_orders(n_orders, n_features, rng):
    """Orders of the columns; with an even number, each comes with its reverse."""
    orders = np.empty((n_orders, n_features), dtype=np.int64)
    for i in range(0, n_orders, 2):
        orders[i] = rng.permutation(n_features)
        orders[i + 1 : i + 2] = orders[i, ::-1]
    return orders


def _split(settings, problem):
    """Numbers of the rows to train on, and of those that end training."""
    n_rows = len(problem.X)
    n_held_out = 0
    if settings.early_stopping and problem.is_all:
        n_held_out = int(settings.validation_fraction * n_rows)
    # the same rows in a warm start
    order = np.random.default_rng(problem.fitted["_seed"]).permutation(n_rows)
    return np.sort(order[n_held_out:]), np.sort(order[:n_held_out])


def _check_widths(sizes):
    if isinstance(sizes, str):
        check_choice(sizes, "hidden_layer_sizes", ["auto"])
        return
    try:
        sizes = list(sizes)
    except TypeError:
        raise TypeError(
            "hidden_layer_sizes must be 'auto' or a sequence of int, got "
            f"{plain(sizes)!r}."
        ) from None
    for size in sizes:
        check_int(size, "each of hidden_layer_sizes")


def _check_dropout(dropout):
    if isinstance(dropout, str):
        check_choice(dropout, "dropout", ["auto"])
        return
    check_real(dropout, "dropout", "left", 1)
