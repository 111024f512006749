/* nf4_dequantise on CUDA, 8 elements a thread and turn: 4 bytes of codes, 16 of bf16 or 32 of fp32, TURNS of them loaded before the first
 * is stored. The 16 values and the map's 256 lie in shared memory. Memory: 2.5 bytes an element in bf16. */
#include "device/cuda/vec.cuh"
#include "ops/nf4.h"

enum { IN_CODES, IN_ABSMAX, IN_NESTED, IN_OFFSET };
enum { THREADS = 256, N = 8, TURNS = 4, PACKS_PER_CTA = THREADS * TURNS, PACKS_PER_BLOCK = NF4_BLOCK / N };

/* Of one weight. */
typedef struct Scales {
    const void  *absmax; /* u8, or f32 where nested is NULL */
    const float *nested, *offset;
} Scales;

/* All members of a weight, one for each y of the grid. packs: of 8 elements, which can be read and written at once. */
typedef struct Members {
    Nf4Member at[DEQUANTISE_MAX_MEMBERS];
    int64_t   packs[DEQUANTISE_MAX_MEMBERS];
} Members;

static_assert(THREADS == 256, "a thread for each code of the map");

/* values: of the NF4 codes; map: of the dynamic map's. */
static __device__ void fill_tables(float *values, float *map)
{
    int code = threadIdx.x, p = code - DYNAMIC_ZERO;
    if (code < NF4_CODES) values[code] = nf4_value(code);
    map[code] = p < 0 ? -dynamic_magnitude(true, -p) : dynamic_magnitude(true, p);
    __syncthreads();
}

static __device__ __forceinline__ float block_scale(const Scales *s, const float *map, int64_t block)
{
    if (!s->nested) return ((const float *)s->absmax)[block];
    return nf4_scale_of(map[((const uint8_t *)s->absmax)[block]], s->nested[block / NF4_NESTED], *s->offset);
}

static __device__ Scales member_scales(Scales s, const Nf4Member *at)
{
    s.absmax = (const char *)s.absmax + at->block * (int64_t)(s.nested ? 1 : sizeof(float));
    if (!s.nested) return s;
    s.nested += at->nested;
    s.offset += blockIdx.y;
    return s;
}

/* The first packs by 4 bytes of codes, the rest of the member's elements by single bytes. */
template <typename T>
static __global__ void __launch_bounds__(THREADS) nf4_packs(const uint8_t *codes, Scales all, T *w, const Members members)
{
    __shared__ float values[NF4_CODES], map[THREADS];
    const Nf4Member *at = &members.at[blockIdx.y];
    const Scales     s = member_scales(all, at);
    int64_t          packs = members.packs[blockIdx.y], numel = at->numel;
    codes += at->first / 2;
    w += at->first;
    fill_tables(values, map);
    for (int64_t begin = (int64_t)blockIdx.x * PACKS_PER_CTA; begin < packs; begin += (int64_t)gridDim.x * PACKS_PER_CTA) {
        uint32_t bits[TURNS];
        float    scale[TURNS];
#pragma unroll
        for (int t = 0; t < TURNS; t++) { /* beyond the last pack that one again: without branches all loads are under way at once */
            int64_t i = min(begin + t * THREADS + threadIdx.x, packs - 1);
            bits[t] = ((const uint32_t *)codes)[i];
            scale[t] = block_scale(&s, map, i / PACKS_PER_BLOCK);
        }
#pragma unroll
        for (int t = 0; t < TURNS; t++) {
            int64_t i = begin + t * THREADS + threadIdx.x;
            float   v[N];
            if (i >= packs) break;
#pragma unroll
            for (int k = 0; k < N; k++) v[k] = values[bits[t] >> (k / 2 * 8 + (k % 2 ? 0 : 4)) & 15] * scale[t];
            store_n<N>(w + i * N, v);
        }
    }
    for (int64_t i = packs * N / 2 + (int64_t)blockIdx.x * THREADS + threadIdx.x; i < numel / 2; i += (int64_t)gridDim.x * THREADS) {
        float scale = block_scale(&s, map, i / (NF4_BLOCK / 2));
        w[2 * i] = from_float<T>(values[codes[i] >> 4] * scale);
        w[2 * i + 1] = from_float<T>(values[codes[i] & 15] * scale);
    }
}

static Status nf4_dequantise_run(const KernelArgs *args)
{
    const TensorView *in = args->in, *w = &args->out[0];
    const uint8_t    *codes = (const uint8_t *)in[IN_CODES].data;
    Scales            s = {in[IN_ABSMAX].data, (const float *)in[IN_NESTED].data, (const float *)in[IN_OFFSET].data};
    Nf4Member         at[DEQUANTISE_MAX_MEMBERS + 1];
    Members           members = {};
    int64_t           most = 0;
    int               count = nf4_members((const DequantiseAttrs *)args->attrs, w->type.dim[0], w->type.dim[1], at);
    for (int m = 0; m < count; m++) {
        bool packed = (uintptr_t)codes % 4 == 0 && is_aligned16(w->data) && at[m].first % N == 0;
        members.at[m] = at[m];
        members.packs[m] = packed ? at[m].numel / N : 0;
        most = at[m].numel > most ? at[m].numel : most;
    }
    dim3 grid((unsigned)cuda_grid(cuda_div_up(most, N), PACKS_PER_CTA), (unsigned)count);
    CUDA_FLOAT(w->type.dtype, T, { nf4_packs<T><<<grid, THREADS, 0, cuda_stream(args)>>>(codes, s, (T *)w->data, members); });
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(nf4_dequantise,
             {.dtypes = DT_SET_FLOAT,
              .run = nf4_dequantise_run,
              .name = "packs",
              .except = {{.in = 1u << IN_CODES, .dtypes = DT_SET(DT_NF4)}, {.in = 1u << IN_ABSMAX, .dtypes = DT_SET(DT_U8) | DT_SET_F32}}})
