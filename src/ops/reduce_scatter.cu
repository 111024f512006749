/* reduce_scatter on CUDA: NCCL's sum; where it is added to what is there, NCCL writes to workspace first. */
#include "device/cuda/nccl.h"
#include "device/cuda/vec.cuh"
#include "ops/attrs.h"

enum { THREADS = 256, EACH = 8 };

/* out += x, both (count). Memory: each read, out written. */
template <typename T> static __global__ void add_to(T *out, const T *x, int64_t count)
{
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += (int64_t)gridDim.x * THREADS)
        out[i] = from_float<T>(to_float(out[i]) + to_float(x[i]));
}

static Status reduce_scatter_run(const KernelArgs *args)
{
    const RanksAttrs *attrs = (const RanksAttrs *)args->attrs;
    CudaDevice       *cuda = (CudaDevice *)args->device;
    const TensorView *out = &args->out[0];
    cudaStream_t      stream = cuda_stream(args);
    int64_t           count = type_numel(&out->type);
    bool              adds = args->accumulate & 1, alone = attrs->ranks == 1;
    const void       *sum = args->in[0].data;
    TRY(cuda_nccl_check(cuda, attrs->ranks));
    if (!alone) {
        void *to = adds ? args->workspace : out->data;
        TRY(cuda_nccl_reduce_scatter(cuda, sum, to, (size_t)count, out->type.dtype, stream));
        sum = to;
    } else if (!adds) {
        CUDA_TRY(cudaMemcpyAsync(out->data, sum, (size_t)type_bytes(&out->type), cudaMemcpyDefault, stream));
    }
    if (adds)
        CUDA_FLOAT(out->type.dtype, T,
                   add_to<T><<<cuda_grid(count, THREADS * EACH), THREADS, 0, stream>>>((T *)out->data, (const T *)sum, count));
    return CUDA_LAUNCHED();
}

static size_t reduce_scatter_workspace(const Node *node, CudaDevice *device)
{
    const RanksAttrs *attrs = (const RanksAttrs *)node->attrs;
    (void)device;
    return node->in[1] && attrs->ranks > 1 ? (size_t)type_bytes(&node->out[0]->type) : 0;
}

CUDA_KERNELS(reduce_scatter, {.dtypes = DT_SET_FLOAT, .run = reduce_scatter_run, .name = "nccl", .workspace = reduce_scatter_workspace})
