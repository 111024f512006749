/* lora_rows on CUDA. Sums have the order that products with rows_alone have: in bf16 and f16 one chain along k in steps of 16
 * (few_rows.cu), in f32 one chain along k (the plain product).
 *
 * mma: a warp has 32 columns of a member and up to 16 rows with the same adapter, gathered from 64 successive rows. Columns of a product's
 * tile are permuted so that a thread's results of four tiles are eight neighbouring columns: tile j's column c stands for column (c / 2) *
 * 8 + j * 2 + c % 2 of the 32. If nothing in the program writes adapters and b, their loads don't wait for the preceding launch. */
#include "device/cuda/vec_f16.cuh"
#include "ops/products/lora_rows.cuh"

#include "ops/mma.cuh"
#include "ops/products/lora_rows.h"

enum {
    WARPS = 4,
    SLAB = 32,
    TILES = SLAB / 8,
    GROUP = 16,
    WINDOW = 64,
    PIECE = 32,
    STEPS = PIECE / 16,
    THREADS = 128,
    MOST = LORA_MOST_ADAPTERS,
    RANKS = LORA_MAX_MEMBERS * MOST
};

struct Rows {
    void          *y;
    const void    *h, *b;
    const int32_t *adapters; /* NULL: all rows have adapter 0 */
    DType          y_dtype, h_dtype, b_dtype;
    bool           constant;                         /* nothing in the program writes adapters and b */
    int64_t        each, tokens, y_stride, h_stride; /* each: tokens of a sequence */
    int            r, count, members;                /* r: room for a rank; count: number of adapters */
    int            rows[LORA_MAX_MEMBERS], col[LORA_MAX_MEMBERS], before[LORA_MAX_MEMBERS]; /* before: rows of previous members */
    float          scales[RANKS];
    int            ranks[RANKS];

    __device__ __forceinline__ int adapter(int64_t token) const /* -1: none */
    {
        int a = token >= tokens ? -1 : adapters ? adapters[token / each] : 0;
        return a >= 0 && a < count ? a : -1;
    }

    /* The index in h of adapter a for member m. */
    __device__ __forceinline__ int64_t h_at(int64_t token, int m, int a) const
    {
        return token * h_stride + (int64_t)(m * count + a) * r;
    }

    __device__ __forceinline__ int64_t b_at(int m, int a, int col) const
    {
        return ((int64_t)before[m] * count + (int64_t)a * rows[m] + col) * r;
    }

    /* Adds to y, rounded once, as lora_add does. */
    __device__ __forceinline__ void add(int64_t token, int m, int a, int at, float sum) const
    {
        int64_t i = token * y_stride + col[m] + at;
        any_set(y, y_dtype, i, fmaf(scales[m * count + a], sum, any_get(y, y_dtype, i)));
    }
};

/* rows, col: each member's; count: number of adapters. The caller sets ranks and scales. */
static Rows rows_of(const KernelArgs *args, const int64_t *rows, const int64_t *col, int count)
{
    const TensorView *y = &args->out[0], *h = &args->in[LORA_ROWS_H], *b = &args->in[LORA_ROWS_B];
    Rows              job = {};
    job.y = y->data, job.h = h->data, job.b = b->data;
    job.y_dtype = y->type.dtype, job.h_dtype = h->type.dtype, job.b_dtype = b->type.dtype;
    job.tokens = type_rows(&y->type), job.each = job.tokens;
    job.y_stride = type_cols(&y->type), job.h_stride = type_cols(&h->type);
    job.members = lora_count(rows), job.count = count, job.r = (int)type_cols(&b->type);
    for (int m = 0, before = 0; m < job.members; before += job.rows[m++])
        job.rows[m] = (int)rows[m], job.col[m] = (int)col[m], job.before[m] = before;
    return job;
}

