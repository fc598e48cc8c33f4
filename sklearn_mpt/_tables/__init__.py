"""Tables: kinds, categories and dtypes of columns, read and filled."""
