/* Products of one row with codes, by warpgroup products (compute capability 9.0 only): the sums of few_rows_codes.cu, to the bit. The row's
 * norm may be fused before, and SwiGLU after. Run back to back they are no faster than few_rows_codes.cu; among a step's other launches
 * they are: steps of an 8B model take 3.05 ms instead of 3.24, in FP8 4.18 instead of 4.36.
 *
 * A block has tiles of 32 columns. Rows of w are the left operand, in registers: each of four warps converts 8 of them to bf16, or 8 of
 * gate and 8 of up, so that the lane that has both sums combines them. The right operand has one column, x. The other seven columns are
 * whatever is stored behind x, and nobody reads their sums.
 *
 * One more warp loads codes in stages. If nothing in the program writes them, the first loads begin before the preceding launch has ended.
 * Beyond k both codes and x are zeros, which change no sum.
 *
 * A stage consists of blocks of 128 codes: rows of 128 bytes whose 16-byte chunks are permuted by row (tensor_map.h). A lane loads a word
 * of four codes from there, 4 t .. 4 t + 3 of a step's 16. The instruction numbers these elements 2 t, 2 t + 1, 2 t + 8 and 2 t + 9, so x
 * is stored in that order. The order of elements within a step changes no bit. */
#include "device/cuda/tensor_map.h"
#include "ops/elementwise/gated.cuh"
#include "ops/lowbit/fp8_tiles.h"
#include "ops/products/codes.cuh"
#include "ops/products/few_rows_codes.h"
#include "ops/products/normed_row.cuh"

enum {
    COLS = 32,
    ROW_BYTES = 128,
    STEPS = 8,       /* steps of a unit, whose products are one group */
    WORDS = 4,       /* steps in a lane's 16 bytes */
    STEP_BYTES = 32, /* bytes of x in a step */
    BEHIND_X = 128,  /* bytes behind x that the last step's seven other columns read */
    MOST_SLOTS = 16,
    GOOD_SLOTS = 4,
    PHASES_BYTES = 1024,
    SCRATCH_AT = 512, /* offset of NORM_WARPS floats */
    ZEROS_AT = 768,   /* offset of zeros for two operands */
    ONE_THREADS = MMA_THREADS + 32,
    MOST_ALONG = 32768,
    ROW_PACKS = 12, /* packs of x that a thread loads at a time */
    NORM_PACKS = 4, /* packs of the normed row that a thread loads at a time */
};

/* Bytes of shared memory of a block: SHARED_BESIDE if another launch's block shares the multiprocessor, else SHARED_ALONE. */
enum { SHARED_BESIDE = 112 << 10, SHARED_ALONE = FEW_ROWS_BULK_SHARED };

/* W: rows of w for one column of c: 1, or 2 (gate and up). Sizes of a stage: blocks, codes of a row, units, bytes. */
template <int W> struct OneSizes {
    enum {
        BLOCKS = 4 / W,
        ALONG = BLOCKS * ROW_BYTES,
        UNITS = ALONG / 16 / STEPS,
        BYTES = BLOCKS * W * COLS * ROW_BYTES,
    };
};

struct OneJob {
    CUtensorMap  w_map; /* dims (64 pairs, rows, 1 or 2 for gate and up, k / 128) */
    const bf16  *x;
    const float *scale;
    int64_t      scale_stride;
    GemmOperand  c, bias;
    int n, k, pieces, rounds, slots; /* n: columns of c; pieces: stages along k; rounds: tiles of a block; slots: stages in shared memory */
    int x_at, norm_at, scale_at;     /* offsets in shared memory: x; the row to norm, then the norm's weights; scales of tiles */
    bool     w_constant, has_bias, gelu;
    RowsNorm norm; /* norm.w NULL: none */
};

#if HAS_WGMMA

/* c (64 x 8) += a, 16 rows a warp in registers, times the transpose of b. b is the first half of its descriptor; the second is constant. */
static __device__ __forceinline__ void one_mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, 1, 1, 1, 0;"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"((uint64_t)1 << 32 | b));
}

static __device__ __forceinline__ void meet()
{
    asm volatile("bar.sync 1, %0;" ::"r"(MMA_THREADS) : "memory");
}

