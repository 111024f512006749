/* lora_rows on CUDA. Sums have the order that products of rows alone have: of bf16 one chain along k in steps of 16 (few_rows.cu), else one
 * along k (the plain product).
 *
 * mma: a warp has 8 columns of 16 rows of y. It makes the product of all 16 for each adapter that one of them has, and keeps of each the
 * rows that have it: mostly neighbours have few. */
#include "ops/mma.cuh"
#include "ops/products/linear.cuh"
#include "ops/products/lora_rows.h"

enum { WARPS = 4, COLS = 8, ROWS = 16, THREADS = 128, MOST = ATTR_LIST_MOST };

struct Rows {
    void          *y;
    const void    *h, *b;
    const int32_t *adapters;
    DType          y_dtype, h_dtype, b_dtype;
    int64_t        rows, each, y_stride, h_stride; /* each: rows of a sequence */
    int            cols, r, count;                 /* columns of b's rows; room for a rank; adapters */
    float          scales[MOST];
    int            ranks[MOST];

    __device__ __forceinline__ int adapter(int64_t row) const /* -1: none */
    {
        int a = row < rows ? adapters[row / each] : -1;
        return a >= 0 && a < count && ranks[a] ? a : -1;
    }

    __device__ __forceinline__ void add(int64_t row, int col, int a, float sum) const
    {
        int64_t at = row * y_stride + col;
        float   value = scales[a] * sum;
        value += elem_get(y, y_dtype, at);
        elem_set(y, y_dtype, at, value);
    }
};

static Rows rows_of(const KernelArgs *args)
{
    const LoraRowsAttrs *attrs = (const LoraRowsAttrs *)args->attrs;
    const TensorView    *y = &args->out[0], *h = &args->in[LORA_ROWS_H], *b = &args->in[LORA_ROWS_B];
    Rows                 rows = {};
    rows.y = (char *)y->data + dtype_bytes(y->type.dtype, attrs->col);
    rows.h = h->data, rows.b = b->data;
    rows.adapters = (const int32_t *)args->in[LORA_ROWS_ADAPTERS].data;
    rows.y_dtype = y->type.dtype, rows.h_dtype = h->type.dtype, rows.b_dtype = b->type.dtype;
    rows.rows = type_rows(&y->type), rows.each = rows.rows / args->in[LORA_ROWS_ADAPTERS].type.dim[0];
    rows.y_stride = type_cols(&y->type), rows.h_stride = type_cols(&h->type);
    rows.count = (int)attrs->ranks.count, rows.r = (int)type_cols(&b->type), rows.cols = (int)(b->type.dim[0] / rows.count);
    for (int a = 0; a < rows.count; a++) {
        rows.scales[a] = (float)attrs->scales.values[a];
        rows.ranks[a] = (int)attrs->ranks.values[a];
    }
    return rows;
}

/* ---- mma ---- */

/* Numbers k and k + 1 of a row that has `rank`; zeros behind it and where it isn't there. */
static __device__ __forceinline__ uint32_t load_pair(const bf16 *row, int k, int rank, bool there)
{
    if (!there || k >= rank) return 0;
    uint32_t pair = *reinterpret_cast<const uint32_t *>(row + k);
    return k + 1 < rank ? pair : pair & 0xFFFF;
}

static __global__ void __launch_bounds__(WARPS * 32) lora_rows_mma(const __grid_constant__ Rows rows)
{
    int     lane = threadIdx.x & 31, first = (blockIdx.x * WARPS + (threadIdx.x >> 5)) * COLS, k0 = (lane & 3) * 2, own[2], a = -1;
    int64_t row = (int64_t)blockIdx.y * ROWS + (lane >> 2);
    if (first >= rows.cols) return;
    for (int half = 0; half < 2; half++) own[half] = rows.adapter(row + half * 8);
    for (;;) { /* each adapter of these rows, the lowest first */
        int next = min(own[0] > a ? own[0] : MOST, own[1] > a ? own[1] : MOST);
        a = __reduce_min_sync(~0u, next);
        if (a == MOST) return;
        const bf16 *h = (const bf16 *)rows.h + row * rows.h_stride + a * rows.r;
        const bf16 *b = (const bf16 *)rows.b + ((int64_t)a * rows.cols + first + (lane >> 2)) * rows.r;
        bool        is_col = first + (lane >> 2) < rows.cols;
        float       sum[4] = {};
        for (int k = k0; k - k0 < rows.ranks[a]; k += 16) {
            uint32_t down[4];
            for (int half = 0; half < 2; half++)
                for (int step = 0; step < 2; step++)
                    down[2 * step + half] = load_pair(h + half * 8 * rows.h_stride, k + step * 8, rows.ranks[a], own[half] == a);
            mma(sum, down, load_pair(b, k, rows.ranks[a], is_col), load_pair(b, k + 8, rows.ranks[a], is_col));
        }
        for (int e = 0; e < 4; e++)
            if (own[e >> 1] == a && first + k0 + (e & 1) < rows.cols) rows.add(row + (e >> 1) * 8, first + k0 + (e & 1), a, sum[e]);
    }
}

/* Pairs lie at even places, and blocks are counted in 16 bits. */
static bool mma_match(const Node *node, CudaDevice *)
{
    return type_cols(&node->in[LORA_ROWS_B]->type) % 2 == 0 && type_rows(&node->out[0]->type) <= (int64_t)ROWS * UINT16_MAX;
}

static Status mma_run(const KernelArgs *args)
{
    Rows rows = rows_of(args);
    dim3 grid((unsigned)cuda_div_up(rows.cols, WARPS * COLS), (unsigned)cuda_div_up(rows.rows, ROWS));
    lora_rows_mma<<<grid, WARPS * 32, 0, cuda_stream(args)>>>(rows);
    return CUDA_LAUNCHED();
}

/* ---- plain ---- */

/* A thread an element of y. */
static __global__ void __launch_bounds__(THREADS) lora_rows_plain(const __grid_constant__ Rows rows)
{
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < rows.rows * rows.cols; i += (int64_t)gridDim.x * THREADS) {
        int64_t row = i / rows.cols;
        int     col = (int)(i % rows.cols), a = rows.adapter(row);
        if (a < 0) continue;
        int64_t h = row * rows.h_stride + (int64_t)a * rows.r, b = ((int64_t)a * rows.cols + col) * rows.r;
        float   sum = 0;
        for (int k = 0; k < rows.ranks[a]; k++) sum += elem_get(rows.h, rows.h_dtype, h + k) * elem_get(rows.b, rows.b_dtype, b + k);
        rows.add(row, col, a, sum);
    }
}

static Status plain_run(const KernelArgs *args)
{
    Rows rows = rows_of(args);
    lora_rows_plain<<<cuda_grid(rows.rows * rows.cols, THREADS), THREADS, 0, cuda_stream(args)>>>(rows);
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(lora_rows,
             {.dtypes = DT_SET_FLOAT,
              .min_sm = 80,
              .run = mma_run,
              .name = "mma",
              .match = mma_match,
              .except = {{.in = 1 << LORA_ROWS_H | 1 << LORA_ROWS_B, .dtypes = DT_SET_BF16}}},
             {.dtypes = DT_SET_FLOAT, .run = plain_run, .name = "plain"})
