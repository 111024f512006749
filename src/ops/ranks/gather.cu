/* gather on CUDA: copies from the other ranks' memory, or NCCL's all-gather of bytes; with one rank a plain copy. */
#include "device/cuda/ranks.h"
#include "ops/attrs.h"

static Status gather_run(const KernelArgs *args)
{
    const RanksAttrs *attrs = (const RanksAttrs *)args->attrs;
    CudaDevice       *cuda = (CudaDevice *)args->device;
    size_t            bytes = (size_t)type_bytes(&args->in[0].type);
    TRY(cuda_ranks_check(cuda, attrs->ranks));
    if (attrs->ranks > 1) return cuda_ranks_all_gather(cuda, args->in[0].data, args->out[0].data, bytes, cuda_stream(args));
    CUDA_TRY(cudaMemcpyAsync(args->out[0].data, args->in[0].data, bytes, cudaMemcpyDefault, cuda_stream(args)));
    return OK;
}

static bool is_by_copies(const Node *node, CudaDevice *device)
{
    return cuda_ranks_gather_by_copies(device, ((const RanksAttrs *)node->attrs)->ranks);
}

CUDA_KERNELS(gather, {.dtypes = DT_SET_ANY, .run = gather_run, .name = "copies", .match = is_by_copies},
             {.dtypes = DT_SET_ANY, .run = gather_run, .name = "nccl"})
