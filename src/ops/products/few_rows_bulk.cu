/* Products of few rows, y (m,n) = x (m,k) w^T (n,k) in bf16 or f16, on GPUs whose copy engine loads boxes into shared memory (compute
 * capability 9.0): the sums of few_rows.cu, to the bit. If nothing in the program writes w, its loads begin before the preceding launch has
 * ended.
 *
 * A warp has tiles of 8 * NT rows of w. It loads them itself, in pieces along k, each as soon as its slot in the warp's ring is free. One
 * more warp loads the rows of x for the whole block: pieces stay in shared memory if all fit, else they go through a ring too. If x has a
 * single row each warp loads it by copies of its own, which are faster there; all rows of its operand are that row. Operands are loaded to
 * registers one step ahead of the chain.
 *
 * Parts of a sum are chains over equal parts of k, computed by neighbouring warps for the same tile. A tile of gate and up has 8 rows of w
 * of each, so that the warp that computes both also combines them.
 *
 * A second product with the same x has tiles that follow those of the first.
 *
 * A piece consists of blocks of 64 elements along k: rows of 128 bytes whose 16-byte chunks are permuted by row (tensor_map.h). */
#include "device/cuda/tensor_map.h"
#include "device/cuda/vec_f16.cuh"
#include "ops/bulk.cuh"
#include "ops/elementwise/gated.cuh"
#include "ops/products/normed_row.cuh"

enum {
    ALONG = TENSOR_MAP_INNER, /* k is a multiple of this */
    ROW_BYTES = ALONG * 2,
    CHUNKS = ROW_BYTES / 16,
    STEP = 32,
    COLS = 8,
    MOST_ROWS = 64,
    MOST_ALONE = 32768, /* elements of a single row, at most */
    MOST_WARPS = 16,
    MOST_SLOTS = 64, /* slots of x, at most */
    W_SLOTS = 16,
    PHASES_BYTES = (2 * MOST_SLOTS + MOST_WARPS * W_SLOTS) * 8,
};

/* Bytes of shared memory of a block: SHARED_BESIDE if another launch's block shares the multiprocessor, else SHARED_ALONE. */
enum { SHARED_BESIDE = 112 << 10, SHARED_ALONE = FEW_ROWS_BULK_SHARED };

struct BulkJob {
    CUtensorMap     x_map, w_map; /* dims (64, rows, 1 or 2 for gate and up, k / 64) */
    int64_t         c_stride;
    GemmOperand     c, bias;
    int             m, n, w_rows, blocks;     /* blocks: number of blocks along k */
    int             parts, part, pieces;      /* parts: parts of k; part: blocks of a part; pieces: pieces of a part */
    int             x_bytes, sums_at;         /* x_bytes: bytes of all slots of x; sums_at: offset of the sums of parts */
    const uint16_t *x;                        /* x, if it has a single row */
    int             rounds, x_slots, w_slots; /* rounds: tiles of a warp; x_slots: slots of x; w_slots: slots of w of each warp */
    bool            x_stays, w_constant, accumulate, has_bias;
    bool            as_pairs; /* sums are stored plain or with a bias, in pairs of columns that are aligned as pairs */
    float           alpha;
    bool            gated, gelu; /* w is gate and up; each of c's n columns is made of both */
    RowsNorm        norm;        /* norm of a single row; norm.w NULL: none */
};

/* Products with the same x. Their columns are numbered as one sequence: the second product's begin at `second`, a multiple of a tile. */
template <int COUNT> struct BulkJobs {
    BulkJob of[COUNT];
    int     second;

    __device__ __forceinline__ int which(int col) const
    {
        return COUNT == 2 && col >= second;
    }
};

/* Keeps a value in a register; otherwise the compiler would compute it again for each step. */
static __device__ __forceinline__ uint32_t kept(uint32_t number)
{
    asm volatile("" : "+r"(number));
    return number;
}

/* Byte offsets at which a lane reads in a slot: w by halves of a block of 64 elements, x by quarters. Rows of x beyond x_rows repeat
 * existing rows; a single row isn't permuted. */
struct LaneReads {
    uint32_t w[2], x[4];

