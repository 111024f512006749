/* normuon_update on CUDA, in two launches with one warp per row. The first computes each row's factor and a sum per thread block, of at
 * most NORMUON_UPDATE_BLOCKS blocks. In the second, each block adds up these sums in order and updates pieces of its rows. */
#include "ops/update/update.cuh"
#include "ops/gpu_sums.h" /* after the headers that include ir/op.h as C++ */
#include "ops/update/normuon.h"

enum { IN_W, IN_X, IN_V, IN_NORM2, IN_LOSS, IN_HYPER, IN_STEP, IN_MASTER };
enum { OUT_W, OUT_V, OUT_MASTER };
enum { THREADS = 256, WARPS = THREADS / 32, WIDTH = 8, PIECE = 32 * WIDTH * 4 /* columns that a warp updates */ };

typedef struct Update {
    void              *w;
    const void        *x;
    float             *v, *master; /* master NULL: there is no master copy */
    const float       *norm2, *loss, *hyper;
    const int64_t     *step;
    float             *inverse, *partial;
    int64_t            rows, cols, each; /* dims of the matrix; each: rows of a thread block in the first launch */
    MatrixRows         of_w;             /* the rows of the weight that form the matrix */
    int                num_partial;
    NormuonUpdateAttrs attrs;
    bool               random_w;
    bool               whole; /* every row of every matrix begins at a multiple of 16 bytes */
} Update;

static int64_t block_rows(int64_t rows)
{
    return cuda_div_up(cuda_div_up(rows, NORMUON_UPDATE_BLOCKS), WARPS) * WARPS;
}

template <typename X> static __global__ void __launch_bounds__(THREADS) second_moments(Update a)
{
    __shared__ float sums[WARPS];
    if (!step_applies(a.norm2, a.loss)) return;
    int     lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int64_t begin = blockIdx.x * a.each, end = begin + a.each < a.rows ? begin + a.each : a.rows;
    float   total = 0, values[WIDTH];
    for (int64_t row = begin + warp; row < end; row += WARPS) {
        const X *x = (const X *)a.x + row * a.cols;
        float    sum = 0;
        for (int64_t c = lane * WIDTH; c < a.cols; c += 32 * WIDTH) {
            if (a.whole) {
                load_n<WIDTH>(x + c, values);
#pragma unroll
                for (int k = 0; k < WIDTH; k++) sum += values[k] * values[k];
                continue;
            }
            for (int64_t e = c; e < c + WIDTH && e < a.cols; e++) sum += to_float(x[e]) * to_float(x[e]);
        }
        sum = warp_sum(sum);
        int64_t place = normuon_place(a.of_w, row);
        float   v = (float)(a.attrs.beta2 * (double)a.v[place] + (1 - a.attrs.beta2) * ((double)sum / (double)a.cols));
        float   inverse = 1 / (sqrtf(v) + (float)a.attrs.eps);
        total += sum * inverse * inverse;
        __syncwarp(); /* all lanes have read v */
        if (lane == 0) {
            a.v[place] = v;
            a.inverse[row] = inverse;
        }
    }
    if (lane == 0) sums[warp] = total;
    __syncthreads();
    if (threadIdx.x) return;
    for (int k = 1; k < WARPS; k++) total += sums[k];
    a.partial[blockIdx.x] = total;
}

