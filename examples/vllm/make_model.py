"""Make a model with random weights and a trained tokenizer, for starts on a CPU.

``python examples/vllm/make_model.py build/models/tiny`` (with the engine's own
Python: the model must be saved by the transformers version that will read it).

``--kind`` chooses the architecture: ``tiny`` (a Llama of a few MB, the default),
``large`` (the same with about 1.8 GB of bf16 weights in five shards), ``qwen3``
(normed queries and keys, tied embeddings) and ``moe`` (Qwen3-MoE, 2 of 8 experts a
token).  ``--vocab N`` trains a tokenizer with at least N entries on words made up
from syllables, so that text is tokenized, and logits are computed, at a real size.

The same options and seed give the same bytes.  The stamp file tells what was made:
a folder that holds another model is refused, never overwritten.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

CORPUS = [
    "The engine starts when every component has reached its final state.",
    "A worker waits for the handle, the core waits for the workers.",
    "The quick brown fox jumps over the lazy dog, again and again.",
    "One two three four five six seven eight nine ten.",
]
#: kind -> (hidden size, layers): what --hidden and --layers stand at if not given.
KINDS = {"tiny": (256, 4), "large": (2048, 20), "qwen3": (256, 4), "moe": (256, 4)}
VOCABULARY = 512
LARGE_SHARDS = 5


class NotMade(Exception):
    """The model cannot be made as asked; the message says why."""


def made_up_text(words: int, seed: int) -> Iterator[str]:
    """Sentences of made-up words, each word at least once and early ones more often."""
    chance = random.Random(seed)
    onsets = ["", *"bcdfghjklmnprstvwz", "br", "ch", "cl", "dr", "fl", "gr", "pl", "sh", "st", "tr"]
    codas = ["", "", "", *"dlmnrst", "ck", "ld", "nd", "ng", "nt", "rk", "st"]
    syllables = [a + b + c for a, b, c in itertools.product(onsets, "aeiou", codas)]
    known: dict[str, None] = {}
    while len(known) < words:
        known["".join(chance.choices(syllables, k=chance.randint(1, 4)))] = None
    ordered = list(known)
    for start in range(0, words, 12):
        line = [
            f"{word} {ordered[int(words ** chance.random()) - 1]}"
            for word in ordered[start : start + 12]
        ]
        yield " ".join(line).capitalize() + "."


def make_tokenizer(folder: Path, vocabulary: int, seed: int = 0) -> int:
    """Train a byte-level BPE tokenizer; returns its size.  NotMade if it comes out smaller.

    Up to :data:`VOCABULARY` entries it is trained on :data:`CORPUS`, which holds fewer.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["<s>", "</s>", "<unk>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    real = vocabulary > VOCABULARY
    corpus: Iterable[str] = CORPUS
    if real:
        corpus = itertools.chain(CORPUS, made_up_text(vocabulary, seed))
    tokenizer.train_from_iterator(corpus, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    if real and len(fast) < vocabulary:
        raise NotMade(f"the tokenizer has {len(fast)} entries instead of {vocabulary}")
    fast.save_pretrained(folder)
    return len(fast)


def make_config(kind: str, *, vocabulary: int, hidden: int, layers: int) -> Any:
    """The transformers configuration of a kind; heads have 64 dimensions (``large``: 128)."""
    import transformers

    common: dict[str, Any] = {
        "vocab_size": (vocabulary + 63) // 64 * 64,
        "hidden_size": hidden,
        "intermediate_size": hidden * 2,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "tie_word_embeddings": False,
    }
    if kind == "large":
        common |= {
            "intermediate_size": hidden * 43 // 16,
            "num_attention_heads": hidden // 128,
            "num_key_value_heads": hidden // 512,
        }
    if kind == "qwen3":
        common |= {"head_dim": hidden // 4, "tie_word_embeddings": True}
        return transformers.Qwen3Config(**common)
    if kind == "moe":
        common |= {
            "head_dim": hidden // 4,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": hidden // 2,
            "norm_topk_prob": True,
        }
        return transformers.Qwen3MoeConfig(**common)
    return transformers.LlamaConfig(**common)


def shard_size(state: dict[str, Any], count: int) -> int:
    """The smallest shard size, to 1%, with which the weights come in ``count`` files."""
    from huggingface_hub import split_torch_state_dict_into_shards

    size = math.ceil(sum(t.numel() * t.element_size() for t in state.values()) / count)
    while len(
        split_torch_state_dict_into_shards(state, max_shard_size=size).filename_to_tensors
    ) > (count):
        size += math.ceil(size / 100)
    return size


def make_model(
    folder: Path, *, kind: str, hidden: int, layers: int, seed: int, vocabulary: int = VOCABULARY
) -> None:
    """Write config, weights and tokenizer."""
    import torch
    import transformers

    folder.mkdir(parents=True, exist_ok=True)
    entries = make_tokenizer(folder, vocabulary, seed)
    torch.manual_seed(seed)
    config = make_config(kind, vocabulary=entries, hidden=hidden, layers=layers)
    model = transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    if kind == "large":
        size = shard_size(model.state_dict(), LARGE_SHARDS)
        model.save_pretrained(folder, max_shard_size=size)
    else:
        model.save_pretrained(folder)


def stamp_text(settings: dict[str, Any]) -> str:
    """What the stamp says of the settings: nothing for the default ones."""
    hidden, layers = KINDS["tiny"]
    default = {
        "kind": "tiny",
        "hidden": hidden,
        "layers": layers,
        "seed": 0,
        "vocabulary": VOCABULARY,
    }
    return "" if settings == default else json.dumps(settings, sort_keys=True) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kind", choices=sorted(KINDS), default="tiny")
    parser.add_argument("--hidden", type=int, help="hidden size; default: the kind's")
    parser.add_argument("--layers", type=int, help="default: the kind's")
    parser.add_argument("--vocab", type=int, default=VOCABULARY, help="tokenizer entries")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    hidden, layers = KINDS[arguments.kind]
    settings = {
        "kind": arguments.kind,
        "hidden": arguments.hidden or hidden,
        "layers": arguments.layers or layers,
        "seed": arguments.seed,
        "vocabulary": arguments.vocab,
    }
    stamp, text = arguments.folder / "cfac-model-ready", stamp_text(settings)
    try:
        if stamp.exists():
            if stamp.read_text() != text:
                held = stamp.read_text().strip() or "the default tiny model"
                raise NotMade(f"{arguments.folder} holds another model: {held}")
            return 0
        make_model(arguments.folder, **settings)
    except NotMade as error:
        print(f"make_model.py: {error}", file=sys.stderr)
        return 1
    stamp.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