    __device__ __forceinline__ LaneReads(int x_rows)
    {
        int lane = threadIdx.x & 31, flip = (lane & 7) * 16, x_flip = x_rows > 1 ? flip : 0;
#pragma unroll
        for (int i = 0; i < 2; i++) w[i] = kept((lane & 7) * ROW_BYTES + (((i * 4 + (lane >> 3)) * 16) ^ flip));
#pragma unroll
        for (int i = 0; i < 4; i++) x[i] = kept((lane & (x_rows - 1) & 15) * ROW_BYTES + (((i * 2 + (lane >> 4)) * 16) ^ x_flip));
    }
};

/* The operands of STEP elements along k: 16 * MT rows of x, of which a slot has XR, and 8 * NT rows of w. */
template <typename T, int MT, int NT, int XR> struct BulkOperands {
    uint32_t x[STEP / 16][MT][4], w[NT][4];

    /* half: which half of the blocks at these addresses */
    __device__ __forceinline__ void take(uint32_t x_block, uint32_t w_block, const LaneReads &reads, int half)
    {
#pragma unroll
        for (int n = 0; n < NT; n++) ldmatrix_at(w[n], w_block + reads.w[half] + n * (COLS * ROW_BYTES));
#pragma unroll
        for (int quarter = 0; quarter < STEP / 16; quarter++)
#pragma unroll
            for (int t = 0; t < MT; t++) ldmatrix_at(x[quarter][t], x_block + reads.x[half * 2 + quarter] + t * (16 * ROW_BYTES));
    }

    __device__ __forceinline__ void add(float (&c)[NT][MT][4]) const
    {
#pragma unroll
        for (int half = 0; half < STEP / 16; half++)
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int t = 0; t < MT; t++) mma_of<T>(c[n][t], x[half][t], w[n][2 * half], w[n][2 * half + 1]);
    }
};

template <typename T> static __device__ __forceinline__ float bias_at(const BulkJob &job, int col)
{
    return col < job.w_rows ? get_of<T>(job.bias.data, job.bias.dtype, job.bias.offset + col) : 0.0f;
}

template <typename T> static __device__ __forceinline__ float finished(const BulkJob &job, int row, int col, float value)
{
    value *= job.alpha;
    if (job.accumulate) value += get_of<T>(job.c.data, job.c.dtype, job.c.offset + row * job.c_stride + col);
    if (job.has_bias) value += bias_at<T>(job, col);
    return value;
}

/* Stores columns col, which is even, and col + 1. */
template <typename T> static __device__ __forceinline__ void put_two(const BulkJob &job, int row, int col, float left, float right)
{
    int64_t at = job.c.offset + row * job.c_stride + col;
    if (row >= job.m || col >= job.n) return;
    set_of<T>(job.c.data, job.c.dtype, at, finished<T>(job, row, col, left));
    if (col + 1 < job.n) set_of<T>(job.c.data, job.c.dtype, at + 1, finished<T>(job, row, col + 1, right));
}

/* Stores sums two at a time. to: address of this lane's first row and column. */
template <typename Pair, int MT, int NT, typename F>
static __device__ __forceinline__ void put_pairs(const BulkJob &job, char *to, int row, int col, const float (&c)[NT][MT][4], F pair)
{
    int64_t step = 8 * job.c_stride * (int64_t)(sizeof(Pair) / 2);
#pragma unroll
    for (int t = 0; t < 2 * MT; t++, to += step, row += 8) {
        if (row >= job.m) return;
#pragma unroll
        for (int i = 0; i < NT; i++)
            if (col + i * COLS < job.n) ((Pair *)to)[i * COLS / 2] = pair(c[i][t / 2][t % 2 * 2], c[i][t / 2][t % 2 * 2 + 1]);
    }
}

template <typename T, int MT, int NT> static __device__ __forceinline__ void add_bias(const BulkJob &job, int col, float (&c)[NT][MT][4])
{
#pragma unroll
    for (int i = 0; i < NT; i++) {
        float bias[2] = {bias_at<T>(job, col + i * COLS), bias_at<T>(job, col + i * COLS + 1)};
#pragma unroll
        for (int t = 0; t < MT; t++)
#pragma unroll
            for (int e = 0; e < 4; e++) c[i][t][e] += bias[e & 1];
    }
}

