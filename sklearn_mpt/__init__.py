"""Log marginal likelihoods, trained and measured by masking."""

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from sklearn_mpt._curve import MPTCurve
    from sklearn_mpt._deep_vae import MPTDeepVAE
    from sklearn_mpt._display import MPTCurveDisplay
    from sklearn_mpt._linear_vae import MPTLinearVAE
    from sklearn_mpt._monitor import LMLMonitor
    from sklearn_mpt._mpt_curve import mpt_curve
    from sklearn_mpt._objective import feature_contributions
    from sklearn_mpt._ppca import MPTProbabilisticPCA
    from sklearn_mpt._scorer import MPTScorer

# Resolved on first use: importing the package loads neither torch nor matplotlib.
_MODULES = {
    "LMLMonitor": "_monitor",
    "MPTCurve": "_curve",
    "MPTCurveDisplay": "_display",
    "MPTDeepVAE": "_deep_vae",
    "MPTLinearVAE": "_linear_vae",
    "MPTProbabilisticPCA": "_ppca",
    "MPTScorer": "_scorer",
    "feature_contributions": "_objective",
    "mpt_curve": "_mpt_curve",
}

__all__ = [
    "LMLMonitor",
    "MPTCurve",
    "MPTCurveDisplay",
    "MPTDeepVAE",
    "MPTLinearVAE",
    "MPTProbabilisticPCA",
    "MPTScorer",
    "feature_contributions",
    "mpt_curve",
]


def __getattr__(name: str):
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
