/* group_linear by mma.sync in bf16 and f16: each group's product is one chain along K in steps of 16, as in few_rows.cu. So a row has the
 * same bits for any number of rows. Other dtypes and dims take the plain kernel, whose sums run along K in order.
 *
 * A block computes ROWS rows of 4 * 8 * WIDE columns of one group; a warp has 8 * WIDE of the columns. Chunks of both operands along k are
 * in shared memory, STAGES of them in flight. A chunk of w is stored by rows of w: each row is a column of y or, if turned, an element
 * along k. */
#include "device/cuda/gemm.h"
#include "device/cuda/vec_f16.cuh"
#include "ops/mma.cuh"
#include "ops/products/group_linear.h"

enum { CHUNK = 64, ALONG = CHUNK + 8, PIECES = CHUNK / 8 };

typedef struct GroupsJob {
    const uint16_t *x, *w;
    uint16_t       *c;
    int64_t         x_stride, c_stride, w_group; /* elements between rows; w_group: between the groups' matrices */
    int             m, n, k, w_stride;
} GroupsJob;

/* Sizes of a stage: w, then x. */
template <int ROWS, int WIDE, bool TURNED> struct GroupTile {
    enum {
        COLS = MMA_WARPS * 8 * WIDE,
        W_ROWS = TURNED ? CHUNK : COLS,
        W_COLS = TURNED ? COLS : CHUNK,
        W_ALONG = W_COLS + 8,
        W_SIZE = W_ROWS * W_ALONG,
        SIZE = W_SIZE + ROWS * ALONG
    };
};

/* Begins to copy a chunk; zeros beyond the operands' ends. x, w: the operands of the block's group. */
template <int ROWS, int WIDE, bool TURNED>
static __device__ __forceinline__ void load_chunk(const GroupsJob &job, const uint16_t *x, const uint16_t *w, uint16_t *stage, int chunk)
{
    typedef GroupTile<ROWS, WIDE, TURNED> Tile;
    int                                   k = chunk * CHUNK, col = blockIdx.x * Tile::COLS, row = blockIdx.z * ROWS;
    int w_row = TURNED ? k : col, w_col = TURNED ? col : k, w_rows = TURNED ? job.k : job.n, w_cols = TURNED ? job.n : job.k;
#pragma unroll
    for (int i = threadIdx.x; i < Tile::W_ROWS * (Tile::W_COLS / 8); i += MMA_THREADS) {
        int  r = i / (Tile::W_COLS / 8), c = i % (Tile::W_COLS / 8) * 8;
        bool there = w_row + r < w_rows && w_col + c < w_cols;
        copy_async(stage + r * Tile::W_ALONG + c, w + (there ? (int64_t)(w_row + r) * job.w_stride + w_col + c : 0), there);
    }
#pragma unroll
    for (int i = threadIdx.x; i < ROWS * PIECES; i += MMA_THREADS) {
        int  r = i / PIECES, c = i % PIECES * 8;
        bool there = row + r < job.m && k + c < job.k;
        copy_async(stage + Tile::W_SIZE + r * ALONG + c, x + (there ? (row + r) * job.x_stride + k + c : 0), there);
    }
}

template <typename T, int ROWS, int WIDE, int STAGES, bool TURNED>
static __global__ void __launch_bounds__(MMA_THREADS) group_rows(GroupsJob job)
{
    typedef GroupTile<ROWS, WIDE, TURNED> Tile;
    extern __shared__ uint4               memory[];
    uint16_t                             *stages = (uint16_t *)memory;
    int             chunks = (job.k + CHUNK - 1) / CHUNK, lane = threadIdx.x & 31, warp = threadIdx.x >> 5, group = blockIdx.y;
    const uint16_t *x = job.x + (int64_t)group * job.k, *w = job.w + group * job.w_group;
    float           c[ROWS / 16][WIDE][4] = {};
    int             x_at = Tile::W_SIZE + (lane & 15) * ALONG + (lane >> 4) * 8;
    int w_at = TURNED ? lane * Tile::W_ALONG + warp * 8 * WIDE : (warp * 8 * WIDE + (lane & 7)) * Tile::W_ALONG + (lane >> 3) * 8;
    release_launches();
    await_launches();
    for (int s = 0; s < STAGES; s++) {
        if (s < chunks) load_chunk<ROWS, WIDE, TURNED>(job, x, w, stages + s * Tile::SIZE, s);
        copy_commit();
    }
    for (int chunk = 0; chunk < chunks; chunk++) {
        const uint16_t *stage = stages + chunk % STAGES * Tile::SIZE;
        copy_wait<STAGES - 1>();
        __syncthreads();
#pragma unroll
        for (int k = 0; k < CHUNK; k += 32) {
            uint32_t b[WIDE][4];
#pragma unroll
            for (int n = 0; n < WIDE; n++)
                if (TURNED)
                    ldmatrix_trans(b[n], stage + w_at + k * Tile::W_ALONG + n * 8);
                else
                    ldmatrix(b[n], stage + w_at + k + n * 8 * Tile::W_ALONG);
#pragma unroll
            for (int t = 0; t < ROWS / 16; t++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    uint32_t a[4];
                    ldmatrix(a, stage + x_at + t * 16 * ALONG + k + half * 16);
#pragma unroll
                    for (int n = 0; n < WIDE; n++) mma_of<T>(c[t][n], a, b[n][2 * half], b[n][2 * half + 1]);
                }
        }
        __syncthreads(); /* all warps have read this chunk */
        if (chunk + STAGES < chunks) load_chunk<ROWS, WIDE, TURNED>(job, x, w, stages + chunk % STAGES * Tile::SIZE, chunk + STAGES);
        copy_commit();
    }
    copy_wait<0>();
#pragma unroll
    for (int t = 0; t < ROWS / 16; t++)
#pragma unroll
        for (int n = 0; n < WIDE; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int row = blockIdx.z * ROWS + t * 16 + (lane >> 2) + half * 8, col = blockIdx.x * Tile::COLS + (warp * WIDE + n) * 8;
                if (row < job.m && col < job.n)
                    *(uint32_t *)(job.c + row * job.c_stride + (int64_t)group * job.n + col + (lane & 3) * 2) =
                        pair_of<T>(c[t][n][2 * half], c[t][n][2 * half + 1]);
            }
}