/* Stores a warp's tile. row, col: this lane's first row and column. */
template <typename T, int MT, int NT>
static __device__ __forceinline__ void put_tile(const BulkJob &job, int row, int col, float (&c)[NT][MT][4])
{
    int64_t at = job.c.offset + row * job.c_stride + col;
    if (job.as_pairs && job.has_bias) add_bias<T>(job, col, c);
    if (job.as_pairs && job.c.dtype != DT_F32) {
        put_pairs<uint32_t>(job, (char *)((T *)job.c.data + at), row, col, c, [](float a, float b) { return pair_of<T>(a, b); });
    } else if (job.as_pairs) {
        put_pairs<float2>(job, (char *)((float *)job.c.data + at), row, col, c, [](float a, float b) { return make_float2(a, b); });
    } else {
#pragma unroll
        for (int i = 0; i < NT; i++)
#pragma unroll
            for (int t = 0; t < 2 * MT; t++)
                put_two<T>(job, row + t * 8, col + i * COLS, c[i][t / 2][t % 2 * 2], c[i][t / 2][t % 2 * 2 + 1]);
    }
}

/* Combines a tile of gate and one of up, both rounded as if they were stored, and stores the result. */
template <typename T, int MT>
static __device__ __forceinline__ void put_gated(const BulkJob &job, int row, int col, const float (&c)[2][MT][4])
{
    float made[1][MT][4];
#pragma unroll
    for (int t = 0; t < MT; t++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float gate = to_float(from_float<T>(c[0][t][e])), up = to_float(from_float<T>(c[1][t][e]));
            made[0][t][e] = job.gelu ? gated<T, true>(gate, up) : gated<T, false>(gate, up);
        }
    put_tile<T, MT, 1>(job, row, col, made);
}
template <typename T, int MT> static __device__ __forceinline__ void put_gated(const BulkJob &, int, int, const float (&)[1][MT][4]) {}

/* A position among the pieces of a block's rows of x, or of a warp's tiles of w, and among their slots in shared memory. */
struct Walk {
    int piece, n, slot, round; /* piece: piece along k; n: tile's first row of w; slot: in the ring; round: how often the ring was passed */

    __device__ __forceinline__ Walk(int n_, int slot_) : piece(0), n(n_), slot(slot_), round(0) {}

    /* first, step: slot of a tile's first piece, and slots from one piece to the next. stays: pieces of the next tile are in the same
     * slots. */
    __device__ __forceinline__ void next(int pieces, int stride, int slots, bool stays, int first = 0, int step = 1)
    {
        slot += step;
        if (++piece == pieces) {
            piece = 0, n += stride;
            if (stays) slot = first;
        }
        if (slot >= slots) slot -= slots, round++;
    }
    __device__ __forceinline__ int parity() const
    {
        return round & 1;
    }
};

/* Shared memory of the block, by addresses; slots begin at multiples of 1024 bytes. XR, WR: rows of x and of w in a slot; BLOCKS: blocks of
 * a piece. */
