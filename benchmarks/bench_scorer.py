"""Measure the errors of scores of texts, and time parts of MPTScorer.

Parts:

- ``methods``: of the methods of `MPTScorer` with random masks, the error of the score
  of a text (its spread over seeds), its ratio to the standard errors that are stated
  (root mean squares over texts and seeds), and the share of intervals of plus or minus
  1.96 standard errors that hold the mean over seeds. Of small models of noisy walks and
  of nested brackets, trained at all mask rates and at 15 %, and of the ALBERT of
  rxnmapper on reactions of 20 to 40 tokens, where it is installed
  (``pip install --no-deps rxnmapper==0.4.3``), which was trained at 15 %.
- ``dtype``: weights in float32 and in bfloat16, on a GPU where there is one, and the
  largest difference per token, in nats.

Run all, or some, or small versions::

    python benchmarks/bench_scorer.py
    python benchmarks/bench_scorer.py methods
    python benchmarks/bench_scorer.py --quick
"""

import importlib.util
import itertools
import os
from pathlib import Path

import numpy as np
import torch
import transformers
from measuring import (
    fastest,
    parse_parts,
    parser_of,
    print_machine,
    print_table,
    seconds,
)
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    BertConfig,
    BertForMaskedLM,
    PreTrainedTokenizerFast,
)

from sklearn_mpt import DataCollatorForMPT, MPTScorer, mpt_loss

N_VOCABULARY = 30522
SPECIAL = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]"}
SPECIAL["mask"] = "[MASK]"


# Models and texts


def make_tokenizer():
    """A tokenizer of as many words as BERT has word pieces."""
    words = [*SPECIAL.values(), *(f"w{i}" for i in range(N_VOCABULARY - len(SPECIAL)))]
    vocabulary = {word: index for index, word in enumerate(words)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        special_tokens=[(word, vocabulary[word]) for word in ("[CLS]", "[SEP]")],
    )
    special = {f"{name}_token": word for name, word in SPECIAL.items()}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special)


def make_model(n_layers, width):
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=N_VOCABULARY,
        num_hidden_layers=n_layers,
        hidden_size=width,
        num_attention_heads=max(2, width // 64),
        intermediate_size=4 * width,
        initializer_range=0.1,
    )
    return BertForMaskedLM(config).eval()


def make_texts(n_texts, shortest, longest, seed=0):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(shortest, longest + 1, n_texts)
    return [
        " ".join(f"w{word}" for word in rng.integers(0, 30000, length))
        for length in lengths
    ]


# Precision


def bench_dtype(quick):
    cases = [(4, 256, 100, 4, 14), (12, 768, 12, 4, 14), (4, 256, 6, 60, 100)]
    tokenizer = make_tokenizer()
    rows = []
    for n_layers, width, n_texts, shortest, longest in cases[: 1 if quick else None]:
        model = make_model(n_layers, width)
        texts = make_texts(n_texts, shortest, longest)
        scorers = [
            MPTScorer(model, tokenizer, method="pll", dtype=dtype).fit()
            for dtype in ("float32", "bfloat16")
        ]
        calls = [lambda s=scorer, t=texts: s.token_scores(t) for scorer in scorers]
        (single, half), found = fastest(calls, 3)
        first, second = (
            np.concatenate([part.log_prob for part in parts]) for parts in found
        )
        times = [f"{single:.2f}", f"{half:.2f}", f"{single / half:.2f}"]
        difference = f"{np.abs(first - second).max():.3f}"
        words = f"{shortest}-{longest}"
        rows.append([f"{n_layers} x {width}", words, *times, difference])
    print_table(
        f"dtype: pll, seconds, on {scorers[0]._opened[0].device}",
        "model|words|float32|bfloat16|ratio|difference",
        rows,
    )


# Errors over masks


def nested_brackets(rng, fewest=3, most=6):
    """Brackets of three kinds that are closed in order: "( [ ] ) { }"."""
    pairs, text, opened = ["()", "[]", "{}"], [], []
    for left in range(2 * int(rng.integers(fewest, most + 1)), 0, -1):
        if opened and (len(opened) == left or rng.random() < 0.5):
            text.append(opened.pop())
        else:
            kind = pairs[rng.integers(3)]
            text.append(kind[0])
            opened.append(kind[1])
    return " ".join(text)


def noisy_steps(rng, fewest=6, most=12):
    """A walk on a ring of twelve letters that mostly goes on in one direction."""
    place, step, text = int(rng.integers(12)), int(rng.choice([-1, 1])), []
    for _ in range(int(rng.integers(fewest, most + 1))):
        text.append("abcdefghijkl"[place])
        place = (place + step if rng.random() < 0.8 else rng.integers(12)) % 12
    return " ".join(text)


def long_brackets(rng):
    return nested_brackets(rng, 12, 16)


def long_steps(rng):
    return noisy_steps(rng, 24, 33)


def train(write, mask_rate, n_steps):
    """Train a small model on texts that are written on the way."""
    words = sorted(
        {w for i in range(500) for w in write(np.random.default_rng(i)).split()}
    )
    vocabulary = {
        word: i for i, word in enumerate(["[PAD]", "[MASK]", "[UNK]", *words])
    }
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": "[PAD]", "mask_token": "[MASK]", "unk_token": "[UNK]"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **special)
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = BertConfig(vocab_size=len(vocabulary), intermediate_size=128, **sizes)
    model = BertForMaskedLM(config)
    train_on(model, tokenizer, write, mask_rate, n_steps, 2e-3)
    return model, tokenizer


