/* gather_cols on CUDA.
 *
 * copies: each rank copies the others' shares straight to their columns.
 * nccl: the shares are gathered one after another, then copied to their columns. */
#include "device/cuda/peer.h"
#include "device/cuda/ranks.h"
#include "ops/attrs.h"

/* Copies a rank's share to its columns. */
static Status put_share(const KernelArgs *args, int rank, const void *share)
{
    const TensorType *type = &args->in[0].type;
    size_t            width = (size_t)dtype_bytes(type->dtype, type->dim[1]);
    size_t            stride = (size_t)dtype_bytes(type->dtype, args->out[0].type.dim[1]);
    char             *to = (char *)args->out[0].data + dtype_bytes(type->dtype, ((const GatherColsAttrs *)args->attrs)->first);
    CUDA_TRY(cudaMemcpy2DAsync(to + (size_t)rank * width, stride, share, width, width, (size_t)type->dim[0], cudaMemcpyDefault,
                               cuda_stream(args)));
    return OK;
}

static Status gather_by_copies(const KernelArgs *args)
{
    const GatherColsAttrs *attrs = (const GatherColsAttrs *)args->attrs;
    CudaDevice            *cuda = (CudaDevice *)args->device;
    const int              ranks = (int)attrs->ranks, rank = cuda_ranks_rank(cuda);
    const void            *of[CUDA_MOST_PEERS];
    TRY(cuda_ranks_check(cuda, attrs->ranks));
    TRY(cuda_peers_begin_reads(cuda, args->in[0].data, (size_t)type_bytes(&args->in[0].type), of, cuda_stream(args)));
    for (int i = 0; i < ranks; i++) TRY(put_share(args, (rank + i) % ranks, of[(rank + i) % ranks]));
    return cuda_peers_end_reads(cuda, cuda_stream(args));
}

static Status gather_by_nccl(const KernelArgs *args)
{
    const GatherColsAttrs *attrs = (const GatherColsAttrs *)args->attrs;
    CudaDevice            *cuda = (CudaDevice *)args->device;
    size_t                 bytes = (size_t)type_bytes(&args->in[0].type);
    TRY(cuda_ranks_check(cuda, attrs->ranks));
    if (attrs->ranks == 1) return put_share(args, 0, args->in[0].data);
    TRY(cuda_ranks_all_gather(cuda, args->in[0].data, args->workspace, bytes, cuda_stream(args)));
    for (int r = 0; r < attrs->ranks; r++) TRY(put_share(args, r, (const char *)args->workspace + (size_t)r * bytes));
    return OK;
}

static bool is_by_copies(const Node *node, CudaDevice *device)
{
    return cuda_ranks_gather_by_copies(device, ((const GatherColsAttrs *)node->attrs)->ranks);
}

static size_t nccl_workspace(const Node *node, CudaDevice *)
{
    const GatherColsAttrs *attrs = (const GatherColsAttrs *)node->attrs;
    return attrs->ranks > 1 ? (size_t)(type_bytes(&node->in[0]->type) * attrs->ranks) : 0;
}

CUDA_KERNELS(gather_cols, {.dtypes = DT_SET_ANY, .run = gather_by_copies, .name = "copies", .match = is_by_copies},
             {.dtypes = DT_SET_ANY, .run = gather_by_nccl, .name = "nccl", .workspace = nccl_workspace})