template <int XR, int WR, int BLOCKS> struct BulkShared {
    enum { X_BYTES = BLOCKS * XR * ROW_BYTES, W_BYTES = BLOCKS * WR * ROW_BYTES };
    uint64_t *x_full, *x_free, *w_full; /* w_full: barriers of this warp's slots */
    uint32_t  x, w;                     /* w: this warp's slots */

    __device__ __forceinline__ BulkShared(char *memory, const BulkJob &job, int warp)
    {
        x_full = (uint64_t *)memory, x_free = x_full + MOST_SLOTS, w_full = x_free + MOST_SLOTS + warp * W_SLOTS;
        x = shared_address(memory) + PHASES_BYTES;
        w = x + job.x_bytes + warp * job.w_slots * W_BYTES;
    }

    /* Called by one lane of each warp; the last warp is the one that loads x. */
    __device__ __forceinline__ void begin(const BulkJob &job, bool is_x, int tiles) const
    {
        for (int i = 0; i < (is_x ? job.x_slots : job.w_slots); i++) phases_init(is_x ? &x_full[i] : &w_full[i], 1);
        for (int i = 0; is_x && !job.x_stays && i < job.x_slots; i++) phases_init(&x_free[i], tiles);
        publish_phases();
    }

    /* first: the part's first block */
    template <int COUNT> __device__ __forceinline__ void bring_w(const BulkJobs<COUNT> &jobs, const Walk &walk, int first) const
    {
        int i = jobs.which(walk.n);
        expect_bytes(&w_full[walk.slot], W_BYTES);
        copy_box(w + walk.slot * W_BYTES, &jobs.of[i].w_map, 0, walk.n - i * jobs.second, 0, first + walk.piece * BLOCKS,
                 &w_full[walk.slot]);
    }

    /* Loads all pieces of x, once if they stay, else in every round: the first pieces of all parts before the second ones. Called by one
     * thread. */
    __device__ __forceinline__ void bring_x(const BulkJob &job, int first_row) const
    {
        int  pieces = job.pieces * job.parts, count = job.x_stays ? pieces : pieces * job.rounds;
        Walk walk(0, 0);
        for (int q = 0, part = 0; q < count; q++, walk.next(pieces, 0, job.x_slots, false)) {
            if (walk.round) phase_wait(&x_free[walk.slot], walk.parity() ^ 1);
            expect_bytes(&x_full[walk.slot], X_BYTES);
            copy_box(x + walk.slot * X_BYTES, &job.x_map, 0, first_row, 0, part * job.part + walk.piece / job.parts * BLOCKS,
                     &x_full[walk.slot]);
            if (++part == job.parts) part = 0;
        }
    }

    /* Loads the blocks of a single row of x that a warp reads; first: the first of these blocks. */
    __device__ __forceinline__ void bring_row(const BulkJob &job, int first) const
    {
        for (int i = first * CHUNKS + (threadIdx.x & 31); i < (first + job.part) * CHUNKS; i += 32)
            copy_async_at(x + i * 16, job.x + i * 8, true);
        copy_commit();
        copy_wait<0>();
        __syncwarp();
    }

    /* Waits for the piece of x at this position, and returns its address. first: the part's first block */
    __device__ __forceinline__ uint32_t take_x(const BulkJob &job, const Walk &of_x, int first) const
    {
        if (XR == 1) return x + (first + of_x.piece * BLOCKS) * ROW_BYTES;
        phase_wait(&x_full[of_x.slot], job.x_stays ? 0 : of_x.parity());
        return x + of_x.slot * X_BYTES;
    }
};

static __device__ __forceinline__ void meet(int tile, int parts)
{
    asm volatile("bar.sync %0, %1;" ::"r"(tile + 1), "r"(parts * 32) : "memory");
}

/* Adds up a tile's parts, (0 + 1) + (2 + 3), in the warp of the first part. sums: room for this tile's parts; more: a later tile uses
 * `sums` again. */
template <int MT, int NT>
static __device__ __forceinline__ void add_parts(int tile, int parts, int part, float4 *sums, bool more, float (&c)[NT][MT][4])
{
    float4(&mine)[NT][MT] = reinterpret_cast<float4(&)[NT][MT]>(c);
    float4 *lane = sums + (threadIdx.x & 31);
    for (int i = 0; i < NT * MT && part; i++) lane[(part * NT * MT + i) * 32] = mine[i / MT][i % MT];
    meet(tile, parts);
#pragma unroll
    for (int i = 0; i < NT * MT && !part; i++) {
        float4 &sum = mine[i / MT][i % MT], one = lane[(NT * MT + i) * 32], two = {}, three = {};
        if (parts > 2) two = lane[(2 * NT * MT + i) * 32], three = lane[(3 * NT * MT + i) * 32];
        sum.x = (sum.x + one.x) + (two.x + three.x), sum.y = (sum.y + one.y) + (two.y + three.y);
        sum.z = (sum.z + one.z) + (two.z + three.z), sum.w = (sum.w + one.w) + (two.w + three.w);
    }
    if (more) meet(tile, parts);
}