def train_on(model, tokenizer, write, mask_rate, n_steps, step_size):
    """Train a model on batches of 64 texts that are written on the way."""
    model.train()
    collate = DataCollatorForMPT(tokenizer, mask_rate, random_state=0)
    optimizer = torch.optim.AdamW(model.parameters(), step_size)
    rng = np.random.default_rng(1)
    for _ in range(n_steps):
        batch = collate([tokenizer(write(rng)) for _ in range(64)])
        batch = {name: array.to(model.device) for name, array in batch.items()}
        labels = batch.pop("labels")
        optimizer.zero_grad()
        mpt_loss(model(**batch), labels).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
    model.eval()


ACYL = (
    "C",
    "C1CC1",
    "c1ccccc1",
    "c1ccc(F)cc1",
    "C1CCN(C(=O)OC(C)(C)C)CC1",
    "c1ccc2[nH]ccc2c1",
    "CCc1cc(Cl)cc(Br)c1",
    "c1cc(OC)c(OC)c(OC)c1",
    "c1ccc(-c2ccncc2)cc1",
)
ALKYL = (
    "CCO",
    "C(C)C",
    "Cc1ccccc1",
    "CCN1CCOCC1",
    "C(C)c1ccc(C#N)cc1",
    "C1CCC(C(=O)OC)CC1",
    "Cc1ccc(S(C)(=O)=O)cc1",
)
HATU = "CN(C)C(On1nnc2cccnc21)=[N+](C)C.F[P-](F)(F)(F)(F)F"
WITH = ("", ".ClCCl", f".{HATU}", f".{HATU}.CCN(C(C)C)C(C)C")  # solvents, reagents
ATOMS = r"\[[^\]]+\]|Br|Cl|>>|%\d\d|."


def amide_couplings():
    """Write reactions of acids and amines to amides."""
    for acyl, alkyl, others in itertools.product(ACYL, ALKYL, WITH):
        yield f"O=C(O){acyl}.N{alkyl}{others}>>O=C(N{alkyl}){acyl}"


def open_reaction_model():
    """Return the ALBERT of rxnmapper and a tokenizer."""
    path = importlib.util.find_spec("rxnmapper").submodule_search_locations[0]
    folder = Path(path) / "models/transformers/albert_heads_8_uspto_all_1310k"
    config = AlbertConfig.from_json_file(folder / "config.json")
    model = AlbertForMaskedLM(config)
    weights = torch.load(folder / "pytorch_model.bin", "cpu", weights_only=True)
    model.load_state_dict(weights, strict=False)
    tokens = (folder / "vocab.txt").read_text().splitlines()
    vocabulary = {token: index for index, token in enumerate(tokens)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(ATOMS), "isolated")
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        special_tokens=[(word, vocabulary[word]) for word in ("[CLS]", "[SEP]")],
    )
    special = {f"{name}_token": word for name, word in SPECIAL.items()}
    return model.eval(), PreTrainedTokenizerFast(tokenizer_object=backend, **special)


METHODS = (("mpt", 2), ("mpt", 4), ("chain", 2), ("chain", 4))


def bench_methods(quick):
    n_texts, n_seeds = (4, 12) if quick else (12, 40)
    cases = {}
    for write, rate in itertools.product(
        (long_steps, long_brackets), ("uniform", 0.15)
    ):
        model, tokenizer = train(write, rate, 200)
        texts = [write(np.random.default_rng([2, i])) for i in range(n_texts)]
        name = write.__name__.replace("_", " ")
        cases[f"{name}, {'all rates' if rate == 'uniform' else '15 %'}"] = (
            *(model, tokenizer, texts),
            n_seeds,
        )
    if importlib.util.find_spec("rxnmapper") is None:
        print("methods: reactions are skipped, as rxnmapper is not installed")
    else:
        model, tokenizer = open_reaction_model()
        texts = [
            text
            for text in amide_couplings()
            if 20 <= len(tokenizer(text)["input_ids"]) - 2 <= 40
        ]
        texts = texts[:4]
        cases["reactions, 15 %"] = model, tokenizer, texts, 6 if quick else 16
    for name, (*case, n_seeds) in cases.items():
        rows = [
            [method, str(n_masks), *errors_of(*case, method, n_masks, n_seeds)]
            for method, n_masks in METHODS
        ]
        header = "method|masks|true error|true / stated|held"
        print_table(f"methods: {name}", header, rows)


def errors_of(model, tokenizer, texts, method, n_masks, n_seeds):
    """Return cells with the true error, its ratio to stated ones, and the coverage."""
    scored = [
        MPTScorer(model, tokenizer, method=method, n_masks=n_masks, random_state=seed)
        .fit()
        .score_samples(texts, return_std=True)
        for seed in range(n_seeds)
    ]
    scores, errors = np.swapaxes(scored, 0, 1)
    deviations = scores - scores.mean(axis=0)
    deviations /= np.sqrt(1 - 1 / n_seeds)
    true, stated = (np.sqrt(np.mean(values**2)) for values in (deviations, errors))
    held = np.mean(np.abs(deviations) <= 1.96 * errors)
    return f"{true:.3f}", f"{true / stated:.2f}", f"{held:.1%}"


PARTS = {"methods": bench_methods, "dtype": bench_dtype}


def main():
    parser = parser_of(__doc__)
    parser.add_argument("--quick", action="store_true", help="small versions")
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    arguments = parse_parts(parser, PARTS)
    torch.set_num_threads(arguments.threads)
    print_machine(transformers)
    for part in arguments.parts:
        elapsed, _ = seconds(lambda part=part: PARTS[part](arguments.quick))
        print(f"({part}: {elapsed:.0f} s, load {os.getloadavg()[0]:.1f})", flush=True)


if __name__ == "__main__":
    main()
