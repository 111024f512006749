/* Products of 17 to 64 rows whose chains along k take longer than reading w, by warpgroup products (compute capability 9.0 only): the sums
 * of few_rows.cu, to the bit. A step of 16 elements takes 17 cycles here, and 25 or more by mma.sync. It is short because left operands are
 * in registers: from shared memory a step takes 26.
 *
 * A block has one tile of columns, which one warpgroup computes: x is the left operand, w the right one. Another warp loads both in stages
 * of STAGE_BLOCKS * 64 elements along k. If nothing in the program writes w, its loads begin before the preceding launches have ended.
 * Elements beyond k are zeros, which change no sum.
 *
 * A stage consists of blocks of 64 elements along k, first of w, then of x: rows of 128 bytes whose 16-byte chunks are permuted by row
 * (tensor_map.h). If w is gate and up, a block has equally many rows of both. */
#include "device/cuda/tensor_map.h"
#include "device/cuda/vec_f16.cuh"
#include "ops/bulk.cuh"
#include "ops/elementwise/gated.cuh"
#include "ops/products/few_rows.h"

enum {
    ALONG = TENSOR_MAP_INNER,
    ROW_BYTES = ALONG * 2,
    STAGE_BLOCKS = 4, /* blocks of a stage; each has its own registers for x */
    BLOCK_STEPS = ALONG / 16,
    MOST_STAGES = 16,
    PHASES_BYTES = 1024,
    GROUP_THREADS = MMA_THREADS + 32, /* the last warp only loads */
    LEAST_ROWS = 17,                  /* with fewer rows few_rows_bulk.cu is faster */
    MOST_ROWS = 64,
};

/* The most bytes of w that a block may read: MOST_NARROW_BYTES in tiles of up to NARROW rows of w, whose chain takes longer than reading
 * them in any case; else MOST_WIDE_BYTES. */
enum { NARROW = 16, MOST_NARROW_BYTES = 256 << 10, MOST_WIDE_BYTES = 112 << 10 };
/* Bytes of shared memory of a block: SHARED_BESIDE if another launch's block shares the multiprocessor, else SHARED_ALONE. */
enum { SHARED_BESIDE = 112 << 10, SHARED_ALONE = FEW_ROWS_BULK_SHARED };

typedef struct GroupJob {
    CUtensorMap x_map, w_map; /* dims (64, rows, 1 or 2 for gate and up, k / 64) */
    void       *c;            /* c's first element */
    int64_t     c_stride;
    GemmOperand bias;
    int         m, n, w_rows, k, pieces, stages;
    bool        w_constant, has_bias, gated, gelu; /* gated: w is gate and up; each of c's n columns is made of both */
} GroupJob;

/* Sizes of a stage: XR rows of x and N rows of w in each block of 64 elements along k. */
template <int XR, int N> struct GroupSizes {
    enum { W_BYTES = STAGE_BLOCKS * N * ROW_BYTES, X_BYTES = STAGE_BLOCKS * XR * ROW_BYTES, BYTES = W_BYTES + X_BYTES };
};

#if HAS_WGMMA

/* c (64 x N) += a (16 rows a warp, in registers) times the transpose of b (N rows, as from columns_of). */
template <typename T, int N> static __device__ __forceinline__ void group_mma(float (&c)[N / 8][4], const uint32_t (&a)[4], uint64_t b);

#define SUMS(i) "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
#define GROUP_MMA(T, NAME, N, REGISTERS, LEFT, RIGHT, ...) \
    template <> __device__ __forceinline__ void group_mma<T, N>(float(&c)[N / 8][4], const uint32_t(&a)[4], uint64_t b) \
    { \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME " {" REGISTERS "}, {" LEFT "}, " RIGHT \
                     ", 1, 1, 1, 0;" \
                     : __VA_ARGS__ \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)); \
    }
