"""What the oracle scripts share: Hugging Face models made to compute in double precision, packed batches, comparison.

transformers computes norms, rotary angles and (eager) softmax in float32 whatever the model's dtype is, so that
`model.double()` alone is no fp64 reference. exact() replaces those parts by the formulas written out in fp64.
"""
import math

import torch
import torch.nn.functional as F

IGNORE = -100


def inverse_frequencies(config):
    """Rotary inverse frequencies [head_dim / 2] in fp64 for the rope types `default` and `llama3`."""
    rope = config.rope_parameters
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    inv = torch.tensor([rope["rope_theta"] ** (-i / dim) for i in range(0, dim, 2)], dtype=torch.float64)
    if rope["rope_type"] == "default":
        return inv
    assert rope["rope_type"] == "llama3", rope
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    out = []
    for f in inv.tolist():
        turns = rope["original_max_position_embeddings"] * f / (2 * math.pi)
        keep = min(1.0, max(0.0, (turns - low) / (high - low)))
        out.append(keep * f + (1 - keep) * f / rope["factor"])
    return torch.tensor(out, dtype=torch.float64)


def exact(model):
    """Turns a freshly loaded Llama/Qwen model into its fp64 self, in place. Checks the frequencies against its own."""
    theirs = {n: b.double() for n, b in model.named_buffers() if n.endswith("rotary_emb.inv_freq")}
    model.double()
    for name, module in model.named_modules():
        kind = type(module).__name__
        if kind.endswith("RMSNorm"):
            module.forward = (lambda m: lambda x: m.weight * (x * torch.rsqrt(
                x.pow(2).mean(-1, keepdim=True) + m.variance_epsilon)))(module)
        elif kind.endswith("RotaryEmbedding"):
            inv = inverse_frequencies(module.config)
            assert torch.allclose(inv, theirs[name + ".inv_freq"], rtol=1e-6, atol=0), "rope differs from transformers"

            def rotary(x, position_ids, inv=inv):
                angle = position_ids[..., None].double() * inv
                angle = torch.cat((angle, angle), dim=-1)
                return angle.cos(), angle.sin()
            module.forward = rotary
    return model


def document_mask(doc_start):
    """doc_start [B, T] -> bool [B, 1, T, T]: query t sees keys doc_start[t] .. t."""
    t = torch.arange(doc_start.shape[1])
    return ((t[None, None, :] <= t[None, :, None]) & (t[None, None, :] >= doc_start[:, :, None]))[:, None]


def forward(model, batch):
    """Logits [B, T, V]. batch: ids, position_ids, doc_start, each int [B, T]."""
    dtype = next(model.parameters()).dtype
    mask = torch.zeros(document_mask(batch["doc_start"]).shape, dtype=dtype)
    mask = mask.masked_fill(~document_mask(batch["doc_start"]), -torch.inf)
    return model(input_ids=batch["ids"], position_ids=batch["position_ids"], attention_mask=mask,
                 use_cache=False).logits


def mean_loss(logits, labels):
    """Mean over labels that aren't IGNORE; labels are already shifted."""
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1).long(), ignore_index=IGNORE)


def error(ours, reference):
    """max|difference| / max|reference|."""
    return float((ours.double() - reference.double()).abs().max() / reference.double().abs().max())
