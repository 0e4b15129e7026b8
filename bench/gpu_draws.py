"""Models drawn at random from timm and transformers, on an NVIDIA GPU, in the order of drawing.

Of transformers: the type, changes to its configuration, the name and shape of its input.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Other = tuple[str, dict[str, Any], tuple[str, tuple[int, ...]]]


@dataclass(frozen=True)
class Draw:
    """Models whose measurement told what to mend next."""

    images: tuple[str, ...]
    others: dict[str, Other]


TOKENS, WORDS = ("input_ids", (128,)), ("input_ids", (256,))
PIXELS, SOUND = ("pixel_values", (3, 224, 224)), ("input_values", (16_000,))
SMALL = {"hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 16,
         "vocab_size": 32_000}  # fmt: skip
QWEN = {"hidden_size": 896, "num_attention_heads": 14, "num_key_value_heads": 2,
        "intermediate_size": 4864, "num_hidden_layers": 12, "vocab_size": 32_000}  # fmt: skip

# The families that users ask for first.
FIRST = Draw(
    images=(
        "convnext_tiny", "efficientnet_b0", "regnety_008", "mobilenetv3_large_100",
        "densenet121", "resnext50_32x4d", "vit_small_patch16_224",
        "swin_tiny_patch4_window7_224", "deit3_small_patch16_224", "coatnet_nano_rw_224",
        "mixer_b16_224", "poolformer_s12", "res2net50_26w_4s", "ghostnet_100",
        "hrnet_w18_small", "inception_v3", "edgenext_small", "maxvit_tiny_tf_224",
        "xcit_tiny_12_p16_224", "pit_s_224", "twins_svt_small", "pvt_v2_b1", "eca_nfnet_l0",
        "cspdarknet53", "seresnet50", "focalnet_tiny_srf", "davit_tiny", "levit_192",
        "convmixer_768_32", "beit_base_patch16_224", "mobilevit_s", "dpn68",
    ),
    others={
        "distilbert": ("distilbert", {}, TOKENS),
        "roberta": ("roberta", {}, TOKENS),
        "gpt2": ("gpt2", {}, WORDS),
        "qwen2": ("qwen2", QWEN, WORDS),
        "qwen2_step": ("qwen2", QWEN, ("input_ids", (1,))),
        "t5_encoder": ("t5", {}, TOKENS),
        "whisper_encoder": (
            "whisper",
            {"d_model": 384, "encoder_layers": 4, "encoder_attention_heads": 6,
             "encoder_ffn_dim": 1536,
             "decoder_layers": 1, "decoder_attention_heads": 6},
            ("input_features", (80, 3000)),
        ),
        "clip_vision": ("clip_vision_model", {}, PIXELS),
        "segformer": ("segformer", {}, ("pixel_values", (3, 512, 512))),
        "wav2vec2": ("wav2vec2", {}, SOUND),
        "albert": ("albert", {}, TOKENS),
        "deberta": ("deberta-v2", {"num_hidden_layers": 6, "hidden_size": 768, "vocab_size": 32_000,
                                   "num_attention_heads": 12, "intermediate_size": 3072}, TOKENS),
        "opt": ("opt", {}, WORDS),
        "gemma2": ("gemma2", {"hidden_size": 1024, "num_hidden_layers": 8,
                              "intermediate_size": 4096,
                              "vocab_size": 32_000, "head_dim": 128}, WORDS),
        "phi": ("phi", {"hidden_size": 1024, "num_hidden_layers": 8, "intermediate_size": 4096,
                        "num_attention_heads": 16, "vocab_size": 32_000}, WORDS),
        "dinov2": ("dinov2", {"hidden_size": 384, "num_attention_heads": 6}, PIXELS),
    },
)  # fmt: skip
# Drawn when those were fast: what others are to expect.
SECOND = Draw(
    images=(
        "efficientformer_l1", "mvitv2_tiny", "nextvit_small", "fastvit_t8",
        "tiny_vit_5m_224", "hiera_tiny_224", "eva02_tiny_patch14_224", "gcvit_xxtiny",
        "repvgg_a2", "vgg16_bn", "cait_xxs24_224", "visformer_tiny", "inception_next_tiny",
        "tf_efficientnetv2_s", "coat_lite_tiny", "volo_d1_224", "resnetv2_50",
        "sequencer2d_s",
    ),
    others={
        "bloom": ("bloom", {"hidden_size": 1024, "n_layer": 8, "n_head": 16, "vocab_size": 32_000},
                  WORDS),
        "llama": ("llama", {"hidden_size": 1024, "num_hidden_layers": 8, "intermediate_size": 2816,
                            "num_attention_heads": 16, "vocab_size": 32_000}, WORDS),
        "mistral_step": ("mistral", {"hidden_size": 1024, "num_hidden_layers": 8,
                                     "intermediate_size": 3584, "num_attention_heads": 16,
                                     "num_key_value_heads": 4, "vocab_size": 32_000},
                         ("input_ids", (1,))),
        "mobilebert": ("mobilebert", {}, TOKENS),
        "mpnet": ("mpnet", {}, TOKENS),
        "gpt_neox": ("gpt_neox", {"hidden_size": 1024, "num_hidden_layers": 8, "vocab_size": 32_000,
                                  "num_attention_heads": 16, "intermediate_size": 4096},
                     WORDS),
        "squeezebert": ("squeezebert", {}, TOKENS),
        "siglip_vision": ("siglip_vision_model", {}, PIXELS),
    },
)  # fmt: skip
# Parallel blocks, experts, states instead of attention; then linear attention, split attention,
# pixels within patches, two scales, gated tokens.
THIRD = Draw(
    images=(
        "efficientvit_b1", "resnest14d", "tnt_s_patch16_224", "crossvit_9_240",
        "gmlp_s16_224", "mobilenetv4_conv_small",
    ),
    others={
        "falcon": ("falcon", {**SMALL, "num_kv_heads": 16, "new_decoder_architecture": False},
                   WORDS),
        "gptj": ("gptj", {"n_embd": 1024, "n_layer": 8, "n_head": 16, "rotary_dim": 32,
                          "vocab_size": 32_000}, WORDS),
        "starcoder2": ("starcoder2", {**SMALL, "intermediate_size": 4096, "num_key_value_heads": 4},
                       WORDS),
        "olmo2": ("olmo2", {**SMALL, "intermediate_size": 2816}, WORDS),
        "cohere": ("cohere", {**SMALL, "intermediate_size": 2816, "num_key_value_heads": 16},
                   WORDS),
        "mamba": ("mamba", {"hidden_size": 768, "num_hidden_layers": 4, "vocab_size": 32_000},
                  WORDS),
        "bart": ("bart", {"encoder_layers": 6, "decoder_layers": 6, "vocab_size": 32_000}, TOKENS),
        "nystromformer": ("nystromformer", {"num_hidden_layers": 6, "vocab_size": 32_000}, WORDS),
        "xglm": ("xglm", {"d_model": 1024, "num_layers": 8, "ffn_dim": 4096, "vocab_size": 32_000},
                 WORDS),
        "electra": ("electra", {}, TOKENS),
        "modernbert": ("modernbert", {"num_hidden_layers": 6}, WORDS),
        "qwen3": ("qwen3", {**SMALL, "intermediate_size": 2816, "num_key_value_heads": 4,
                            "head_dim": 64}, WORDS),
    },
)  # fmt: skip
# Gathers within windows, convolutional attention, large kernels, odd channels.
FOURTH = Draw(
    images=(
        "convformer_s18", "efficientnet_lite0", "rexnet_100", "lcnet_100", "selecsls42b",
        "ese_vovnet19b_dw", "nf_resnet50", "halonet26t", "lambda_resnet26t",
        "botnet26t_256", "convit_tiny", "xception41", "dla34", "swinv2_tiny_window8_256",
        "maxxvit_rmlp_nano_rw_256", "mobilevitv2_050", "rdnet_tiny", "starnet_s1",
        "mambaout_femto", "swiftformer_xs", "fasternet_t0", "hgnetv2_b0", "nest_tiny",
        "resmlp_12_224", "repvit_m0_9", "nasnetalarge",
    ),
    others={
        "convbert": ("convbert", {"num_hidden_layers": 6}, TOKENS),
        "fnet": ("fnet", {}, TOKENS),
        "xlnet": ("xlnet", {"n_layer": 6}, TOKENS),
        "phi3": ("phi3", {**SMALL, "intermediate_size": 2816, "pad_token_id": 0}, WORDS),
        "gemma3": ("gemma3_text", {**SMALL, "num_key_value_heads": 4, "head_dim": 64,
                                   "intermediate_size": 2816}, WORDS),
        "stablelm": ("stablelm", {**SMALL, "intermediate_size": 2816, "num_key_value_heads": 16},
                     WORDS),
        "codegen": ("codegen", {"n_embd": 1024, "n_layer": 8, "n_head": 16, "rotary_dim": 32,
                                "vocab_size": 32_000}, WORDS),
        "rembert": ("rembert", {"num_hidden_layers": 6, "vocab_size": 32_000}, TOKENS),
        "yolos": ("yolos", {"num_hidden_layers": 6, "hidden_size": 384, "num_attention_heads": 6,
                            "intermediate_size": 1536, "image_size": [224, 224]}, PIXELS),
        "hubert": ("hubert", {"num_hidden_layers": 6}, SOUND),
        "mpt": ("mpt", {"d_model": 1024, "n_layers": 8, "n_heads": 16, "vocab_size": 32_000},
                WORDS),
        "granite_step": ("granite", {**SMALL, "intermediate_size": 2816, "num_key_value_heads": 4},
                         ("input_ids", (1,))),
    },
)  # fmt: skip
# Relative positions, gated states, blur, mixed kernels, two towers of heads.
FIFTH = Draw(
    images=(
        "tresnet_m", "inception_resnet_v2", "regnetx_032", "skresnet18", "convnextv2_atto",
        "efficientvit_m0", "res2next50", "mixnet_s", "vit_relpos_small_patch16_224",
        "gcresnet33ts", "eca_halonext26ts", "coatnet_rmlp_nano_rw_224", "mobileone_s0",
        "densenetblur121d", "cs3darknet_s", "fastvit_sa12", "pvt_v2_b0", "ghostnetv3_100",
    ),
    others={
        "roformer": ("roformer", {"num_hidden_layers": 6}, TOKENS),
        "esm": ("esm", {**SMALL, "intermediate_size": 4096, "pad_token_id": 1,
                        "position_embedding_type": "rotary"}, WORDS),
        "wavlm": ("wavlm", {"num_hidden_layers": 6}, SOUND),
        "gpt_bigcode": ("gpt_bigcode", {"n_embd": 1024, "n_layer": 8, "n_head": 16,
                                        "vocab_size": 32_000}, WORDS),
        "glm": ("glm", {**SMALL, "intermediate_size": 2816, "num_key_value_heads": 2,
                        "head_dim": 64,
                        "pad_token_id": 0}, WORDS),
        "nemotron": ("nemotron", {**SMALL, "intermediate_size": 4096, "num_key_value_heads": 16,
                                  "head_dim": 64}, WORDS),
        "mbart": ("mbart", {"encoder_layers": 6, "decoder_layers": 6, "vocab_size": 32_000},
                  TOKENS),
        "dpt": ("dpt", {"num_hidden_layers": 6}, ("pixel_values", (3, 384, 384))),
        "lfm2": ("lfm2", {**SMALL, "intermediate_size": 2816, "num_key_value_heads": 4}, WORDS),
        "olmo2_step": ("olmo2", {**SMALL, "intermediate_size": 2816, "num_key_value_heads": 16},
                       ("input_ids", (1,))),
    },
)  # fmt: skip
# Ordinary networks, at one image and in f32 too.
SIXTH = Draw(
    images=(
        "mnasnet_100", "fbnetc_100", "ghostnetv2_100", "gernet_s", "repghostnet_100",
        "sebotnet33ts_256", "deit_tiny_distilled_patch16_224", "cspresnext50", "darknet53",
        "dm_nfnet_f0", "mobilenetv4_hybrid_medium", "tinynet_a", "skresnext50_32x4d",
        "vit_tiny_r_s16_p8_224", "vitamin_small_224", "shvit_s1", "swin_s3_tiny_224",
        "caformer_s18", "twins_pcpvt_small", "pvt_v2_b2_li", "convnext_zepto_rms",
        "efficientformerv2_s0", "vovnet39a", "efficientnet_es",
    ),
    others={
        "persimmon": ("persimmon", {**SMALL, "intermediate_size": 4096}, WORDS),
        "biogpt": ("biogpt", {**SMALL, "intermediate_size": 4096}, WORDS),
        "funnel": ("funnel", {"vocab_size": 32_000, "architectures": ["FunnelModel"]}, TOKENS),
        "deberta1": ("deberta", {"num_hidden_layers": 6, "vocab_size": 32_000}, TOKENS),
        "data2vec": ("data2vec-audio", {"num_hidden_layers": 6}, SOUND),
        "smollm3": ("smollm3", {**SMALL, "intermediate_size": 2816, "num_key_value_heads": 4,
                                "pad_token_id": 0}, WORDS),
        "cvt": ("cvt", {}, PIXELS),
        "splinter": ("splinter", {"num_hidden_layers": 6}, TOKENS),
        "arcee_step": ("arcee", {**SMALL, "intermediate_size": 4096, "num_key_value_heads": 4,
                                 "head_dim": 64}, ("input_ids", (1,))),
        "exaone4": ("exaone4", {**SMALL, "intermediate_size": 2816, "num_key_value_heads": 4,
                                "sliding_window": 64}, WORDS),
        "sam_vision": ("sam_vision_model", {"hidden_size": 384, "num_hidden_layers": 4,
                                            "num_attention_heads": 6, "image_size": 512,
                                            "global_attn_indexes": [3]},
                       ("pixel_values", (3, 512, 512))),
        "canine": ("canine", {"num_hidden_layers": 4}, WORDS),
    },
)  # fmt: skip
DRAWS = (FIRST, SECOND, THIRD, FOURTH, FIFTH, SIXTH)