#define REGISTERS_8 "%0, %1, %2, %3"
#define REGISTERS_16 REGISTERS_8 ", %4, %5, %6, %7"
#define REGISTERS_24 REGISTERS_16 ", %8, %9, %10, %11"
#define REGISTERS_32 REGISTERS_24 ", %12, %13, %14, %15"
#define REGISTERS_48 REGISTERS_32 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define GROUP_MMAS(T, NAME) \
    GROUP_MMA(T, NAME, 8, REGISTERS_8, "%4, %5, %6, %7", "%8", SUMS(0)) \
    GROUP_MMA(T, NAME, 16, REGISTERS_16, "%8, %9, %10, %11", "%12", SUMS(0), SUMS(1)) \
    GROUP_MMA(T, NAME, 24, REGISTERS_24, "%12, %13, %14, %15", "%16", SUMS(0), SUMS(1), SUMS(2)) \
    GROUP_MMA(T, NAME, 32, REGISTERS_32, "%16, %17, %18, %19", "%20", SUMS(0), SUMS(1), SUMS(2), SUMS(3)) \
    GROUP_MMA(T, NAME, 48, REGISTERS_48, "%24, %25, %26, %27", "%28", SUMS(0), SUMS(1), SUMS(2), SUMS(3), SUMS(4), SUMS(5))
GROUP_MMAS(bf16, "bf16")
GROUP_MMAS(__half, "f16")

/* Shared memory of a block. */
template <int XR, int N> struct GroupShared {
    enum { W_BYTES = GroupSizes<XR, N>::W_BYTES, BYTES = GroupSizes<XR, N>::BYTES };
    uint64_t *full, *empty;
    char     *stages;

    __device__ __forceinline__ GroupShared(char *memory)
        : full((uint64_t *)memory), empty(full + MOST_STAGES), stages(memory + PHASES_BYTES)
    {
    }

    /* The address of a stage's x. */
    __device__ __forceinline__ uint32_t left(int slot) const
    {
        return shared_address(stages + slot * BYTES + W_BYTES);
    }

    /* Descriptor of the first step's right operand, in a register of all lanes. Later steps add their distance in units of 16 bytes. */
    __device__ __forceinline__ uint64_t right(int slot) const
    {
        uint64_t descriptor = tile_descriptor(stages + slot * BYTES, 16);
        return descriptor >> 32 << 32 | __shfl_sync(0xFFFFFFFFu, (uint32_t)descriptor, 0);
    }

    __device__ __forceinline__ void begin(const GroupJob &job) const
    {
        for (int i = 0; i < job.stages; i++) {
            phases_init(&full[i], 1);
            phases_init(&empty[i], MMA_WARPS);
        }
        publish_phases();
    }

    __device__ __forceinline__ void bring_w(const GroupJob &job, int piece, int slot) const
    {
        expect_bytes(&full[slot], BYTES);
        copy_box(shared_address(stages + slot * BYTES), &job.w_map, 0, blockIdx.x * (job.gated ? N / 2 : N), 0, piece * STAGE_BLOCKS,
                 &full[slot]);
    }

    __device__ __forceinline__ void bring_x(const GroupJob &job, int piece, int slot) const
    {
        copy_box(shared_address(stages + slot * BYTES + W_BYTES), &job.x_map, 0, 0, 0, piece * STAGE_BLOCKS, &full[slot]);
    }

    /* Loads all stages. Called by one warp. */
    __device__ __forceinline__ void bring(const GroupJob &job) const
    {
        bool leads = (threadIdx.x & 31) == 0;
        if (!job.w_constant) await_launches();
        for (int q = 0; q < job.stages && leads; q++) bring_w(job, q, q);
        if (job.w_constant) await_launches();
        for (int q = 0; q < job.stages && leads; q++) bring_x(job, q, q);
        for (int q = job.stages, slot = 0, parity = 0; q < job.pieces && leads; q++) {
            phase_wait(&empty[slot], parity);
            bring_w(job, q, slot);
            bring_x(job, q, slot);
            if (++slot == job.stages) slot = 0, parity ^= 1;
        }
    }
};

