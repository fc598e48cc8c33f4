"""Time MPTScorer against plain code and against minicons, on random models and texts.

Parts:

- ``pll``: pseudo-log-likelihoods by (a) plain code: every masked copy of 32 texts,
  padded to the longest, 64 rows in a forward pass, with the log-softmax over the
  vocabulary at every position; (b) minicons, one text per call (its fastest way here:
  in larger batches it pads), where it is installed; (c) MPTScorer. Same model, same
  texts; the largest difference between the scores is printed.
- ``memory``: how much a fresh process grows at most while one text is scored (Linux).
- ``curve``: the scores at 99 mask rates per text, against forward passes padded to 512
  tokens, as the reference publication's code makes them.
- ``share``: tokens per second by the size of a batch, the share of the encoder in the
  time, and the share that the products of matrices in the encoder and the vocabulary
  projection would have taken at the pace of two large square ones ("of peak"), and at
  the pace that torch reaches for products of their own shapes ("of products").
- ``sizes``: the time of a vocabulary projection by the number of columns that are
  computed at a time, and that of small batches of tokens, in shares of a large one.
- ``jobs``: by one worker and by two, with as many threads for each as ``--threads``.
- ``designs``: variance of the score of a text by four orders, or four masks of each
  size, for small models trained at all mask rates and at 15 %, on sums of digits,
  letters in alphabetical order, nested brackets and noisy walks; how often `fit` to
  eight of the texts chooses orders; and how many 95% intervals of the other texts hold
  their means over groups of draws, with the median ratio of a standard error and the
  spread over groups, if `fit` has four or eight texts.
- ``pretrained``: such intervals for reactions of 20 to 50, 60 to 110 and 110 to 150
  tokens, if `fit` has four or eight of one of these lengths. The models were trained at
  15 % on other reactions: the ALBERT of rxnmapper and the BERT of rxnfp, where these
  are installed (``pip install --no-deps rxnmapper==0.4.3 rxnfp==0.1.0``); the ALBERT
  also after training at all mask rates. On a GPU; without one, the small version.
- ``sample``: by how much more models trained at three rates are wrong than they expect,
  in nats per token, with all tokens hidden instead of 15%, by which
  `MPTScorer.sample` warns.
- ``weights``: the variance over groups of four orders of a score, by the width of the
  prior of the weight between the two estimates along orders.
- ``dtype``: weights in float32 and in bfloat16, on a GPU where there is one, and the
  largest difference per token, in nats.

Run all in about ten minutes on two cores, or some, or small versions::

    python benchmarks/bench_scorer.py
    python benchmarks/bench_scorer.py pll memory
    python benchmarks/bench_scorer.py --quick

Competitors take turns and the fastest of several runs counts.
"""

import importlib.util
import itertools
import multiprocessing
import os
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

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
from scipy import stats
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    BertConfig,
    BertForMaskedLM,
    PreTrainedTokenizerFast,
)

from sklearn_mpt import DataCollatorForMPT, MPTScorer, mpt_loss
from sklearn_mpt._text import estimates
from sklearn_mpt._text.batches import MaskedWindow, predict, score_windows
from sklearn_mpt._text.masks import DESIGNS, MaskDraw
from sklearn_mpt._text.parts import windows_of
from sklearn_mpt._text.variances import DrawGroups, count_groups

try:
    from minicons.scorer import MaskedLMScorer
except ImportError:
    MaskedLMScorer = None

N_VOCABULARY = 30522
SPECIAL = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]"}
SPECIAL["mask"] = "[MASK]"


# Models and texts


class Words(PreTrainedTokenizerFast):
    """A tokenizer with the method that minicons calls, gone from transformers 5."""

    def batch_encode_plus(self, texts, **kwargs):
        return self(texts, **kwargs)


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
    return Words(tokenizer_object=backend, **special)


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


# The competitors