/* Shared memory of a block. */
template <int W> struct OneShared {
    typedef OneSizes<W> Sizes;
    char               *memory;
    uint64_t           *full, *empty;

    __device__ __forceinline__ OneShared(char *memory_) : memory(memory_), full((uint64_t *)memory_), empty(full + MOST_SLOTS) {}

    __device__ __forceinline__ uint32_t stage(int slot) const
    {
        return shared_address(memory + PHASES_BYTES + slot * Sizes::BYTES);
    }

    /* Descriptor of the first step's right operand: no swizzle, 8 elements along k every 16 bytes. Each later step is STEP_BYTES
     * further. */
    __device__ __forceinline__ uint32_t right(const OneJob &job) const
    {
        return (shared_address(memory) + job.x_at) >> 4 | 1u << 16;
    }

    __device__ __forceinline__ void begin(const OneJob &job) const
    {
        for (int i = 0; i < job.slots; i++) phases_init(&full[i], 1), phases_init(&empty[i], MMA_WARPS);
        for (int i = 0; i < STEPS * 4; i++) ((uint32_t *)(memory + ZEROS_AT))[i] = 0;
        publish_phases();
    }

    /* Loads all stages of all tiles. Called by one thread. */
    __device__ __forceinline__ void bring(const OneJob &job) const
    {
        if (!job.w_constant) await_launches();
        for (int round = 0, q = 0, slot = 0, parity = 1; round < job.rounds; round++)
            for (int piece = 0; piece < job.pieces; piece++, q++) {
                if (q >= job.slots) phase_wait(&empty[slot], parity);
                expect_bytes(&full[slot], Sizes::BYTES);
                copy_box(stage(slot), &job.w_map, 0, (round * gridDim.x + blockIdx.x) * COLS, 0, piece * Sizes::BLOCKS, &full[slot]);
                if (++slot == job.slots) slot = 0, parity ^= 1;
            }
    }

    /* Stores elements c .. c + 7 of x where the instruction reads them. */
    __device__ __forceinline__ void put(const OneJob &job, int c, uint4 numbers) const
    {
        char *step = memory + job.x_at + c / 16 * STEP_BYTES + (c & 8);
        *(uint2 *)step = make_uint2(numbers.x, numbers.z);
        *(uint2 *)(step + STEP_BYTES / 2) = make_uint2(numbers.y, numbers.w);
    }

    __device__ __forceinline__ void put_packs(const OneJob &job, int c) const
    {
        uint4 packs[ROW_PACKS];
#pragma unroll
        for (int i = 0; i < ROW_PACKS; i++)
            if (c + i * MMA_THREADS * 8 < job.k) packs[i] = *(const uint4 *)(job.x + c + i * MMA_THREADS * 8);
#pragma unroll
        for (int i = 0; i < ROW_PACKS; i++)
            if (c + i * MMA_THREADS * 8 < job.k) put(job, c + i * MMA_THREADS * 8, packs[i]);
    }

    /* Stores x, normed if asked for, and zeros behind it. Called by all threads that multiply. */
    __device__ __forceinline__ void take_x(const OneJob &job) const
    {
        if (job.norm.w) {
            bf16 *row = (bf16 *)(memory + job.norm_at);
            norm_row<bf16, NORM_PACKS>(
                job.norm, job.k, row, row + job.k, (float *)(memory + SCRATCH_AT), threadIdx.x, MMA_THREADS, [] { meet(); },
                [&](int c, const float(&v)[8]) {
                    put(job, c, make_uint4(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7])));
                });
        } else {
            for (int c = threadIdx.x * 8; c < job.k; c += ROW_PACKS * MMA_THREADS * 8) put_packs(job, c);
        }
        for (int c = job.k + threadIdx.x * 8; c < job.pieces * Sizes::ALONG; c += MMA_THREADS * 8) put(job, c, make_uint4(0, 0, 0, 0));
    }

    /* Loads the scales of the block's tiles; for each block along k the scales of gate and of up are side by side. */
    __device__ __forceinline__ void take_scales(const OneJob &job) const
    {
        float *scale = (float *)(memory + job.scale_at);
        int    across = job.pieces * Sizes::BLOCKS, blocks = job.k / FP8_TILE;
        for (int i = threadIdx.x; i < job.rounds * across * W; i += MMA_THREADS) {
            int  round = i / (across * W), block = i / W % across, col = (round * gridDim.x + blockIdx.x) * COLS;
            bool there = col < job.n && block < blocks;
            scale[i] = there ? job.scale[(i % W * job.n + col) / FP8_TILE * job.scale_stride + block] : 0.0f;
        }
    }

    __device__ __forceinline__ uint32_t zeros() const
    {
        return shared_address(memory) + ZEROS_AT;
    }
};

