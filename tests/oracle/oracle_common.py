"""What the oracle scripts share: Hugging Face models made to compute in double precision, packed batches, comparison.

transformers computes norms, rotary angles and (eager) softmax in float32 whatever the model's dtype is, so that
`model.double()` alone is no fp64 reference. exact() replaces those parts by the formulas written out in fp64.
"""
import math

import torch
import torch.nn.functional as F
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

IGNORE = -100


def inverse_frequencies(config, layer_type=None):
    """Rotary inverse frequencies [head_dim / 2] in fp64 for the rope types `default`, `linear` and `llama3`."""
    rope = config.rope_parameters[layer_type] if layer_type else config.rope_parameters
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    inv = torch.tensor([rope["rope_theta"] ** (-i / dim) for i in range(0, dim, 2)], dtype=torch.float64)
    if rope["rope_type"] in ("default", "linear"):
        return inv / rope.get("factor", 1.0)
    assert rope["rope_type"] == "llama3", rope
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    out = []
    for f in inv.tolist():
        turns = rope["original_max_position_embeddings"] * f / (2 * math.pi)
        keep = min(1.0, max(0.0, (turns - low) / (high - low)))
        out.append(keep * f + (1 - keep) * f / rope["factor"])
    return torch.tensor(out, dtype=torch.float64)


def exact_attention(module, query, key, value, attention_mask, scaling, softcap=None, **_):
    """Eager attention that stays in the dtype it is given."""
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], dim=1) for x in (key, value))
    scores = query @ key.transpose(2, 3) * scaling
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    weights = F.softmax(scores + attention_mask, dim=-1, dtype=scores.dtype)
    return (weights @ value).transpose(1, 2).contiguous(), weights


AttentionInterface.register("exact", exact_attention)
AttentionMaskInterface.register("exact", eager_mask)


def implementation(config):
    """Of attention, to load a model with; sdpa has no cap of the scores."""
    return "eager" if getattr(config, "attn_logit_softcapping", None) else "sdpa"


def exact_norm(module):
    """Gemma's have weights around 0."""
    eps = getattr(module, "variance_epsilon", None) or module.eps
    offset = 1.0 if type(module).__name__.startswith("Gemma") else 0.0
    return lambda x: (offset + module.weight) * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps))


def exact_rotary(module, theirs):
    """theirs: its frequencies, by the name of their buffer."""
    kinds = module.layer_types if isinstance(getattr(module, "layer_types", None), list) else [None]
    inv = {kind: inverse_frequencies(module.config, kind) for kind in kinds}
    for kind in kinds:
        near = theirs["%sinv_freq" % (kind + "_" if kind else "")]
        assert torch.allclose(inv[kind], near, rtol=1e-6, atol=0), "rope differs from transformers"

    def rotary(x, position_ids, layer_type=None):
        angle = position_ids[..., None].double() * inv[layer_type]
        angle = torch.cat((angle, angle), dim=-1)
        return angle.cos(), angle.sin()
    return rotary


def exact(model):
    """Turns a freshly loaded model into its fp64 self, in place. Checks the frequencies against its own."""
    theirs = {n: b.double() for n, b in model.named_buffers()}
    model.double()
    if implementation(model.config) == "eager":
        model.config._attn_implementation = "exact"
    for name, module in model.named_modules():
        kind = type(module).__name__
        if kind.endswith("RMSNorm"):
            module.forward = exact_norm(module)
        elif kind.endswith("RotaryEmbedding"):
            module.forward = exact_rotary(module, {n[len(name) + 1:]: b for n, b in theirs.items() if n.startswith(name + ".")})
        elif kind.endswith("ScaledWordEmbedding"):
            module.embed_scale = torch.tensor(module.scalar_embed_scale, dtype=torch.float64)
    return model


def document_mask(doc_start, window=None):
    """doc_start [B, T] -> bool [B, 1, T, T]: query t sees keys doc_start[t] .. t, of these the last `window`."""
    t = torch.arange(doc_start.shape[1])
    seen = (t[None, None, :] <= t[None, :, None]) & (t[None, None, :] >= doc_start[:, :, None])
    return (seen & (t[None, None, :] > t[None, :, None] - (window or len(t))))[:, None]


def document_masks(config, doc_start, dtype):
    """What a model takes: one mask, or one for each kind of layer."""
    def mask(window):
        seen = document_mask(doc_start, window)
        return torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, -torch.inf)

    window = getattr(config, "sliding_window", None)
    if "sliding_attention" in (getattr(config, "layer_types", None) or []):
        return dict(full_attention=mask(None), sliding_attention=mask(window))
    return mask(None if getattr(config, "layer_types", None) else window)


def forward(model, batch):
    """Logits [B, T, V]. batch: ids, position_ids, doc_start, each int [B, T]."""
    dtype = next(model.parameters()).dtype
    mask = document_masks(model.config, batch["doc_start"], dtype)
    return model(input_ids=batch["ids"], position_ids=batch["position_ids"], attention_mask=mask,
                 use_cache=False).logits


def mean_loss(logits, labels):
    """Mean over labels that aren't IGNORE; labels are already shifted."""
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1).long(), ignore_index=IGNORE)


def error(ours, reference):
    """max|difference| / max|reference|."""
    return float((ours.double() - reference.double()).abs().max() / reference.double().abs().max())
