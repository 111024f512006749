/* gather on CUDA: NCCL's, of bytes; a copy where there is one rank. */
#include "device/cuda/nccl.h"
#include "ops/attrs.h"

static Status gather_run(const KernelArgs *args)
{
    const RanksAttrs *attrs = (const RanksAttrs *)args->attrs;
    CudaDevice       *cuda = (CudaDevice *)args->device;
    size_t            bytes = (size_t)type_bytes(&args->in[0].type);
    TRY(cuda_nccl_check(cuda, attrs->ranks));
    if (attrs->ranks > 1) return cuda_nccl_all_gather(cuda, args->in[0].data, args->out[0].data, bytes, cuda_stream(args));
    CUDA_TRY(cudaMemcpyAsync(args->out[0].data, args->in[0].data, bytes, cudaMemcpyDefault, cuda_stream(args)));
    return OK;
}

CUDA_KERNELS(gather, {.dtypes = DT_SET_ANY, .run = gather_run, .name = "nccl"})