/* Scale and bias of a lane's column of a tile, loaded long before they are used. */
template <typename Codes, int W> struct OneFinish {
    float scale[W], bias;
    int   col;

    __device__ __forceinline__ void load(const OneJob &job, int round)
    {
        col = (round * gridDim.x + blockIdx.x) * COLS + threadIdx.x / 4;
        bool there = col < job.n;
#pragma unroll
        for (int i = 0; i < W; i++) scale[i] = !Codes::HAS_TILES && there ? job.scale[i * job.n + col] : 1;
        bias = job.has_bias && there ? elem_get(job.bias.data, job.bias.dtype, job.bias.offset + col) : 0;
    }

    __device__ __forceinline__ float made(float sum, int i) const
    {
        return Codes::HAS_TILES ? sum : __fmul_rn(sum * Codes::WHOLE, scale[i]);
    }

    /* Rounds as if the sums were stored in fp32 first: after the scale, then after the bias. Gate and up are rounded as if stored. */
    __device__ __forceinline__ void put(const OneJob &job, const float (&c)[4]) const
    {
        if (threadIdx.x % 4 || col >= job.n) return;
        float value = made(c[0], 0);
        if (W == 2) {
            float gate = to_float(from_float<bf16>(value)), up = to_float(from_float<bf16>(made(c[2], W - 1)));
            value = job.gelu ? gated<bf16, true>(gate, up) : gated<bf16, false>(gate, up);
        }
        if (job.has_bias) value = __fadd_rn(value, bias);
        elem_set(job.c.data, job.c.dtype, job.c.offset + col, value);
    }
};

/* Words of codes for a unit's steps. reads: byte offsets at which this lane reads in the halves of a block. */
template <int W> struct OneWords {
    uint32_t of[STEPS / WORDS][W][WORDS];

    __device__ __forceinline__ void take(uint32_t stage, int unit, const uint32_t (&reads)[2])
    {
#pragma unroll
        for (int i = 0; i < STEPS / WORDS; i++)
#pragma unroll
            for (int j = 0; j < W; j++) {
                int half = unit * (STEPS / WORDS) + i;
                ldmatrix_at(of[i][j], stage + (half / 2 * W + j) * (COLS * ROW_BYTES) + reads[half % 2]);
            }
    }
};

/* Left operands of a unit. If a column has one row of w, the other 8 of a warp's 16 rows are zeros. */
template <typename Codes, int W> struct OneOperands {
    uint32_t a[STEPS][4];

    /* zeros: address of 2 * STEPS zeros. They are loaded so that the compiler keeps each in a register instead of making it again. */
    __device__ __forceinline__ void clear(uint32_t zeros)
    {
#pragma unroll
        for (int i = 0; i < STEPS * 2; i++) asm volatile("ld.shared.b32 %0, [%1];" : "=r"(a[i / 2][i % 2 * 2 + 1]) : "r"(zeros + i * 4));
    }

    __device__ __forceinline__ void make(const OneWords<W> &words, const float (&scale)[W])
    {
#pragma unroll
        for (int s = 0; s < STEPS; s++)
#pragma unroll
            for (int i = 0; i < W; i++) Codes::four(words.of[s / WORDS][i][s % WORDS], scale[i], a[s][i], a[s][2 + i]);
    }

    __device__ __forceinline__ void add(float (&c)[1][4], uint32_t right) const
    {
        wgmma_begin();
#pragma unroll
        for (int s = 0; s < STEPS; s++) one_mma(c[0], a[s], right + s * (STEP_BYTES / 16));
        wgmma_commit();
    }
};

/* Loads the scales of block `block`: one, or two for gate and up; 1 if codes have no tiles. */
template <typename Codes, int W> static __device__ __forceinline__ void take_scale(float (&scale)[W], const float *scales, int block)
{
#pragma unroll
    for (int i = 0; i < W; i++) scale[i] = Codes::HAS_TILES ? scales[block * W + i] : 1;
}

/* Computes the block's tiles. A product begins when the tensor cores take its left operand from registers, and warps stall until then. So a
 * unit's codes are converted while the previous unit's last product is computed. */