template <typename T, int MT, int NT, int XR, int BLOCKS, int COUNT>
static __global__ void __launch_bounds__(((MT * NT == 1 ? MOST_WARPS : MOST_WARPS / 2) + 1) * 32)
    few_rows_bulk(const __grid_constant__ BulkJobs<COUNT> jobs)
{
    extern __shared__ __align__(1024) char bulk_memory[];
    enum { W_ROWS = COLS * NT };
    typedef BulkShared<XR, W_ROWS, BLOCKS> Shared;
    const BulkJob                         &job = jobs.of[0];
    int          warps = blockDim.x / 32 - (XR > 1), warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0), lane = threadIdx.x & 31;
    int          first_row = blockIdx.y * 16 * MT, parts = job.parts, tiles = warps / parts, tile = warp / parts, part = warp % parts;
    const Shared shared(bulk_memory, job, warp);
    release_launches();
    if (lane == 0) shared.begin(job, XR > 1 && warp == warps, tiles);
    __syncthreads();
    if (XR > 1 && warp == warps) {
        if (lane == 0) prefetch_map(&job.x_map);
        await_launches();
        if (lane == 0) shared.bring_x(job, first_row);
        return;
    }

    int  cols = NT == 2 && job.gated ? COLS : W_ROWS, first_col = (blockIdx.x * tiles + tile) * cols, stride = gridDim.x * tiles * cols;
    int  pieces = job.pieces, last_blocks = job.part - (pieces - 1) * BLOCKS, first_block = part * job.part, count = pieces * job.rounds;
    Walk ahead(first_col, 0), of_w(first_col, 0), of_x(first_col, part); /* ahead: next piece to load; of_w, of_x: pieces to multiply */
    if (!job.w_constant) await_launches();
    for (int q = 0; q < min(count, job.w_slots); q++, ahead.next(pieces, stride, job.w_slots, false))
        if (lane == 0) shared.bring_w(jobs, ahead, first_block);
    if (XR == 1 && job.norm.w) bring_norm<T>(job.norm, job.blocks * ALONG, shared.x + job.x_bytes / 2, threadIdx.x, blockDim.x);
    if (job.w_constant) await_launches();

    const LaneReads             reads(XR);
    float                       c[NT][MT][4] = {};
    float4                     *sums = (float4 *)(bulk_memory + job.sums_at) + tile * parts * (MT * NT * 32);
    BulkOperands<T, MT, NT, XR> first, second; /* operands of a block's halves */
    if (XR == 1 && job.norm.w)
        norm_row<T, 1>(
            job.norm, job.blocks * ALONG, (T *)(bulk_memory + PHASES_BYTES), (const T *)(bulk_memory + PHASES_BYTES + job.x_bytes / 2),
            (float *)shared.x_full, threadIdx.x, blockDim.x, [] { __syncthreads(); },
            [&](int c, const float(&v)[8]) { store_pack((T *)(bulk_memory + PHASES_BYTES) + c, v); });
    else if (XR == 1)
        shared.bring_row(job, first_block);
    phase_wait(&shared.w_full[0], 0);
    uint32_t x = shared.take_x(job, of_x, first_block), w = shared.w;
    first.take(x, w, reads, 0);
    for (int q = 0; q < count; q++) {
        int  n = of_w.n, x_slot = of_x.slot;
        bool last = of_w.piece + 1 == pieces, more = q + 1 < count;
        int  blocks = last ? last_blocks : BLOCKS;
        of_w.next(pieces, stride, job.w_slots, false);
        of_x.next(pieces, stride, job.x_slots, job.x_stays, part, parts);
#pragma unroll 4
        for (int block = 1; block < blocks; block++) {
            second.take(x, w, reads, 1);
            first.add(c);
            x += XR * ROW_BYTES, w += W_ROWS * ROW_BYTES;
            first.take(x, w, reads, 0);
            second.add(c);
        }
        second.take(x, w, reads, 1);
        first.add(c);
        if (more) {
            phase_wait(&shared.w_full[of_w.slot], of_w.parity());
            x = shared.take_x(job, of_x, first_block), w = shared.w + of_w.slot * Shared::W_BYTES;
            first.take(x, w, reads, 0);
        }
        second.add(c);
        __syncwarp(); /* all lanes have read this piece */
        if (!job.x_stays && lane == 0) phase_arrive(&shared.x_free[x_slot]);
        if (q + job.w_slots < count) {
            if (lane == 0) shared.bring_w(jobs, ahead, first_block);
            ahead.next(pieces, stride, job.w_slots, false);
        }
        if (!last) continue;
        if (parts > 1) add_parts<MT, NT>(tile, parts, part, sums, job.rounds > 1, c);
        int which = jobs.which(n), row = first_row + (lane >> 2), col = n - which * jobs.second + (lane & 3) * 2;
        if (NT == 2 && job.gated && !part)
            put_gated<T, MT>(job, row, col, c);
        else if (!part)
            put_tile<T, MT, NT>(jobs.of[which], row, col, c);
#pragma unroll
        for (int i = 0; i < NT; i++)
#pragma unroll
            for (int t = 0; t < MT; t++)
#pragma unroll
                for (int e = 0; e < 4; e++) c[i][t][e] = 0;
    }
}

