/* nf4_dequantise on CUDA: thread blocks loop over chunks of 8,192 elements. A thread takes 8 elements of a chunk at a time: 4 bytes of
 * codes, 16 of bf16 or 32 of fp32, so that a warp loads and stores whole cache lines. All loads of a chunk are in flight before its first
 * store; those of the first chunk already while the map is computed in shared memory. A code's value comes from the lane that holds it.
 * Memory: 2.5 bytes an element in bf16. */
#include "device/cuda/vec.cuh"
#include "ops/lowbit/nf4.h"

enum { IN_CODES, IN_ABSMAX, IN_NESTED, IN_OFFSET };
enum { THREADS = 256, N = 8, TURNS = 4, CHUNK = THREADS * TURNS * N, PACKS_PER_BLOCK = NF4_BLOCK / N };

enum { CTAS_PER_SM = 6 }; /* thread blocks that a multiprocessor runs at once */

static_assert(NF4_BLOCK * NF4_NESTED % CHUNK == 0, "a chunk has one nested scale");
static_assert(THREADS > DYNAMIC_ZERO + 1, "a thread for each magnitude of the map");

typedef struct Weight {
    const uint8_t *codes;
    const void    *absmax; /* u8, or f32 if nested is NULL */
    const float   *nested, *offset;
    void          *w;
    Nf4Member      at[DEQUANTISE_MAX_MEMBERS];
    bool           wide[DEQUANTISE_MAX_MEMBERS];      /* 8 elements can be loaded and stored at once */
    int64_t        chunk[DEQUANTISE_MAX_MEMBERS + 1]; /* first chunk of each member; then the number of all chunks */
} Weight;

/* Position of a chunk, and a thread's part of it as loaded. */
typedef struct Piece {
    int64_t  first, block; /* counted over all members: first element, first block */
    int      count, packs; /* count: elements; packs: the first packs * 8 of these are loaded 8 at a time */
    uint32_t bits[TURNS], absmax[TURNS];
    float    nested, offset;
} Piece;

static __device__ void fill_map(float *map)
{
    int p = threadIdx.x;
    if (p <= dynamic_last(true)) {
        float magnitude = dynamic_magnitude(true, p);
        map[DYNAMIC_ZERO + p] = magnitude;
        if (p > 0 && p <= DYNAMIC_ZERO) map[DYNAMIC_ZERO - p] = -magnitude;
    }
    __syncthreads();
}

static __device__ __forceinline__ uint32_t load_absmax(const Weight &q, int64_t block)
{
    return q.nested ? ((const uint8_t *)q.absmax)[block] : ((const uint32_t *)q.absmax)[block];
}

static __device__ __forceinline__ float block_scale(const Weight &q, const Piece &piece, const float *map, uint32_t absmax)
{
    return q.nested ? nf4_scale_of(map[absmax], piece.nested, piece.offset) : __uint_as_float(absmax);
}

static __device__ __forceinline__ void load_piece(const Weight &q, int64_t chunk, Piece *piece)
{
    int m = 0;
    while (chunk >= q.chunk[m + 1]) m++;
    int64_t begin = (chunk - q.chunk[m]) * CHUNK;
    piece->first = q.at[m].first + begin;
    piece->block = q.at[m].block + begin / NF4_BLOCK;
    piece->count = (int)min(q.at[m].numel - begin, (int64_t)CHUNK);
    piece->packs = q.wide[m] ? piece->count / N : 0;
    piece->nested = piece->offset = 0;
    if (q.nested) {
        piece->nested = q.nested[q.at[m].nested + begin / (NF4_BLOCK * NF4_NESTED)];
        piece->offset = q.offset[m];
    }
#pragma unroll
    for (int t = 0; t < TURNS; t++) {
        int  i = t * THREADS + threadIdx.x;
        bool inside = i < piece->packs;
        piece->bits[t] = inside ? ((const uint32_t *)(q.codes + piece->first / 2))[i] : 0;
        piece->absmax[t] = inside ? load_absmax(q, piece->block + i / PACKS_PER_BLOCK) : 0;
    }
}

