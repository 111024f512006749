/* lora_add on CUDA: a matrix product a member. */
#include "ops/lora.cuh"

static int gemms_of_node(const Node *node, CudaGemm *out)
{
    TensorView y = lora_view(node->in[0]), h = lora_view(node->in[1]), b = lora_view(node->in[2]);
    return lora_gemms(LORA_ADD, (const LoraAttrs *)node->attrs, &y, &h, &b, out);
}

static int gemms_of_args(const KernelArgs *args, CudaGemm *out)
{
    return lora_gemms(LORA_ADD, (const LoraAttrs *)args->attrs, &args->out[0], &args->in[1], &args->in[2], out);
}

static bool cublas_match(const Node *node, CudaDevice *device)
{
    CudaGemm gemms[LORA_MAX_MEMBERS];
    return lora_gemms_supported(device, gemms, gemms_of_node(node, gemms));
}

static size_t cublas_workspace(const Node *, CudaDevice *)
{
    return LORA_GEMM_WORKSPACE;
}

static Status cublas_prepare(const KernelArgs *args)
{
    CudaGemm gemms[LORA_MAX_MEMBERS];
    return lora_gemms_prepare(args, gemms, gemms_of_args(args, gemms));
}

static Status cublas_run(const KernelArgs *args)
{
    CudaGemm gemms[LORA_MAX_MEMBERS];
    return lora_gemms_run(args, gemms, gemms_of_args(args, gemms));
}

static Status plain_run(const KernelArgs *args)
{
    CudaGemm gemms[LORA_MAX_MEMBERS];
    return lora_gemms_plain(args, gemms, gemms_of_args(args, gemms));
}

CUDA_KERNELS(lora_add,
             {.dtypes = DT_SET_FLOAT,
              .run = cublas_run,
              .name = "cublaslt",
              .workspace = cublas_workspace,
              .match = cublas_match,
              .prepare = cublas_prepare},
             {.dtypes = DT_SET_FLOAT, .run = plain_run, .name = "plain"})