/* ---- launches ---- */

typedef struct BulkGrid {
    int blocks, groups, warps, rounds; /* groups: groups of rows of x */
} BulkGrid;

/* Chooses the grid: each warp computes a part of one tile if `most` warps a block suffice for that; else each warp has several tiles, the
 * same number in each block. cols: columns of all products; least: fewest warps of a block. */
static BulkGrid grid_of(const BulkJob *job, int64_t cols, int x_rows, int w_rows, int least, int most, int processors)
{
    BulkGrid grid = {};
    int64_t  tiles = cuda_div_up(cols, w_rows), places = (int64_t)processors * (most / job->parts);
    grid.groups = (int)cuda_div_up(job->m, x_rows);
    grid.rounds = (int)cuda_div_up(tiles, places);
    int64_t abreast = cuda_div_up(cuda_div_up(tiles, grid.rounds), processors);
    if (abreast * job->parts < least) abreast = least / job->parts;
    grid.warps = (int)abreast * job->parts;
    grid.blocks = (int)cuda_div_up(tiles, abreast * grid.rounds);
    return grid;
}

/* Divides shared memory and returns its bytes. Rows of x stay if they leave room for two pieces a warp. x_bytes: of a piece of x; w_bytes:
 * of a piece of w, for one warp; sum_bytes: of one warp's sums. */
static size_t plan_shared(BulkJob *job, const BulkGrid *grid, int x_rows, size_t x_bytes, size_t w_bytes, size_t sum_bytes)
{
    size_t w_piece = grid->warps * w_bytes, fixed = PHASES_BYTES + (job->parts > 1 ? grid->warps * sum_bytes : 0);
    size_t most = grid->rounds == 1 && job->m <= 16 ? SHARED_BESIDE : SHARED_ALONE;
    int    count = job->pieces * grid->rounds, least = count < 4 ? count : 4, wanted = count < W_SLOTS ? count : W_SLOTS;
    int    x_pieces = job->pieces * job->parts;
    job->x_stays = x_pieces <= MOST_SLOTS && fixed + 2 * w_piece + x_bytes * x_pieces * (grid->rounds == 1 ? 2 : 1) <= SHARED_ALONE;
    job->x_slots = job->x_stays ? x_pieces : job->parts > 1 ? 2 * job->parts : 3; /* a ring has equally many slots for each part */
    job->x_bytes = (int)(x_bytes * job->x_slots);
    if (x_rows == 1) { /* x_bytes: of the row and its norm's weights */
        job->x_stays = true, job->x_slots = 0;
        job->x_bytes = (int)cuda_div_up(job->blocks, CHUNKS) * CHUNKS * ROW_BYTES * (job->norm.w ? 2 : 1);
    }
    size_t taken = fixed + job->x_bytes;
    if (taken + least * w_piece > most) most = SHARED_ALONE;
    job->w_slots = taken < most ? (int)((most - taken) / w_piece) : 0;
    if (job->w_slots > wanted) job->w_slots = wanted;
    job->sums_at = (int)(PHASES_BYTES + job->x_bytes + w_piece * job->w_slots);
    return taken + w_piece * job->w_slots;
}

/* halves: 1, or 2 for gate and up; a box has equally many rows of each half */
static Status map_rows(const GemmOperand *rows, int64_t count, int halves, int64_t k, int box_rows, int blocks, CUtensorMap *out)
{
    TensorMapShape shape = {.rank = 4};
    shape.dims[0] = ALONG, shape.dims[1] = (uint64_t)count / halves, shape.dims[2] = (uint64_t)halves, shape.dims[3] = (uint64_t)k / ALONG;
    shape.strides[0] = (uint64_t)rows->stride * sizeof(bf16), shape.strides[1] = shape.strides[0] * shape.dims[1],
    shape.strides[2] = ROW_BYTES;
    shape.box[0] = ALONG, shape.box[1] = (uint32_t)(box_rows / halves), shape.box[2] = (uint32_t)halves, shape.box[3] = (uint32_t)blocks;
    return cuda_tensor_map((const bf16 *)rows->data + rows->offset, &shape, out);
}