/* A lane's part of the left operand of a block: for each step 16 rows of its warp. Rows beyond XR repeat existing rows; warps that have no
 * rows below `rows` read nothing. */
template <int XR> struct LeftReads {
    uint32_t at[BLOCK_STEPS], reads;

    __device__ __forceinline__ LeftReads(int rows)
    {
        int lane = threadIdx.x & 31, warp = threadIdx.x / 32, row = (warp * 16 + (lane & 15)) & (XR - 1);
        reads = warp * 16 < rows;
#pragma unroll
        for (int i = 0; i < BLOCK_STEPS; i++) at[i] = row * ROW_BYTES + (((i * 2 + (lane >> 4)) ^ (row & 7)) * 16);
    }

    __device__ __forceinline__ void take(uint32_t (&a)[BLOCK_STEPS][4], uint32_t block) const
    {
#pragma unroll
        for (int i = 0; i < BLOCK_STEPS; i++)
            asm volatile("{\n\t.reg .pred reads;\n\tsetp.ne.u32 reads, %5, 0;\n\t"
                         "@reads ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n\t}"
                         : "+r"(a[i][0]), "+r"(a[i][1]), "+r"(a[i][2]), "+r"(a[i][3])
                         : "r"(block + at[i]), "r"(reads));
    }
};

/* Computes the sums of the block's columns. Called by the warpgroup. A product begins when the tensor cores take its left operand from
 * registers, and warps stall until then. So the next block of x is read from shared memory before this one is multiplied. */
template <typename T, int XR, int N>
static __device__ __forceinline__ void make_sums(const GroupJob &job, const GroupShared<XR, N> &shared, float (&c)[N / 8][4])
{
    typedef GroupShared<XR, N> Shared;
    const LeftReads<XR>        reads(job.m);
    uint32_t                   a[STAGE_BLOCKS][BLOCK_STEPS][4] = {};
    bool                       ring = job.pieces > job.stages;
    int                        slot = 0, parity = 0, last = 0;
    phase_wait(&shared.full[0], 0);
    reads.take(a[0], shared.left(0));
    for (int q = 0; q < job.pieces; q++) {
        uint64_t right = shared.right(slot);
        uint32_t x = shared.left(slot);
        int      next = slot + 1 == job.stages ? 0 : slot + 1;
        bool     more = q + 1 < job.pieces;
        uint32_t next_x = more ? shared.left(next) : x; /* after the last piece: reads any data, and doesn't multiply it */
        parity ^= next == 0;
#pragma unroll
        for (int block = 0; block < STAGE_BLOCKS; block++) {
            wgmma_wait<STAGE_BLOCKS - 2>(); /* waits for earlier products that read these registers */
                                            /* the previous stage's last block is multiplied: its slot is free */
            if (block + 1 == STAGE_BLOCKS && ring && q && (threadIdx.x & 31) == 0) phase_arrive(&shared.empty[last]);
            if (block + 1 == STAGE_BLOCKS && more) phase_wait(&shared.full[next], parity);
            reads.take(a[(block + 1) % STAGE_BLOCKS], block + 1 < STAGE_BLOCKS ? x + (block + 1) * XR * ROW_BYTES : next_x);
            wgmma_begin();
#pragma unroll
            for (int i = 0; i < BLOCK_STEPS; i++) group_mma<T, N>(c, a[block][i], right + (block * N * ROW_BYTES + i * 32) / 16);
            wgmma_commit();
        }
        last = slot, slot = next;
    }
    wgmma_wait<0>();
    hold(c);
}

/* Combines gate and up, both rounded as if they were stored, into the first half of c. */
template <typename T, int N> static __device__ __forceinline__ void gate_sums(const GroupJob &job, float (&c)[N / 8][4])
{
#pragma unroll
    for (int i = 0; i < N / 16; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float gate = to_float(from_float<T>(c[i][e])), up = to_float(from_float<T>(c[i + N / 16][e]));
            c[i][e] = job.gelu ? gated<T, true>(gate, up) : gated<T, false>(gate, up);
        }
}

