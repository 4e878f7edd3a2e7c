"""Every field of a `config.json` is read, harmless, or refused by name.

The lists come from the config classes of transformers 4.57 and 5.23 and from published checkpoints.
"""

from typing import Any

from gpuworker.families.fields import Fields, UnsupportedModel

READ = frozenset(
    {
        "architectures",
        "head_dim",
        "hidden_act",
        "hidden_size",
        "intermediate_size",
        "max_position_embeddings",
        "model_type",
        "num_attention_heads",
        "num_hidden_layers",
        "num_key_value_heads",
        "partial_rotary_factor",
        "rms_norm_eps",
        "rope_parameters",
        "rope_scaling",
        "rope_theta",
        "tie_word_embeddings",
        "vocab_size",
    }
)
WINDOW = frozenset({"layer_types", "max_window_layers", "sliding_window", "use_sliding_window"})
READ_BY_FAMILY = {
    "llama": frozenset({"attention_bias", "mlp_bias"}),
    "mistral": frozenset({"sliding_window"}),
    "qwen2": WINDOW,
    "qwen3": WINDOW | {"attention_bias"},
}
TRAINING = frozenset({"attention_dropout", "initializer_range", "gradient_checkpointing", "pretraining_tp"})
GENERATION = frozenset(
    {
        *("bad_words_ids", "begin_suppress_tokens", "cache_implementation", "diversity_penalty", "do_sample"),
        *("early_stopping", "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty"),
        *("forced_bos_token_id", "forced_eos_token_id", "length_penalty", "max_length", "min_length"),
        *("no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_return_sequences", "output_scores"),
        *("remove_invalid_values", "repetition_penalty", "return_dict_in_generate", "suppress_tokens"),
        *("temperature", "top_k", "top_p", "typical_p", "use_cache"),
    }
)
TOKENS = frozenset(
    {
        *("bos_token_id", "decoder_start_token_id", "eos_token_id", "pad_token_id", "prefix"),
        *("sep_token_id", "tokenizer_class", "unk_token_id"),
    }
)
BOOKKEEPING = frozenset(
    {
        *("_attn_implementation", "_attn_implementation_autoset", "_attn_implementation_internal"),
        *("_commit_hash", "_name_or_path", "_output_attentions", "attn_implementation", "dtype"),
        *("chunk_size_feed_forward", "finetuning_task", "id2label", "is_decoder", "is_llama_config"),
        *("label2id", "name_or_path", "num_labels", "output_attentions", "output_hidden_states"),
        *("problem_type", "return_dict", "task_specific_params", "tf_legacy_loss", "torch_dtype"),
        *("torchscript", "transformers.js_config", "transformers_version", "unsloth_fixed"),
        *("unsloth_version", "use_bfloat16"),
    }
)
HARMLESS = TRAINING | GENERATION | TOKENS | BOOKKEEPING
REFUSED = frozenset(
    {
        *("add_cross_attention", "attention_sinks", "attn_logit_softcapping", "auto_map"),
        *("cross_attention_hidden_size", "final_logit_softcapping", "is_encoder_decoder"),
        *("logit_scale", "moe_intermediate_size", "n_routed_experts", "num_experts", "num_experts_per_tok"),
        *("num_local_experts", "original_max_position_embeddings", "pruned_heads", "quantization_config"),
        *("query_pre_attn_scalar", "rope_interleaved", "tie_encoder_decoder"),
    }
)
ACTIVATIONS = ("silu", "swish")  # two names of one function


def rules_check(raw: Fields, family: str) -> None:
    """`raw` as it is in the file. Null, false, 0 and empty values switch nothing on and pass. Raises
    UnsupportedModel."""
    known = READ | READ_BY_FAMILY[family] | HARMLESS
    for name in sorted(raw.keys() - known):
        if raw[name]:
            raise UnsupportedModel(f"config.json: {name} is set, {_reason(name, family)}")
    activation: Any = raw.get("hidden_act", "silu")
    if activation not in ACTIVATIONS:
        raise UnsupportedModel(f"hidden_act {activation!r} is not supported, only silu")
    rotary: Any = raw.get("partial_rotary_factor")
    if rotary is not None and rotary != 1:
        raise UnsupportedModel(f"partial_rotary_factor {rotary!r} is not supported, only 1")


def _reason(name: str, family: str) -> str:
    if name in REFUSED or any(name in fields for fields in READ_BY_FAMILY.values()):
        return f"which is not supported for {family}"
    return "a field the engine does not know: remove it if it does not change what the model computes"
