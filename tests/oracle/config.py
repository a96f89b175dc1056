"""config.py: the settings of a text model out of config.json (specification 1.1, 1.2, 1.5, 10)."""
import json

SPARSE = {"full_attention", "qwen_sparse_attention", "deepseek_sparse_attention", "hybrid_indexed",
          "indexed_attention"}
# what a key means when it is not there
QWEN4 = dict(num_key_value_heads=2, linear_num_key_heads=16, linear_num_value_heads=32, linear_key_head_dim=128,
             linear_value_head_dim=128, linear_conv_kernel_dim=4, output_gate_type=None, num_experts=512,
             num_experts_per_tok=10, moe_intermediate_size=512, shared_expert_intermediate_size=512,
             norm_topk_prob=True, hc_count=4, hc_lowrank=320, ple_layer_ids=[], ple_conv_kernel_size=4, ngram_size=3,
             heads_per_ngram=8, ngram_vocab_size_base=20000000, make_ngram_vocab_size_divisible_by=128,
             split_ngram_parts=512, seed=1234, full_attention_interval=4, hidden_act="silu", rms_norm_eps=1e-6,
             tie_word_embeddings=False)


class Config:
    """Every key of the text configuration as an attribute, and what follows from them."""

    def __init__(self, source):
        root = json.load(open(source)) if isinstance(source, str) else source
        text = dict(root.get("text_config", root))
        self.dense = text["model_type"].startswith("qwen3_5")
        for key, value in {**QWEN4, **text}.items():
            setattr(self, key, value)
        kinds = text.get("layer_types")
        if kinds is None:
            every = self.full_attention_interval
            kinds = ["full_attention" if i % every == every - 1 else "linear_attention"
                     for i in range(self.num_hidden_layers)]
        self.attends = [k in SPARSE for k in kinds]
        for a, k in zip(self.attends, kinds):
            assert a or k == "linear_attention", k
        rope = text.get("rope_parameters", {})
        self.theta = rope["rope_theta"]
        part = rope.get("partial_rotary_factor", text.get("partial_rotary_factor", 0.25 if self.dense else 1.0))
        self.rot = int(self.head_dim * part)
        self.gate = self.hidden_act if self.dense else self.output_gate_type or self.hidden_act
        assert self.gate in ("sigmoid", "silu")
        self.D, self.eps = self.hidden_size, self.rms_norm_eps
        self.ple = sorted({i - 1 for i in self.ple_layer_ids})  # 0-based
        eos = text.get("eos_token_id")
        self.eos = eos[0] if isinstance(eos, list) else eos
        if self.dense:
            return
        self.N, self.W = self.hc_count, self.hc_count * self.D
        self.nsel = self.indexer_budget // self.indexer_compress_ratio
        assert self.indexer_kv_heads == 1 and self.indexer_budget % self.indexer_compress_ratio == 0
        assert self.rot <= self.indexer_head_dim
        if self.ple:
            self.P = (self.ngram_size - 1) * self.heads_per_ngram
            self.ple_width = text.get("ple_embed_dim", self.D)
            assert self.ple_width % self.P == 0
