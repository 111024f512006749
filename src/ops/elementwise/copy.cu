/* copy on CUDA: cudaMemcpyAsync, which a copy engine runs concurrently with kernels if one end is pinned host memory. In a CUDA graph it
 * is a copy node. */
#include "device/cuda/kernel.h"

static Status copy_run(const KernelArgs *args)
{
    size_t bytes = (size_t)type_bytes(&args->out[0].type);
    CUDA_TRY(cudaMemcpyAsync(args->out[0].data, args->in[0].data, bytes, cudaMemcpyDefault, cuda_stream(args)));
    return OK;
}

CUDA_KERNELS(copy, {.dtypes = DT_SET_ANY, .run = copy_run, .name = "memcpy"})
