/* lora_rows on CUDA. Sums have the order that products of rows alone have: of bf16 one chain along k in steps of 16 (few_rows.cu), else one
 * along k (the plain product).
 *
 * mma: a warp has 8 columns of a member of 16 rows of y. It makes the product of all 16 for each adapter that one of them has, and keeps of
 * each the rows that have it: mostly neighbours have few. */
#include "device/cuda/vec_f16.cuh"
#include "ops/products/lora_rows.cuh"

#include "ops/mma.cuh"
#include "ops/products/lora_rows.h"

enum { WARPS = 4, COLS = 8, ROWS = 16, THREADS = 128, MOST = LORA_MOST_ADAPTERS, RANKS = LORA_MAX_MEMBERS * MOST };

struct Rows {
    void          *y;
    const void    *h, *b;
    const int32_t *adapters; /* NULL: all have the first */
    DType          y_dtype, h_dtype, b_dtype;
    int64_t        each, tokens, y_stride, h_stride;                                        /* each: tokens of a sequence */
    int            r, count, members;                                                       /* room for a rank; adapters */
    int            rows[LORA_MAX_MEMBERS], col[LORA_MAX_MEMBERS], before[LORA_MAX_MEMBERS]; /* before: rows of the members before */
    float          scales[RANKS];
    int            ranks[RANKS];

    __device__ __forceinline__ int adapter(int64_t token) const /* -1: none */
    {
        int a = token >= tokens ? -1 : adapters ? adapters[token / each] : 0;
        return a >= 0 && a < count ? a : -1;
    }

    /* Where the numbers of adapter a for member m begin. */
    __device__ __forceinline__ int64_t h_at(int64_t token, int m, int a) const
    {
        return token * h_stride + (int64_t)(m * count + a) * r;
    }

    __device__ __forceinline__ int64_t b_at(int m, int a, int col) const
    {
        return ((int64_t)before[m] * count + (int64_t)a * rows[m] + col) * r;
    }

    __device__ __forceinline__ void add(int64_t token, int m, int a, int at, float sum) const
    {
        int64_t i = token * y_stride + col[m] + at;
        float   value = scales[m * count + a] * sum;
        value += any_get(y, y_dtype, i);
        any_set(y, y_dtype, i, value);
    }
};

/* rows, col: of the members. ranks, scales: as of LoraRowsAttrs. */
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
    for (int m = 0; m < job.members; m++) {
        job.scales[m] = (float)attrs->alpha;
        job.ranks[m] = job.r;
    }
    return job;
}

/* ---- mma ---- */

/* Numbers k and k + 1 of a row that has `rank`; zeros behind it and where it isn't there. */
static __device__ __forceinline__ uint32_t load_pair(const bf16 *row, int k, int rank, bool there)
{
    if (!there || k >= rank) return 0;
    uint32_t pair = *reinterpret_cast<const uint32_t *>(row + k);
    return k + 1 < rank ? pair : pair & 0xFFFF;
}

static __host__ __device__ __forceinline__ int slabs_of(const Rows &rows, int m)
{
    return (rows.rows[m] + COLS - 1) / COLS;
}

static __global__ void __launch_bounds__(WARPS * 32) lora_rows_mma(const __grid_constant__ Rows rows)
{
    int     lane = threadIdx.x & 31, slab = blockIdx.x * WARPS + (threadIdx.x >> 5), m = 0, k0 = (lane & 3) * 2, own[2], a = -1;
    int64_t token = (int64_t)blockIdx.y * ROWS + (lane >> 2);
    for (; m < rows.members && slab >= slabs_of(rows, m); m++) slab -= slabs_of(rows, m);
    if (m == rows.members) return;
    for (int half = 0; half < 2; half++) own[half] = rows.adapter(token + half * 8);
    int  first = slab * COLS;
    bool is_col = first + (lane >> 2) < rows.rows[m];
    for (;;) { /* each adapter of these rows, the lowest first */
        a = __reduce_min_sync(~0u, min(own[0] > a ? own[0] : MOST, own[1] > a ? own[1] : MOST));
        if (a == MOST) return;
        const bf16 *h = (const bf16 *)rows.h + rows.h_at(token, m, a), *b = (const bf16 *)rows.b + rows.b_at(m, a, first + (lane >> 2));
        int         rank = rows.ranks[m * rows.count + a];
        float       sum[4] = {};
        if (!rank) continue;
        for (int k = k0; k - k0 < rank; k += 16) {
            uint32_t down[4];
#pragma unroll
            for (int half = 0; half < 2; half++)
#pragma unroll
                for (int step = 0; step < 2; step++)
                    down[2 * step + half] = load_pair(h + half * 8 * rows.h_stride, k + step * 8, rank, own[half] == a);
            mma(sum, down, load_pair(b, k, rank, is_col), load_pair(b, k + 8, rank, is_col));
        }
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (own[e >> 1] == a && first + k0 + (e & 1) < rows.rows[m]) rows.add(token + (e >> 1) * 8, m, a, first + k0 + (e & 1), sum[e]);
    }
}

static Status run_mma(const Rows &rows, cudaStream_t stream)
{
    int slabs = 0;
    for (int m = 0; m < rows.members; m++) slabs += slabs_of(rows, m);
    dim3 grid((unsigned)cuda_div_up(slabs, WARPS), (unsigned)cuda_div_up(rows.tokens, ROWS));
    lora_rows_mma<<<grid, WARPS * 32, 0, stream>>>(rows);
    return CUDA_LAUNCHED();
}

/* ---- plain ---- */

/* A thread an element of y. */
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

/* Pairs lie at even places, and blocks are counted in 16 bits. */
static Status run(const Rows &rows, cudaStream_t stream)
{
    bool is_bf16 = rows.h_dtype == DT_BF16 && rows.b_dtype == DT_BF16;
    bool is_mma = is_bf16 && rows.r % 2 == 0 && rows.tokens <= (int64_t)ROWS * UINT16_MAX;
    return is_mma ? run_mma(rows, stream) : run_plain(rows, stream);
}

Status lora_rows_of_one(const KernelArgs *args)
{
    return run(rows_of_one(args), cuda_stream(args));
}

static Status lora_rows_run(const KernelArgs *args)
{
    return run(rows_of_many(args), cuda_stream(args));
}

CUDA_KERNELS(lora_rows, {.dtypes = DT_SET_DECODE, .min_sm = 80, .run = lora_rows_run, .name = "rows"})
