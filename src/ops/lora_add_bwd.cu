/* lora_add_bwd on CUDA: a matrix product a member. */
#include "ops/lora.cuh"

enum { IN_DY, IN_H, IN_B, OUT_DH = 0, OUT_DB = 1 };

/* The wanted products, those of dh first. */
static int gemms_of_views(const LoraAttrs *attrs, const TensorView *in, const TensorView *dh, const TensorView *db,
                          bool accumulate, CudaGemm *out)
{
    int count = dh ? lora_gemms(LORA_DH, attrs, &in[IN_DY], dh, &in[IN_B], out) : 0;
    int end = count + (db ? lora_gemms(LORA_DB, attrs, &in[IN_DY], &in[IN_H], db, out + count) : 0);
    for (int i = count; i < end; i++) out[i].accumulate = accumulate;
    return end;
}

static int gemms_of_node(const Node *node, CudaGemm *out)
{
    TensorView in[3], result[2];
    for (int i = 0; i < 3; i++) in[i] = lora_view(node->in[i]);
    for (int k = 0; k < 2; k++)
        if (node->out[k]) result[k] = lora_view(node->out[k]);
    return gemms_of_views((const LoraAttrs *)node->attrs, in, node->out[OUT_DH] ? &result[OUT_DH] : NULL,
                          node->out[OUT_DB] ? &result[OUT_DB] : NULL, node_accumulate_mask(node) >> OUT_DB & 1, out);
}

static int gemms_of_args(const KernelArgs *args, CudaGemm *out)
{
    const TensorView *dh = &args->out[OUT_DH], *db = &args->out[OUT_DB];
    return gemms_of_views((const LoraAttrs *)args->attrs, args->in, dh->data ? dh : NULL, db->data ? db : NULL,
                          args->accumulate >> OUT_DB & 1, out);
}

static bool cublas_match(const Node *node, CudaDevice *device)
{
    CudaGemm gemms[2 * LORA_MAX_MEMBERS];
    return lora_gemms_supported(device, gemms, gemms_of_node(node, gemms));
}

static size_t cublas_workspace(const Node *, CudaDevice *)
{
    return LORA_GEMM_WORKSPACE;
}

static Status cublas_prepare(const KernelArgs *args)
{
    CudaGemm gemms[2 * LORA_MAX_MEMBERS];
    return lora_gemms_prepare(args, gemms, gemms_of_args(args, gemms));
}

static Status cublas_run(const KernelArgs *args)
{
    CudaGemm gemms[2 * LORA_MAX_MEMBERS];
    return lora_gemms_run(args, gemms, gemms_of_args(args, gemms));
}

static Status plain_run(const KernelArgs *args)
{
    CudaGemm gemms[2 * LORA_MAX_MEMBERS];
    return lora_gemms_plain(args, gemms, gemms_of_args(args, gemms));
}

CUDA_KERNELS(lora_add_bwd,
             {.dtypes = DT_SET_FLOAT,
              .run = cublas_run,
              .name = "cublaslt",
              .workspace = cublas_workspace,
              .match = cublas_match,
              .prepare = cublas_prepare},
             {.dtypes = DT_SET_FLOAT, .run = plain_run, .name = "plain"})
