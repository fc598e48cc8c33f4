"""Log marginal likelihoods, trained and measured by masking."""

import importlib
from typing import TYPE_CHECKING

from sklearn_mpt._version import __version__ as __version__

if TYPE_CHECKING:
    from sklearn_mpt._autoregressive.autoencoder import MPTMaskedAutoencoder
    from sklearn_mpt._autoregressive.network import MPTDependencyNetwork
    from sklearn_mpt._deep.vae import MPTDeepVAE
    from sklearn_mpt._gaussian.covariance_rows import rows_from_covariance
    from sklearn_mpt._imputation.display import ImputationDisplay
    from sklearn_mpt._imputation.imputer import MPTImputer
    from sklearn_mpt._imputation.pooling import PooledEstimate, pool_estimates
    from sklearn_mpt._items.display import ItemCurveDisplay
    from sklearn_mpt._items.estimator import MPTItemResponse
    from sklearn_mpt._linear.ppca import MPTProbabilisticPCA
    from sklearn_mpt._linear.vae import MPTLinearVAE
    from sklearn_mpt._measure.checking import check_masked_model
    from sklearn_mpt._measure.comparison import LMLComparison, compare_lml
    from sklearn_mpt._measure.cumulative import CumulativeCV, cumulative_cv_score
    from sklearn_mpt._measure.curve import MPTCurve
    from sklearn_mpt._measure.display import MPTCurveDisplay
    from sklearn_mpt._measure.masker import ConditionalMasker
    from sklearn_mpt._measure.monitor import LMLMonitor
    from sklearn_mpt._measure.mpt_curve import mpt_curve
    from sklearn_mpt._measure.orders import (
        feature_contributions,
        lml_samples,
        order_log_prob,
    )
    from sklearn_mpt._mixture.estimator import MPTMixture
    from sklearn_mpt._text.masked_lm import MaskedDiffusionLM
    from sklearn_mpt._text.scorer import MPTScorer
    from sklearn_mpt._text.training import (
        DataCollatorForMPT,
        LMLTrainerCallback,
        mpt_loss,
    )

# Resolved on first use: importing the package loads neither torch nor matplotlib.
_MODULES = {
    "ConditionalMasker": "_measure.masker",
    "CumulativeCV": "_measure.cumulative",
    "DataCollatorForMPT": "_text.training",
    "ImputationDisplay": "_imputation.display",
    "ItemCurveDisplay": "_items.display",
    "LMLComparison": "_measure.comparison",
    "LMLMonitor": "_measure.monitor",
    "LMLTrainerCallback": "_text.training",
    "MPTCurve": "_measure.curve",
    "MPTCurveDisplay": "_measure.display",
    "MPTDeepVAE": "_deep.vae",
    "MPTDependencyNetwork": "_autoregressive.network",
    "MPTImputer": "_imputation.imputer",
    "MPTItemResponse": "_items.estimator",
    "MPTLinearVAE": "_linear.vae",
    "MPTMaskedAutoencoder": "_autoregressive.autoencoder",
    "MPTMixture": "_mixture.estimator",
    "MPTProbabilisticPCA": "_linear.ppca",
    "MPTScorer": "_text.scorer",
    "MaskedDiffusionLM": "_text.masked_lm",
    "PooledEstimate": "_imputation.pooling",
    "check_masked_model": "_measure.checking",
    "compare_lml": "_measure.comparison",
    "cumulative_cv_score": "_measure.cumulative",
    "feature_contributions": "_measure.orders",
    "lml_samples": "_measure.orders",
    "mpt_curve": "_measure.mpt_curve",
    "mpt_loss": "_text.training",
    "order_log_prob": "_measure.orders",
    "pool_estimates": "_imputation.pooling",
    "rows_from_covariance": "_gaussian.covariance_rows",
}

__all__ = [
    "ConditionalMasker",
    "CumulativeCV",
    "DataCollatorForMPT",
    "ImputationDisplay",
    "ItemCurveDisplay",
    "LMLComparison",
    "LMLMonitor",
    "LMLTrainerCallback",
    "MPTCurve",
    "MPTCurveDisplay",
    "MPTDeepVAE",
    "MPTDependencyNetwork",
    "MPTImputer",
    "MPTItemResponse",
    "MPTLinearVAE",
    "MPTMaskedAutoencoder",
    "MPTMixture",
    "MPTProbabilisticPCA",
    "MPTScorer",
    "MaskedDiffusionLM",
    "PooledEstimate",
    "check_masked_model",
    "compare_lml",
    "cumulative_cv_score",
    "feature_contributions",
    "lml_samples",
    "mpt_curve",
    "mpt_loss",
    "order_log_prob",
    "pool_estimates",
    "rows_from_covariance",
]


def __getattr__(name: str):
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
