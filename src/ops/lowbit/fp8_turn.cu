/* fp8_turn on CUDA: a thread block takes a tile of 128 x 128, a thread 4 rows of 16 codes of it. */
#include "ops/lowbit/fp8_scaled.cuh"

enum { PER = 16, WORDS = PER / 4 };

/* Loads 16 codes of a row; 0 beyond the end. WHOLE: rows consist of whole, aligned packs of 16. */
template <bool WHOLE> static __device__ __forceinline__ uint4 load_codes(const uint8_t *codes, int64_t count)
{
    uint32_t words[WORDS] = {};
    if (WHOLE) return *reinterpret_cast<const uint4 *>(codes);
#pragma unroll
    for (int i = 0; i < PER; i++)
        if (i < count) words[i / 4] |= (uint32_t)codes[i] << (8 * (i % 4));
    return make_uint4(words[0], words[1], words[2], words[3]);
}

/* to: codes_t and its dims. tiles: number of tiles side by side. */
template <bool WHOLE>
static __global__ void __launch_bounds__(SCALED_THREADS, 4) fp8_turn_tiles(const uint8_t *codes, ScaledCodes to, unsigned tiles)
{
    __shared__ TurnedTile<PER> turned;
    int64_t                    first_row = (int64_t)(blockIdx.x / tiles) * SCALED_ROWS;
    int64_t                    first_col = (int64_t)(blockIdx.x % tiles) * SCALED_GROUPS * PER;
    int64_t                    row = first_row + threadIdx.x / SCALED_GROUPS * SCALED_EACH;
    int64_t                    col = first_col + threadIdx.x % SCALED_GROUPS * PER;
    uint32_t                   words[SCALED_EACH][WORDS];
#pragma unroll
    for (int r = 0; r < SCALED_EACH; r++) {
        uint4 all = make_uint4(0, 0, 0, 0);
        if (row + r < to.rows && col < to.cols) all = load_codes<WHOLE>(codes + (row + r) * to.cols + col, to.cols - col);
        words[r][0] = all.x, words[r][1] = all.y, words[r][2] = all.z, words[r][3] = all.w;
    }
    put_turned<PER>(turned, words);
    __syncthreads();
    store_turned<PER>(to, turned, first_row, first_col, to.cols);
}

static Status fp8_turn_run(const KernelArgs *args)
{
    const TensorView *in = &args->in[0];
    const uint8_t    *codes = (const uint8_t *)in->data;
    ScaledCodes       to = {};
    unsigned          blocks, tiles;
    to.codes_t = (uint8_t *)args->out[0].data;
    to.rows = type_rows(&in->type), to.cols = type_cols(&in->type);
    to.whole_t = to.rows % PER == 0 && is_aligned16(to.codes_t);
    TRY(scaled_grid(to.rows, to.cols, PER, &blocks, &tiles));
    auto kernel = to.cols % PER == 0 && is_aligned16(codes) ? fp8_turn_tiles<true> : fp8_turn_tiles<false>;
    kernel<<<blocks, SCALED_THREADS, 0, cuda_stream(args)>>>(codes, to, tiles);
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(fp8_turn, {.dtypes = DT_SET_FP8, .run = fp8_turn_run, .name = "tiles"})