template <typename Codes, int W>
static __device__ __forceinline__ void make_tiles(const OneJob &job, const OneShared<W> &shared, OneFinish<Codes, W> &finish)
{
    typedef OneSizes<W>   Sizes;
    int                   lane = threadIdx.x & 31, last = job.pieces * job.rounds - 1, slot = 0, parity = 0;
    uint32_t              reads[2];
    float                 scale[W];
    const float          *scales = (const float *)(shared.memory + job.scale_at);
    OneWords<W>           words;
    OneOperands<Codes, W> operands[2];
    if (W == 1) operands[0].clear(shared.zeros()), operands[1].clear(shared.zeros() + STEPS * 2 * 4);
#pragma unroll
    for (int i = 0; i < 2; i++) reads[i] = (threadIdx.x / 32 * 8 + (lane & 7)) * ROW_BYTES + ((i * 4 + (lane >> 3)) ^ (lane & 7)) * 16;
    take_scale<Codes, W>(scale, scales, 0);
    phase_wait(&shared.full[0], 0);
    words.take(shared.stage(0), 0, reads);
    operands[0].make(words, scale);
    for (int round = 0, q = 0; round < job.rounds; round++) {
        float    c[1][4] = {};
        uint32_t right = shared.right(job);
        if (round) finish.load(job, round);
#pragma unroll 1
        for (int piece = 0; piece < job.pieces; piece++, q++, right += Sizes::UNITS * STEPS * (STEP_BYTES / 16)) {
            int  next = slot + 1 == job.slots ? 0 : slot + 1;
            bool more = q < last;
            /* after the last stage: reads any stage, and doesn't multiply it */
            uint32_t stage = shared.stage(slot), next_stage = more ? shared.stage(next) : stage;
            parity ^= next == 0;
#pragma unroll
            for (int unit = 0; unit < Sizes::UNITS; unit++) {
                bool beyond = unit + 1 == Sizes::UNITS;
                if (beyond && more) phase_wait(&shared.full[next], parity);
                words.take(beyond ? next_stage : stage, beyond ? 0 : unit + 1, reads);
                take_scale<Codes, W>(scale, scales, beyond && !more ? 0 : q * Sizes::BLOCKS + (unit + 1) * STEPS / 8);
                operands[unit & 1].add(c, right + unit * STEPS * (STEP_BYTES / 16));
                wgmma_wait<1>(); /* waits for the previous unit's products, which read these registers */
                operands[(unit + 1) & 1].make(words, scale);
            }
            __syncwarp(); /* all lanes have read this stage */
            if (lane == 0) phase_arrive(&shared.empty[slot]);
            slot = next;
        }
        wgmma_wait<0>();
        hold(c);
        finish.put(job, c[0]);
    }
}

#endif

template <typename Codes, int W>
static __global__ void __launch_bounds__(ONE_THREADS) few_rows_codes_one(const __grid_constant__ OneJob job)
{
#if HAS_WGMMA
    extern __shared__ __align__(1024) char one_memory[];
    const OneShared<W>                     shared(one_memory);
    release_launches();
    if (threadIdx.x == 0) shared.begin(job);
    __syncthreads();
    if (threadIdx.x >= MMA_THREADS) {
        if (threadIdx.x == MMA_THREADS) shared.bring(job);
        return;
    }
    if (!job.w_constant) await_launches();
    if (Codes::HAS_TILES) shared.take_scales(job);
    if (job.norm.w) {
        bf16 *row = (bf16 *)(one_memory + job.norm_at);
        bring_norm<bf16>(job.norm, job.k, shared_address(row + job.k), threadIdx.x, MMA_THREADS);
    }
    OneFinish<Codes, W> finish;
    finish.load(job, 0);
    if (job.w_constant) await_launches();
    shared.take_x(job);
    publish_tiles();
    meet();
    make_tiles<Codes, W>(job, shared, finish);
#endif
}

/* ---- launches ---- */

static Status map_codes(const Gemm *g, int halves, int blocks, CUtensorMap *out)
{
    TensorMapShape shape = {.rank = 4};
    shape.dims[0] = TENSOR_MAP_INNER, shape.dims[1] = (uint64_t)g->n, shape.dims[2] = (uint64_t)halves;
    shape.dims[3] = (uint64_t)g->k / ROW_BYTES;
    shape.strides[0] = (uint64_t)g->b.stride, shape.strides[1] = shape.strides[0] * shape.dims[1], shape.strides[2] = ROW_BYTES;
    shape.box[0] = TENSOR_MAP_INNER, shape.box[1] = COLS, shape.box[2] = (uint32_t)halves, shape.box[3] = (uint32_t)blocks;
    return cuda_tensor_map((const char *)g->b.data + g->b.offset, &shape, out);
}

/* Bytes of shared memory without stages. halves: parts of w: 1, or 2 for gate and up */
static size_t fixed_bytes(const Gemm *g, int halves, bool has_norm, int rounds)
{
    int64_t along = halves == 2 ? (int)OneSizes<2>::ALONG : (int)OneSizes<1>::ALONG, whole = cuda_div_up(g->k, along) * along;
    size_t  x = (size_t)whole * sizeof(bf16) + BEHIND_X, norm = has_norm ? 2 * (size_t)g->k * sizeof(bf16) : 0;
    return PHASES_BYTES + x + norm + (size_t)(rounds * whole / ROW_BYTES * halves) * sizeof(float);
}