static Rows rows_of_many(const KernelArgs *args)
{
    const LoraRowsAttrs *attrs = (const LoraRowsAttrs *)args->attrs;
    const TensorView    *adapters = &args->in[LORA_ROWS_ADAPTERS];
    Rows                 job = rows_of(args, attrs->rows, attrs->col, (int)lora_rows_adapters(attrs));
    job.adapters = (const int32_t *)adapters->data;
    job.constant = args->constant >> LORA_ROWS_B & args->constant >> LORA_ROWS_ADAPTERS & 1;
    job.each /= adapters->type.dim[0];
    for (int i = 0; i < attrs->ranks.count; i++) {
        job.scales[i] = (float)attrs->scales.values[i];
        job.ranks[i] = (int)attrs->ranks.values[i];
    }
    return job;
}

static Rows rows_of_one(const KernelArgs *args)
{
    const LoraAttrs *attrs = (const LoraAttrs *)args->attrs;
    Rows             job = rows_of(args, attrs->rows, attrs->col, 1);
    job.constant = args->constant >> LORA_ROWS_B & 1;
    for (int m = 0; m < job.members; m++) {
        job.scales[m] = (float)attrs->alpha;
        job.ranks[m] = job.r;
    }
    return job;
}

/* ---- mma ---- */

/* Elements k and k + 1 of a row that has `rank` elements; zeros beyond them, and everywhere if `there` is false. */
static __device__ __forceinline__ uint32_t load_pair(const uint16_t *row, int k, int rank, bool there)
{
    if (!there || k >= rank) return 0;
    uint32_t pair = *reinterpret_cast<const uint32_t *>(row + k);
    return k + 1 < rank ? pair : pair & 0xFFFF;
}

/* Operands of PIECE elements along k: 16 rows of h, SLAB rows of b. */
struct Piece {
    uint32_t down[STEPS][4], up[STEPS][TILES][2];

    /* left: rows of b from here on that belong to the member. */
    __device__ __forceinline__ void load_up(const uint16_t *b, int r, int k, int rank, int left)
    {
        int col = (threadIdx.x & 31) >> 2;
        k += (threadIdx.x & 3) * 2;
#pragma unroll
        for (int j = 0; j < TILES; j++) {
            int row = (col >> 1) * 8 + j * 2 + (col & 1);
#pragma unroll
            for (int i = 0; i < 2 * STEPS; i++) up[i / 2][j][i % 2] = load_pair(b + row * r, k + i * 8, rank, row < left);
        }
    }

    /* h: rows t and t + 8 of a lane's quad. */
    __device__ __forceinline__ void load_down(const uint16_t *const (&h)[2], int k, int rank, const bool (&there)[2])
    {
        k += (threadIdx.x & 3) * 2;
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int i = 0; i < 2 * STEPS; i++) down[i / 2][i % 2 * 2 + half] = load_pair(h[half], k + i * 8, rank, there[half]);
    }

    /* left: elements of the rank from this piece on. */
    template <typename T> __device__ __forceinline__ void add(float (&sum)[TILES][4], int left) const
    {
#pragma unroll
        for (int s = 0; s < STEPS; s++)
            if (s * 16 < left)
#pragma unroll
                for (int j = 0; j < TILES; j++) mma_of<T>(sum[j], down[s], up[s][j][0], up[s][j][1]);
    }
};

/* Finds group `index` of the window that begins at `first`: up to GROUP tokens with one adapter. places: the tokens, counted from `first`,
 * then -1. Groups are ordered by adapter, the lowest first. Returns the adapter, or MOST if there are fewer groups. */
static __device__ __forceinline__ int find_group(const Rows &rows, int64_t first, int index, int *places)
{
    int lane = threadIdx.x & 31, own[2], a = -1;
    for (int half = 0; half < 2; half++) own[half] = rows.adapter(first + half * 32 + lane);
    if (lane < GROUP) places[lane] = -1;
    __syncwarp();
    for (;;) {
        a = __reduce_min_sync(~0u, min(own[0] > a ? own[0] : MOST, own[1] > a ? own[1] : MOST));
        if (a == MOST) return a;
        uint32_t low = __ballot_sync(~0u, own[0] == a), high = __ballot_sync(~0u, own[1] == a), before = (1u << lane) - 1;
        int      count = __popc(low) + __popc(high), at[2] = {__popc(low & before), __popc(low) + __popc(high & before)};
        if (index * GROUP >= count) {
            index -= (count + GROUP - 1) / GROUP;
            continue;
        }
        for (int half = 0; half < 2; half++)
            if (own[half] == a && at[half] / GROUP == index) places[at[half] % GROUP] = half * 32 + lane;
        __syncwarp();
        return a;
    }
}

