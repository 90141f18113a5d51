"""Real architectures as factories: `fuseledger plan examples/models.py:llama3_8b_block`.

Each factory returns `(module, example_inputs)` or `(module, example_inputs, keyword_inputs)`. They
are built from configurations, with no download, and fuseledger calls them on fake tensors, so that
none of them takes memory. Sizes are those of the published models.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

BF16, FP16 = torch.bfloat16, torch.float16
Inputs = tuple[Any, ...]


def _llama3_8b_config(layers: int) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        hidden_size=4096, intermediate_size=14336, num_hidden_layers=layers, num_attention_heads=32,
        num_key_value_heads=8, vocab_size=128256, max_position_embeddings=8192, use_cache=False,
        rms_norm_eps=1e-5,
    )  # fmt: skip


def _llama3_70b_config(layers: int) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        hidden_size=8192, intermediate_size=28672, num_hidden_layers=layers, num_attention_heads=64,
        num_key_value_heads=8, vocab_size=128256, max_position_embeddings=8192, use_cache=False,
        rms_norm_eps=1e-5,
    )  # fmt: skip


def _qwen3_8b_config(layers: int) -> Any:
    from transformers import Qwen3Config

    return Qwen3Config(
        hidden_size=4096, intermediate_size=12288, num_hidden_layers=layers, num_attention_heads=32,
        num_key_value_heads=8, head_dim=128, vocab_size=151936, use_cache=False,
    )  # fmt: skip


def _mixtral_8x7b_config(layers: int) -> Any:
    from transformers import MixtralConfig

    return MixtralConfig(
        hidden_size=4096, intermediate_size=14336, num_hidden_layers=layers, num_attention_heads=32,
        num_key_value_heads=8, num_local_experts=8, num_experts_per_tok=2, vocab_size=32000,
        use_cache=False,
    )  # fmt: skip


def _causal_lm(config: Any, **options: Any) -> nn.Module:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_config(config, dtype=BF16, **options).eval()


class DecoderBlocks(nn.Module):
    """The decoder layers of a causal language model, without embedding and head."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.layers: Any = model.model.layers
        self.rotary_emb: Any = model.model.rotary_emb

    def forward(self, hidden: Tensor) -> Tensor:
        """Causal self-attention over the whole of `hidden` [batch, tokens, width]."""
        positions = torch.arange(hidden.shape[1], device=hidden.device)[None]
        rotary = self.rotary_emb(hidden, positions)
        for layer in self.layers:
            hidden = layer(hidden, position_embeddings=rotary, position_ids=positions)
        return hidden


