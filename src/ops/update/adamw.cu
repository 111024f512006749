/* adamw on CUDA: a thread block updates a fixed range of flat elements, each thread packs of 8; the block finds its first segment by
 * bisection. Arithmetic and random draws are the CPU's. Memory-bound: 14 bytes per element in bf16. */
#include "ops/update/update.cuh"
#include "ops/update/adamw.h" /* after the headers that include ir/op.h as C++ */

enum { IN_W, IN_G, IN_M, IN_V, IN_NORM2, IN_LOSS, IN_HYPER, IN_STEP, IN_SEGMENTS, IN_MASTER };
enum { OUT_W, OUT_M, OUT_V, OUT_MASTER };
enum { THREADS = 256, WIDTH = 8, TURNS = 2, PER_BLOCK = THREADS * WIDTH * TURNS };

typedef struct Adamw {
    TensorView     w, g, m, v, master; /* master.data NULL: there is no master copy */
    const float   *norm2, *loss, *hyper;
    const int64_t *step;
    const int64_t (*segments)[SEGMENT_COLUMNS];
    int64_t    num_segments, numel;
    AdamwAttrs attrs;
    bool       random_w, random_v;
    bool       whole; /* every pointer is 16-byte aligned */
} Adamw;

typedef struct StepScalars {
    AdamwScalars s;
    bool         apply;
    int64_t      segment; /* the first segment that ends after the block's begin */
} StepScalars;

static __device__ StepScalars step_scalars(const Adamw *a, int64_t begin)
{
    StepScalars s;
    s.s = adamw_scalars(&a->attrs, *a->norm2, a->hyper);
    s.apply = step_applies(a->norm2, a->loss);
    int64_t low = 0, high = a->num_segments;
    while (low < high) { /* finds the first segment that ends after `begin` */
        int64_t middle = (low + high) / 2;
        if (a->segments[middle][SEGMENT_OFFSET] + a->segments[middle][SEGMENT_NUMEL] > begin)
            high = middle;
        else
            low = middle + 1;
    }
    s.segment = low;
    return s;
}

/* Updates element i, which may be anywhere in segment `seg`. */
static __device__ void update_element(const Adamw *a, const StepScalars *s, const int64_t *seg, int64_t i)
{
    float w = a->master.data ? ((const float *)a->master.data)[i] : elem_get(a->w.data, a->w.type.dtype, i);
    float m = elem_get(a->m.data, a->m.type.dtype, i), v = elem_get(a->v.data, a->v.type.dtype, i);
    adamw_element(&s->s, seg[SEGMENT_DECAY] ? s->s.decay : 1.0f, elem_get(a->g.data, a->g.type.dtype, i), &w, &m, &v);
    if (a->master.data) ((float *)a->master.data)[i] = w;
    if (a->random_w || a->random_v) {
        int64_t  first = seg[SEGMENT_FIRST] + i - seg[SEGMENT_OFFSET];
        uint64_t key = update_key(a->step, seg[SEGMENT_KEY]);
        uint32_t word = random_segment_quad(key, (uint64_t)first / 4).v[first % 4];
        if (a->random_w) w = bf16_random(w, word);
        if (a->random_v) v = bf16_random(v, word >> 16);
    }
    elem_set(a->w.data, a->w.type.dtype, i, w);
    elem_set(a->m.data, a->m.type.dtype, i, m);
    elem_set(a->v.data, a->v.type.dtype, i, v);
}

/* Updates WIDTH elements that are all in `seg`, with i a multiple of WIDTH; the index of element i within its parameter is a multiple of
 * 4. */
