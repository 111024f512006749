/* fp8_tiles_dequantise on CUDA: a thread block takes a tile, a thread 8 elements side by side in each of 8 rows, all loaded before the
 * first is stored. Memory: 3 bytes an element in bf16. */
#include "device/cuda/vec.cuh"
#include "ops/attrs.h"
#include "ops/lowbit/fp8_tiles.h"

enum { IN_CODES, IN_SCALE };
enum { ACROSS = FP8_TILE / 8, THREADS = 256, STEP = THREADS / ACROSS /* rows at a time */, TURNS = FP8_TILE / STEP };

static __device__ __forceinline__ uint2 load_codes(const uint8_t *codes, bool wide, int64_t count)
{
    uint64_t word = 0;
    if (wide) return *(const uint2 *)codes;
#pragma unroll
    for (int k = 0; k < 8; k++)
        if (k < count) word |= (uint64_t)codes[k] << (8 * k);
    return make_uint2((uint32_t)word, (uint32_t)(word >> 32));
}

/* Rows of w of each member. A member's first tile begins at its own first row. */
typedef struct Members {
    int64_t rows[DEQUANTISE_MAX_MEMBERS];
    int     count;
} Members;

/* The first row of w of tile row `down`; *out_end is where its member ends. */
static __device__ __forceinline__ int64_t tile_row(const Members *members, int64_t down, int64_t *out_end)
{
    int64_t first = 0;
#pragma unroll
    for (int m = 0; m < DEQUANTISE_MAX_MEMBERS; m++) {
        int64_t tiles = (members->rows[m] + FP8_TILE - 1) / FP8_TILE;
        *out_end = first + members->rows[m];
        if (down < tiles || m + 1 == members->count) break;
        down -= tiles;
        first = *out_end;
    }
    return first + down * FP8_TILE;
}

/* wide: rows of w are aligned to 16 bytes, rows of codes to 8. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    fp8_tiles(const uint8_t *codes, const float *scales, T *w, Members members, int64_t cols, int64_t across, int64_t tiles, bool wide)
{
    for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        int64_t end, row = tile_row(&members, tile / across, &end) + threadIdx.x / ACROSS;
        int64_t col = tile % across * FP8_TILE + threadIdx.x % ACROSS * 8;
        float   scale = scales[tile];
        uint2   word[TURNS];
        if (col >= cols) continue;
#pragma unroll
        for (int t = 0; t < TURNS; t++)
            if (row + t * STEP < end) word[t] = load_codes(codes + (row + t * STEP) * cols + col, wide, cols - col);
#pragma unroll
        for (int t = 0; t < TURNS; t++) {
            float v[8];
            if (row + t * STEP >= end) break;
#pragma unroll
            for (int k = 0; k < 8; k++) v[k] = small_decode(small_e4m3(), (k < 4 ? word[t].x : word[t].y) >> (k % 4 * 8) & 0xFF) * scale;
            store_eight(w + (row + t * STEP) * cols + col, v, wide, cols - col);
        }
    }
}

static Status fp8_tiles_dequantise_run(const KernelArgs *args)
{
    const TensorView *w = &args->out[0], *scale = &args->in[IN_SCALE];
    const uint8_t    *codes = (const uint8_t *)args->in[IN_CODES].data;
    int64_t           cols = w->type.dim[1], across = scale->type.dim[1], tiles = type_numel(&scale->type);
    bool              wide = cols % 8 == 0 && is_aligned16(w->data) && (uintptr_t)codes % 8 == 0;
    Members           members = {};
    members.count = dequantise_members((const DequantiseAttrs *)args->attrs, w->type.dim[0], members.rows);
    CUDA_FLOAT(w->type.dtype, T, {
        fp8_tiles<T><<<cuda_grid(tiles, 1), THREADS, 0, cuda_stream(args)>>>(codes, (const float *)scale->data, (T *)w->data, members, cols,
                                                                             across, tiles, wide);
    });
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(fp8_tiles_dequantise,
             {.dtypes = DT_SET_FLOAT,
              .run = fp8_tiles_dequantise_run,
              .name = "tiles",
              .except = {{.in = 1u << IN_CODES, .dtypes = DT_SET(DT_E4M3)}, {.in = 1u << IN_SCALE, .dtypes = DT_SET_F32}}})
