"""Names and folders of models and tokenizers; detect files that have changed."""

import hashlib
import os
import threading
from dataclasses import dataclass, replace
from functools import cached_property

import torch

LOADING = threading.Lock()  # from_pretrained patches torch in all threads while it runs
# Endings of files that are read neither for models nor for tokenizers.
UNREAD = (".bin", ".h5", ".md", ".msgpack", ".onnx", ".ot", ".pt", ".pth", ".log")
WEIGHTS = (".safetensors",)
CONFIGS = ("config.json", "tokenizer_config.json", "tokenizer.json")
HUB = "a name on the hub"
TIMEOUT = 10  # seconds after which a hub does not answer, as in huggingface_hub
OF_VOCAB_FILE = (
    "Of a file vocab.txt, make a tokenizer by BertTokenizer(vocab={token: i for i, "
    "token in enumerate(open('vocab.txt', encoding='utf-8').read().splitlines())}). "
)
UNKNOWN = "files that had changed before they were hashed"


@dataclass(frozen=True)
class Source:
    """A folder or a name on the hub, from which a model or a tokenizer is read.

    A pickle holds the source, not the model. To make sure that the same model is loaded
    later, the pickle of a folder holds a hash of its files, which `check` compares. For
    a name on the hub, `revision` is set to the commit, if it is known.

    Hashing takes about half as long as loading, so it is done only when something is
    pickled. `stamp`, which the file system changes at every write, shows whether the
    files are then still those that were read.
    """

    name: str
    revision: str | None
    local_files_only: bool
    trust_remote_code: bool
    unread: tuple = UNREAD
    stamp: tuple = ()
    digest: str | None = None

    @classmethod
    def of(cls, name, revision, scorer, unread=UNREAD):
        """Return the source of a name, with the present stamp of its files."""
        name = str(os.fspath(name))
        settings = (scorer.local_files_only, scorer.trust_remote_code)
        return cls(name, revision, *settings, unread, stamp_of(name, unread))

    def __reduce__(self):
        settings = (self.local_files_only, self.trust_remote_code, self.unread)
        return Source, (self.name, self.revision, *settings, (), self.fingerprint)

    @cached_property
    def fingerprint(self):
        """Hash of the files that were read; `UNKNOWN` if they have changed since."""
        if self.digest is not None:
            return self.digest
        digest = digest_of(self.name, self.unread)
        is_same = self.stamp == stamp_of(self.name, self.unread)
        return digest if is_same else UNKNOWN

    def check(self):
        """Refuse files that have changed since they were first read."""
        if self.digest is None or self.digest == digest_of(self.name, self.unread):
            return
        raise ValueError(
            f"The files of {self.name!r} have changed since the scorer read them, or "
            "are gone. Fit the scorer again."
        )

    def load(self, auto_class, description, **kwargs):
        """Return ``auto_class.from_pretrained`` of the name."""
        try:
            # Random weights that a checkpoint replaces take the global generator.
            with LOADING, torch.random.fork_rng(devices=[]):
                return auto_class.from_pretrained(
                    self.name,
                    revision=self.revision,
                    local_files_only=self.is_local,
                    trust_remote_code=self.trust_remote_code,
                    **kwargs,
                )
        except MemoryError:
            raise
        except Exception as error:  # tokenizers raises plain Exception
            kinds = (kind for kind in (OSError, ImportError) if isinstance(error, kind))
            raise next(kinds, ValueError)(
                f"{self.name!r} could not be loaded as {description}. Pass a name on "
                "the Hugging Face hub; offline, a folder written by save_pretrained; "
                f"or a loaded model and its tokenizer. {self._reason(error)}{error}"
            ) from error

    @cached_property
    def is_local(self):
        """Whether only a folder or the cache is read: by choice, or without network.

        transformers would ask a hub that does not answer again for about a minute.
        """
        return self.local_files_only or os.path.isdir(self.name) or not _hub_answers()

    def _reason(self, error):
        """Say what an error of transformers means, if that is known."""
        if os.path.isfile(self.name) or self._is_vocab_file_alone():
            return OF_VOCAB_FILE
        if not (self.local_files_only or os.path.isdir(self.name)) and self.is_local:
            return (
                "There is no network, as the hub does not answer, and the cache does "
                "not hold all files. "
            )
        if "safetensors" in str(error):
            return (
                "Only weights in safetensors are read, as files of other kinds can run "
                "code. Where you trust a .bin file, load it by AutoModelForMaskedLM."
                "from_pretrained(..., use_safetensors=False), and write it with "
                "model.save_pretrained(folder). "
            )
        return ""

    def _is_vocab_file_alone(self):
        names = {entry.name for entry in files_of(self.name, ())}
        return "vocab.txt" in names and not names & set(CONFIGS)

    def check_adapter(self):
        """Refuse an adapter that transformers would leave out without a message.

        With peft, transformers loads the model below and puts the adapter on it.
        """
        from transformers.utils import find_adapter_config_file, is_peft_available

        if is_peft_available():
            return
        config_file = find_adapter_config_file(
            self.name, revision=self.revision, local_files_only=self.is_local
        )
        if config_file is not None:
            raise ImportError(
                f"{self.name!r} holds an adapter, described by its adapter_config.json,"
                " which needs peft: pip install peft. Without it, at best the model "
                "below the adapter would be scored. To score that model, remove the "
                "file, or load the model yourself and pass it with its tokenizer."
            )

    def with_commit(self):
        """Return the source with the commit that was read, for a name on the hub."""
        commit = None if os.path.isdir(self.name) else self._commit()
        return self if commit is None else replace(self, revision=commit)

    def _commit(self):
        from transformers.utils import cached_file
        from transformers.utils.hub import extract_commit_hash

        for config in CONFIGS:
            try:
                path = cached_file(
                    self.name, config, revision=self.revision, local_files_only=True
                )
            except OSError:
                continue
            commit = extract_commit_hash(path, None)
            if commit is not None:
                return commit
        return None


def _hub_answers():
    """Return whether one request to the hub has an answer, whatever it is."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=TIMEOUT)
    except Exception:  # of the network, by requests or httpx
        return False
    return True


def files_of(name, unread):
    """List the files of a folder that are read, sorted by name."""
    if not os.path.isdir(name):
        return []
    files = [
        entry
        for entry in os.scandir(name)
        if entry.is_file()
        and not entry.name.startswith(".")
        and not entry.name.endswith(unread)
    ]
    return sorted(files, key=lambda entry: entry.name)


def stamp_of(name, unread):
    """Return sizes and times of the files of a folder; () for a name on the hub.

    The time of the last change of status (ctime) is included, because the time of the
    last write can be set to any value, and copies keep it.
    """
    stats = [(entry.name, entry.stat()) for entry in files_of(name, unread)]
    return tuple(
        (name, s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns)
        for name, s in stats
    )


def digest_of(name, unread):
    """Return a hash of the names and contents of the files of a folder."""
    if not os.path.isdir(name):
        return HUB
    total = hashlib.sha256()
    for entry in files_of(name, unread):
        with open(entry.path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").digest()
        total.update(hashlib.sha256(entry.name.encode()).digest() + digest)
    return total.hexdigest()
