"""What examples of pages take for granted: models that have names, files, packages."""

import re
from doctest import SKIP
from importlib import import_module

import pytest

MODELS = ("bert-base-uncased", "facebook/esm2_t12_35M_UR50D")
CHARACTERS = [chr(code) for code in range(33, 127)]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.fixture(autouse=True)
def page(request, tmp_path, monkeypatch):
    """Run a page in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    if request.path.name == "texts.rst":
        request.node.dtest.globs |= texts_page(tmp_path)
    skip_without_packages(request.node.dtest.examples)


def texts_page(folder):
    """Save random models of characters under the names of models on the hub."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("pandas")
    import torch

    tokenizer = make_tokenizer()
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(
        vocab_size=len(tokenizer), intermediate_size=16, **sizes
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.BertForMaskedLM(config)
    for name in MODELS:
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)

    class Denoiser(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.logits = torch.nn.Embedding.from_pretrained(
                torch.zeros(1, len(tokenizer)), freeze=False
            )

        def forward(self, input_ids, t):
            return self.logits(torch.zeros_like(input_ids))

    return {"denoiser": Denoiser()}


def make_tokenizer():
    """Make a tokenizer whose tokens are characters."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    ids = {token: index for index, token in enumerate(SPECIAL + CHARACTERS)}
    backend = Tokenizer(models.WordLevel(ids, "[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex("."), "isolated")]
    )
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])],
    )
    names = [f"{token[1:-1].lower()}_token" for token in SPECIAL]
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, **dict(zip(names, SPECIAL, strict=True))
    )


def skip_without_packages(examples):
    """Skip a block from where it imports a package that is not installed.

    Examples are of one block if nothing stands between them.
    """
    reason, end = None, None
    for example in examples:
        reason = reason if example.lineno == end else None
        reason = reason or why_not(example.source)
        if reason:
            example.options[SKIP] = True
            print(f"line {example.lineno + 1} is skipped: {reason}")
        lines = example.source.splitlines() + example.want.splitlines()
        end = example.lineno + len(lines)


def why_not(source):
    """Return why a statement cannot import a module; None if it can."""
    for name in re.findall(r"^(?:from|import) ([\w.]+)", source):
        try:
            import_module(name)
        except ImportError as error:
            return error
    return None
