"""Tiny masked language models with random weights, and a tokenizer for them."""

import itertools

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerFast
from transformers.modeling_outputs import MaskedLMOutput

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = "the a cat dog sat ran on mat fast happy un ##happi ##ly ##s . ?".split()
TEXTS = [
    "the cat sat on the mat .",
    "unhappily the dogs ran",
    "a dog",
    "the cats sat fast on a mat ?",
    "fast",
]


def make_tokenizer(with_pairs=False, **kwargs):
    """A WordPiece tokenizer of `WORDS` that frames a text by [CLS] and [SEP].

    Two texts are joined without anything between, or as BERT does it.
    """
    vocabulary = {token: index for index, token in enumerate(SPECIAL + WORDS)}
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1" if with_pairs else None,
        special_tokens=[(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")],
    )
    return framed(backend, **kwargs)


def make_empty_tokenizer():
    """A tokenizer that knows no other tokens than special ones."""
    vocabulary = {token: index for index, token in enumerate(SPECIAL)}
    return framed(Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]")))


def framed(backend, **kwargs):
    """Make a tokenizer of transformers, with the inputs that version 5 takes."""
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    settings = {
        **dict(zip(names, SPECIAL, strict=True)),
        "model_input_names": ["input_ids", "attention_mask"],
    }
    return PreTrainedTokenizerFast(tokenizer_object=backend, **{**settings, **kwargs})


SIZES = {
    "vocab_size": len(SPECIAL + WORDS),
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "initializer_range": 0.5,
}
ESM = {
    "mask_token_id": 4,
    "pad_token_id": 1,
    "token_dropout": True,
    "position_embedding_type": "rotary",
}
ARCHITECTURES = {
    "bert": ("Bert", SIZES),
    "roberta": ("Roberta", SIZES),
    "albert": ("Albert", {**SIZES, "embedding_size": 8}),
    "mpnet": ("MPNet", SIZES),
    "esm": ("Esm", {**SIZES, **ESM}),
}


def make_model(architecture="bert", **kwargs):
    """A random model in training mode, as its class makes it."""
    name, settings = ARCHITECTURES[architecture]
    config = getattr(transformers, f"{name}Config")(**{**settings, **kwargs})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return getattr(transformers, f"{name}ForMaskedLM")(config)


def make_protein_tokenizer(folder):
    """A tokenizer of amino acids that is written in Python, for `make_model("esm")`."""
    vocabulary = ["<cls>", "<pad>", "<eos>", "<unk>", "<mask>", *"ACDEFGHIKLMNPQ"]
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    return transformers.EsmTokenizer(str(folder / "vocab.txt"))


LETTERS = ["[MASK]", "a", "b", "c"]


def make_letter_tokenizer():
    """A tokenizer of the letters a, b, c that adds nothing."""
    vocabulary = {token: index for index, token in enumerate(LETTERS)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="a"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        mask_token="[MASK]",
        model_input_names=["input_ids"],
    )


class JointConfig(PretrainedConfig):
    model_type = "joint"
    vocab_size = len(LETTERS)


class JointModel(PreTrainedModel):
    """The exact conditionals of a joint distribution of letters.

    `log_joint` has one axis per token, of the three letters. In a shorter text the
    letters that would follow are integrated out; those beyond its axes are uniform.
    """

    config_class = JointConfig

    def __init__(self, log_joint):
        super().__init__(JointConfig())
        self.log_joint = torch.nn.Parameter(log_joint)

    def forward(self, input_ids):
        logits = torch.full((*input_ids.shape, len(LETTERS)), -1e4).to(self.dtype)
        ids = input_ids[:, : self.log_joint.ndim].cpu()
        hidden = ids == LETTERS.index("[MASK]")
        for pattern in hidden.unique(dim=0):
            rows = (hidden == pattern).all(dim=1).nonzero()[:, 0]
            letters, are_hidden = ids[rows].T - 1, pattern.tolist()
            for position in range(len(are_hidden)):
                marginal = self.log_marginal(letters, are_hidden, position)
                logits[rows, position, 1:] = marginal
        return MaskedLMOutput(logits=logits.to(input_ids.device))

    def log_marginal(self, letters, are_hidden, position):
        """Log-probabilities of the letters at a position, unnormalised.

        For texts that hide the same positions, with one row of `letters` for each
        position: (n_texts, 3), or (3,) if every other position is hidden.
        """
        n_more = self.log_joint.ndim - len(are_hidden)  # letters that would follow
        unseen = [*are_hidden, *[True] * n_more]
        others = [i for i in range(len(unseen)) if i != position]
        table, summed = self.log_joint, [i for i in others if unseen[i]]
        if summed:
            table = table.logsumexp(summed, keepdim=True)
        seen = tuple(0 if unseen[i] else letters[i] for i in others)
        return table.movedim(position, -1)[seen]


class ModelWithoutOneLetter(JointModel):
    """The third letter has probability 0."""

    def forward(self, input_ids):
        output = super().forward(input_ids)
        output.logits[..., -1] = -torch.inf
        return output


def random_joint(n_letters, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = (3,) * n_letters
    logits = 2 * torch.randn(shape, generator=generator, dtype=torch.float64)
    return logits - logits.logsumexp(list(range(n_letters)))


def all_texts(n_letters):
    """Every text of that many letters, in the order of the flattened table."""
    return [" ".join(text) for text in itertools.product("abc", repeat=n_letters)]
