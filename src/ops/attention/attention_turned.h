/* attention_turned: its operands, and its fallback to two launches, for CPU and CUDA. */
#pragma once

#include "ops/attrs.h"

#ifdef __cplusplus
#include "device/cuda/kernel.h"
#else
#include "ir/op.h"
#endif

enum { TURNED_QKV, TURNED_KC, TURNED_VC, TURNED_STARTS, TURNED_PAGES, TURNED_WQ, TURNED_WK, TURNED_TABLE, TURNED_POSITIONS, TURNED_IN };

typedef struct TurnedAttrs {
    AttentionAttrs attention;
    double         eps, offset; /* as in qkv_norm_rope */
} TurnedAttrs;

static inline QkvAttrs turned_qkv_attrs(const TurnedAttrs *attrs)
{
    const AttentionAttrs *a = &attrs->attention;
    QkvAttrs              qkv = {a->num_heads, a->num_kv_heads, a->head_dim, attrs->eps, attrs->offset, 0, 0};
    return qkv;
}

/* Bytes of the rotated rows, which are at the beginning of the workspace. */
static inline size_t turned_bytes(const TensorType *qkv)
{
    return ((size_t)type_bytes(qkv) + 255) / 256 * 256;
}

/* Computes the op by two launches. turn: the kernel of qkv_norm_rope; attend: the kernel of attention_cached. */
static inline Status turned_apart(const KernelArgs *args, KernelFn turn, KernelFn attend)
{
    const TurnedAttrs *attrs = (const TurnedAttrs *)args->attrs;
    const TensorView  *in = args->in;
    QkvAttrs           qkv = turned_qkv_attrs(attrs);
    TensorView         rows[] = {in[TURNED_QKV], in[TURNED_WQ], in[TURNED_WK], in[TURNED_TABLE], in[TURNED_POSITIONS]};
    TensorView         turned[] = {in[TURNED_QKV], in[TURNED_QKV]}, none = in[TURNED_QKV];
    KernelArgs         first = *args, second = *args;
    turned[0].data = args->workspace, turned[1].data = NULL, none.data = NULL;
    first.in = rows, first.num_in = 5, first.out = turned, first.num_out = 2, first.attrs = &qkv;
    first.constant = args->constant >> TURNED_WQ << 1;
    TensorView cached[] = {turned[0], none, none, in[TURNED_KC], in[TURNED_VC], in[TURNED_STARTS], in[TURNED_PAGES], none, none};
    second.in = cached, second.num_in = 9, second.attrs = &attrs->attention;
    second.constant = args->constant >> TURNED_KC << 3;
    second.workspace = (char *)args->workspace + turned_bytes(&in[TURNED_QKV].type);
    second.workspace_bytes -= turned_bytes(&in[TURNED_QKV].type);
    Status status = turn(&first);
    return status == OK ? attend(&second) : status;
}
