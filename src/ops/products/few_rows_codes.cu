/* Products of few rows, y (m,n) = x (m,k) w^T (n,k), of x in bf16 and w in codes: a byte is read for each weight. Codes become bf16 in
 * registers, and each sum is the chain along k in steps of 16 that few_rows.cu computes of w in bf16:
 *
 *   int8   whole numbers; a sum is multiplied in fp32 by the scale of its row of w
 *   e4m3   times the scale of the tile, rounded to bf16, as fp8_tiles_dequantise does
 *
 * A warp has tiles of 8 * W8 rows of w, the first operand of m16n8k16; 8 * XT rows of x are the second. Codes are loaded in pieces along k,
 * each as soon as its slot in the warp's ring is free. If nothing in the program writes them, the first loads begin before the preceding
 * launch has ended. On compute capability 9.0 the copy engine loads boxes of whole blocks, which one more warp starts for all warps of the
 * block; otherwise a warp's lanes copy 16 bytes each. Another warp loads the rows of x for the whole block: pieces stay if all fit, else
 * they go through a ring too.
 *
 * A piece consists of blocks along k, of 128 codes or of 64 elements of x: rows of 128 bytes whose 16-byte chunks are permuted by row, as
 * tensor_map.h describes. A lane loads a word of four codes from there, 4 t .. 4 t + 3 of a step's 16, and the same elements of x: the
 * order of elements within a step changes no bit. */
#include "ops/products/few_rows_codes.h"

#include "device/cuda/tensor_map.h"
#include "ops/bulk.cuh"
#include "ops/lowbit/fp8_tiles.h"
#include "ops/products/codes.cuh"

enum {
    ROW_BYTES = 128, /* bytes of one row of a block */
    CHUNKS = ROW_BYTES / 16,
    X_ALONG = ROW_BYTES / 2,
    MOST_ROWS = 64,
    MOST_WARPS = 8,
    BRINGERS = 2,    /* warps that load */
    MOST_SLOTS = 32, /* slots of x, at most */
    W_SLOTS = 12,
    X_RING = 3,
    LEAST_SLOTS = 2, /* slots of w, at least */
    GOOD_SLOTS = 3,
    PHASES_BYTES = 2048,
};

/* If two blocks share a multiprocessor, the driver keeps at least this many bytes of its shared memory. */
enum { SHARED_KEPT = 2 << 10 };

/* Bytes of shared memory that a block needs for 64 rows of x, or for 32 rows in pieces of 4 blocks. On GPUs with less, a block takes at
 * most 32 rows. */
enum { SHARED_OF_64 = 160 << 10 };

struct CodesJob {
    CUtensorMap    x_map, w_map; /* x_map: dims (64, rows, k / 64); w_map: dims (64 pairs, rows, k / 128) */
    const bf16    *x;
    const uint8_t *w;
    const float   *scale;
    int64_t        x_stride, w_stride, c_stride, scale_stride;
    GemmOperand    c, bias;
    int            m, n, k, pieces, blocks;  /* pieces: number of pieces along k; blocks: blocks of the last piece */
    int            rounds, x_slots, w_slots; /* rounds: tiles of a warp; x_slots: slots of x; w_slots: slots of w of each warp */
    bool           x_stays, w_constant, by_boxes, has_bias;
};

/* Keeps a value in a register; otherwise the compiler would compute it again for each step. */
static __device__ __forceinline__ uint32_t kept(uint32_t number)
{
    asm volatile("" : "+r"(number));
    return number;
}

static __device__ __forceinline__ uint2 shared_pair(uint32_t address)
{
    uint2 pair;
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(pair.x), "=r"(pair.y) : "r"(address));
    return pair;
}

/* Which of eight rows of x is column `col` of the second operand: lanes that read at the same time then read different banks. */
static __device__ __forceinline__ int row_of(int col)
{
    return (col & 3) * 2 + (col >> 2);
}