template <typename W, typename G, typename M>
static __device__ void update_pack(const Adamw *a, const StepScalars *s, const int64_t *seg, int64_t i)
{
    float w[WIDTH], g[WIDTH], m[WIDTH], v[WIDTH], decay = seg[SEGMENT_DECAY] ? s->s.decay : 1.0f;
    if (a->master.data)
        load_n<WIDTH>((const float *)a->master.data + i, w);
    else
        load_n<WIDTH>((const W *)a->w.data + i, w);
    load_n<WIDTH>((const G *)a->g.data + i, g);
    load_n<WIDTH>((const M *)a->m.data + i, m);
    load_n<WIDTH>((const M *)a->v.data + i, v);
#pragma unroll
    for (int k = 0; k < WIDTH; k++) adamw_element(&s->s, decay, g[k], &w[k], &m[k], &v[k]);
    if (a->master.data) store_n<WIDTH>((float *)a->master.data + i, w);
    if (a->random_w || a->random_v) {
        uint64_t key = update_key(a->step, seg[SEGMENT_KEY]);
        uint64_t quad = (uint64_t)(seg[SEGMENT_FIRST] + i - seg[SEGMENT_OFFSET]) / 4;
#pragma unroll
        for (int q = 0; q < WIDTH / 4; q++) {
            Philox4 draw = random_segment_quad(key, quad + (uint64_t)q);
#pragma unroll
            for (int k = 0; k < 4; k++) {
                if (a->random_w) w[4 * q + k] = bf16_random(w[4 * q + k], draw.v[k]);
                if (a->random_v) v[4 * q + k] = bf16_random(v[4 * q + k], draw.v[k] >> 16);
            }
        }
    }
    store_n<WIDTH>((W *)a->w.data + i, w);
    store_n<WIDTH>((M *)a->m.data + i, m);
    store_n<WIDTH>((M *)a->v.data + i, v);
}

template <typename W, typename G, typename M> static __global__ void __launch_bounds__(THREADS) adamw_blocks(Adamw a)
{
    __shared__ StepScalars shared;
    int64_t                begin = (int64_t)blockIdx.x * PER_BLOCK;
    if (threadIdx.x == 0) shared = step_scalars(&a, begin);
    __syncthreads();
    StepScalars s = shared;
    if (!s.apply) return;
    for (int turn = 0; turn < TURNS; turn++) {
        int64_t i = begin + ((int64_t)turn * THREADS + threadIdx.x) * WIDTH, k = s.segment;
        if (i >= a.numel) return;
        while (k < a.num_segments && a.segments[k][SEGMENT_OFFSET] + a.segments[k][SEGMENT_NUMEL] <= i) k++;
        if (k == a.num_segments) return;
        int64_t from = a.segments[k][SEGMENT_OFFSET], end = from + a.segments[k][SEGMENT_NUMEL];
        if (a.whole && i >= from && i + WIDTH <= end && (a.segments[k][SEGMENT_FIRST] + i - from) % 4 == 0) {
            update_pack<W, G, M>(&a, &s, a.segments[k], i);
            continue;
        }
        for (int64_t e = i; e < i + WIDTH && e < a.numel; e++) {
            while (k < a.num_segments && a.segments[k][SEGMENT_OFFSET] + a.segments[k][SEGMENT_NUMEL] <= e) k++;
            if (k < a.num_segments && e >= a.segments[k][SEGMENT_OFFSET]) update_element(&a, &s, a.segments[k], e);
        }
    }
}

static Status adamw_run(const KernelArgs *args)
{
    const AdamwAttrs *attrs = (const AdamwAttrs *)args->attrs;
    const TensorView *in = args->in;
    Adamw             a = {};
    a.w = in[IN_W], a.g = in[IN_G], a.m = in[IN_M], a.v = in[IN_V], a.master = in[IN_MASTER];
    a.norm2 = (const float *)in[IN_NORM2].data, a.loss = (const float *)in[IN_LOSS].data, a.hyper = (const float *)in[IN_HYPER].data;
    a.step = (const int64_t *)in[IN_STEP].data;
    a.segments = (const int64_t(*)[SEGMENT_COLUMNS])in[IN_SEGMENTS].data;
    a.num_segments = in[IN_SEGMENTS].type.dim[0];
    a.numel = type_numel(&a.w.type);
    a.attrs = *attrs;
    a.random_w = a.w.type.dtype == DT_BF16 && !a.master.data && attrs->stochastic;
    a.random_v = a.v.type.dtype == DT_BF16;
    a.whole = is_aligned16(a.w.data) && is_aligned16(a.g.data) && is_aligned16(a.m.data) && is_aligned16(a.v.data) &&
              is_aligned16(a.master.data) && a.m.type.dtype == a.v.type.dtype;
    unsigned     grid = (unsigned)cuda_div_up(a.numel, PER_BLOCK);
    cudaStream_t stream = cuda_stream(args);
    CUDA_FLOAT(a.w.type.dtype, W,
               CUDA_FLOAT(a.g.type.dtype, G, CUDA_FLOAT(a.m.type.dtype, M, adamw_blocks<W, G, M><<<grid, THREADS, 0, stream>>>(a))));
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(adamw, {.dtypes = DT_SET_FLOAT, .run = adamw_run, .name = "packs"})
