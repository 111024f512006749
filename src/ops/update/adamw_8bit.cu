/* adamw_8bit on CUDA: a warp updates a block of MOMENT_BLOCK elements, 8 per lane, and finds their largest magnitude in registers. It
 * takes RUN blocks in a row, so that it searches its segment once. Arithmetic and random draws are the CPU's. Memory traffic: 10 bytes
 * per element in bf16. */
#include "ops/update/update.cuh"
#include "ops/lowbit/dynamic_map.h"
#include "ops/update/adamw.h" /* after the headers that include ir/op.h as C++ */

enum { IN_W, IN_G, IN_M, IN_V, IN_M_SCALE, IN_V_SCALE, IN_NORM2, IN_LOSS, IN_HYPER, IN_STEP, IN_SEGMENTS, IN_MASTER };
enum { OUT_W, OUT_M, OUT_V, OUT_M_SCALE, OUT_V_SCALE, OUT_MASTER };
enum { THREADS = 256, WIDTH = MOMENT_BLOCK / 32, RUN = 16, BLOCKS_PER_CTA = THREADS / 32 * RUN };

typedef struct Adamw8 {
    TensorView     w, g, master; /* master.data NULL: there is no master copy */
    uint8_t       *m, *v;
    float         *m_scale, *v_scale;
    const float   *norm2, *loss, *hyper;
    const int64_t *step;
    const int64_t (*segments)[SEGMENT_COLUMNS];
    int64_t    num_segments, num_blocks;
    AdamwAttrs attrs;
    bool       random_w;
    bool       whole; /* every pointer is 16-byte aligned */
} Adamw8;

typedef struct Shared {
    AdamwScalars s;
    bool         apply;
    DynamicMap   m, v;
} Shared;

static __device__ __forceinline__ int64_t first_block(const Adamw8 *a, int64_t k)
{
    return MOMENT_FIRST(a->segments[k][SEGMENT_OFFSET], k);
}

static __device__ __forceinline__ int64_t end_block(const Adamw8 *a, int64_t k)
{
    return first_block(a, k) + cuda_div_up_device(a->segments[k][SEGMENT_NUMEL], MOMENT_BLOCK);
}

