"""Make a tiny Llama with random weights and a trained tokenizer, for starts on a CPU.

``python examples/vllm/make_model.py build/models/tiny`` (with the engine's own
Python: the model must be saved by the transformers version that will read it).
"""

from __future__ import annotations

import argparse
from pathlib import Path

CORPUS = [
    "The engine starts when every component has reached its final state.",
    "A worker waits for the handle, the core waits for the workers.",
    "The quick brown fox jumps over the lazy dog, again and again.",
    "One two three four five six seven eight nine ten.",
]


def make_tokenizer(folder: Path, vocabulary: int) -> int:
    """Train a byte-level BPE tokenizer; returns its size."""
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
    tokenizer.train_from_iterator(CORPUS, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    fast.save_pretrained(folder)
    return len(fast)


def make_model(folder: Path, *, hidden: int, layers: int, seed: int) -> None:
    """Write config, weights and tokenizer; the same seed gives the same bytes."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = make_tokenizer(folder, 512)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=(vocabulary + 63) // 64 * 64,
        hidden_size=hidden,
        intermediate_size=hidden * 2,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    stamp = arguments.folder / "cfac-model-ready"
    if stamp.exists():
        return
    make_model(
        arguments.folder, hidden=arguments.hidden, layers=arguments.layers, seed=arguments.seed
    )
    stamp.touch()


if __name__ == "__main__":
    main()
