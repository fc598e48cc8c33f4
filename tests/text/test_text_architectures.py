"""Every masked language model of transformers is scored right, or refused.

Right means: as by plain forwards of one row each, alone and together with others, by
the head on hidden tokens alone, and up to the longest text that positions hold.
"""

import numpy as np
import pytest
import torch
import transformers
from numpy.testing import assert_allclose
from text_models import make_tokenizer
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from sklearn_mpt import MPTScorer

BERT = {
    "vocab_size": 24,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
    "initializer_range": 0.5,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "cls_token_id": 2,
    "sep_token_id": 3,
    "mask_token_id": 4,
}
SEQ2SEQ = {
    "vocab_size": 24,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
}
XLM = {**BERT, "emb_dim": 32, "n_layers": 2, "n_heads": 2, "pad_index": 0}
REFORMER = {
    "vocab_size": 24,
    "hidden_size": 32,
    "attention_head_size": 16,
    "num_attention_heads": 2,
    "feed_forward_size": 32,
    "is_decoder": False,
    "axial_pos_shape": [8, 8],
    "axial_pos_embds_dim": [16, 16],
    "max_position_embeddings": 64,
    "local_attn_chunk_length": 8,
    "lsh_attn_chunk_length": 8,
    "pad_token_id": 0,
    "eos_token_id": 3,
}
PERCEIVER = {
    "vocab_size": 24,
    "d_model": 16,
    "d_latents": 16,
    "num_latents": 4,
    "num_self_attends_per_block": 1,
    "num_self_attention_heads": 2,
    "num_cross_attention_heads": 2,
    "max_position_embeddings": 16,
}
NARROW = {"embedding_size": 16, "intra_bottleneck_size": 16, "true_hidden_size": 16}
FUNNEL = {"d_model": 16, "n_head": 2, "d_head": 8, "d_inner": 32}

# Settings by model type, where they differ; a type may have several, told apart by "+".
SETTINGS = {
    "albert": {**BERT, "embedding_size": 16},
    "bart": SEQ2SEQ,
    "big_bird": BERT,
    "big_bird+full": {**BERT, "attention_type": "original_full"},
    "convbert": {**BERT, "embedding_size": 32},
    "deberta-v2+v3": {
        **BERT,
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_biased_input": False,
        "legacy": False,
        "tie_word_embeddings": False,  # which fails before transformers 5
    },
    "distilbert": {**BERT, "dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 32},
    "electra": {**BERT, "embedding_size": 16},
    "flaubert": XLM,
    "funnel": {"vocab_size": 24, "block_sizes": [1, 1], **FUNNEL},
    "longformer": {**BERT, "attention_window": 8},
    "luke": {**BERT, "entity_vocab_size": 8, "entity_emb_size": 8},
    "mbart": SEQ2SEQ,
    "mobilebert": {**BERT, **NARROW, "num_feedforward_networks": 1},
    "mvp": SEQ2SEQ,
    "neomme": {**BERT, "num_key_value_heads": 2},
    "nystromformer+approximate": {**BERT, "num_landmarks": 4},
    "perceiver": PERCEIVER,
    "reformer": {**REFORMER, "attn_layers": ["lsh", "local"]},
    "reformer+local": {**REFORMER, "attn_layers": ["local", "local"]},
    "rembert": {**BERT, "input_embedding_size": 16, "output_embedding_size": 16},
    "roc_bert": {**BERT, "shape_vocab_size": 24, "pronunciation_vocab_size": 24},
    "squeezebert": {**BERT, "embedding_size": 32},
    "xlm": XLM,
    "xmod": {**BERT, "default_language": "en_XX"},
    "yoso+random": {**BERT, "use_expectation": False},
}
REFUSED = {
    "bart": "an encoder-decoder one",
    "mbart": "an encoder-decoder one",
    "mvp": "an encoder-decoder one",
    "big_bird": "the same each time, .*block_sparse.* with attention_type='original_f",
    "nystromformer+approximate": "rows of any length, but .* failed on two of 8 tokens",
    "perceiver": "one row of logits per token",
    "reformer": "the same each time, .* 'lsh' layer .* random hashes",
    "yoso+random": "the same each time, .* with use_expectation=True",
}
# Models of images, whose smallest parts for them are large, and of sounds.
NOT_OF_TEXTS = {"modernvbert", "ultravbert", "wav2vec2"}

TYPES = sorted(  # of those that the installed transformers has
    kind
    for kind in {*MODEL_FOR_MASKED_LM_MAPPING_NAMES, *SETTINGS} - NOT_OF_TEXTS
    if kind.split("+")[0] in MODEL_FOR_MASKED_LM_MAPPING_NAMES
)
COMMON = {"albert", "bert", "big_bird+full", "distilbert", "electra", "esm", "xlm"}
COMMON |= {"deberta-v2+v3", "funnel", "longformer", "modernbert", "mpnet", "roberta"}
N_POSITIONS = {"bert": 64, "mpnet": 62, "roberta": 63, "modernbert": 64}
TEXTS = [
    "the cat sat on a mat fast . the dog ran",
    "fast",
    "a dog ran",
    "the the the",
]


def build(kind):
    model_type = kind.split("+")[0]
    model_class = getattr(transformers, MODEL_FOR_MASKED_LM_MAPPING_NAMES[model_type])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = model_class.config_class(**SETTINGS.get(kind, BERT))
        try:
            return model_class(config).eval()
        except ImportError as error:
            pytest.skip(f"{model_type} needs another package: {error}")


@torch.no_grad()
def pll_by_hand(model, text):
    ids = torch.tensor(make_tokenizer()(text)["input_ids"])
    total = 0.0
    for position in range(1, len(ids) - 1):
        masked = ids.clone()
        masked[position] = 4
        logits = model(masked[None]).logits[0, position]
        total += float(logits.log_softmax(dim=-1)[ids[position]])
    return total


# Old versions of transformers index tensors in a way that new ones of torch deprecate.
@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence:UserWarning")
@pytest.mark.parametrize(
    "kind",
    [
        kind if kind in COMMON else pytest.param(kind, marks=pytest.mark.slow)
        for kind in TYPES
        if kind not in REFUSED
    ],
)
def test_scores_are_those_of_plain_forwards_of_one_row(kind):
    model, plain = build(kind).train(), build(kind)
    scorer = MPTScorer(model, make_tokenizer(), method="pll").fit()
    assert scorer.uses_gathered_head_ or kind not in COMMON - {"longformer"}
    expected = [pll_by_hand(plain, text) for text in TEXTS]
    assert_allclose(scorer.score_samples(TEXTS), expected, rtol=1e-4)
    assert_allclose(scorer.score_samples(TEXTS[::-1])[::-1], expected, rtol=1e-4)
    assert_allclose([scorer.score([t]) for t in TEXTS[1:]], expected[1:], rtol=1e-4)
    n_words = int(min(scorer.max_length_, 1000)) - 2  # in the longest text
    longest = [" ".join(["the"] * n_words)]
    (found,) = scorer.conditional_log_prob(longest, [np.arange(n_words) == 0])
    assert np.isfinite(found).all()
    if kind in N_POSITIONS:
        assert scorer.max_length_ == N_POSITIONS[kind]
        with pytest.raises(ValueError, match=f"max_length={scorer.max_length_}"):
            scorer.score_samples([longest[0] + " the"])
    assert model.training
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, plain.state_dict()[name])


@pytest.mark.parametrize("kind", REFUSED)
def test_others_are_refused_with_the_reason(kind):
    with pytest.raises(ValueError, match=REFUSED[kind]):
        MPTScorer(build(kind), make_tokenizer()).fit()