/* Byte offsets at which a lane reads in a block: w by halves, x by steps. XR: rows of x in a slot. */
template <int XR> struct CodesReads {
    uint32_t w[2], x[4];

    __device__ __forceinline__ CodesReads()
    {
        int lane = threadIdx.x & 31, row = XR == 1 ? 0 : row_of(lane >> 2), t = lane & 3;
#pragma unroll
        for (int i = 0; i < 2; i++) w[i] = kept((lane & 7) * ROW_BYTES + ((i * 4 + (lane >> 3)) ^ (lane & 7)) * 16);
#pragma unroll
        for (int i = 0; i < 4; i++) x[i] = kept(row * ROW_BYTES + ((i * 2 + (t >> 1)) ^ row) * 16 + (t & 1) * 8);
    }
};

/* The operands of two steps: rows of w as bf16, and rows of x. If a tile has 8 rows the other 8 of the first operand are zeros. */
template <typename Codes, int W8, int XR, int XT> struct CodesOperands {
    enum { NT = (W8 + 1) / 2 };
    uint32_t w[2][NT][4];
    uint2    x[2][XT];

    __device__ __forceinline__ CodesOperands()
    {
#pragma unroll
        for (int i = 0; i < 2 * NT; i++) w[i / NT][i % NT][1] = kept(0), w[i / NT][i % NT][3] = kept(0);
    }

    /* block: address of the block of x; pair: which two of the block's four steps */
    __device__ __forceinline__ void take(uint32_t block, const CodesReads<XR> &reads, int pair)
    {
#pragma unroll
        for (int s = 0; s < 2; s++)
#pragma unroll
            for (int t = 0; t < XT; t++) x[s][t] = shared_pair(block + reads.x[pair * 2 + s] + t * (8 * ROW_BYTES));
    }

    /* words: codes of four steps; pair: which two of the steps */
    __device__ __forceinline__ void make(const uint32_t (&words)[W8][4], float scale, int pair, int s)
    {
#pragma unroll
        for (int i = 0; i < W8; i++) Codes::four(words[i][pair * 2 + s], scale, w[s][i / 2][i % 2], w[s][i / 2][2 + i % 2]);
    }

    __device__ __forceinline__ void add(float (&c)[NT][XT][4], int s) const
    {
#pragma unroll
        for (int i = 0; i < NT; i++)
#pragma unroll
            for (int t = 0; t < XT; t++) mma(c[i][t], w[s][i], x[s][t].x, x[s][t].y);
    }
};

/* Adds two steps, and meanwhile converts the words of the two steps after them. */
template <typename Operands, int NT, int XT, int W8>
static __device__ __forceinline__ void add_and_make(float (&c)[NT][XT][4], const Operands &now, Operands &next,
                                                    const uint32_t (&words)[W8][4], float scale, int pair)
{
#pragma unroll
    for (int s = 0; s < 2; s++) now.add(c, s), next.make(words, scale, pair, s);
}

/* Adds a block's products. On entry the block's first two steps are converted and the words of its first half are loaded; on return the
 * next block is in this state. */
template <typename Codes, int W8, int XR, int XT> struct CodesChain {
    typedef CodesOperands<Codes, W8, XR, XT> Operands;
    uint32_t                                 words[W8][4], more[W8][4];
    Operands                                 first, second;
    float                                    c[Operands::NT][XT][4];

    static __device__ __forceinline__ void take(uint32_t (&words)[W8][4], uint32_t address)
    {
#pragma unroll
        for (int i = 0; i < W8; i++) ldmatrix_at(words[i], address + i * (8 * ROW_BYTES));
    }

    __device__ __forceinline__ void begin(uint32_t x, uint32_t w, const CodesReads<XR> &reads, float scale)
    {
        take(words, w + reads.w[0]);
        first.take(x, reads, 0);
        first.make(words, scale, 0, 0), first.make(words, scale, 0, 1);
    }

    __device__ __forceinline__ void add(uint32_t x, uint32_t w, uint32_t next_x, uint32_t next_w, const CodesReads<XR> &reads, float scale,
                                        float next_scale)
    {
        take(more, w + reads.w[1]);
        second.take(x, reads, 1);
        add_and_make(c, first, second, words, scale, 1);
        first.take(x + XR * ROW_BYTES, reads, 0);
        add_and_make(c, second, first, more, scale, 0);
        take(words, next_w + reads.w[0]);
        second.take(x + XR * ROW_BYTES, reads, 1);
        add_and_make(c, first, second, more, scale, 1);
        first.take(next_x, reads, 0);
        add_and_make(c, second, first, words, next_scale, 0);
    }
};

