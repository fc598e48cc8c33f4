"""Log marginal likelihoods, trained and measured by masking."""

import importlib
from typing import TYPE_CHECKING

from sklearn_mpt._version import __version__ as __version__

if TYPE_CHECKING:
    from sklearn_mpt._autoregressive.autoencoder import (
        MPTMaskedAutoencoder as MPTMaskedAutoencoder,
    )
    from sklearn_mpt._autoregressive.network import (
        MPTDependencyNetwork as MPTDependencyNetwork,
    )
    from sklearn_mpt._deep.vae import MPTDeepVAE as MPTDeepVAE
    from sklearn_mpt._gaussian.covariance_rows import (
        rows_from_covariance as rows_from_covariance,
    )
    from sklearn_mpt._imputation.display import ImputationDisplay as ImputationDisplay
    from sklearn_mpt._imputation.imputer import MPTImputer as MPTImputer
    from sklearn_mpt._imputation.pooling import PooledEstimate as PooledEstimate
    from sklearn_mpt._imputation.pooling import pool_estimates as pool_estimates
    from sklearn_mpt._items.display import ItemCurveDisplay as ItemCurveDisplay
    from sklearn_mpt._items.estimator import MPTItemResponse as MPTItemResponse
    from sklearn_mpt._linear.ppca import MPTProbabilisticPCA as MPTProbabilisticPCA
    from sklearn_mpt._linear.vae import MPTLinearVAE as MPTLinearVAE
    from sklearn_mpt._measure.checking import check_masked_model as check_masked_model
    from sklearn_mpt._measure.comparison import LMLComparison as LMLComparison
    from sklearn_mpt._measure.comparison import compare_lml as compare_lml
    from sklearn_mpt._measure.cumulative import CumulativeCV as CumulativeCV
    from sklearn_mpt._measure.cumulative import (
        cumulative_cv_score as cumulative_cv_score,
    )
    from sklearn_mpt._measure.curve import MPTCurve as MPTCurve
    from sklearn_mpt._measure.display import MPTCurveDisplay as MPTCurveDisplay
    from sklearn_mpt._measure.masker import ConditionalMasker as ConditionalMasker
    from sklearn_mpt._measure.monitor import LMLMonitor as LMLMonitor
    from sklearn_mpt._measure.mpt_curve import mpt_curve as mpt_curve
    from sklearn_mpt._measure.orders import (
        feature_contributions as feature_contributions,
    )
    from sklearn_mpt._measure.orders import lml_samples as lml_samples
    from sklearn_mpt._measure.orders import order_log_prob as order_log_prob
    from sklearn_mpt._mixture.estimator import MPTMixture as MPTMixture
    from sklearn_mpt._text.masked_lm import MaskedDiffusionLM as MaskedDiffusionLM
    from sklearn_mpt._text.scorer import MPTScorer as MPTScorer
    from sklearn_mpt._text.training import DataCollatorForMPT as DataCollatorForMPT
    from sklearn_mpt._text.training import LMLTrainerCallback as LMLTrainerCallback
    from sklearn_mpt._text.training import mpt_loss as mpt_loss

# Resolved on first use: importing the package loads neither torch nor matplotlib.
_MODULES = {
    "_autoregressive.autoencoder": ["MPTMaskedAutoencoder"],
    "_autoregressive.network": ["MPTDependencyNetwork"],
    "_deep.vae": ["MPTDeepVAE"],
    "_gaussian.covariance_rows": ["rows_from_covariance"],
    "_imputation.display": ["ImputationDisplay"],
    "_imputation.imputer": ["MPTImputer"],
    "_imputation.pooling": ["PooledEstimate", "pool_estimates"],
    "_items.display": ["ItemCurveDisplay"],
    "_items.estimator": ["MPTItemResponse"],
    "_linear.ppca": ["MPTProbabilisticPCA"],
    "_linear.vae": ["MPTLinearVAE"],
    "_measure.checking": ["check_masked_model"],
    "_measure.comparison": ["LMLComparison", "compare_lml"],
    "_measure.cumulative": ["CumulativeCV", "cumulative_cv_score"],
    "_measure.curve": ["MPTCurve"],
    "_measure.display": ["MPTCurveDisplay"],
    "_measure.masker": ["ConditionalMasker"],
    "_measure.monitor": ["LMLMonitor"],
    "_measure.mpt_curve": ["mpt_curve"],
    "_measure.orders": ["feature_contributions", "lml_samples", "order_log_prob"],
    "_mixture.estimator": ["MPTMixture"],
    "_text.masked_lm": ["MaskedDiffusionLM"],
    "_text.scorer": ["MPTScorer"],
    "_text.training": ["DataCollatorForMPT", "LMLTrainerCallback", "mpt_loss"],
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str):
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