/* Uses fewer warps until each has room for two pieces of w: a chain needs the next piece before it has finished one. */
template <typename T, int MT, int NT, int XR, int BLOCKS, int COUNT>
static Status launch(const Gemm *g, BulkJobs<COUNT> *jobs, int least, int most, int processors, cudaStream_t stream)
{
    typedef BulkShared<XR, COLS * NT, BLOCKS> Shared;
    BulkJob                                  *job = &jobs->of[0];
    BulkGrid                                  grid = {};
    size_t                                    bytes = 0;
    jobs->second = (int)cuda_div_up(g->n, COLS * NT) * COLS * NT;
    int64_t cols = COUNT == 2 ? jobs->second + g[COUNT - 1].n : g->n;
    job->blocks = (int)(g->k / ALONG);
    job->part = job->blocks / job->parts;
    job->pieces = (int)cuda_div_up(job->part, BLOCKS);
    for (;; most /= 2) {
        grid = grid_of(job, cols, 16 * MT, job->gated ? COLS : COLS * NT, least < most ? least : most, most, processors);
        job->rounds = grid.rounds;
        bytes = plan_shared(job, &grid, XR, Shared::X_BYTES, Shared::W_BYTES, MT * NT * 32 * sizeof(float4));
        if (job->w_slots >= 2 || job->w_slots == job->pieces * grid.rounds) break;
        FAIL_IF(most / 2 < job->parts, ERR_INTERNAL, "few_rows_bulk: no room for %d x %d of %lld", job->m, job->n, (long long)g->k);
    }
    if (XR == 1) job->x = (const uint16_t *)g->a.data + g->a.offset;
    if (XR > 1) TRY(map_rows(&g->a, g->m, 1, g->k, XR, BLOCKS, &job->x_map));
    for (int i = 0; i < COUNT; i++) TRY(map_rows(&g[i].b, job[i].w_rows, job->gated ? 2 : 1, g->k, COLS * NT, BLOCKS, &job[i].w_map));
    auto kernel = few_rows_bulk<T, MT, NT, XR, BLOCKS, COUNT>;
    CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_ALONE));
    return cuda_launch_early(g->early, kernel, dim3((unsigned)grid.blocks, (unsigned)grid.groups), (unsigned)(grid.warps + (XR > 1)) * 32,
                             bytes, stream, *jobs);
}

bool few_rows_bulk_fit(const Gemm *g)
{
    return g->m > 0 && g->m <= MOST_ROWS && g->k % ALONG == 0 && g->n < INT_MAX / 2;
}

static bool is_one_row(const Gemm *g)
{
    return g->m == 1 && g->k <= MOST_ALONE;
}

template <typename T> static Status launch_gated(const Gemm *g, BulkJobs<1> *jobs, int processors, cudaStream_t stream)
{
    if (is_one_row(g)) return launch<T, 1, 2, 1, 4>(g, jobs, 1, 8, processors, stream);
    if (g->m <= 8) return launch<T, 1, 2, 8, 4>(g, jobs, 1, 8, processors, stream);
    if (g->m <= 16) return launch<T, 1, 2, 16, 4>(g, jobs, 1, 8, processors, stream);
    if (g->m <= 32) return launch<T, 2, 2, 32, 4>(g, jobs, 2, 8, processors, stream);
    return launch<T, 4, 2, 64, 4>(g, jobs, 4, 4, processors, stream);
}

template <typename T> static Status launch_parts(const Gemm *g, BulkJobs<1> *jobs, int processors, cudaStream_t stream)
{
    if (is_one_row(g)) return launch<T, 1, 1, 1, 4>(g, jobs, 1, 16, processors, stream);
    if (g->m <= 8) return launch<T, 1, 1, 8, 4>(g, jobs, 1, 16, processors, stream);
    if (g->m <= 16) return launch<T, 1, 1, 16, 4>(g, jobs, 1, 16, processors, stream);
    if (g->m <= 32) return launch<T, 2, 1, 32, 4>(g, jobs, 2, 8, processors, stream);
    return launch<T, 2, 2, 32, 4>(g, jobs, 2, 4, processors, stream);
}