template <typename T, int ROWS, int WIDE, int STAGES, bool TURNED>
static Status launch(const GroupsJob &job, int64_t groups, bool early, cudaStream_t stream)
{
    typedef GroupTile<ROWS, WIDE, TURNED> Tile;
    enum { BYTES = STAGES * Tile::SIZE * 2 };
    auto kernel = group_rows<T, ROWS, WIDE, STAGES, TURNED>;
    dim3 grid((unsigned)cuda_div_up(job.n, Tile::COLS), (unsigned)groups, (unsigned)cuda_div_up(job.m, ROWS));
    FAIL_IF(grid.z > 65535, ERR_UNSUPPORTED, "group_linear is for at most %d rows, got %d", 65535 * ROWS, job.m);
    CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES));
    return cuda_launch_early(early, kernel, grid, MMA_THREADS, BYTES, stream, job);
}

template <typename T, bool TURNED> static Status launch_rows(const GroupsJob &job, int64_t groups, bool early, cudaStream_t stream)
{
    if (job.m <= 16) return launch<T, 16, 1, 8, TURNED>(job, groups, early, stream);
    return launch<T, 64, 2, 4, TURNED>(job, groups, early, stream);
}

/* Whether rows of all operands consist of whole 16-byte packs. */
static bool mma_match(const Node *node, CudaDevice *device)
{
    const TensorType *x = &node->in[0]->type, *w = &node->in[1]->type, *y = &node->out[0]->type;
    Groups            g = groups_of((const GroupLinearAttrs *)node->attrs, x, w);
    enum { MOST_BYTES = 4 * GroupTile<64, 2, false>::SIZE * 2 };
    return g.count <= 65535 && type_cols(x) % 8 == 0 && type_cols(y) % 8 == 0 && g.cols % 8 == 0 && cuda_shared_bytes(device) >= MOST_BYTES;
}

static Status mma_run(const KernelArgs *args)
{
    const GroupLinearAttrs *attrs = (const GroupLinearAttrs *)args->attrs;
    Gemm                    g = group_product(args, 0);
    Groups                  groups = groups_of(attrs, &args->in[0].type, &args->in[1].type);
    GroupsJob               job = {};
    cudaStream_t            stream = cuda_stream(args);
    job.x = (const uint16_t *)g.a.data, job.w = (const uint16_t *)g.b.data + g.b.offset, job.c = (uint16_t *)g.c.data;
    job.x_stride = g.a.stride, job.c_stride = g.c.stride, job.w_group = groups.rows * groups.cols;
    job.m = (int)g.m, job.n = (int)g.n, job.k = (int)g.k, job.w_stride = (int)groups.cols;
    if (!g.m || !groups.count) return OK;
    if (g.a.dtype == DT_F16)
        return attrs->turned ? launch_rows<__half, true>(job, groups.count, args->early, stream)
                             : launch_rows<__half, false>(job, groups.count, args->early, stream);
    return attrs->turned ? launch_rows<bf16, true>(job, groups.count, args->early, stream)
                         : launch_rows<bf16, false>(job, groups.count, args->early, stream);
}

static Status plain_run(const KernelArgs *args)
{
    Gemm    g = group_product(args, 0), next = group_product(args, 1);
    int64_t steps[3] = {next.a.offset - g.a.offset, next.b.offset - g.b.offset, next.c.offset - g.c.offset};
    return cuda_gemm_plain_groups(&g, args->in[0].type.dim[args->in[0].type.ndim - 2], steps, args->stream);
}

CUDA_KERNELS(group_linear, {.dtypes = DT_SET_BF16, .min_sm = 80, .run = mma_run, .name = "mma", .match = mma_match},
             {.dtypes = DT_SET(DT_F16), .min_sm = 80, .run = mma_run, .name = "mma", .match = mma_match},
             {.dtypes = DT_SET_DECODE, .run = plain_run, .name = "plain"})