@torch.no_grad()
def plain_pll(model, tokenizer, texts):
    scores = np.zeros(len(texts))
    for start in range(0, len(texts), 32):
        batch = tokenizer(texts[start : start + 32], padding=True, return_tensors="pt")
        ids, attention = batch["input_ids"], batch["attention_mask"]
        is_word = ids >= len(SPECIAL)
        for part in is_word.nonzero().split(64):
            rows, columns = part.T
            here = torch.arange(len(rows)), columns
            masked = ids[rows]
            masked[here] = tokenizer.mask_token_id
            logits = model(input_ids=masked, attention_mask=attention[rows]).logits
            log_prob = torch.log_softmax(logits, -1)[*here, ids[rows, columns]]
            np.add.at(scores, start + rows.numpy(), log_prob.numpy())
    return scores


def minicons_pll(model, tokenizer, texts):
    scorer = MaskedLMScorer(model, "cpu", tokenizer=tokenizer)
    total = {"reduction": lambda log_prob: log_prob.sum().item()}
    return [scorer.sequence_score([text], **total)[0] for text in texts]


def our_pll(model, tokenizer, texts):
    scorer = MPTScorer(model, tokenizer, method="pll", device="cpu")
    return scorer.fit(texts[:1]).score_samples(texts)


COMPETITORS = {"plain": plain_pll, "minicons": minicons_pll, "MPTScorer": our_pll}
if MaskedLMScorer is None:
    del COMPETITORS["minicons"]


# Parts


def bench_pll(quick):
    cases = [  # layers, width, texts, shortest, longest, repeats
        (2, 128, 200, 4, 14, 3),
        (4, 256, 100, 4, 14, 3),
        (12, 768, 12, 4, 14, 2),
        (4, 256, 6, 60, 100, 2),
    ]
    tokenizer = make_tokenizer()
    rows = []
    for n_layers, width, n_texts, shortest, longest, repeats in cases[
        : 1 if quick else None
    ]:
        model = make_model(n_layers, width)
        texts = make_texts(n_texts, shortest, longest)
        calls = [
            lambda f=function, m=model, t=texts: f(m, tokenizer, t)
            for function in COMPETITORS.values()
        ]
        times, scores = fastest(calls, repeats)
        differences = [np.abs(np.subtract(score, scores[-1])).max() for score in scores]
        rows += [
            [
                f"{n_layers} x {width}",
                f"{n_texts}",
                f"{shortest}-{longest}",
                name,
                f"{elapsed:.2f}",
                f"{elapsed / times[-1]:.1f}",
                f"{difference:.0e}",
            ]
            for name, elapsed, difference in zip(
                COMPETITORS, times, differences, strict=True
            )
        ]
    print_table(
        "pll: time of each, its ratio to that of MPTScorer, largest difference in nats",
        "model|texts|words|by|seconds|ratio|difference",
        rows,
    )


def peak_growth(name, n_words, connection):
    """Send by how many MB the memory of this process grows at most."""
    torch.set_num_threads(1)
    model, tokenizer = make_model(4, 256), make_tokenizer()
    COMPETITORS[name](model, tokenizer, make_texts(1, 2, 2))
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = memory("VmRSS")
    COMPETITORS[name](model, tokenizer, make_texts(1, n_words, n_words))
    connection.send(memory("VmHWM") - before)


