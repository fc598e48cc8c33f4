"""Distributions of features given their locations, with a file for each kind.

A model computes the location of a feature from latent variables: a real number, or one
for each category. `base.Likelihood` lists the methods of a kind of feature.
"""

from sklearn_mpt._likelihoods.base import Likelihood
from sklearn_mpt._likelihoods.bernoulli import Bernoulli
from sklearn_mpt._likelihoods.categorical import Categorical
from sklearn_mpt._likelihoods.columns import (
    KINDS_OF_VALUES,
    LIKELIHOODS,
    Columns,
    likelihood_of,
)
from sklearn_mpt._likelihoods.counts import Poisson
from sklearn_mpt._likelihoods.gaussian import Gaussian

__all__ = [
    "KINDS_OF_VALUES",
    "LIKELIHOODS",
    "Bernoulli",
    "Categorical",
    "Columns",
    "Gaussian",
    "Likelihood",
    "Poisson",
    "likelihood_of",
]