template <typename T, int COUNT> static Status launch_whole(const Gemm *g, BulkJobs<COUNT> *jobs, int processors, cudaStream_t stream)
{
    int64_t cols = g->n + (COUNT == 2 ? g[COUNT - 1].n : 0);
    if (is_one_row(g)) return launch<T, 1, 1, 1, 8>(g, jobs, 1, 8, processors, stream);
    if (g->m <= 8) return launch<T, 1, 1, 8, 8>(g, jobs, 1, 8, processors, stream);
    if (g->m <= 16) return launch<T, 1, 1, 16, 8>(g, jobs, 1, 8, processors, stream);
    if (g->m <= 32) return launch<T, 2, 1, 32, 4>(g, jobs, 2, 8, processors, stream);
    if (cols <= 2048) return launch<T, 2, 2, 32, 8>(g, jobs, 2, 4, processors, stream);
    if (cols <= 4096 || g->k <= 1024) return launch<T, 4, 1, 64, 4>(g, jobs, 4, 8, processors, stream);
    return launch<T, 4, 2, 64, 4>(g, jobs, 4, 4, processors, stream);
}

template <typename T> static Status launch_one(const Gemm *g, BulkJobs<1> *jobs, int processors, cudaStream_t stream)
{
    if (jobs->of[0].gated) return launch_gated<T>(g, jobs, processors, stream);
    return (jobs->of[0].parts > 1 ? launch_parts<T> : launch_whole<T, 1>)(g, jobs, processors, stream);
}

static void set_job(BulkJob *job, const Gemm *g, int64_t w_rows)
{
    job->c_stride = g->c.stride;
    job->m = (int)g->m, job->n = (int)g->n, job->w_rows = (int)w_rows;
    job->c = g->c, job->bias = g->bias;
    job->accumulate = g->accumulate, job->has_bias = g->epilogue == GEMM_BIAS;
    job->w_constant = g->b_constant;
    job->alpha = g->alpha;
    job->parts = 1;
    job->as_pairs = !job->accumulate && job->alpha == 1 && g->n % 2 == 0 && g->c.stride % 2 == 0 && g->c.offset % 2 == 0 &&
                    (uintptr_t)g->c.data % 8 == 0;
}

static Status count_processors(int *out)
{
    int device = 0;
    CUDA_TRY(cudaGetDevice(&device));
    CUDA_TRY(cudaDeviceGetAttribute(out, cudaDevAttrMultiProcessorCount, device));
    return OK;
}

Status few_rows_bulk_run(const Gemm *g, int64_t w_rows, const RowsFusion *fusion, void *stream)
{
    BulkJobs<1> jobs = {};
    BulkJob    *job = &jobs.of[0];
    int         processors = 0;
    TRY(count_processors(&processors));
    if (few_rows_group_fit(g, fusion, processors)) return few_rows_group_run(g, w_rows, fusion, processors, stream);
    set_job(job, g, w_rows);
    if (fusion) job->parts = fusion->parts, job->gated = fusion->gated, job->gelu = fusion->gelu;
    if (fusion && fusion->norm) job->norm = *fusion->norm;
    return g->b.dtype == DT_F16 ? launch_one<__half>(g, &jobs, processors, (cudaStream_t)stream)
                                : launch_one<bf16>(g, &jobs, processors, (cudaStream_t)stream);
}

Status few_rows_bulk_pair(const Gemm gemms[2], void *stream)
{
    BulkJobs<2> jobs = {};
    int         processors = 0;
    TRY(count_processors(&processors));
    for (int i = 0; i < 2; i++) set_job(&jobs.of[i], &gemms[i], gemms[i].n);
    jobs.of[0].w_constant = gemms[0].b_constant && gemms[1].b_constant;
    return gemms->b.dtype == DT_F16 ? launch_whole<__half, 2>(gemms, &jobs, processors, (cudaStream_t)stream)
                                    : launch_whole<bf16, 2>(gemms, &jobs, processors, (cudaStream_t)stream);
}