/* Scales and biases of a lane's columns of a tile, loaded long before they are used. */
template <typename Codes, int W8> struct CodesFinish {
    float scale[W8], bias[W8];

    __device__ __forceinline__ void load(const CodesJob &job, int n)
    {
#pragma unroll
        for (int i = 0; i < W8; i++) {
            int  col = n + i * 8 + (threadIdx.x & 31) / 4;
            bool there = col < job.n;
            scale[i] = !Codes::HAS_TILES && there ? job.scale[col] : 1;
            bias[i] = job.has_bias && there ? elem_get(job.bias.data, job.bias.dtype, job.bias.offset + col) : 0;
        }
    }

    /* Rounds as if the sums were stored in fp32 first: after the scale, then after the bias. */
    template <int XR, int XT, int NT>
    __device__ __forceinline__ void put(const CodesJob &job, int first_row, int n, float (&c)[NT][XT][4]) const
    {
        int lane = threadIdx.x & 31;
#pragma unroll
        for (int i = 0; i < W8; i++)
#pragma unroll
            for (int e = 0; e < XT * 2; e++) {
                int of_tile = (lane & 3) * 2 + e % 2, row = first_row + e / 2 * 8 + (XR == 1 ? of_tile : row_of(of_tile)),
                    col = n + i * 8 + lane / 4;
                if (row < job.m && col < job.n) {
                    float sum = c[i / 2][e / 2][i % 2 * 2 + e % 2],
                          value = Codes::HAS_TILES ? sum : __fmul_rn(sum * Codes::WHOLE, scale[i]);
                    if (job.has_bias) value = __fadd_rn(value, bias[i]);
                    elem_set(job.c.data, job.c.dtype, job.c.offset + row * job.c_stride + col, value);
                }
            }
    }

    template <int XT, int NT> static __device__ __forceinline__ void clear(float (&c)[NT][XT][4])
    {
#pragma unroll
        for (int e = 0; e < NT * XT * 4; e++) c[e / (XT * 4)][e / 4 % XT][e % 4] = 0;
    }
};

/* A position among the pieces of a block's rows of x, or of a warp's tiles of w, and among their slots in shared memory. */
struct CodesWalk {
    int piece, n, slot, round; /* piece: piece along k; n: tile's first row of w; slot: in the ring; round: how often the ring was passed */

    __device__ __forceinline__ CodesWalk(int n_) : piece(0), n(n_), slot(0), round(0) {}

    /* stays: pieces of the next tile are in the same slots. */
    __device__ __forceinline__ void next(int pieces, int stride, int slots, bool stays)
    {
        slot++;
        if (++piece == pieces) {
            piece = 0, n += stride;
            if (stays) slot = 0;
        }
        if (slot == slots) slot = 0, round++;
    }
    __device__ __forceinline__ int parity() const
    {
        return round & 1;
    }
};

/* Shared memory of the block, by addresses; slots begin at multiples of 1024 bytes. XR, WR: rows of x and of w in a slot; BLOCKS: blocks of
 * a piece of w; a piece of x has twice as many. */
