"""What a feature is, given its location: one file for each kind of feature.

A location is what a model says of a feature from latent variables: a real number, or
one for each category. `base.Likelihood` lists what a kind has to say of itself.
"""

from sklearn_mpt._likelihoods.base import Likelihood
from sklearn_mpt._likelihoods.bernoulli import Bernoulli
from sklearn_mpt._likelihoods.categorical import Categorical
from sklearn_mpt._likelihoods.columns import LIKELIHOODS, Columns, likelihood_of
from sklearn_mpt._likelihoods.gaussian import Gaussian
from sklearn_mpt._likelihoods.poisson import Poisson

__all__ = [
    "LIKELIHOODS",
    "Bernoulli",
    "Categorical",
    "Columns",
    "Gaussian",
    "Likelihood",
    "Poisson",
    "likelihood_of",
]
