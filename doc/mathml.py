"""Write formulas as MathML, which browsers show without a script or a network."""

from docutils.nodes import SkipNode
from latex2mathml.converter import convert


def write_inline(translator, node):
    translator.body.append(convert(node.astext()))
    raise SkipNode


def write_block(translator, node):
    formula = convert(node.astext(), display="block")
    translator.body.append(f'<div class="math">{formula}</div>')
    raise SkipNode


def setup(app):
    app.add_html_math_renderer("mathml", (write_inline, None), (write_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