template <int XR, int WR, int BLOCKS> struct CodesShared {
    enum { X_BLOCK = XR * ROW_BYTES, W_BLOCK = WR * ROW_BYTES, X_BYTES = 2 * BLOCKS * X_BLOCK, W_BYTES = BLOCKS * W_BLOCK };
    uint64_t *x_full, *x_free, *w_full, *w_free; /* w_full, w_free: barriers of this warp's slots */
    uint32_t  x, w;                              /* w: this warp's slots */

    __device__ __forceinline__ CodesShared(char *memory, const CodesJob &job, int warp)
    {
        x_full = (uint64_t *)memory, x_free = x_full + MOST_SLOTS, w_full = x_free + MOST_SLOTS + warp * W_SLOTS;
        w_free = w_full + MOST_WARPS * W_SLOTS;
        x = shared_address(memory) + PHASES_BYTES;
        w = x + (job.x_slots * X_BYTES + 1023) / 1024 * 1024 + warp * job.w_slots * W_BYTES;
    }

    /* Called by one lane of each warp that multiplies, and of the warp that loads x. */
    __device__ __forceinline__ void begin(const CodesJob &job, bool is_x, int warps) const
    {
        int arrivals = job.by_boxes ? 1 : 32;
        for (int i = 0; is_x && i < job.x_slots; i++) phases_init(&x_full[i], arrivals), phases_init(&x_free[i], warps);
        for (int i = 0; !is_x && i < job.w_slots; i++) phases_init(&w_full[i], arrivals), phases_init(&w_free[i], 1);
        publish_phases();
    }

    /* Copies blocks [block, block + COUNT) of ROWS rows, by one warp; zeros beyond `rows` rows and `bytes` bytes. */
    template <int ROWS, int COUNT>
    static __device__ __forceinline__ void copy(uint32_t to, const char *from, int64_t stride, int rows, int64_t bytes, int block,
                                                uint64_t *full)
    {
        for (int i = threadIdx.x & 31; i < ROWS * COUNT * CHUNKS; i += 32) {
            int     row = i / (COUNT * CHUNKS), chunk = i % (COUNT * CHUNKS);
            int64_t at = (int64_t)block * ROW_BYTES + chunk * 16;
            bool    there = row < rows && at < bytes;
            copy_async_at(to + (chunk / CHUNKS * ROWS + row) * ROW_BYTES + ((chunk ^ row) & 7) * 16, from + (there ? row * stride + at : 0),
                          there);
        }
        copies_arrive(full);
    }

    /* Loads a piece of w. Called by all lanes of the warp that multiplies it. */
    __device__ __forceinline__ void bring_w(const CodesJob &job, const CodesWalk &walk) const
    {
        int rows = max(0, job.n - walk.n);
        copy<WR, BLOCKS>(w + walk.slot * W_BYTES, (const char *)job.w + (rows ? walk.n * job.w_stride : 0), job.w_stride, rows, job.k,
                         walk.piece * BLOCKS, &w_full[walk.slot]);
    }

    /* Loads all pieces of w, for all warps. Called by one thread, on the first warp's object. apart: rows of w from a warp's tile to the
     * next warp's. */
    __device__ __forceinline__ void bring_boxes(const CodesJob &job, int from, int apart, int warps) const
    {
        CodesWalk walk(from);
        for (int q = 0; q < job.pieces * job.rounds; q++, walk.next(job.pieces, warps * apart, job.w_slots, false))
            for (int i = 0; i < warps; i++) {
                uint64_t *full = &w_full[i * W_SLOTS + walk.slot];
                if (walk.round) phase_wait(&w_free[i * W_SLOTS + walk.slot], walk.parity() ^ 1);
                expect_bytes(full, W_BYTES);
                copy_box(w + (i * job.w_slots + walk.slot) * W_BYTES, &job.w_map, 0, walk.n + i * apart, walk.piece * BLOCKS, full);
            }
    }

    __device__ __forceinline__ void bring_x(const CodesJob &job, const CodesWalk &walk, int first_row) const
    {
        uint64_t   *full = &x_full[walk.slot];
        uint32_t    to = x + walk.slot * X_BYTES;
        const char *from = (const char *)(job.x + first_row * job.x_stride);
        if (!job.by_boxes) {
            copy<XR, 2 * BLOCKS>(to, from, job.x_stride * 2, job.m - first_row, (int64_t)job.k * 2, walk.piece * BLOCKS * 2, full);
        } else if ((threadIdx.x & 31) == 0 && XR == 1) {
            int bytes = walk.piece + 1 == job.pieces ? job.blocks * 2 * ROW_BYTES : X_BYTES;
            expect_bytes(full, bytes);
            copy_bytes(to, from + walk.piece * X_BYTES, bytes, full);
        } else if ((threadIdx.x & 31) == 0) {
            expect_bytes(full, X_BYTES);
            copy_box(to, &job.x_map, 0, first_row, walk.piece * BLOCKS * 2, full);
        }
    }

    /* Loads all pieces of x, once if they stay, else in every round. Called by one warp. */
    __device__ __forceinline__ void bring_rows(const CodesJob &job, int first_row) const
    {
        int       count = job.x_stays ? job.pieces : job.pieces * job.rounds;
        CodesWalk walk(0);
        for (int q = 0; q < count; q++, walk.next(job.pieces, 0, job.x_slots, false)) {
            if (walk.round) phase_wait(&x_free[walk.slot], walk.parity() ^ 1);
            bring_x(job, walk, first_row);
        }
    }
};