template <typename T> static __device__ __forceinline__ float bias_at(const GroupJob &job, int col)
{
    return job.has_bias && col < job.w_rows ? get_of<T>(job.bias.data, job.bias.dtype, job.bias.offset + col) : 0.0f;
}

template <typename T, int N> static __device__ __forceinline__ void store_sums(const GroupJob &job, const float (&c)[N / 8][4])
{
    int lane = threadIdx.x & 31, row = threadIdx.x / 32 * 16 + lane / 4, cols = job.gated ? N / 2 : N;
    if (row >= job.m) return;
#pragma unroll
    for (int i = 0; i < N / 8; i++) {
        int col = blockIdx.x * cols + i * 8 + lane % 4 * 2;
        if (i * 8 >= cols || col >= job.n) return;
        float left = bias_at<T>(job, col), right = bias_at<T>(job, col + 1);
#pragma unroll
        for (int half = 0; half < 2; half++)
            if (row + half * 8 < job.m)
                *(uint32_t *)((T *)job.c + (row + half * 8) * job.c_stride + col) =
                    job.has_bias ? pair_of<T>(c[i][half * 2] + left, c[i][half * 2 + 1] + right)
                                 : pair_of<T>(c[i][half * 2], c[i][half * 2 + 1]);
    }
}

#endif

template <typename T, int XR, int N>
static __global__ void __launch_bounds__(GROUP_THREADS) few_rows_group(const __grid_constant__ GroupJob job)
{
#if HAS_WGMMA
    extern __shared__ __align__(1024) char group_memory[];
    const GroupShared<XR, N>               shared(group_memory);
    release_launches();
    if (threadIdx.x == 0) shared.begin(job);
    __syncthreads();
    if (threadIdx.x >= MMA_THREADS) {
        shared.bring(job);
        return;
    }
    float c[N / 8][4] = {};
    await_launches();
    make_sums<T, XR, N>(job, shared, c);
    if (job.gated) gate_sums<T, N>(job, c);
    store_sums<T, N>(job, c);
#endif
}

/* ---- launches ---- */

static Status map_rows(const GemmOperand *rows, int64_t count, int halves, int64_t k, int box_rows, CUtensorMap *out)
{
    TensorMapShape shape = {.rank = 4};
    shape.dims[0] = ALONG, shape.dims[1] = (uint64_t)count / halves, shape.dims[2] = (uint64_t)halves, shape.dims[3] = (uint64_t)k / ALONG;
    shape.strides[0] = (uint64_t)rows->stride * 2, shape.strides[1] = shape.strides[0] * shape.dims[1], shape.strides[2] = ROW_BYTES;
    shape.box[0] = ALONG, shape.box[1] = (uint32_t)(box_rows / halves), shape.box[2] = (uint32_t)halves, shape.box[3] = STAGE_BLOCKS;
    return cuda_tensor_map((const char *)rows->data + rows->offset * 2, &shape, out);
}

template <typename T, int XR, int N> static Status launch(const Gemm *g, GroupJob *job, cudaStream_t stream)
{
    typedef GroupSizes<XR, N> Sizes;
    int64_t                   cols = job->gated ? N / 2 : N;
    int                       least = job->pieces < 4 ? job->pieces : 4, most = job->pieces < MOST_STAGES ? job->pieces : MOST_STAGES;
    job->stages = (int)((SHARED_BESIDE - PHASES_BYTES) / Sizes::BYTES);
    if (job->stages < least) job->stages = (int)((SHARED_ALONE - PHASES_BYTES) / Sizes::BYTES);
    if (job->stages > most) job->stages = most;
    FAIL_IF(job->stages < 2 && job->stages < job->pieces, ERR_INTERNAL, "few_rows_group: no room for %d x %d of %d", job->m, job->n,
            job->k);
    TRY(map_rows(&g->a, g->m, 1, g->k, XR, &job->x_map));
    TRY(map_rows(&g->b, job->w_rows, job->gated ? 2 : 1, g->k, N, &job->w_map));
    auto kernel = few_rows_group<T, XR, N>;
    CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_ALONE));
    return cuda_launch_early(g->early, kernel, dim3((unsigned)cuda_div_up(job->n, cols)), GROUP_THREADS,
                             (size_t)(PHASES_BYTES + job->stages * Sizes::BYTES), stream, *job);
}

