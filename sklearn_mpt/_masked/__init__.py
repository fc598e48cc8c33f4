"""Nets that fill in blanks: the conditionals of hidden columns, learned by masks."""