/* The scale of block `lane` of a piece of a tile of w; 0 beyond w. */
template <int BLOCKS> static __device__ __forceinline__ float block_scale(const CodesJob &job, const CodesWalk &walk)
{
    int at = walk.piece * BLOCKS + (threadIdx.x & 31);
    return walk.n < job.n && at * FP8_TILE < job.k ? job.scale[walk.n / FP8_TILE * job.scale_stride + at] : 0;
}

/* Computes a warp's tiles: the first begins at column `from`, each further one `stride` columns later. */
template <typename Codes, int W8, int XT, int XR, int BLOCKS>
static __device__ __forceinline__ void multiply(const CodesJob &job, const CodesShared<XR, 8 * W8, BLOCKS> &shared, int first_row, int from,
                                                int stride)
{
    typedef CodesShared<XR, 8 * W8, BLOCKS> Shared;
    int                                     count = job.pieces * job.rounds, lane = threadIdx.x & 31;
    CodesWalk ahead(from), of_w(from), of_x(from); /* ahead: next piece to load; of_w, of_x: pieces to multiply */
    if (!job.w_constant) await_launches();
    for (int q = 0; !job.by_boxes && q < min(count, job.w_slots); q++, ahead.next(job.pieces, stride, job.w_slots, false))
        shared.bring_w(job, ahead);

    const CodesReads<XR>          reads;
    CodesChain<Codes, W8, XR, XT> chain;
    CodesFinish<Codes, W8>        finish;
    uint32_t                      x = shared.x, w = shared.w; /* addresses of the block to multiply */
    float                         scales = 0, scale = 0;      /* scales: of a piece's blocks, one a lane; scale: of the block */
    finish.load(job, of_w.n);
    finish.clear(chain.c);
    if (Codes::HAS_TILES) scales = block_scale<BLOCKS>(job, of_w), scale = __shfl_sync(0xFFFFFFFFu, scales, 0);
    if (job.w_constant) await_launches();
    phase_wait(&shared.w_full[0], 0);
    phase_wait(&shared.x_full[0], 0);
    chain.begin(x, w, reads, scale);
    for (int q = 1;; q++) {
        bool  last = of_w.piece + 1 == job.pieces, more = q < count;
        int   n = of_w.n, w_slot = of_w.slot, x_slot = of_x.slot, blocks = last ? job.blocks : BLOCKS;
        float next_scales = 0, next_scale = 0;
        of_w.next(job.pieces, stride, job.w_slots, false);
        of_x.next(job.pieces, stride, job.x_slots, job.x_stays);
        if (Codes::HAS_TILES) next_scales = block_scale<BLOCKS>(job, of_w);
#pragma unroll 1
        for (int block = 1; block < blocks; block++, x += 2 * Shared::X_BLOCK, w += Shared::W_BLOCK) {
            if (Codes::HAS_TILES) next_scale = __shfl_sync(0xFFFFFFFFu, scales, block);
            chain.add(x, w, x + 2 * Shared::X_BLOCK, w + Shared::W_BLOCK, reads, scale, next_scale);
            scale = next_scale;
        }
        uint32_t next_x = x, next_w = w;
        if (more) {
            phase_wait(&shared.w_full[of_w.slot], of_w.parity());
            phase_wait(&shared.x_full[of_x.slot], job.x_stays ? 0 : of_x.parity());
            next_x = shared.x + of_x.slot * Shared::X_BYTES, next_w = shared.w + of_w.slot * Shared::W_BYTES;
        }
        if (Codes::HAS_TILES) scales = next_scales, next_scale = __shfl_sync(0xFFFFFFFFu, scales, 0);
        chain.add(x, w, next_x, next_w, reads, scale, next_scale);
        x = next_x, w = next_w, scale = next_scale;
        __syncwarp(); /* all lanes have read the previous piece */
        if (!job.x_stays && lane == 0) phase_arrive(&shared.x_free[x_slot]);
        if (job.by_boxes) {
            if (lane == 0) phase_arrive(&shared.w_free[w_slot]);
        } else if (q + job.w_slots <= count) {
            shared.bring_w(job, ahead);
            ahead.next(job.pieces, stride, job.w_slots, false);
        }
        if (!last) continue;
        finish.template put<XR>(job, first_row, n, chain.c);
        if (!more) break;
        finish.load(job, of_w.n);
        finish.clear(chain.c);
    }
}