template <typename T, int N> static Status launch_rows(const Gemm *g, GroupJob *job, cudaStream_t stream)
{
    if (g->m <= 32) return launch<T, 32, N>(g, job, stream);
    return launch<T, 64, N>(g, job, stream);
}

/* Returns the narrowest tile with which one round of blocks computes all columns, as a number of rows of w (gate and up together). 0:
 * none. */
static int width_of(int64_t cols, bool gated, int processors)
{
    static const int widths[] = {8, 16, 24, 32, 48};
    for (int i = 0; i < (int)(sizeof widths / sizeof widths[0]); i++) {
        int made = gated ? widths[i] / 2 : widths[i];
        if (made % 8 == 0 && cuda_div_up(cols, made) <= processors) return widths[i];
    }
    return 0;
}

template <typename T> static Status launch_width(const Gemm *g, GroupJob *job, int width, cudaStream_t stream)
{
    switch (width) {
    case 8:
        return launch_rows<T, 8>(g, job, stream);
    case 16:
        return launch_rows<T, 16>(g, job, stream);
    case 24:
        return launch_rows<T, 24>(g, job, stream);
    case 32:
        return launch_rows<T, 32>(g, job, stream);
    default:
        return launch_rows<T, 48>(g, job, stream);
    }
}

static bool has_machine_code(void)
{
    cudaFuncAttributes attributes;
    return cudaFuncGetAttributes(&attributes, few_rows_group<bf16, 32, 8>) == cudaSuccess && attributes.ptxVersion == 90;
}

bool few_rows_group_fit(const Gemm *g, const RowsFusion *fusion, int processors)
{
    bool    gated = fusion && fusion->gated;
    int     width = width_of(g->n, gated, processors);
    int64_t bytes = (int64_t)width * g->k * 2;
    if (!width || bytes > (width <= NARROW ? MOST_NARROW_BYTES : MOST_WIDE_BYTES) || (fusion && fusion->parts > 1)) return false;
    if (g->m < LEAST_ROWS || g->m > MOST_ROWS || g->k % ALONG || g->accumulate || g->alpha != 1 || g->c.dtype != g->b.dtype) return false;
    return g->n % 2 == 0 && g->c.stride % 2 == 0 && g->c.offset % 2 == 0 && (uintptr_t)g->c.data % 4 == 0 && has_machine_code();
}

Status few_rows_group_run(const Gemm *g, int64_t w_rows, const RowsFusion *fusion, int processors, void *stream)
{
    GroupJob job = {};
    job.c = (char *)g->c.data + g->c.offset * 2;
    job.c_stride = g->c.stride;
    job.bias = g->bias, job.has_bias = g->epilogue == GEMM_BIAS;
    job.m = (int)g->m, job.n = (int)g->n, job.w_rows = (int)w_rows, job.k = (int)g->k;
    job.pieces = (int)cuda_div_up(g->k, STAGE_BLOCKS * ALONG);
    job.w_constant = g->b_constant;
    if (fusion) job.gated = fusion->gated, job.gelu = fusion->gelu;
    int width = width_of(g->n, job.gated, processors);
    return g->b.dtype == DT_F16 ? launch_width<__half>(g, &job, width, (cudaStream_t)stream)
                                : launch_width<bf16>(g, &job, width, (cudaStream_t)stream);
}
