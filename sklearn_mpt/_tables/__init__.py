"""Tables: kinds and categories of columns, and a transformer that fills gaps in."""
