/* normuon_momentum on CUDA, in two launches. In the first, thread blocks of fixed ranges update m and sum |u|^2. In the second, each
 * block adds up these sums in order, computes u again from values that are still in the L2 cache, and scales it. */
#include "ops/update/update.cuh"
#include "ops/gpu_sums.h" /* after the headers that include ir/op.h as C++ */
#include "ops/update/adamw.h"
#include "ops/update/normuon.h"

enum { IN_G, IN_M, IN_NORM2, IN_LOSS };
enum { OUT_X, OUT_M };
enum { THREADS = 256, WIDTH = 8 };

typedef struct Momentum {
    const void          *g;
    void                *m, *x;
    const float         *norm2, *loss;
    float               *partial;
    int64_t              numel, each; /* numel: elements of the matrix; each: elements of a thread block */
    MatrixRows           runs;        /* the rows of g and m that form the matrix, in elements */
    bool                 one_run;     /* the matrix is contiguous in g and m */
    NormuonMomentumAttrs attrs;
    bool                 whole; /* every pointer is 16-byte aligned, also where each run of rows begins */
} Momentum;

static int64_t block_elements(int64_t numel)
{
    return cuda_div_up(cuda_div_up(numel, NORMUON_MOMENTUM_BLOCKS), THREADS * WIDTH) * THREADS * WIDTH;
}

/* Factors to compute m', and u, from g and m. */
typedef struct Factors {
    float clip, momentum, rest;
    bool  nesterov;
} Factors;

static __device__ __forceinline__ Factors factors_of(const Momentum *a)
{
    Factors f;
    f.clip = clip_factor(*a->norm2, a->attrs.max_grad_norm);
    f.momentum = (float)a->attrs.momentum;
    f.rest = (float)(1 - a->attrs.momentum);
    f.nesterov = a->attrs.nesterov;
    return f;
}

static __device__ __forceinline__ float step_of(const Factors *f, float g, float m)
{
    return f->momentum * m + f->rest * (g * f->clip);
}
static __device__ __forceinline__ float input_of(const Factors *f, float g, float m)
{
    return f->nesterov ? step_of(f, g, m) : m;
}

/* Index in g and m of element i of the matrix. */
static __device__ __forceinline__ int64_t place_of(const Momentum *a, int64_t i)
{
    return a->one_run ? a->runs.begin + i : normuon_place(a->runs, i);
}

template <typename G, typename M> static __global__ void __launch_bounds__(THREADS) momentum_blocks(Momentum a)
{
    __shared__ float scratch[32];
    if (!step_applies(a.norm2, a.loss)) return;
    Factors  f = factors_of(&a);
    const G *g = (const G *)a.g;
    M       *m = (M *)a.m;
    int64_t  begin = blockIdx.x * a.each, end = begin + a.each < a.numel ? begin + a.each : a.numel;
    float    sum = 0, gs[WIDTH], ms[WIDTH];
    for (int64_t i = begin + (int64_t)threadIdx.x * WIDTH; i < end; i += THREADS * WIDTH) {
        if (a.whole && i + WIDTH <= end) {
            int64_t place = place_of(&a, i);
            load_n<WIDTH>(g + place, gs);
            load_n<WIDTH>(m + place, ms);
#pragma unroll
            for (int k = 0; k < WIDTH; k++) ms[k] = step_of(&f, gs[k], ms[k]);
            store_n<WIDTH>(m + place, ms);
#pragma unroll
            for (int k = 0; k < WIDTH; k++) {
                float u = input_of(&f, gs[k], ms[k]);
                sum += u * u;
            }
            continue;
        }
        for (int64_t e = i; e < i + WIDTH && e < end; e++) {
            int64_t place = place_of(&a, e);
            float   next = step_of(&f, to_float(g[place]), to_float(m[place])), u = input_of(&f, to_float(g[place]), next);
            m[place] = from_float<M>(next);
            sum += u * u;
        }
    }
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) a.partial[blockIdx.x] = sum;
}

template <typename G, typename M, typename X> static __global__ void __launch_bounds__(THREADS) scale_blocks(Momentum a)
{
    __shared__ float scratch[32];
    Factors          f = factors_of(&a);
    const G         *g = (const G *)a.g;
    const M         *m = (const M *)a.m;
    X               *x = (X *)a.x;
    float            sum = 0, gs[WIDTH], ms[WIDTH];
    bool             applies = step_applies(a.norm2, a.loss);
    for (int k = threadIdx.x; applies && k < (int)gridDim.x; k += THREADS) sum += a.partial[k];
    sum = block_sum(sum, scratch);
    float   scale = 1 / (1.02f * sqrtf(sum) + 1e-6f);
    int64_t begin = blockIdx.x * a.each, end = begin + a.each < a.numel ? begin + a.each : a.numel;
    for (int64_t i = begin + (int64_t)threadIdx.x * WIDTH; i < end; i += THREADS * WIDTH) {
        if (a.whole && i + WIDTH <= end) {
            int64_t place = place_of(&a, i);
            load_n<WIDTH>(g + place, gs);
            load_n<WIDTH>(m + place, ms);
#pragma unroll
            for (int k = 0; k < WIDTH; k++) ms[k] = applies ? input_of(&f, gs[k], ms[k]) * scale : 0;
            store_n<WIDTH>(x + i, ms);
            continue;
        }
        for (int64_t e = i; e < i + WIDTH && e < end; e++) {
            int64_t place = place_of(&a, e);
            x[e] = from_float<X>(applies ? input_of(&f, to_float(g[place]), to_float(m[place])) * scale : 0);
        }
    }
}

static Status normuon_momentum_run(const KernelArgs *args)
{
    const TensorView *g = &args->in[IN_G], *m = &args->in[IN_M], *x = &args->out[OUT_X];
    Momentum          a = {};
    a.g = g->data, a.m = m->data, a.x = x->data;
    a.norm2 = (const float *)args->in[IN_NORM2].data, a.loss = (const float *)args->in[IN_LOSS].data;
    a.partial = (float *)args->workspace;
    a.attrs = *(const NormuonMomentumAttrs *)args->attrs;
    int64_t    cols = g->type.dim[1];
    MatrixRows rows = normuon_rows(a.attrs.rows, g->type.dim[0]);
    a.runs.begin = rows.begin * cols, a.runs.size = rows.size * cols, a.runs.period = rows.period * cols;
    a.one_run = rows.period == g->type.dim[0];
    a.numel = type_numel(&g->type) / rows.period * rows.size;
    a.each = block_elements(a.numel);
    a.whole = is_aligned16(a.g) && is_aligned16(a.m) && is_aligned16(a.x) &&
              (!a.attrs.rows.size || (a.runs.begin % WIDTH == 0 && a.runs.size % WIDTH == 0 && a.runs.period % WIDTH == 0));
    unsigned     grid = (unsigned)cuda_div_up(a.numel, a.each);
    cudaStream_t stream = cuda_stream(args);
    CUDA_FLOAT(g->type.dtype, G, CUDA_FLOAT(m->type.dtype, M, momentum_blocks<G, M><<<grid, THREADS, 0, stream>>>(a)));
    if (x->data)
        CUDA_FLOAT(g->type.dtype, G,
                   CUDA_FLOAT(m->type.dtype, M, CUDA_FLOAT(x->type.dtype, X, scale_blocks<G, M, X><<<grid, THREADS, 0, stream>>>(a))));
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(normuon_momentum, {.dtypes = DT_SET_FLOAT, .run = normuon_momentum_run, .name = "blocks", .workspace = cuda_planned_workspace})