static __host__ __device__ __forceinline__ int slabs_of(const Rows &rows, int m)
{
    return (rows.rows[m] + SLAB - 1) / SLAB;
}

/* A lane's part of y: eight columns of two tokens. EIGHTS: all eight belong to the member, and are aligned to 16 bytes. */
template <typename T, bool EIGHTS> struct Sums {
    uint4 old[2];

    __device__ __forceinline__ uint4 *eight(const Rows &rows, int64_t token, int m, int at) const
    {
        return (uint4 *)((uint16_t *)rows.y + token * rows.y_stride + rows.col[m] + at);
    }

    __device__ __forceinline__ void load(const Rows &rows, int64_t token, int m, int at, int half)
    {
        if (EIGHTS) old[half] = *eight(rows, token, m, at);
    }

    __device__ __forceinline__ void add(const Rows &rows, int64_t token, int m, int a, int at, int half, const float (&sum)[TILES][4]) const
    {
        Pack<T> pack;
        float   scale = rows.scales[m * rows.count + a];
        pack.words = old[half];
#pragma unroll
        for (int i = 0; i < 2 * TILES; i++) {
            float value = sum[i / 2][2 * half + i % 2];
            if (EIGHTS)
                pack.v[i] = from_float<T>(fmaf(scale, value, to_float(pack.v[i])));
            else if (at + i < rows.rows[m])
                rows.add(token, m, a, at + i, value);
        }
        if (EIGHTS) *eight(rows, token, m, at) = pack.words;
    }
};

template <typename T, bool EIGHTS> static __global__ void __launch_bounds__(WARPS * 32) lora_rows_mma(const __grid_constant__ Rows rows)
{
    __shared__ int places[WARPS][GROUP];
    int            lane = threadIdx.x & 31, warp = threadIdx.x >> 5, slab = blockIdx.x * WARPS + warp, m = 0, a = MOST, rank = 0;
    int64_t        window = (int64_t)blockIdx.z * WINDOW, token[2];
    bool           there[2];
    Piece          piece;
    release_launches();
    if (!rows.constant) await_launches();
    for (; m < rows.members && slab >= slabs_of(rows, m); m++) slab -= slabs_of(rows, m);
    if (m < rows.members) a = find_group(rows, window, blockIdx.y, places[warp]);
    if (a < MOST) rank = rows.ranks[m * rows.count + a];
    int             first = slab * SLAB, at = first + (lane & 3) * 8;
    const uint16_t *b = rank ? (const uint16_t *)rows.b + rows.b_at(m, a, first) : NULL, *h[2];
    if (rank) piece.load_up(b, rows.r, 0, rank, rows.rows[m] - first);
    await_launches();
    if (!rank) return;
    float           sum[TILES][4] = {};
    Sums<T, EIGHTS> sums;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int place = places[warp][(lane >> 2) + half * 8];
        there[half] = place >= 0;
        token[half] = window + place;
        h[half] = (const uint16_t *)rows.h + rows.h_at(token[half], m, a);
        if (there[half] && at < rows.rows[m]) sums.load(rows, token[half], m, at, half);
    }
    piece.load_down(h, 0, rank, there);
    for (int k = PIECE; k < rank; k += PIECE) {
        piece.add<T>(sum, PIECE);
        piece.load_up(b, rows.r, k, rank, rows.rows[m] - first);
        piece.load_down(h, k, rank, there);
    }
    piece.add<T>(sum, (rank - 1) % PIECE + 1);
