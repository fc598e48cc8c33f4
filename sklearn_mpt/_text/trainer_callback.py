"""The log marginal likelihood of texts while transformers' Trainer trains."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase, TrainerCallback

from sklearn_mpt._checks import RandomState, check_int, draw_seed, warn_caller
from sklearn_mpt._measure.mpt_curve import mpt_curve
from sklearn_mpt._text.masked_lm import NotFiniteError
from sklearn_mpt._text.scorer import MPTScorer
from sklearn_mpt._text.texts import check_texts
from sklearn_mpt._text.training import TextLabels, from_first_process


class LMLTrainerCallback(TrainerCallback):
    """Record the log marginal likelihood of texts while Trainer trains a model.

    `MPTScorer` measures it before training and after epochs, with the same masks each
    time, so that differences come from the model. The training is not affected: neither
    the mode of the model nor any random number changes.

    Parameters
    ----------
    texts : list of str or of (str, str) tuples
        Texts to score, preferably not used in training.
    tokenizer : transformers.PreTrainedTokenizerBase
        Tokenizer of the model.
    every : int, default=1
        Number of epochs from one measurement to the next.
    n_masks : int, default=2
        Number of masks of each size, as for `MPTScorer`.
    batch_tokens : int, default=4096
        Tokens in one forward pass.
    max_length : int, default=None
        As for `MPTScorer`.
    overflow : {"error", "truncate", "stride", "split"}, default="error"
        As for `MPTScorer`.
    random_state : int, RandomState instance or None, default=None
        Determines the masks.

    Attributes
    ----------
    log_ : list of dict
        One record for each measurement: "lml", the mean log marginal likelihood per
        text in nats; "lml_std_error", its standard error over masks; "epoch" and
        "step". The first two are NaN if weights or predictions of the model are not
        finite. The records are also in ``trainer.state.log_history``, which is part of
        checkpoints, so resumed training continues them.

    See Also
    --------
    LMLMonitor : A callback for scikit-learn estimators.

    Notes
    -----
    If several processes train one model, the first one measures.

    Trainer's own ``label_smoothing_factor`` has no effect on :func:`mpt_loss`, and the
    callback warns of it. It also warns if Trainer has no ``compute_loss_func``, while
    the batches are those of :class:`DataCollatorForMPT`.

    If Trainer evaluates, "lml" is one of its metrics. With
    ``metric_for_best_model="lml"`` and ``greater_is_better=True``, the parameters with
    the largest LML are kept.

    Examples
    --------
    >>> from tokenizers import Tokenizer, models, pre_tokenizers
    >>> from transformers import PreTrainedTokenizerFast
    >>> vocabulary = {"[PAD]": 0, "[MASK]": 1, "a": 2, "b": 3}
    >>> backend = Tokenizer(models.WordLevel(vocabulary))
    >>> backend.pre_tokenizer = pre_tokenizers.Whitespace()
    >>> tokenizer = PreTrainedTokenizerFast(
    ...     tokenizer_object=backend, pad_token="[PAD]", mask_token="[MASK]")
    >>> from sklearn_mpt import LMLTrainerCallback
    >>> monitor = LMLTrainerCallback(["a b a", "b"], tokenizer)
    >>> monitor.log_
    []

    ``Trainer(model, args, ..., callbacks=[monitor])`` fills it.
    """

    def __init__(
        self,
        texts: Sequence[str] | Sequence[tuple[str, str]],
        tokenizer: PreTrainedTokenizerBase,
        *,
        every: int = 1,
        n_masks: int = 2,
        batch_tokens: int = 4096,
        max_length: int | None = None,
        overflow: str = "error",
        random_state: RandomState = None,
    ):
        check_int(every, "every")
        self.texts = check_texts(texts)
        self.every = every
        self.log_: list[dict] = []
        self._scorer = MPTScorer(
            None,
            tokenizer,
            n_masks=n_masks,
            batch_tokens=batch_tokens,
            max_length=max_length,
            overflow=overflow,
            random_state=_fixed(random_state),
            dtype="auto",
        )
        self._scorer._validate_params()
        self._hook = None  # on the model, until it is first called

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        """Measure the model before training, unless a checkpoint has done so."""
        if args is not None and args.label_smoothing_factor:
            warn_caller(
                f"label_smoothing_factor={args.label_smoothing_factor} of Trainer does "
                "not reach a loss function, and changes nothing with mpt_loss. Pass "
                "functools.partial(mpt_loss, label_smoothing=...) in its place."
            )
        self.log_ = [entry for entry in state.log_history if "lml" in entry]
        if not any(entry["step"] == state.global_step for entry in self.log_):
            self._measure(state, model)
        if isinstance(model, torch.nn.Module):
            self._hook = warn_if_model_has_the_loss(model)

    def on_train_end(self, args, state, control, **kwargs):
        """Leave the model as it was, if it was never called."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def on_epoch_end(self, args, state, control, model=None, **kwargs):
        """Measure the model after every `every`-th epoch."""
        if round(state.epoch) % self.every == 0:
            self._measure(state, model)

    def on_evaluate(self, args, state, control, model=None, metrics=None, **kwargs):
        """Add the last measurement to the metrics, for `metric_for_best_model`."""
        if metrics is None:
            return
        if not self.log_ or self.log_[-1]["step"] != state.global_step:
            self._measure(state, model)
        last = self.log_[-1]["lml"] if self.log_ else None
        metrics["eval_lml"] = from_first_process(last)  # only that one measures

    def _measure(self, state, model):
        if not state.is_world_process_zero:
            return
        device = next(model.parameters()).device
        scorer = self._scorer.set_params(model=model, device=device)
        try:
            curve = mpt_curve(scorer.fit(), self.texts)
            lml, std_error = curve.lml, curve.lml_std_error
        except NotFiniteError:  # training has diverged; Trainer decides when it ends
            lml = std_error = np.nan
        entry = {
            "lml": lml,
            "lml_std_error": std_error,
            "epoch": state.epoch or 0.0,
            "step": state.global_step,
        }
        self.log_.append(entry)
        state.log_history.append(entry)


def warn_if_model_has_the_loss(model):
    """Warn if the next call of a model gets labels of `DataCollatorForMPT`."""
    # Trainer passes labels to a model only where no loss function is given. The model's
    # loss is the mean over hidden tokens, no estimate of the LML. Returns the handle of
    # the hook, which removes itself.

    def look(module, args, inputs):
        hook.remove()
        if isinstance(inputs.get("labels"), TextLabels):
            warn_caller(
                "The batches are those of DataCollatorForMPT, but the model computes "
                "its own loss, the mean over hidden tokens, which does not estimate "
                "minus the log marginal likelihood. Pass compute_loss_func=mpt_loss to "
                "Trainer."
            )

    hook = model.register_forward_pre_hook(look, with_kwargs=True)
    return hook


def _fixed(random_state):
    """Return a random state that gives the same numbers in every use."""
    seed = draw_seed(random_state)
    return random_state if isinstance(random_state, Integral) else seed