template <typename Codes, int W8, int XT, int XR, int BLOCKS, int WARPS>
static __global__ void __launch_bounds__((WARPS + BRINGERS) * 32) few_rows_codes(const __grid_constant__ CodesJob job)
{
    extern __shared__ __align__(1024) char  codes_memory[];
    typedef CodesShared<XR, 8 * W8, BLOCKS> Shared;
    int                                     warps = blockDim.x / 32 - BRINGERS, warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);
    int                                     first_row = blockIdx.y * 8 * XT, apart = gridDim.x * 8 * W8;
    const Shared                            shared(codes_memory, job, warp < warps ? warp : 0);
    release_launches();
    if ((threadIdx.x & 31) == 0 && warp <= warps) shared.begin(job, warp == warps, warps);
    __syncthreads();
    if (warp < warps) {
        multiply<Codes, W8, XT, XR, BLOCKS>(job, shared, first_row, warp * apart + blockIdx.x * 8 * W8, warps * apart);
    } else if (warp == warps) {
        await_launches();
        shared.bring_rows(job, first_row);
    } else if (job.by_boxes && threadIdx.x % 32 == 0) {
        if (!job.w_constant) await_launches();
        shared.bring_boxes(job, blockIdx.x * 8 * W8, apart, warps);
    }
}

/* ---- launches ---- */

typedef struct CodesGpu {
    int processors, shared; /* shared: bytes that a block may have */
} CodesGpu;

typedef struct CodesGrid {
    int blocks, warps, rounds;
} CodesGrid;

/* Chooses the grid: blocks for all multiprocessors, and one tile a warp if `most` warps a block suffice for that, else several tiles a
 * warp. */
static CodesGrid grid_of(int64_t tiles, int most, int processors)
{
    CodesGrid grid;
    grid.rounds = (int)cuda_div_up(tiles, (int64_t)processors * most);
    grid.warps = (int)cuda_div_up(tiles, (int64_t)grid.rounds * processors);
    grid.blocks = (int)(tiles < processors ? tiles : processors);
    return grid;
}