class CachedDecoder(nn.Module):
    """One decoding step: a new token attends to a cache of keys and values.

    The cache is an input, [batch, key-value heads, tokens, head size] twice a layer; appending the
    new token to it is not part of the module.
    """

    def __init__(
        self, blocks: nn.Module, head: nn.Module | None, embedding: nn.Module | None
    ) -> None:
        super().__init__()
        self.blocks: Any = blocks
        self.head = head
        self.embedding = embedding

    def forward(self, new: Tensor, *cache: Tensor) -> Tensor:
        """Hidden states [batch, 1, width], or logits from a token [batch, 1]."""
        from transformers import DynamicCache

        hidden = self.embedding(new) if self.embedding is not None else new
        past = DynamicCache()
        for layer in range(len(cache) // 2):
            past.update(cache[2 * layer], cache[2 * layer + 1], layer)
        positions = torch.full((1, 1), cache[0].shape[2], device=new.device)
        rotary = self.blocks.rotary_emb(hidden, positions)
        for layer in self.blocks.layers:
            hidden = layer(
                hidden, position_embeddings=rotary, position_ids=positions, past_key_values=past
            )
        return self.head(hidden) if self.head is not None else hidden


def _cache(layers: int, tokens: int) -> Inputs:
    return tuple(torch.zeros(1, 8, tokens, 128, dtype=BF16) for _ in range(2 * layers))


def llama3_8b_block() -> tuple[nn.Module, Inputs]:
    """One Llama-3-8B decoder layer, prefill of 2,048 tokens."""
    return DecoderBlocks(_causal_lm(_llama3_8b_config(1))), (
        torch.zeros(1, 2048, 4096, dtype=BF16),
    )


def llama3_8b_block_decode() -> tuple[nn.Module, Inputs]:
    """One Llama-3-8B decoder layer, one token against 2,048 cached ones."""
    blocks = DecoderBlocks(_causal_lm(_llama3_8b_config(1)))
    new = torch.zeros(1, 1, 4096, dtype=BF16)
    return CachedDecoder(blocks, None, None), (new, *_cache(1, 2048))


def llama3_70b_block() -> tuple[nn.Module, Inputs]:
    """One Llama-3-70B decoder layer, prefill of 2,048 tokens."""
    blocks = DecoderBlocks(_causal_lm(_llama3_70b_config(1)))
    return blocks, (torch.zeros(1, 2048, 8192, dtype=BF16),)


def llama3_8b() -> tuple[nn.Module, Inputs]:
    """Llama-3-8B, 32 layers, prefill of 2,048 tokens."""
    return _causal_lm(_llama3_8b_config(32)), (torch.zeros(1, 2048, dtype=torch.int64),)


def llama3_8b_decode() -> tuple[nn.Module, Inputs]:
    """Llama-3-8B, 32 layers, one token against 2,048 cached ones."""
    model: Any = _causal_lm(_llama3_8b_config(32))
    head = nn.Sequential(model.model.norm, model.lm_head)
    decoder = CachedDecoder(DecoderBlocks(model), head, model.model.embed_tokens)
    return decoder, (torch.zeros(1, 1, dtype=torch.int64), *_cache(32, 2048))


def qwen3_8b_block() -> tuple[nn.Module, Inputs]:
    """One Qwen3-8B decoder layer (QK-norm), prefill of 2,048 tokens."""
    return DecoderBlocks(_causal_lm(_qwen3_8b_config(1))), (torch.zeros(1, 2048, 4096, dtype=BF16),)


def mixtral_8x7b_block() -> tuple[nn.Module, Inputs]:
    """One Mixtral-8x7B decoder layer, 512 tokens, experts as grouped matrix products."""
    model = _causal_lm(_mixtral_8x7b_config(1), experts_implementation="grouped_mm")
    return DecoderBlocks(model), (torch.zeros(1, 512, 4096, dtype=BF16),)


def bert_base() -> tuple[nn.Module, Inputs, dict[str, Any]]:
    """BERT-base, batch 8 of 512 tokens."""
    from transformers import AutoModel, BertConfig

    tokens = torch.zeros(8, 512, dtype=torch.int64)
    model = AutoModel.from_config(BertConfig(), dtype=FP16).eval()
    return (
        model,
        (tokens,),
        {"attention_mask": torch.ones(8, 512, dtype=torch.int64), "return_dict": False},
    )


def gpt2() -> tuple[nn.Module, Inputs, dict[str, Any]]:
    """GPT-2 (124M), 1,024 tokens."""
    from transformers import AutoModelForCausalLM, GPT2Config

    model = AutoModelForCausalLM.from_config(GPT2Config(), dtype=FP16).eval()
    tokens = torch.zeros(1, 1024, dtype=torch.int64)
    return model, (tokens,), {"use_cache": False, "return_dict": False}


def vit_b16() -> tuple[nn.Module, Inputs, dict[str, Any]]:
    """ViT-B/16, batch 32 of 224 by 224 pixels."""
    from transformers import AutoModelForImageClassification, ViTConfig

    model = AutoModelForImageClassification.from_config(ViTConfig(), dtype=FP16).eval()
    return model, (torch.zeros(32, 3, 224, 224, dtype=FP16),), {"return_dict": False}


def convnext_tiny() -> tuple[nn.Module, Inputs, dict[str, Any]]:
    """ConvNeXt-T, batch 32 of 224 by 224 pixels."""
    from transformers import AutoModelForImageClassification, ConvNextConfig

    model = AutoModelForImageClassification.from_config(ConvNextConfig(), dtype=FP16).eval()
    return model, (torch.zeros(32, 3, 224, 224, dtype=FP16),), {"return_dict": False}


def resnet50() -> tuple[nn.Module, Inputs, dict[str, Any]]:
    """ResNet-50 in inference, batch 32 of 224 by 224 pixels."""
    from transformers import AutoModelForImageClassification, ResNetConfig

    model = AutoModelForImageClassification.from_config(ResNetConfig(), dtype=FP16).eval()
    return model, (torch.zeros(32, 3, 224, 224, dtype=FP16),), {"return_dict": False}


def t5_small() -> tuple[nn.Module, Inputs, dict[str, Any]]:
    """T5-small, 512 tokens to 128."""
    from transformers import AutoModelForSeq2SeqLM, T5Config

    model = AutoModelForSeq2SeqLM.from_config(T5Config(), dtype=BF16).eval()
    tokens = {"input_ids": (1, 512), "attention_mask": (1, 512), "decoder_input_ids": (1, 128)}
    inputs = {name: torch.ones(shape, dtype=torch.int64) for name, shape in tokens.items()}
    return model, (), {**inputs, "use_cache": False, "return_dict": False}


def whisper_small() -> tuple[nn.Module, Inputs, dict[str, Any]]:
    """Whisper-small, 30 s of audio to 128 tokens."""
    from transformers import AutoModelForSpeechSeq2Seq, WhisperConfig

    config = WhisperConfig(
        d_model=768, encoder_layers=12, decoder_layers=12, encoder_attention_heads=12,
        decoder_attention_heads=12, encoder_ffn_dim=3072, decoder_ffn_dim=3072,
    )  # fmt: skip
    model = AutoModelForSpeechSeq2Seq.from_config(config, dtype=FP16).eval()
    tokens = torch.zeros(1, 128, dtype=torch.int64)
    inputs = {"input_features": torch.zeros(1, 80, 3000, dtype=FP16), "decoder_input_ids": tokens}
    return model, (), {**inputs, "use_cache": False, "return_dict": False}


def mamba_block() -> tuple[nn.Module, Inputs]:
    """One Mamba-130M mixer block, 64 tokens, its scan as the reference loop."""
    from transformers import AutoModelForCausalLM, MambaConfig

    config = MambaConfig(hidden_size=768, num_hidden_layers=1, use_mambapy=False, use_cache=False)
    model: Any = AutoModelForCausalLM.from_config(config, dtype=BF16).eval()
    return model.backbone.layers[0], (torch.zeros(1, 64, 768, dtype=BF16),)


def unet_block() -> tuple[nn.Module, Inputs]:
    """A CrossAttnDownBlock2D of Stable Diffusion's UNet at 64 by 64, batch 2."""
    from diffusers.models.unets.unet_2d_blocks import CrossAttnDownBlock2D

    block = CrossAttnDownBlock2D(
        in_channels=320, out_channels=320, temb_channels=1280, num_layers=2, num_attention_heads=8,
        cross_attention_dim=768, downsample_padding=1,
    )  # fmt: skip
    hidden, time = torch.zeros(2, 320, 64, 64, dtype=FP16), torch.zeros(2, 1280, dtype=FP16)
    return block.to(FP16).eval(), (hidden, time, torch.zeros(2, 77, 768, dtype=FP16))


def dit_block() -> tuple[nn.Module, Inputs]:
    """A DiT-XL/2 block (adaptive layer norm), 256 tokens, batch 8."""
    from diffusers.models.attention import BasicTransformerBlock

    block = BasicTransformerBlock(
        dim=1152, num_attention_heads=16, attention_head_dim=72, num_embeds_ada_norm=1000,
        norm_type="ada_norm_zero", attention_bias=True, activation_fn="gelu-approximate",
        norm_elementwise_affine=False,
    )  # fmt: skip
    hidden, steps = torch.zeros(8, 256, 1152, dtype=FP16), torch.zeros(8, dtype=torch.int64)
    none = (None, None, None)
    return block.to(FP16).eval(), (hidden, *none, steps, None, torch.zeros(8, dtype=torch.int64))


def _timm(name: str) -> tuple[nn.Module, Inputs]:
    """A classifier of timm in inference, batch 32 of 224 by 224 pixels.

    timm imports torchvision, which fails where its compiled part does not fit the installed torch:
    a CPU build of torch beside PyPI's torchvision. No classifier calls what that part would bring,
    so its operators are then declared by name.
    """
    try:
        from timm import create_model
    except RuntimeError:
        for operator in ("nms", "qnms"):
            signature = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            torch.library.define(f"torchvision::{operator}", signature)
        from timm import create_model
    model = create_model(name, pretrained=False).eval()
    return model.half(), (torch.zeros(32, 3, 224, 224, dtype=FP16),)


def swin_tiny() -> tuple[nn.Module, Inputs]:
    """Swin-T of timm, batch 32 of 224 by 224 pixels."""
    return _timm("swin_tiny_patch4_window7_224")


def efficientnet_b0() -> tuple[nn.Module, Inputs]:
    """EfficientNet-B0 of timm, batch 32 of 224 by 224 pixels."""
    return _timm("efficientnet_b0")


def mixer_b16() -> tuple[nn.Module, Inputs]:
    """MLP-Mixer B/16 of timm, batch 32 of 224 by 224 pixels."""
    return _timm("mixer_b16_224")
