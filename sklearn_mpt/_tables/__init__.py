"""Tables: kinds and categories of columns, weights, standard errors, an imputer."""
