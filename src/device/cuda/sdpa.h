/* Causal attention of whole rows (one document a row) through cuDNN's graph interface: bf16, head dims of 64 and 128, and of 256 on
 * compute capability 9.0. */
#pragma once

#include "device/cuda/kernel.h"

/* Strides in elements; a head's vector is dense. Packed rows: q, k, v of one buffer with the same strides. */
typedef struct CudaSdpa {
    int64_t     batch, len, num_heads, num_kv_heads, dim;
    int64_t     q_stride, kv_stride;   /* from a token to the next; batch rows are len tokens apart */
    int64_t     dq_stride, dkv_stride; /* backward */
    float       scale;
    bool        backward;
    const void *q, *k, *v;
    void       *o;   /* (B,T,H,D); backward: read */
    float      *lse; /* (B,H,T); backward: read */
    const void *grad_o;
    void       *dq, *dk, *dv;
} CudaSdpa;

#ifdef __cplusplus
extern "C" {
#endif
/* Whether cuDNN is there and has a plan for these dims and strides; data aside. Builds it (up to a second), or fails
 * once. */
bool   cuda_sdpa_supported(CudaDevice *device, const CudaSdpa *sdpa);
size_t cuda_sdpa_workspace(CudaDevice *device, const CudaSdpa *sdpa); /* of a supported one */
Status cuda_sdpa_run(CudaDevice *device, const CudaSdpa *sdpa, void *workspace, void *stream);
void   cuda_sdpa_close(CudaDevice *device);
#ifdef __cplusplus
}
#endif