/* value: the value of the code that equals the lane's number modulo 16. */
template <typename T> static __device__ __forceinline__ void store_piece(const Weight &q, const Piece &piece, float value, const float *map)
{
    T *w = (T *)q.w + piece.first;
#pragma unroll
    for (int t = 0; t < TURNS; t++) {
        int   i = t * THREADS + threadIdx.x;
        float scale = block_scale(q, piece, map, piece.absmax[t]), v[N];
#pragma unroll
        for (int k = 0; k < N; k++) v[k] = __shfl_sync(0xFFFFFFFFu, value, piece.bits[t] >> (k / 2 * 8 + (k % 2 ? 0 : 4))) * scale;
        if (i < piece.packs) store_n<N>(w + i * N, v);
    }
    for (int i = piece.packs * N / 2 + threadIdx.x; i < piece.count / 2; i += THREADS) {
        uint8_t code = q.codes[piece.first / 2 + i];
        float   scale = block_scale(q, piece, map, load_absmax(q, piece.block + i / (NF4_BLOCK / 2)));
        w[2 * i] = from_float<T>(nf4_value(code >> 4) * scale);
        w[2 * i + 1] = from_float<T>(nf4_value(code & 15) * scale);
    }
}

template <typename T>
static __global__ void __launch_bounds__(THREADS, CTAS_PER_SM) nf4_chunks(const __grid_constant__ Weight q, int64_t chunks)
{
    __shared__ float map[2 * (DYNAMIC_ZERO + 1)];
    int64_t          chunk = blockIdx.x;
    float            value = nf4_value(threadIdx.x % NF4_CODES);
    Piece            piece;
    load_piece(q, chunk, &piece);
    fill_map(map);
    for (;;) {
        store_piece<T>(q, piece, value, map);
        if ((chunk += gridDim.x) >= chunks) return;
        load_piece(q, chunk, &piece);
    }
}

static Status nf4_dequantise_run(const KernelArgs *args)
{
    const TensorView *in = args->in, *w = &args->out[0];
    Nf4Member         at[DEQUANTISE_MAX_MEMBERS + 1];
    Weight            q = {(const uint8_t *)in[IN_CODES].data, in[IN_ABSMAX].data, (const float *)in[IN_NESTED].data,
                           (const float *)in[IN_OFFSET].data, w->data};
    int               count = nf4_members((const DequantiseAttrs *)args->attrs, w->type.dim[0], w->type.dim[1], at);
    for (int m = 0; m < DEQUANTISE_MAX_MEMBERS; m++) {
        if (m < count) q.at[m] = at[m];
        q.wide[m] = (uintptr_t)q.codes % 4 == 0 && is_aligned16(w->data) && q.at[m].first % N == 0;
        q.chunk[m + 1] = q.chunk[m] + cuda_div_up(q.at[m].numel, CHUNK);
    }
    int64_t chunks = q.chunk[count];
    if (!chunks) return OK;
    /* As many thread blocks as run at once: each computes the map once. */
    int device = 0, processors = 0;
    CUDA_TRY(cudaGetDevice(&device));
    CUDA_TRY(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
    unsigned grid = (unsigned)min(chunks, (int64_t)processors * CTAS_PER_SM);
    CUDA_FLOAT(w->type.dtype, T, { nf4_chunks<T><<<grid, THREADS, 0, cuda_stream(args)>>>(q, chunks); });
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(nf4_dequantise,
             {.dtypes = DT_SET_FLOAT,
              .run = nf4_dequantise_run,
              .name = "packs",
              .except = {{.in = 1u << IN_CODES, .dtypes = DT_SET(DT_NF4)}, {.in = 1u << IN_ABSMAX, .dtypes = DT_SET(DT_U8) | DT_SET_F32}}})