/* Divides shared memory and returns its bytes. Rows of x stay if they leave room for GOOD_SLOTS pieces a warp. x_bytes: of a piece of x;
 * w_bytes: of a piece of w, for one warp. */
static size_t plan_shared(CodesJob *job, const CodesGpu *gpu, int warps, int x_bytes, int w_bytes)
{
    int beside = (gpu->shared - SHARED_KEPT) / 2, w_piece = warps * w_bytes, good = PHASES_BYTES + GOOD_SLOTS * w_piece;
    int most = job->m <= 16 && good + X_RING * x_bytes <= beside ? beside : gpu->shared, count = job->pieces * job->rounds;
    job->x_stays = job->pieces <= MOST_SLOTS && good + (int64_t)x_bytes * job->pieces <= most;
    job->x_slots = job->x_stays ? job->pieces : X_RING;
    int taken = PHASES_BYTES + (x_bytes * job->x_slots + 1023) / 1024 * 1024, wanted = count < W_SLOTS ? count : W_SLOTS;
    job->w_slots = (most - taken) / w_piece < wanted ? (most - taken) / w_piece : wanted;
    return (size_t)(taken + w_piece * job->w_slots);
}

static Status map_rows(const void *data, int64_t stride, int64_t rows, int64_t blocks, int box_rows, int box_blocks, CUtensorMap *out)
{
    TensorMapShape shape = {.rank = 3};
    shape.dims[0] = TENSOR_MAP_INNER, shape.dims[1] = (uint64_t)rows, shape.dims[2] = (uint64_t)blocks;
    shape.strides[0] = (uint64_t)stride, shape.strides[1] = ROW_BYTES;
    shape.box[0] = TENSOR_MAP_INNER, shape.box[1] = (uint32_t)box_rows, shape.box[2] = (uint32_t)box_blocks;
    return cuda_tensor_map(data, &shape, out);
}

template <typename Codes, int W8, int XT, int XR, int BLOCKS, int WARPS>
static Status launch(const Gemm *g, CodesJob *job, const CodesGpu *gpu, cudaStream_t stream)
{
    typedef CodesShared<XR, 8 * W8, BLOCKS> Shared;
    int                room = (gpu->shared - PHASES_BYTES - X_RING * Shared::X_BYTES) / (LEAST_SLOTS * Shared::W_BYTES);
    CodesGrid          grid = grid_of(cuda_div_up(g->n, 8 * W8), room < WARPS ? room : WARPS, gpu->processors);
    cudaFuncAttributes facts;
    void (*kernel)(CodesJob) = few_rows_codes<Codes, W8, XT, XR, BLOCKS, WARPS>;
    CUDA_TRY(cudaFuncGetAttributes(&facts, kernel));
    job->by_boxes = facts.ptxVersion >= 90 && g->k % ROW_BYTES == 0;
    job->pieces = (int)cuda_div_up(g->k, BLOCKS * ROW_BYTES);
    job->blocks = (int)(cuda_div_up(g->k, ROW_BYTES) - (int64_t)(job->pieces - 1) * BLOCKS);
    job->rounds = grid.rounds;
    size_t bytes = plan_shared(job, gpu, grid.warps, Shared::X_BYTES, Shared::W_BYTES);
    if (job->by_boxes) TRY(map_rows(job->w, job->w_stride, g->n, g->k / ROW_BYTES, 8 * W8, BLOCKS, &job->w_map));
    if (job->by_boxes && XR > 1) TRY(map_rows(job->x, job->x_stride * 2, g->m, g->k / X_ALONG, XR, 2 * BLOCKS, &job->x_map));
    CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)gpu->shared));
    return cuda_launch_early(g->early, kernel, dim3((unsigned)grid.blocks, (unsigned)cuda_div_up(g->m, 8 * XT)),
                             (unsigned)(grid.warps + BRINGERS) * 32, bytes, stream, *job);
}

