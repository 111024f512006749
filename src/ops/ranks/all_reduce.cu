/* all_reduce on CUDA, for the few numbers that ranks agree on (loss, norm, scales): gathers the values of all ranks, then each rank adds
 * them in the order of ranks, in fp32, and rounds once. So the bits are the CPU's and the same on all ranks, whatever the links. */
#include "device/cuda/ranks.h"
#include "device/cuda/vec.cuh"
#include "ops/attrs.h"

enum { THREADS = 256 };

/* all: (ranks, count) -> x (count). A maximum over numbers that include a NaN is NaN. */
template <typename T> static __global__ void reduce_ranks(T *x, const T *all, int64_t count, int64_t ranks, bool max)
{
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += (int64_t)gridDim.x * THREADS) {
        float sum = to_float(all[i]);
        for (int64_t r = 1; r < ranks; r++) {
            float value = to_float(all[r * count + i]);
            sum = !max ? sum + value : value > sum || isnan(value) ? value : sum;
        }
        x[i] = from_float<T>(sum);
    }
}

static Status all_reduce_run(const KernelArgs *args)
{
    const AllReduceAttrs *attrs = (const AllReduceAttrs *)args->attrs;
    CudaDevice           *cuda = (CudaDevice *)args->device;
    const TensorView     *x = &args->out[0];
    int64_t               count = type_numel(&x->type);
    TRY(cuda_ranks_check(cuda, attrs->ranks));
    if (attrs->ranks == 1) return OK;
    TRY(cuda_ranks_all_gather(cuda, x->data, args->workspace, (size_t)type_bytes(&x->type), cuda_stream(args)));
    CUDA_FLOAT(x->type.dtype, T,
               reduce_ranks<T><<<cuda_grid(count, THREADS), THREADS, 0, cuda_stream(args)>>>((T *)x->data, (const T *)args->workspace,
                                                                                             count, attrs->ranks, attrs->max));
    return CUDA_LAUNCHED();
}

static bool is_by_copies(const Node *node, CudaDevice *device)
{
    return cuda_ranks_gather_by_copies(device, ((const AllReduceAttrs *)node->attrs)->ranks);
}

CUDA_KERNELS(all_reduce,
             {.dtypes = DT_SET_FLOAT, .run = all_reduce_run, .name = "copies", .workspace = cuda_planned_workspace, .match = is_by_copies},
             {.dtypes = DT_SET_FLOAT, .run = all_reduce_run, .name = "nccl", .workspace = cuda_planned_workspace})