#pragma unroll
    for (int half = 0; half < 2; half++)
        if (there[half] && at < rows.rows[m]) sums.add(rows, token[half], m, a, at, half, sum);
}

/* The most groups that a window may have: each adapter has groups of its own, and its last one may not be full. */
static int most_groups(const Rows &rows)
{
    int64_t tokens = rows.tokens < (int64_t)WINDOW ? rows.tokens : (int64_t)WINDOW,
            sequences = cuda_div_up(tokens, rows.each) + (tokens % rows.each != 0);
    int64_t adapters = rows.count < sequences ? rows.count : sequences;
    return (int)((tokens + (GROUP - 1) * adapters) / GROUP);
}

static bool has_eights(const Rows &rows)
{
    bool has = rows.y_dtype == rows.h_dtype && rows.y_stride % 8 == 0 && (uintptr_t)rows.y % 16 == 0;
    for (int m = 0; m < rows.members; m++) has = has && rows.rows[m] % 8 == 0 && rows.col[m] % 8 == 0;
    return has;
}

template <typename T> static Status run_mma(const Rows &rows, bool early, cudaStream_t stream)
{
    int slabs = 0;
    for (int m = 0; m < rows.members; m++) slabs += slabs_of(rows, m);
    dim3 grid((unsigned)cuda_div_up(slabs, WARPS), (unsigned)most_groups(rows), (unsigned)cuda_div_up(rows.tokens, WINDOW));
    return cuda_launch_early(early, has_eights(rows) ? lora_rows_mma<T, true> : lora_rows_mma<T, false>, grid, WARPS * 32, 0, stream, rows);
}

/* ---- plain ---- */

/* One thread for each element of y. */
static __global__ void __launch_bounds__(THREADS) lora_rows_plain(const __grid_constant__ Rows rows, int cols)
{
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < rows.tokens * cols; i += (int64_t)gridDim.x * THREADS) {
        int64_t token = i / cols;
        int     at = (int)(i % cols), m = 0, a = rows.adapter(token);
        for (; at >= rows.rows[m]; m++) at -= rows.rows[m];
        int rank = a < 0 ? 0 : rows.ranks[m * rows.count + a];
        if (!rank) continue;
        int64_t h = rows.h_at(token, m, a), b = rows.b_at(m, a, at);
        float   sum = 0;
        for (int k = 0; k < rank; k++) sum += any_get(rows.h, rows.h_dtype, h + k) * any_get(rows.b, rows.b_dtype, b + k);
        rows.add(token, m, a, at, sum);
    }
}

static Status run_plain(const Rows &rows, cudaStream_t stream)
{
    int cols = rows.before[rows.members - 1] + rows.rows[rows.members - 1];
    lora_rows_plain<<<cuda_grid(rows.tokens * cols, THREADS), THREADS, 0, stream>>>(rows, cols);
    return CUDA_LAUNCHED();
}

/* ---- which ---- */

/* The mma kernels need pairs of elements at even indexes, and a number of blocks that fits in 16 bits. */
static Status run(const Rows &rows, const KernelArgs *args)
{
    cudaStream_t stream = cuda_stream(args);
    bool         is_mma = rows.h_dtype == rows.b_dtype && rows.r % 2 == 0 && rows.tokens <= (int64_t)WINDOW * UINT16_MAX;
    if (is_mma && rows.h_dtype == DT_BF16) return run_mma<bf16>(rows, args->early, stream);
    if (is_mma && rows.h_dtype == DT_F16) return run_mma<__half>(rows, args->early, stream);
    return run_plain(rows, stream);
}

Status lora_rows_of_one(const KernelArgs *args)
{
    return run(rows_of_one(args), args);
}

static Status lora_rows_run(const KernelArgs *args)
{
    return run(rows_of_many(args), args);
}

CUDA_KERNELS(lora_rows, {.dtypes = DT_SET_DECODE, .min_sm = 80, .run = lora_rows_run, .name = "rows"})
