/* reduce_scatter on CUDA.
 *
 * copies: copies the other ranks' parts of the share to workspace, piece by piece, adds them in the order of ranks in fp32, and rounds
 * once: the bits are the CPU's.
 * nccl: NCCL's sum; to accumulate, NCCL writes to workspace first. */
#include "device/cuda/nccl.h"
#include "device/cuda/peer.h"
#include "device/cuda/ranks.h"
#include "device/cuda/vec.cuh"
#include "ops/attrs.h"
#include "ops/ranks/reduce_pieces.h"

enum { THREADS = 256, EACH = 8 };

/* out += x, both (count). Memory traffic: both read, out written. */
template <typename T> static __global__ void add_to(T *out, const T *x, int64_t count)
{
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += (int64_t)gridDim.x * THREADS)
        out[i] = from_float<T>(to_float(out[i]) + to_float(x[i]));
}

typedef struct Parts {
    const void *of[CUDA_MOST_PEERS]; /* by rank */
} Parts;

/* Sums `ranks` parts of (count), in the order of ranks. Stores the sum in out or, with `adds`, rounds it and adds it to out. wide: all
 * pointers are 16-byte aligned. Memory traffic: each part read, out written (with `adds` also read). `parts` is a __grid_constant__, so
 * that indexing it needs no copy in local memory. */
template <typename T>
static __global__ void sum_parts(T *out, const __grid_constant__ Parts parts, int ranks, int64_t count, bool adds, bool wide)
{
    for (int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * EACH; i < count; i += (int64_t)gridDim.x * THREADS * EACH) {
        int64_t  n = count - i;
        bool     whole = wide && n >= EACH;
        float    sum[EACH];
        Eight<T> part;
        part.load((const T *)parts.of[0] + i, whole, n);
        for (int k = 0; k < EACH; k++) sum[k] = part.get(k);
        for (int r = 1; r < ranks; r++) {
            part.load((const T *)parts.of[r] + i, whole, n);
            for (int k = 0; k < EACH; k++) sum[k] += part.get(k);
        }
        if (adds) {
            part.load(out + i, whole, n);
            for (int k = 0; k < EACH; k++) sum[k] = part.get(k) + to_float(from_float<T>(sum[k]));
        }
        store_eight(out + i, sum, whole, n);
    }
}

/* Reduces elements [at, at + count) of the share. whole: by rank, the address of its x. */
static Status reduce_piece(const KernelArgs *args, const void *const *whole, int64_t at, int64_t count)
{
    const RanksAttrs *attrs = (const RanksAttrs *)args->attrs;
    const TensorView *out = &args->out[0];
    const DType       dtype = out->type.dtype;
    const int         ranks = (int)attrs->ranks, rank = cuda_ranks_rank((CudaDevice *)args->device);
    int64_t           share = type_numel(&out->type), from = dtype_bytes(dtype, rank * share + at);
    char             *to = (char *)out->data + dtype_bytes(dtype, at);
    bool              wide = (uintptr_t)to % 16 == 0;
    Parts             parts = {};
    for (int i = 0; i < ranks; i++) {
        int         other = (rank + i) % ranks;
        const char *part = (const char *)whole[other] + from;
        if (i > 0) {
            char *piece = (char *)args->workspace + (size_t)(i - 1) * reduce_piece_bytes(dtype, share, ranks);
            CUDA_TRY(cudaMemcpyAsync(piece, part, (size_t)dtype_bytes(dtype, count), cudaMemcpyDefault, cuda_stream(args)));
            part = piece;
        }
        parts.of[other] = part;
        wide = wide && (uintptr_t)part % 16 == 0;
    }
    CUDA_FLOAT(dtype, T,
               sum_parts<T><<<cuda_grid(count, THREADS * EACH), THREADS, 0, cuda_stream(args)>>>((T *)to, parts, ranks, count,
                                                                                                 args->accumulate & 1, wide));
    return CUDA_LAUNCHED();
}

static Status reduce_by_copies(const KernelArgs *args)
{
    const RanksAttrs *attrs = (const RanksAttrs *)args->attrs;
    CudaDevice       *cuda = (CudaDevice *)args->device;
    const TensorView *x = &args->in[0];
    const TensorType *share = &args->out[0].type;
    const void       *whole[CUDA_MOST_PEERS];
    int64_t           count = type_numel(share), piece = reduce_piece_numel(share->dtype, count, attrs->ranks);
    TRY(cuda_ranks_check(cuda, attrs->ranks));
    TRY(cuda_peers_begin_reads(cuda, x->data, (size_t)type_bytes(&x->type), whole, cuda_stream(args)));
    for (int64_t at = 0; at < count; at += piece) TRY(reduce_piece(args, whole, at, count - at < piece ? count - at : piece));
    return cuda_peers_end_reads(cuda, cuda_stream(args));
}

static Status reduce_by_nccl(const KernelArgs *args)
{
    const RanksAttrs *attrs = (const RanksAttrs *)args->attrs;
    CudaDevice       *cuda = (CudaDevice *)args->device;
    const TensorView *out = &args->out[0];
    cudaStream_t      stream = cuda_stream(args);
    int64_t           count = type_numel(&out->type);
    bool              adds = args->accumulate & 1, alone = attrs->ranks == 1;
    const void       *sum = args->in[0].data;
    TRY(cuda_ranks_check(cuda, attrs->ranks));
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

static bool is_by_copies(const Node *node, CudaDevice *device)
{
    return cuda_ranks_reduce_by_copies(device, ((const RanksAttrs *)node->attrs)->ranks);
}

static size_t copies_workspace(const Node *node, CudaDevice *device)
{
    (void)device;
    return reduce_pieces_bytes(node, ((const RanksAttrs *)node->attrs)->ranks);
}

static size_t nccl_workspace(const Node *node, CudaDevice *device)
{
    const RanksAttrs *attrs = (const RanksAttrs *)node->attrs;
    (void)device;
    return node->in[1] && attrs->ranks > 1 ? (size_t)type_bytes(&node->out[0]->type) : 0;
}

CUDA_KERNELS(reduce_scatter,
             {.dtypes = DT_SET_FLOAT, .run = reduce_by_copies, .name = "copies", .workspace = copies_workspace, .match = is_by_copies},
             {.dtypes = DT_SET_FLOAT, .run = reduce_by_nccl, .name = "nccl", .workspace = nccl_workspace})