def memory(field):
    """Return a field of this process's status, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(ln.split()[1]) / 1024 for ln in lines if ln.startswith(field))


def measure_peak(name, n_words):
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=peak_growth, args=(name, n_words, sender))
    process.start()
    growth = receiver.recv()
    process.join()
    return growth


def bench_memory(quick):
    n_words = (20, 50) if quick else (20, 50, 100, 200)
    rows = []
    for name in COMPETITORS:
        # minicons holds n_words**2 rows of logits: 5 GB for 200 words
        growth = [
            "-" if name == "minicons" and n > 100 else f"{measure_peak(name, n):.0f}"
            for n in n_words
        ]
        rows.append([name, *growth])
    header = "|".join(["by", *(f"{n} words" for n in n_words)])
    print_table("memory: growth of the peak for one text, in MB, 4 x 256", header, rows)


@torch.no_grad()
def padded_pass(model, tokenizer, text, n_rows=4):
    settings = {"padding": "max_length", "max_length": 512, "return_tensors": "pt"}
    return model(**tokenizer([text] * n_rows, **settings)).logits.shape


def bench_curve(quick):
    tokenizer = make_tokenizer()
    rows = []
    for n_layers, width in [(2, 128)] if quick else [(2, 128), (4, 256)]:
        model, texts = make_model(n_layers, width), make_texts(20, 4, 14)
        scorer = MPTScorer(model, tokenizer, device="cpu").fit(texts)
        calls = [
            lambda m=model, t=texts: padded_pass(m, tokenizer, t[0]),
            lambda s=scorer, t=texts: s.transform(t),
        ]
        (padded, ours), _ = fastest(calls, 2)
        padded, ours = padded / 4 * 99, ours / len(texts)
        times = [f"{padded:.2f}", f"{ours:.5f}", f"{padded / ours:.0f}"]
        rows.append([f"{n_layers} x {width}", *times])
    print_table(
        "curve: seconds per text of 4-14 words, at 99 mask rates",
        "model|padded to 512|MPTScorer|ratio",
        rows,
    )


class Stopwatch:
    """Add up the time that a module takes, in all copies of it."""

    def __init__(self, module):
        self.total, self.start = [0.0], [0.0]
        total, start = self.total, self.start

        def begin(*args):
            start[0] = time.perf_counter()

        def end(*args):
            total[0] += time.perf_counter() - start[0]

        module.register_forward_pre_hook(begin)
        module.register_forward_hook(end)


def peak_flops(width=2048):
    """Operations per second in a product of two large matrices."""
    factor = torch.randn(width, width)
    (elapsed,), _ = fastest([lambda: factor @ factor], 3)
    return 2 * width**3 / elapsed


def seconds_of_products(n_layers, width, n_tokens, n_hidden):
    """Time of the products of a model's own shapes alone, for so many rows."""
    shapes = [(width, 4 * width, n_layers), (4 * width, width, n_layers)]
    shapes += [(width, width, 4 * n_layers)]
    total = sum(
        count * n_tokens * seconds_per_row(4096, n_inner, n_outer)
        for n_inner, n_outer, count in shapes
    )
    return total + n_hidden * seconds_per_row(256, width, N_VOCABULARY)


def seconds_per_row(n_rows, n_inner, n_outer):
    rows, layer = torch.randn(n_rows, n_inner), torch.nn.Linear(n_inner, n_outer)
    with torch.inference_mode():
        (elapsed,), _ = fastest([lambda: layer(rows)], 5)
    return elapsed / n_rows