template <typename Codes> static Status launch_rows(const Gemm *g, CodesJob *job, const CodesGpu *gpu, cudaStream_t stream)
{
    bool one_each = g->n <= (int64_t)gpu->processors * 4 * 8; /* at most one tile of 8 rows for each warp scheduler */
    if (g->m == 1 && one_each) return launch<Codes, 1, 1, 1, 8, MOST_WARPS>(g, job, gpu, stream);
    if (g->m == 1) return launch<Codes, 1, 1, 1, 4, MOST_WARPS>(g, job, gpu, stream);
    if (g->m <= 8) return launch<Codes, 1, 1, 8, 4, MOST_WARPS>(g, job, gpu, stream);
    if (g->m <= 16) return launch<Codes, 2, 2, 16, 4, MOST_WARPS>(g, job, gpu, stream);
    if (gpu->shared < SHARED_OF_64) return launch<Codes, 2, 4, 32, 2, 4>(g, job, gpu, stream);
    if (g->m <= 32) return launch<Codes, 2, 4, 32, 4, 4>(g, job, gpu, stream);
    if (g->n <= 8192) return launch<Codes, 2, 8, 64, 2, MOST_WARPS>(g, job, gpu, stream);
    return launch<Codes, 4, 8, 64, 2, 4>(g, job, gpu, stream);
}

static bool lies(const GemmOperand *x, DType dtype)
{
    int whole = dtype == DT_BF16 ? 8 : 16; /* elements in 16 bytes */
    return x->dtype == dtype && x->stride % whole == 0 && x->offset % whole == 0 && (uintptr_t)x->data % 16 == 0;
}

bool few_rows_codes_fit(const Gemm *g)
{
    bool shapes =
        g->m > 0 && g->m <= MOST_ROWS && g->n > 0 && g->n < INT_MAX / 2 && g->k > 0 && g->k % 16 == 0 && !g->a.trans && g->b.trans;
    bool plain = !g->accumulate && g->alpha == 1 && !g->a.scale && (DT_SET(g->c.dtype) & DT_SET_FLOAT);
    bool whole = g->b.scaling == GEMM_SCALE_COLS && lies(&g->b, DT_I8);
    bool tiles = g->b.scaling == GEMM_SCALE_TILES && g->b.to_bf16 && lies(&g->b, DT_E4M3);
    return shapes && plain && lies(&g->a, DT_BF16) && (whole || tiles);
}

Status few_rows_codes_run(const Gemm *g, void *stream)
{
    if (few_rows_codes_one_fit(g, NULL)) return few_rows_codes_one_run(g, NULL, stream);
    CodesJob job = {};
    CodesGpu gpu = {};
    int      device = 0;
    CUDA_TRY(cudaGetDevice(&device));
    CUDA_TRY(cudaDeviceGetAttribute(&gpu.processors, cudaDevAttrMultiProcessorCount, device));
    CUDA_TRY(cudaDeviceGetAttribute(&gpu.shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    job.x = (const bf16 *)g->a.data + g->a.offset, job.w = (const uint8_t *)g->b.data + g->b.offset, job.scale = g->b.scale;
    job.x_stride = g->a.stride, job.w_stride = g->b.stride, job.c_stride = g->c.stride, job.scale_stride = g->b.scale_stride;
    job.m = (int)g->m, job.n = (int)g->n, job.k = (int)g->k;
    job.c = g->c, job.bias = g->bias, job.has_bias = g->epilogue == GEMM_BIAS;
    job.w_constant = g->b_constant;
    cudaStream_t queue = (cudaStream_t)stream;
    return g->b.dtype == DT_I8 ? launch_rows<Int8Codes>(g, &job, &gpu, queue) : launch_rows<Fp8Tiles>(g, &job, &gpu, queue);
}
