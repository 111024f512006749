/* Causal attention through cuDNN's graph interface, for rows that are one document each. bf16, head dims 64 and 128, and 256 on compute
 * capability 9.0. */
#pragma once

#include "device/cuda/kernel.h"

/* Strides are in elements; elements of one head are contiguous. Packed rows: q, k, v are in one buffer and have the same strides. */
typedef struct CudaSdpa {
    int64_t     batch, len, num_heads, num_kv_heads, dim;
    int64_t     q_stride, kv_stride;   /* from one token to the next; rows of the batch are len tokens apart */
    int64_t     dq_stride, dkv_stride; /* for backward */
    float       scale;
    bool        backward;
    const void *q, *k, *v;
    void       *o;   /* (B,T,H,D); an input of backward */
    float      *lse; /* (B,H,T); an input of backward */
    const void *grad_o;
    void       *dq, *dk, *dv;
} CudaSdpa;

#ifdef __cplusplus
extern "C" {
#endif
/* Whether cuDNN is present and has a plan for these dims and strides; pointers are ignored. The first call builds the plan (up to a
 * second), or notes that it can't. */
bool   cuda_sdpa_supported(CudaDevice *device, const CudaSdpa *sdpa);
size_t cuda_sdpa_workspace(CudaDevice *device, const CudaSdpa *sdpa); /* bytes, for a supported one */
Status cuda_sdpa_run(CudaDevice *device, const CudaSdpa *sdpa, void *workspace, void *stream);
void   cuda_sdpa_close(CudaDevice *device);
#ifdef __cplusplus
}
#endif
