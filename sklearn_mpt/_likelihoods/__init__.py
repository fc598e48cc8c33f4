"""What a feature is, given its location: one file for each kind of feature.

A location is what a model says of a feature from latent variables: a real number for
every kind so far. `base.Likelihood` lists what a kind has to say of itself.
"""

from sklearn_mpt._likelihoods.bernoulli import Bernoulli
from sklearn_mpt._likelihoods.gaussian import Gaussian

LIKELIHOODS = {"bernoulli": Bernoulli, "gaussian": Gaussian}