/* The first segment whose last block is after or at `block`. */
static __device__ int64_t find_segment(const Adamw8 *a, int64_t block)
{
    int64_t low = 0, high = a->num_segments;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (end_block(a, middle) > block)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static __device__ __forceinline__ void load_codes(const uint8_t *p, bool fast, int count, uint8_t *codes)
{
    if (fast) {
        *(uint2 *)codes = *(const uint2 *)p;
        return;
    }
#pragma unroll
    for (int k = 0; k < WIDTH; k++) codes[k] = k < count ? p[k] : 0;
}

static __device__ __forceinline__ void store_codes(uint8_t *p, bool fast, int count, const uint8_t *codes)
{
    if (fast) {
        *(uint2 *)p = *(const uint2 *)codes;
        return;
    }
#pragma unroll
    for (int k = 0; k < WIDTH; k++)
        if (k < count) p[k] = codes[k];
}

template <typename T> static __device__ __forceinline__ void load_some(const T *p, bool fast, int count, float *out)
{
    if (fast) {
        load_n<WIDTH>(p, out);
        return;
    }
#pragma unroll
    for (int k = 0; k < WIDTH; k++) out[k] = k < count ? to_float(p[k]) : 0;
}

template <typename T> static __device__ __forceinline__ void store_some(T *p, bool fast, int count, const float *in)
{
    if (fast) {
        store_n<WIDTH>(p, in);
        return;
    }
#pragma unroll
    for (int k = 0; k < WIDTH; k++)
        if (k < count) p[k] = from_float<T>(in[k]);
}

/* Encodes a warp's block, and returns its scale. */
static __device__ __forceinline__ float encode(const DynamicMap *map, bool is_signed, const float *values, uint8_t *codes)
{
    float most = 0;
#pragma unroll
    for (int k = 0; k < WIDTH; k++) most = fmaxf(most, fabsf(values[k]));
    most = warp_max(most);
    float inverse = 1 / most;
#pragma unroll
    for (int k = 0; k < WIDTH; k++) codes[k] = (uint8_t)dynamic_nearest(map, is_signed, values[k] * inverse);
    return most;
}

/* Updates block `block` of segment `seg`, by the whole warp. */
template <typename W, typename G>
static __device__ void update_block(const Adamw8 *a, const Shared *shared, const int64_t *seg, int64_t block, int64_t first)
{
    int                  lane = threadIdx.x & 31;
    int64_t              left = seg[SEGMENT_NUMEL] - first - lane * WIDTH, at = seg[SEGMENT_OFFSET] + first + lane * WIDTH;
    int                  count = (int)(left < 0 ? 0 : left > WIDTH ? WIDTH : left);
    bool                 fast = a->whole && count == WIDTH && seg[SEGMENT_OFFSET] % WIDTH == 0;
    float                w[WIDTH], g[WIDTH], m[WIDTH], v[WIDTH], decay = seg[SEGMENT_DECAY] ? shared->s.decay : 1.0f;
    __align__(8) uint8_t m_codes[WIDTH], v_codes[WIDTH];
    if (a->master.data)
        load_some((const float *)a->master.data + at, fast, count, w);
    else
        load_some((const W *)a->w.data + at, fast, count, w);
    load_some((const G *)a->g.data + at, fast, count, g);
    load_codes(a->m + at, fast, count, m_codes);
    load_codes(a->v + at, fast, count, v_codes);
    float m_scale = a->m_scale[block], v_scale = a->v_scale[block];
    __syncwarp(); /* all lanes have read the scales that lane 0 now overwrites */
#pragma unroll
    for (int k = 0; k < WIDTH; k++) {
        m[k] = k < count ? dynamic_value(&shared->m, true, m_codes[k]) * m_scale : 0;
        v[k] = k < count ? dynamic_value(&shared->v, false, v_codes[k]) * v_scale : 0;
        adamw_element(&shared->s, decay, g[k], &w[k], &m[k], &v[k]);
    }
    m_scale = encode(&shared->m, true, m, m_codes);
    v_scale = encode(&shared->v, false, v, v_codes);
    if (lane == 0) {
        a->m_scale[block] = m_scale;
        a->v_scale[block] = v_scale;
    }
    store_codes(a->m + at, fast, count, m_codes);
    store_codes(a->v + at, fast, count, v_codes);
    if (a->master.data) store_some((float *)a->master.data + at, fast, count, w);
    if (a->random_w) {
        uint64_t key = update_key(a->step, seg[SEGMENT_KEY]), quad = (uint64_t)(seg[SEGMENT_FIRST] + first + lane * WIDTH) / 4;
#pragma unroll
        for (int q = 0; q < WIDTH / 4; q++) {
            Philox4 draw = random_segment_quad(key, quad + (uint64_t)q);
#pragma unroll
            for (int k = 0; k < 4; k++) w[4 * q + k] = bf16_random(w[4 * q + k], draw.v[k]);
        }
    }
    store_some((W *)a->w.data + at, fast, count, w);
}

template <typename W, typename G> static __global__ void __launch_bounds__(THREADS) adamw_8bit_warps(Adamw8 a)
{
    __shared__ Shared shared;
    if (threadIdx.x == 0) {
        shared.s = adamw_scalars(&a.attrs, *a.norm2, a.hyper);
        shared.apply = step_applies(a.norm2, a.loss);
    }
    for (int p = threadIdx.x; p < DYNAMIC_MAGNITUDES; p += THREADS) {
        dynamic_map_entry(&shared.m, true, p);
        dynamic_map_entry(&shared.v, false, p);
    }
    __syncthreads();
    if (!shared.apply) return;
    int64_t block = (int64_t)blockIdx.x * BLOCKS_PER_CTA + (threadIdx.x >> 5) * RUN, k = find_segment(&a, block);
    for (int64_t end = block + RUN; block < end; block++) {
        while (k < a.num_segments && end_block(&a, k) <= block) k++;
        if (k == a.num_segments) return;
        if (block < first_block(&a, k)) continue;
        update_block<W, G>(&a, &shared, a.segments[k], block, (block - first_block(&a, k)) * MOMENT_BLOCK);
    }
}

static Status adamw_8bit_run(const KernelArgs *args)
{
    const AdamwAttrs *attrs = (const AdamwAttrs *)args->attrs;
    const TensorView *in = args->in;
    Adamw8            a = {};
    a.w = in[IN_W], a.g = in[IN_G], a.master = in[IN_MASTER];
    a.m = (uint8_t *)in[IN_M].data, a.v = (uint8_t *)in[IN_V].data;
    a.m_scale = (float *)in[IN_M_SCALE].data, a.v_scale = (float *)in[IN_V_SCALE].data;
    a.norm2 = (const float *)in[IN_NORM2].data, a.loss = (const float *)in[IN_LOSS].data, a.hyper = (const float *)in[IN_HYPER].data;
    a.step = (const int64_t *)in[IN_STEP].data;
    a.segments = (const int64_t(*)[SEGMENT_COLUMNS])in[IN_SEGMENTS].data;
    a.num_segments = in[IN_SEGMENTS].type.dim[0];
    a.num_blocks = in[IN_M_SCALE].type.dim[0];
    a.attrs = *attrs;
    a.random_w = a.w.type.dtype == DT_BF16 && !a.master.data && attrs->stochastic;
    a.whole = is_aligned16(a.w.data) && is_aligned16(a.g.data) && is_aligned16(a.m) && is_aligned16(a.v) && is_aligned16(a.master.data);
    unsigned     grid = (unsigned)cuda_div_up(a.num_blocks, BLOCKS_PER_CTA);
    cudaStream_t stream = cuda_stream(args);
    CUDA_FLOAT(a.w.type.dtype, W, CUDA_FLOAT(a.g.type.dtype, G, adamw_8bit_warps<W, G><<<grid, THREADS, 0, stream>>>(a)));
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(adamw_8bit, {.dtypes = DT_SET_FLOAT,
                          .run = adamw_8bit_run,
                          .name = "warps",
                          .except = {{.in = 1u << IN_M | 1u << IN_V, .out = 1u << OUT_M | 1u << OUT_V, .dtypes = DT_SET(DT_U8)}}})
