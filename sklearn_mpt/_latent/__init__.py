"""The engine of models of latent variables: nodes, likelihoods, information."""