/* Returns the number of blocks: one for each tile if two blocks on each multiprocessor suffice; else one on each, with several tiles. */
static int blocks_of(const Gemm *g, int processors)
{
    int64_t tiles = cuda_div_up(g->n, COLS);
    return (int)(tiles <= 2 * processors ? tiles : processors);
}

template <typename Codes, int W> static Status launch(const Gemm *g, OneJob *job, int processors, cudaStream_t stream)
{
    size_t stage = OneSizes<W>::BYTES, most = SHARED_BESIDE;
    int    blocks = blocks_of(g, processors);
    job->pieces = (int)cuda_div_up(g->k, OneSizes<W>::ALONG);
    job->rounds = (int)cuda_div_up(cuda_div_up(g->n, COLS), blocks);
    size_t fixed = fixed_bytes(g, W, job->norm.w != NULL, job->rounds);
    if (fixed + GOOD_SLOTS * stage > most) most = SHARED_ALONE;
    int wanted = job->pieces * job->rounds;
    job->slots = (int)((most - fixed) / stage);
    if (job->slots > wanted) job->slots = wanted;
    if (job->slots > MOST_SLOTS) job->slots = MOST_SLOTS;
    job->x_at = (int)(PHASES_BYTES + job->slots * stage);
    job->norm_at = job->x_at + job->pieces * OneSizes<W>::ALONG * (int)sizeof(bf16) + BEHIND_X;
    job->scale_at = job->norm_at + (job->norm.w ? 2 * job->k * (int)sizeof(bf16) : 0);
    TRY(map_codes(g, W, OneSizes<W>::BLOCKS, &job->w_map));
    auto kernel = few_rows_codes_one<Codes, W>;
    CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_ALONE));
    return cuda_launch_early(g->early, kernel, dim3((unsigned)blocks), ONE_THREADS, fixed + job->slots * stage, stream, *job);
}

template <typename Codes> static Status launch_one(const Gemm *g, OneJob *job, bool is_gated, int processors, cudaStream_t stream)
{
    return is_gated ? launch<Codes, 2>(g, job, processors, stream) : launch<Codes, 1>(g, job, processors, stream);
}

static bool has_machine_code(void)
{
    cudaFuncAttributes attributes;
    return cudaFuncGetAttributes(&attributes, few_rows_codes_one<Int8Codes, 1>) == cudaSuccess && attributes.ptxVersion == 90;
}

static Status count_processors(int *out)
{
    int device = 0;
    CUDA_TRY(cudaGetDevice(&device));
    CUDA_TRY(cudaDeviceGetAttribute(out, cudaDevAttrMultiProcessorCount, device));
    return OK;
}

bool few_rows_codes_one_fit(const Gemm *g, const RowsFusion *fusion)
{
    bool is_gated = fusion && fusion->gated, has_norm = fusion && fusion->norm;
    if (g->m != 1 || g->k % ROW_BYTES || g->k > MOST_ALONG || !few_rows_codes_fit(g) || !has_machine_code()) return false;
    if (is_gated && (g->c.dtype != DT_BF16 || g->epilogue == GEMM_BIAS || (g->b.dtype == DT_E4M3 && g->n % FP8_TILE))) return false;
    int processors = 0;
    if (count_processors(&processors) != OK) return false;
    int rounds = (int)cuda_div_up(cuda_div_up(g->n, COLS), blocks_of(g, processors));
    return fixed_bytes(g, 1 + is_gated, has_norm, rounds) + (size_t)GOOD_SLOTS * OneSizes<2>::BYTES <= SHARED_ALONE;
}

Status few_rows_codes_one_run(const Gemm *g, const RowsFusion *fusion, void *stream)
{
    OneJob job = {};
    int    processors = 0;
    TRY(count_processors(&processors));
    job.x = (const bf16 *)g->a.data + g->a.offset, job.scale = g->b.scale, job.scale_stride = g->b.scale_stride;
    job.c = g->c, job.bias = g->bias, job.has_bias = g->epilogue == GEMM_BIAS;
    job.n = (int)g->n, job.k = (int)g->k;
    job.w_constant = g->b_constant;
    bool is_gated = fusion && fusion->gated;
    if (fusion) job.gelu = fusion->gelu;
    if (fusion && fusion->norm) job.norm = *fusion->norm;
    return g->b.dtype == DT_I8 ? launch_one<Int8Codes>(g, &job, is_gated, processors, (cudaStream_t)stream)
                               : launch_one<Fp8Tiles>(g, &job, is_gated, processors, (cudaStream_t)stream);
}