template <typename W, typename X> static __global__ void __launch_bounds__(THREADS) move_weights(Update a)
{
    __shared__ float scratch[32];
    if (!step_applies(a.norm2, a.loss)) return;
    int     lane = threadIdx.x & 31;
    int64_t row = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5), begin = (int64_t)blockIdx.y * PIECE,
            end = begin + PIECE < a.cols ? begin + PIECE : a.cols;
    double lr = (double)a.hyper[HYPER_LR];
    float  sum = 0, decay = (float)(1 - lr * a.attrs.weight_decay), w[WIDTH], x[WIDTH];
    for (int k = threadIdx.x; k < a.num_partial; k += THREADS) sum += a.partial[k];
    sum = block_sum(sum, scratch);
    if (row >= a.rows) return;
    float    factor = sum > 0 ? (float)(lr * 0.2 * sqrt((double)a.rows * (double)a.cols / (double)sum)) * a.inverse[row] : 0;
    uint64_t key = update_key(a.step, a.attrs.key);
    int64_t  to_w = (normuon_place(a.of_w, row) - row) * a.cols; /* add it to an element's index in x to get its index in w */
    const X *xs = (const X *)a.x;
    W       *ws = (W *)a.w;
    for (int64_t c = begin + lane * WIDTH; c < end; c += 32 * WIDTH) {
        int64_t at = row * a.cols + c;
        if (a.whole) {
            if (a.master)
                load_n<WIDTH>(a.master + to_w + at, w);
            else
                load_n<WIDTH>(ws + to_w + at, w);
            load_n<WIDTH>(xs + at, x);
#pragma unroll
            for (int k = 0; k < WIDTH; k++) w[k] = w[k] * decay - factor * x[k];
            if (a.master) store_n<WIDTH>(a.master + to_w + at, w);
            for (int q = 0; a.random_w && q < WIDTH / 4; q++) {
                Philox4 draw = random_segment_quad(key, (uint64_t)at / 4 + (uint64_t)q);
#pragma unroll
                for (int k = 0; k < 4; k++) w[4 * q + k] = bf16_random(w[4 * q + k], draw.v[k]);
            }
            store_n<WIDTH>(ws + to_w + at, w);
            continue;
        }
        for (int64_t e = at; e < at + WIDTH && e < row * a.cols + end; e++) {
            float value = (a.master ? a.master[to_w + e] : to_float(ws[to_w + e])) * decay - factor * to_float(xs[e]);
            if (a.master) a.master[to_w + e] = value;
            if (a.random_w) value = bf16_random(value, random_segment_quad(key, (uint64_t)e / 4).v[e % 4]);
            ws[to_w + e] = from_float<W>(value);
        }
    }
}

static Status normuon_update_run(const KernelArgs *args)
{
    const NormuonUpdateAttrs *attrs = (const NormuonUpdateAttrs *)args->attrs;
    const TensorView         *in = args->in, *w = &in[IN_W];
    Update                    a = {};
    a.w = w->data, a.x = in[IN_X].data, a.v = (float *)in[IN_V].data, a.master = (float *)in[IN_MASTER].data;
    a.norm2 = (const float *)in[IN_NORM2].data, a.loss = (const float *)in[IN_LOSS].data, a.hyper = (const float *)in[IN_HYPER].data;
    a.step = (const int64_t *)in[IN_STEP].data;
    a.rows = in[IN_X].type.dim[0], a.cols = w->type.dim[1];
    a.of_w = normuon_rows(attrs->rows, w->type.dim[0]);
    a.each = block_rows(a.rows);
    a.num_partial = (int)cuda_div_up(a.rows, a.each);
    a.partial = (float *)args->workspace;
    a.inverse = a.partial + NORMUON_UPDATE_BLOCKS;
    a.attrs = *attrs;
    a.random_w = w->type.dtype == DT_BF16 && !a.master && attrs->stochastic;
    a.whole = a.cols % WIDTH == 0 && is_aligned16(a.w) && is_aligned16(a.x) && is_aligned16(a.master);
    dim3         grid((unsigned)cuda_div_up(a.rows, WARPS), (unsigned)cuda_div_up(a.cols, PIECE));
    cudaStream_t stream = cuda_stream(args);
    FAIL_IF(grid.y > 65535, ERR_UNSUPPORTED, "normuon_update: %lld columns, expected at most %lld", (long long)a.cols,
            (long long)PIECE * 65535);
    CUDA_FLOAT(in[IN_X].type.dtype, X, second_moments<X><<<(unsigned)a.num_partial, THREADS, 0, stream>>>(a));
    CUDA_FLOAT(w->type.dtype, W, CUDA_FLOAT(in[IN_X].type.dtype, X, move_weights<W, X><<<grid, THREADS, 0, stream>>>(a)));
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(normuon_update, {.dtypes = DT_SET_FLOAT, .run = normuon_update_run, .name = "rows", .workspace = cuda_planned_workspace})