def bench_share(quick):
    tokenizer, peak = make_tokenizer(), peak_flops()
    rows = []
    for n_layers, width, n_texts in [(2, 128, 150), (4, 256, 100), (12, 768, 10)]:
        texts = make_texts(n_texts // 4 if quick else n_texts, 4, 14)
        lengths = [len(text.split()) + 2 for text in texts]
        n_tokens = sum((length - 2) * length for length in lengths)
        n_hidden = sum((length - 2) * (length - 1) // 2 for length in lengths)
        work = 24 * n_layers * width**2 * n_tokens + 2 * width * N_VOCABULARY * n_hidden
        products = seconds_of_products(n_layers, width, n_tokens, n_hidden)
        for batch_tokens in (512, 4096, 16384):
            model = make_model(n_layers, width)
            watch = Stopwatch(model.bert.encoder)
            scorer = MPTScorer(
                model, tokenizer, n_masks=1, device="cpu", batch_tokens=batch_tokens
            )
            scorer.fit(texts).score_samples(texts)
            watch.total[0] = 0.0
            elapsed, _ = seconds(lambda s=scorer, t=texts: s.score_samples(t))
            rows.append(
                [
                    f"{n_layers} x {width}",
                    f"{batch_tokens}",
                    f"{elapsed:.2f}",
                    f"{n_tokens / elapsed:.0f}",
                    f"{watch.total[0] / elapsed:.0%}",
                    f"{work / peak / elapsed:.0%}",
                    f"{products / elapsed:.0%}",
                ]
            )
    print_table(
        "share: method 'mpt', n_masks=1, texts of 4-14 words",
        "model|batch_tokens|seconds|tokens/s|in the encoder|of peak|of products",
        rows,
    )


def bench_sizes(quick):
    n_vocabulary, n_repeats = N_VOCABULARY, 2 if quick else 5
    states, bias = torch.randn(206, 768), torch.randn(n_vocabulary)
    weight = torch.randn(n_vocabulary, 768)

    def project(n_columns):
        product = states.new_empty(len(states), n_vocabulary)
        for start in range(0, n_vocabulary, n_columns):
            part = slice(start, start + n_columns)
            product[:, part] = torch.nn.functional.linear(
                states, weight[part], bias[part]
            )

    columns = [128, 256, 512, 1024, 4096, n_vocabulary]
    times, _ = fastest([partial(project, number) for number in columns], n_repeats)
    rows = [
        [f"{n}", f"{t / times[-1]:.2f}"] for n, t in zip(columns, times, strict=True)
    ]
    print_table("sizes: 206 states of width 768", "columns|time", rows)
    rows, counts = [], (64, 1, 2, 4, 8)
    for n_layers, width in ((6, 256), (12, 384))[: 1 if quick else 2]:
        model = make_model(n_layers, width).bert

        @torch.inference_mode()
        def read(n_rows, model=model):
            model(input_ids=torch.full((n_rows, 64), 5))

        times, _ = fastest([partial(read, n) for n in counts], n_repeats)
        shares = [64 * t / n / times[0] for n, t in zip(counts, times, strict=True)]
        name = f"{n_layers} layers of {width}"
        rows.append([name, *(f"{share:.2f}" for share in shares[1:])])
    header = "|".join(["time for a token", *(f"1/{64 // n}" for n in counts[1:])])
    print_table("sizes: batches, in shares of 4096 tokens", header, rows)


def bench_jobs(quick):
    tokenizer = make_tokenizer()
    model, texts = make_model(4, 256), make_texts(50 if quick else 250, 4, 14)
    settings = {"method": "pll", "device": "cpu", "batch_tokens": 1024}
    scorers = [
        MPTScorer(model, tokenizer, n_jobs=n_jobs, **settings).fit(texts)
        for n_jobs in (1, 2)
    ]
    calls = [lambda s=scorer: s.score_samples(texts) for scorer in scorers]
    (one, two), (first, second) = fastest(calls, 3)
    difference = f"{np.abs(first - second).max():.0e}"
    print_table(
        f"jobs: 4 x 256, {len(texts)} texts, threads",
        "one|two|ratio|difference",
        [[f"{one:.2f}", f"{two:.2f}", f"{one / two:.2f}", difference]],
    )


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


# The variance of scores


def sum_of_digits(rng):
    """Digits and their sum: "3 + 9 + 4 = 1 6"."""
    digits = rng.integers(0, 10, rng.integers(2, 5))
    return f"{' + '.join(map(str, digits))} = {' '.join(str(digits.sum()))}"


def sorted_letters(rng):
    """Letters in alphabetical order, half of the time backwards."""
    letters = sorted(rng.choice(list("abcdefghijklmnop"), rng.integers(5, 11)))
    return " ".join(letters if rng.random() < 0.5 else letters[::-1])


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


CORPORA = (
    sum_of_digits,
    sorted_letters,
    nested_brackets,
    noisy_steps,
    long_brackets,
    long_steps,
)


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
    tokenizer = Words(tokenizer_object=backend, **special)
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


DESIGN_TEXTS = (sum_of_digits, sorted_letters, long_brackets, long_steps)


def bench_designs(quick):
    n_texts, n_groups, n_steps = (10, 6, 30) if quick else (24, 20, 200)
    rows = []
    for write, rate in itertools.product(DESIGN_TEXTS, ("uniform", 0.15)):
        model, tokenizer = train(write, rate, n_steps)
        texts = [write(np.random.default_rng([11, i])) for i in range(n_texts)]
        scorer = MPTScorer(model, tokenizer, device="cpu").fit()
        language_model, tokenizer = scorer._open_again()
        windows, _ = windows_of(tokenizer, texts, language_model.input_names)
        groups = {}
        for design in DESIGNS:
            draw = MaskDraw("mpt", 0, 4, design=design)
            indices = range(n_groups)
            groups[design] = DrawGroups.of(language_model, windows, draw, indices, None)
        rows.append([write.__name__, str(rate), *cells_of_designs(windows, groups)])
    print_table(
        f"designs: {n_texts} texts, {n_groups} groups of 4 draws, {n_steps} steps",
        "texts|trained at|variance of chain|of independent|chain chosen|"
        + "|".join(f"{n} of fit: {d}" for d in DESIGNS for n in (4, 8)),
        rows,
    )


def cells_of_designs(windows, groups):
    """Return cells with the variances, the choice, and coverage and width of intervals.

    groups : dict from designs to `DrawGroups` of the windows. Texts of `fit` are drawn
    200 times; the other ones are scored.
    """
    variances = [groups[design].variance() for design in DESIGNS]
    rng, n_texts = np.random.default_rng(0), len(windows)
    chosen = np.array([rng.permutation(n_texts) for _ in range(200)])
    orders, masks = groups["chain"], groups["independent"]
    is_chain = [
        orders.totals[texts[:8], :2].var(axis=1, ddof=1).mean()
        <= masks.variances[texts[:8], 0].mean()
        for texts in chosen
    ]
    cells = [*(f"{variance:.3g}" for variance in variances), f"{np.mean(is_chain):.0%}"]
    for design, n_fitted in itertools.product(DESIGNS, (4, 8)):
        draw, found = groups[design].draw, []
        for texts in chosen:
            n_known = count_groups([windows[i] for i in texts[:n_fitted]], draw)
            of_fit = [array[texts[:n_fitted], :n_known] for array in groups[design][1:]]
            scored = [array[texts[n_fitted:]] for array in groups[design][1:]]
            moderation = DrawGroups(draw, *of_fit).moderation()
            is_within, width = intervals_of(DrawGroups(draw, *scored), moderation)
            found.append((is_within.mean(), np.median(width)))
        covered, width = np.transpose(found)
        cells.append(f"{covered.mean():.3f} {np.median(width):.2f}")
    return cells


def score_by_groups(scorer, texts, draw, n_groups):
    """Return the windows of texts, and the parts of their scores by groups of draws.

    For each window there are two arrays of shape (n_groups, n_parts): parts of the
    score, and their variances.
    """
    language_model, tokenizer = scorer._open_again()
    windows, _ = windows_of(tokenizer, texts, language_model.input_names)
    groups = [
        score_windows(language_model, windows, replace(draw, seed=seed))
        for seed in range(n_groups)
    ]
    return windows, [
        (
            np.array([score.terms for score in scores]),
            np.array([np.sum(score.cautious**2, axis=1) for score in scores]),
        )
        for scores in zip(*groups, strict=True)
    ]


def combine_parts(draw, windows, parts, rng):
    """Return `DrawGroups` of scores that combine parts of different groups.

    Parts of a score are independent, so these are as good as other draws.
    """
    table = []
    for window, (values, variances) in zip(windows, parts, strict=True):
        groups = rng.permuted(np.indices(values.shape)[0], axis=0)
        totals, of_totals = (
            np.take_along_axis(array, groups, axis=0).sum(axis=1)
            for array in (values, variances)
        )
        scale = draw.layout(len(window.positions)).usual_variance
        table.append([totals, of_totals, np.full(len(totals), scale)])
    return DrawGroups(draw, *np.moveaxis(table, 1, 0))


def intervals(draw, measured, n_fitted, n_choices=60):
    """Yield pairs of keys of `measured`, and cells with the coverage and the width.

    The first key is that of texts of `fit`, the second that of the scored ones.

    measured : dict from keys to what `score_by_groups` returns.
    """
    for old, new in itertools.product(measured, repeat=2):
        rng, covered, widths = np.random.default_rng(n_fitted), [], []
        for _ in range(n_choices):
            fitted, scored = (
                combine_parts(draw, *measured[key], rng) for key in (old, new)
            )
            order = rng.permutation(len(fitted.totals))
            chosen = order[:n_fitted]
            n_groups = count_groups([measured[old][0][i] for i in chosen], draw)
            known = [array[chosen, :n_groups] for array in fitted[1:]]
            moderation = DrawGroups(draw, *known).moderation()
            if old == new:
                others = [array[order[n_fitted:]] for array in scored[1:]]
                scored = DrawGroups(draw, *others)
            is_within, width = intervals_of(scored, moderation)
            covered.append(is_within.mean())
            widths.append(np.median(width))
        yield (old, new), [f"{np.mean(covered):.3f}", f"{np.median(widths):.2f}"]


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
LENGTHS = ((20, 50), (60, 110), (110, 150))  # tokens
REACTION_MODELS = {  # by packages
    "rxnmapper": (AlbertConfig, AlbertForMaskedLM, "albert_heads_8_uspto_all_1310k"),
    "rxnfp": (BertConfig, BertForMaskedLM, "bert_pretrained"),
}


def amide_couplings():
    """Write reactions of acids and amines to amides."""
    for acyl, alkyl, others in itertools.product(ACYL, ALKYL, WITH):
        yield f"O=C(O){acyl}.N{alkyl}{others}>>O=C(N{alkyl}){acyl}"


def open_reaction_model(package):
    """Return a model of reactions, trained at 15%, and a tokenizer."""
    config_class, model_class, name = REACTION_MODELS[package]
    path = importlib.util.find_spec(package).submodule_search_locations[0]
    folder = Path(path) / "models/transformers" / name
    model = model_class(config_class.from_json_file(folder / "config.json"))
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


def bench_pretrained(quick):
    is_small = quick or not torch.cuda.is_available()
    lengths = LENGTHS[: 1 if is_small else None]
    for package in ("rxnmapper",) if is_small else REACTION_MODELS:
        if importlib.util.find_spec(package) is None:
            print(f"pretrained: skipped, as {package} is not installed")
            continue
        model, tokenizer = open_reaction_model(package)
        reactions = reactions_by_length(tokenizer, lengths, 6 if is_small else 14)
        measure_pretrained(f"{package}, 15 %", model, tokenizer, reactions, is_small)
        if package == "rxnmapper" and not is_small:
            others = sorted(set(amide_couplings()) - set().union(*reactions.values()))
            write = partial(np.random.Generator.choice, a=others)
            train_on(model.cuda(), tokenizer, write, "uniform", 300, 1e-4)
            name = f"{package}, all rates"
            measure_pretrained(name, model, tokenizer, reactions, is_small)


def reactions_by_length(tokenizer, lengths, n_texts):
    """Return a dict from least and largest numbers of tokens to reactions."""
    reactions = np.random.default_rng(0).permutation(list(amide_couplings())).tolist()
    counts = np.array([len(tokenizer.tokenize(reaction)) for reaction in reactions])
    return {
        f"{low}-{high}": [
            reactions[i]
            for i in np.flatnonzero((low <= counts) & (counts <= high))[:n_texts]
        ]
        for low, high in lengths
    }


def measure_pretrained(name, model, tokenizer, reactions, is_small):
    """Print coverage and widths of intervals, by the lengths of texts."""
    scorer = MPTScorer(model, tokenizer, batch_tokens=2**15).fit()
    n_masks, n_groups = (2, 2) if is_small else (4, 12)
    for design in DESIGNS:
        draw = MaskDraw("mpt", 0, n_masks, design=design)
        measured = {
            key: score_by_groups(scorer, texts, draw, n_groups)
            for key, texts in reactions.items()
        }
        title = f"pretrained: {name}, design {design}, {n_groups} groups of draws"
        print_intervals(title, draw, measured)


def print_intervals(title, draw, measured):
    """Print coverage and widths: a row for each length of scored texts."""
    rows = []
    for n_fitted in (4, 8):
        if n_fitted < min(len(windows) for windows, _ in measured.values()):
            found = dict(intervals(draw, measured, n_fitted))
            for new in measured:
                cells = ["  ".join(found[old, new]) for old in measured]
                rows.append([str(n_fitted), new, *cells])
    columns = [f"of {key}" for key in measured]
    print_table(
        f"{title}; covered and width by lengths of texts of fit",
        "|".join(["texts of fit", "tokens", *columns]),
        rows,
    )


def intervals_of(groups, moderation):
    """Return whether 95% intervals hold the mean, and ratios of errors and spread.

    Both have a row for each text and a column for each group. The mean is that of the
    other groups, for whose own error there is a factor.
    """
    totals, variances, scales = groups[1:]
    n_groups = totals.shape[1]
    centred = totals - totals.mean(axis=1, keepdims=True)
    deviations = np.sqrt(n_groups / (n_groups - 1)) * centred
    spread = totals.std(axis=1, ddof=1, keepdims=True)
    moderated = moderation.moderate(variances, scales, groups.draw.n_masks)
    degrees = moderation.with_factor(moderation.degrees)
    reach = stats.t.ppf(0.975, degrees) * np.sqrt(moderated)
    return np.abs(deviations) <= reach, reach / 1.96 / spread


def bench_sample(quick):
    n_steps, rows = 30 if quick else 300, []
    for write in CORPORA[: 1 if quick else 4]:
        texts = [write(np.random.default_rng(2000 + i)) for i in range(32)]
        for rate in ("uniform", 0.5, 0.15):
            model, tokenizer = train(write, rate, n_steps)
            excess = MPTScorer(model, tokenizer, method="pll").fit(texts)._excess
            numbers = f"{excess.mean:.2f}", f"{excess.std_error:.2f}"
            rows.append([write.__name__, str(rate), *numbers])
    header = "texts|trained at|excess|std error"
    print_table(f"sample: 32 texts, {n_steps} steps of training", header, rows)


# Half and twice the constant of the estimate along orders, and extremes.
PRIOR_SCALES = (0.0, 2.5, 5, 10, 1000.0)


def bench_weights(quick):
    n_texts, n_groups, n_steps = (3, 3, 30) if quick else (12, 24, 200)
    sources = {}
    if importlib.util.find_spec("rxnmapper") is not None:
        model, tokenizer = open_reaction_model("rxnmapper")
        (texts,) = reactions_by_length(tokenizer, LENGTHS[:1], n_texts).values()
        sources["reactions, at 15%"] = model, tokenizer, texts
    for write, rate in itertools.product(DESIGN_TEXTS, ("uniform", 0.15)):
        texts = [write(np.random.default_rng([7, i])) for i in range(n_texts)]
        sources[f"{write.__name__}, at {rate}"] = *train(write, rate, n_steps), texts
    columns = [f"PRIOR_SCALE {scale:g}" for scale in PRIOR_SCALES]
    rows = []
    for name, source in sources.items():
        rows.append([name, *variances_by_scale(*source, n_groups)])
    header = "|".join(["texts", *columns])
    print_table(f"weights: {n_texts} texts, {n_groups} groups of orders", header, rows)


def variances_by_scale(model, tokenizer, texts, n_groups):
    """Return the mean variance of a score over groups, for each prior, as text."""
    scorer = MPTScorer(model, tokenizer, batch_tokens=2**13, device="cpu").fit()
    language_model, tokenizer = scorer._open_again()
    windows, _ = windows_of(tokenizer, texts, language_model.input_names)
    draws = [MaskDraw("mpt", seed, 4, design="chain") for seed in range(n_groups)]
    predicted = {}
    for key in itertools.product(range(len(windows)), range(n_groups)):
        window, draw = windows[key[0]], draws[key[1]]
        rows = (MaskedWindow(0, *row) for row in draw.plan(window))
        predicted[key] = predict(language_model, [window], rows)[:2]
    cells = []
    for scale in PRIOR_SCALES:
        totals = np.zeros((len(windows), n_groups))
        with patch.object(estimates, "PRIOR_SCALE", scale):
            for (i, j), rows in predicted.items():
                totals[i, j] = draws[j].estimate(windows[i], *rows).terms.sum()
        cells.append(f"{totals.var(axis=1, ddof=1).mean():.3g}")
    return cells


PARTS = {
    "pll": bench_pll,
    "memory": bench_memory,
    "curve": bench_curve,
    "share": bench_share,
    "sizes": bench_sizes,
    "jobs": bench_jobs,
    "designs": bench_designs,
    "pretrained": bench_pretrained,
    "sample": bench_sample,
    "weights": bench_weights,
    "dtype": bench_dtype,
}


def main():
    parser = parser_of(__doc__)
    parser.add_argument("--quick", action="store_true", help="small versions")
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    arguments = parse_parts(parser, PARTS)
    torch.set_num_threads(arguments.threads)
    print_machine(transformers)
    print(f"minicons is {'not installed' if MaskedLMScorer is None else 'there'}")
    for part in arguments.parts:
        elapsed, _ = seconds(lambda part=part: PARTS[part](arguments.quick))
        print(f"({part}: {elapsed:.0f} s, load {os.getloadavg()[0]:.1f})", flush=True)


if __name__ == "__main__":
    main()
