/* attention_bwd by warpgroup products in one pass, for heads of 64 and 128, and of 192 with values of 128. A block has 128 keys; for each
 * tile of 64 queries it computes what the tile adds to dk, dv and dq. dk and dv stay in registers. dq is summed in fp32 in the workspace:
 * blocks add to a tile in turns, the block with the first keys first, so the order of each sum is fixed. A block goes from its last tile to
 * its first; in the other direction the block before it would reach each tile two tiles later, and this block would wait for it. Blocks
 * with few tiles, at a row's end, begin last.
 *
 * One warpgroup loads tiles and waits for turns; two multiply (FlashAttention-3, arXiv 2407.08608, section 3.1), 64 keys each. */
#include "ops/attention/attention_mma.cuh"
#include "ops/attention/attention_tile.cuh"
#include "ops/attention/attention_turns.h"
#include "ops/wgmma.cuh"

enum { GROUPS = 2, THREADS = (1 + GROUPS) * MMA_THREADS, BLOCK_KEYS = GROUPS * TILE_ROWS };

/* State in the workspace, besides AttentionDims. */
typedef struct Turns {
    int   *next_block; /* blocks are numbered in the order in which they begin, so a block only waits for blocks that run or ended */
    int   *taken;      /* (B,H,tiles of queries): number of turns that are over */
    float *sum;        /* sums of dq of each tile of queries, (64,D) in register layout */
    int    key_blocks, query_tiles;
} Turns;

/* Keys and queries have D columns, values and do have E. With two stages the kernel uses run_early, with three it uses run. */
template <int D, int E> struct TurnsShared {
    enum { STAGES = D + E <= 256 ? 3 : 2, DS_TILES = STAGES - 1 }; /* as many stages as fit */
    char     keys[GROUPS][SwizzledTile<D>::BYTES], values[GROUPS][SwizzledTile<E>::BYTES];
    char     q[STAGES][SwizzledTile<D>::BYTES], grad_o[STAGES][SwizzledTile<E>::BYTES];
    char     ds[DS_TILES][GROUPS * PIECE_BYTES]; /* ds of one or two tiles, each (keys, queries) */
    float    dq[TILE_ROWS * D];                  /* this block's part of a tile's dq, in register layout */
    float    lse2[STAGES][TILE_ROWS], delta[STAGES][TILE_ROWS];
    int      first[STAGES][TILE_ROWS]; /* the first key that a query attends; INT_MAX past the row's end */
    int      block;
    uint64_t full[STAGES], free[STAGES];
};

/* State for bidirectional attention and biases, stored after TurnsShared. With FORM_BIASED it has the biases of 64 queries and the block's
 * keys by distance. */
template <int FORM, int STAGES> struct TurnsForm {
    enum { DISTANCES = TILE_ROWS + BLOCK_KEYS };
    int   first_query[BLOCK_KEYS]; /* the first query that attends a key; INT_MAX past the row's end */
    float bias[FORM == FORM_BIASED ? STAGES : 0][DISTANCES];
};

template <int D, int E, int FORM> static __host__ __device__ constexpr size_t turns_bytes()
{
    return sizeof(TurnsShared<D, E>) + (FORM == FORM_CAUSAL ? 0 : sizeof(TurnsForm<FORM, TurnsShared<D, E>::STAGES>));
}
static_assert(turns_bytes<128, 128, FORM_OPEN>() <= 227 * 1024 && turns_bytes<64, 64, FORM_BIASED>() <= 227 * 1024 &&
                  turns_bytes<192, 128, FORM_OPEN>() <= 227 * 1024,
              "a block's shared memory on 9.0");

#if HAS_WGMMA

/* ---- barriers of some of a block's warps; TURN, ADDED, DQ_FREE: between the warp that keeps turns and the warpgroups that multiply
 * ---- */

enum {
    LOADING_WARPS = 3,
    BARRIER_DS = 1,
    BARRIER_TURN,
    BARRIER_ADDED,
    BARRIER_DQ_FREE,
    DS_COUNT = GROUPS * MMA_THREADS,
    TURN_COUNT = DS_COUNT + 32
};

template <int COUNT> static __device__ __forceinline__ void barrier_wait(int id)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(COUNT) : "memory");
}
template <int COUNT> static __device__ __forceinline__ void barrier_arrive(int id)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(COUNT) : "memory");
}

/* The TurnsForm that follows `shared`. There is none with FORM_CAUSAL: the result may not be read then. */
template <int FORM, int D, int E> static __device__ __forceinline__ auto *form_of(const TurnsShared<D, E> *shared)
{
    return (TurnsForm<FORM, TurnsShared<D, E>::STAGES> *)(shared + 1);
}

/* ---- the tiles of a block ---- */

/* The tiles of queries that attend a block's keys, for each query head of the group: an iterator. */
template <int D, int E, int FORM> struct Work {
    int b, g, key_block, begin, earliest, latest, head, query, left;
    int next_first; /* the first query that attends the next block */

    Ring<TurnsShared<D, E>::STAGES> ring; /* the stage that holds the tile */

    __device__ __forceinline__ Work(const AttentionDims &a, int block)
    {
        int heads = a.batch * a.num_kv_heads;
        key_block = block / heads;
        g = block % heads % a.num_kv_heads;
        b = block % heads / a.num_kv_heads;
        begin = key_block * BLOCK_KEYS;
        earliest = first_query_tile<FORM>(a, b, begin);
        next_first = FORM == FORM_CAUSAL ? 0 : first_query<FORM>(a, b, begin + BLOCK_KEYS);
        int end = max(last_query(a, b, begin), last_query(a, b, begin + TILE_ROWS)), tiles = (end - earliest + TILE_ROWS - 1) / TILE_ROWS;
        query = latest = earliest + (tiles - 1) * TILE_ROWS;
        head = g * a.group;
        left = tiles * a.group;
    }
    __device__ __forceinline__ void next()
    {
        left--;
        ring.next();
        query -= TILE_ROWS;
        if (query >= earliest) return;
        query = latest;
        head++;
    }
    /* How many blocks add to this tile before this one. first_key: the first key that the tile's first query attends. */
    __device__ __forceinline__ int turn(int first_key) const
    {
        return key_block - first_key / BLOCK_KEYS;
    }
    __device__ __forceinline__ bool last_turn() const
    {
        return FORM == FORM_CAUSAL ? query / BLOCK_KEYS == key_block : query + TILE_ROWS <= next_first;
    }
};

template <int D, int E, int FORM>
static __device__ __forceinline__ int64_t tile_of(const AttentionDims &a, const Turns &turns, const Work<D, E, FORM> &w)
{
    return ((int64_t)w.b * a.num_heads + w.head) * turns.query_tiles + w.query / TILE_ROWS;
}

/* ---- the warpgroup that loads: two warps copy tiles, one loads lse, delta and first keys, one keeps turns ---- */

template <int D, int E, int FORM>
static __device__ __forceinline__ void copy_tiles(const AttentionDims &a, TurnsShared<D, E> *shared, Work<D, E, FORM> w)
{
    enum { COPYING = (LOADING_WARPS - 1) * 32 };
    const TileCopy<D, COPYING> q(a.q, w.b, 0);
    const TileCopy<E, COPYING> grad_o(a.grad_o, w.b, 0);
    for (int i = 0; i < GROUPS; i++) {
        load_swizzled<D, COPYING>(shared->keys[i], a.k, w.b, w.begin + i * TILE_ROWS, a.len, w.g);
        load_swizzled<E, COPYING>(shared->values[i], a.v, w.b, w.begin + i * TILE_ROWS, a.len, w.g);
    }
    for (; w.left; w.next()) {
        phase_wait(&shared->free[w.ring.stage], w.ring.round ^ 1);
        q.begin(shared->q[w.ring.stage], w.query, a.len, (int64_t)w.head * D);
        grad_o.begin(shared->grad_o[w.ring.stage], w.query, a.len, (int64_t)w.head * E);
        copy_commit();
        copy_wait<0>();
        publish_tiles();
        phase_arrive(&shared->full[w.ring.stage]);
    }
}

template <int D, int E, int FORM>
static __device__ __forceinline__ void bring_columns(const AttentionDims &a, TurnsShared<D, E> *shared, Work<D, E, FORM> w)
{
    auto *form = form_of<FORM>(shared);
    for (int i = threadIdx.x & 31; i < BLOCK_KEYS && FORM != FORM_CAUSAL; i += 32)
        form->first_query[i] = first_query<FORM>(a, w.b, w.begin + i);
    for (; w.left; w.next()) {
        phase_wait(&shared->free[w.ring.stage], w.ring.round ^ 1);
        for (int c = threadIdx.x & 31; c < TILE_ROWS; c += 32) {
            int     t = w.query + c;
            int64_t at = ((int64_t)w.b * a.num_heads + w.head) * a.len + min(t, a.len - 1);
            shared->lse2[w.ring.stage][c] = a.lse[at] * LOG2E;
            shared->delta[w.ring.stage][c] = a.delta[at];
            shared->first[w.ring.stage][c] = t >= a.len ? INT_MAX : attention_first_key(a, w.b, t, t);
        }
        if constexpr (FORM == FORM_BIASED)
            for (int i = threadIdx.x & 31; i < form->DISTANCES; i += 32)
                form->bias[w.ring.stage][i] = product_bias(a, w.head, w.query - w.begin - (BLOCK_KEYS - 1) + i);
        phase_arrive(&shared->full[w.ring.stage]);
    }
}

/* For each tile: waits for this block's turn, adds the dq that the warpgroups leave in shared memory to the workspace by bulk copies, and
 * ends the turn. At the tile's last turn the warpgroups themselves add and store dq. */
template <int D, int E, int FORM>
static __device__ __forceinline__ void keep_turns(const AttentionDims &a, const Turns &turns, TurnsShared<D, E> *shared, Work<D, E, FORM> w)
{
    barrier_arrive<TURN_COUNT>(BARRIER_DQ_FREE);
    for (; w.left; w.next()) {
        int *taken = turns.taken + tile_of(a, turns, w), turn = w.turn(attention_first_key(a, w.b, w.query, w.query)), seen = 0;
        bool last = w.last_turn(), leads = (threadIdx.x & 31) == 0;
        if (!last) barrier_wait<TURN_COUNT>(BARRIER_ADDED);
        while (seen < turn) asm volatile("ld.acquire.gpu.s32 %0, [%1];" : "=r"(seen) : "l"(taken) : "memory");
        __syncwarp();
        if (last) {
            barrier_arrive<TURN_COUNT>(BARRIER_TURN);
            barrier_wait<TURN_COUNT>(BARRIER_ADDED);
            continue;
        }
        if (leads) {
            float   *sum = turns.sum + tile_of(a, turns, w) * (TILE_ROWS * D);
            uint32_t from = shared_address(shared->dq), bytes = sizeof shared->dq;
            asm volatile("fence.proxy.async.global;" ::: "memory");
            if (turn == 0)
                asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(sum), "r"(from), "r"(bytes) : "memory");
            else
                asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(sum), "r"(from), "r"(bytes)
                             : "memory");
            asm volatile("cp.async.bulk.commit_group;\n\tcp.async.bulk.wait_group.read 0;" ::: "memory");
        }
        __syncwarp();
        barrier_arrive<TURN_COUNT>(BARRIER_DQ_FREE);
        if (leads) {
            asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
            asm volatile("st.release.gpu.s32 [%0], %1;" ::"l"(taken), "r"(turn + 1) : "memory");
        }
        __syncwarp();
    }
}

/* ---- the warpgroups that multiply ---- */

/* c (64 queries x half of the columns) = ds transposed, times keys; ds is (keys, queries). */
template <int ADD> static __device__ __forceinline__ void wgmma_across(float (&c)[8][4], uint64_t a, uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
                 "}, %32, %33, %34, 1, 1, 1, 1;"
                 : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]), "+f"(c[1][3]),
                   "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3]),
                   "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]), "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]),
                   "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]), "+f"(c[7][0]), "+f"(c[7][1]), "+f"(c[7][2]), "+f"(c[7][3])
                 : "l"(a), "l"(b), "n"(ADD));
}

template <int ADD> static __device__ __forceinline__ void wgmma_across(float (&c)[4][4], uint64_t a, uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
                 "}, %16, %17, %18, 1, 1, 1, 1;"
                 : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]), "+f"(c[1][3]),
                   "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3])
                 : "l"(a), "l"(b), "n"(ADD));
}

/* c (64 x 192) += a from columns_of times b from rows_of. */
static __device__ __forceinline__ void wgmma_mixed(float (&c)[24][4], uint64_t a, uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
                 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
                 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
                 "}, %96, %97, 1, 1, 1, 0, 1;"
                 : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]), "+f"(c[1][3]),
                   "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3]),
                   "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]), "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]),
                   "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]), "+f"(c[7][0]), "+f"(c[7][1]), "+f"(c[7][2]), "+f"(c[7][3]),
                   "+f"(c[8][0]), "+f"(c[8][1]), "+f"(c[8][2]), "+f"(c[8][3]), "+f"(c[9][0]), "+f"(c[9][1]), "+f"(c[9][2]), "+f"(c[9][3]),
                   "+f"(c[10][0]), "+f"(c[10][1]), "+f"(c[10][2]), "+f"(c[10][3]), "+f"(c[11][0]), "+f"(c[11][1]), "+f"(c[11][2]),
                   "+f"(c[11][3]), "+f"(c[12][0]), "+f"(c[12][1]), "+f"(c[12][2]), "+f"(c[12][3]), "+f"(c[13][0]), "+f"(c[13][1]),
                   "+f"(c[13][2]), "+f"(c[13][3]), "+f"(c[14][0]), "+f"(c[14][1]), "+f"(c[14][2]), "+f"(c[14][3]), "+f"(c[15][0]),
                   "+f"(c[15][1]), "+f"(c[15][2]), "+f"(c[15][3]), "+f"(c[16][0]), "+f"(c[16][1]), "+f"(c[16][2]), "+f"(c[16][3]),
                   "+f"(c[17][0]), "+f"(c[17][1]), "+f"(c[17][2]), "+f"(c[17][3]), "+f"(c[18][0]), "+f"(c[18][1]), "+f"(c[18][2]),
                   "+f"(c[18][3]), "+f"(c[19][0]), "+f"(c[19][1]), "+f"(c[19][2]), "+f"(c[19][3]), "+f"(c[20][0]), "+f"(c[20][1]),
                   "+f"(c[20][2]), "+f"(c[20][3]), "+f"(c[21][0]), "+f"(c[21][1]), "+f"(c[21][2]), "+f"(c[21][3]), "+f"(c[22][0]),
                   "+f"(c[22][1]), "+f"(c[22][2]), "+f"(c[22][3]), "+f"(c[23][0]), "+f"(c[23][1]), "+f"(c[23][2]), "+f"(c[23][3])
                 : "l"(a), "l"(b));
}

/* Stores the left operands of 64 keys into their rows of ds; a warp has 16 keys. */
static __device__ __forceinline__ void store_ds(char *ds, const uint32_t (&a)[4][4], int warp)
{
    int lane = threadIdx.x & 31, row = warp * 16 + (lane & 15);
#pragma unroll
    for (int k = 0; k < 4; k++) {
        uint32_t to = shared_address(ds + row * 128 + ((2 * k + (lane >> 4)) ^ (row & 7)) * 16);
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a[k][0]), "r"(a[k][1]), "r"(a[k][2]),
                     "r"(a[k][3])
                     : "memory");
    }
}

/* Which keys and queries of a tile a thread computes. */
struct Place {
    int group, warp, row, key, col; /* row: warpgroup's first key; key, key + 8: thread's keys; col: thread's first query */

    __device__ __forceinline__ Place(int begin, int group_)
        : group(group_), warp((threadIdx.x >> 5) % MMA_WARPS), row(begin + group * TILE_ROWS),
          key(row + warp * 16 + (threadIdx.x >> 2) % 8), col((threadIdx.x & 3) * 2)
    {
    }
};

/* Whether some pair of the tile's queries and the warpgroup's keys is masked. */
template <int D, int E, int FORM>
static __device__ __forceinline__ bool needs_mask(const TurnsShared<D, E> *shared, const Work<D, E, FORM> &w, const Place &at)
{
    if (FORM != FORM_CAUSAL)
        return w.query < form_of<FORM>(shared)->first_query[(at.group + 1) * TILE_ROWS - 1] ||
               shared->first[w.ring.stage][TILE_ROWS - 1] > at.row;
    return w.query < at.row + TILE_ROWS || shared->first[w.ring.stage][TILE_ROWS - 1] > at.row;
}

/* Products s of keys and queries become weights p = exp(score - lse). */
template <int D, int E, bool CAP, int FORM>
static __device__ __forceinline__ void weigh(float (&s)[8][4], const TurnsShared<D, E> *shared, const Work<D, E, FORM> &w, const Place &at,
                                             const ScoreOf<CAP> &score)
{
#pragma unroll
    for (int n = 0; n < 8; n++) {
        float2 lse2 = *(const float2 *)&shared->lse2[w.ring.stage][n * 8 + at.col];
#pragma unroll
        for (int e = 0; e < 4; e++) s[n][e] = power_of_two(score(s[n][e]) * (score.factor * LOG2E) - (e & 1 ? lse2.y : lse2.x));
    }
    if (!needs_mask(shared, w, at)) return;
    int least[2];
    for (int half = 0; half < 2; half++)
        least[half] = FORM == FORM_CAUSAL ? at.key + half * 8 : form_of<FORM>(shared)->first_query[at.key + half * 8 - w.begin];
#pragma unroll
    for (int n = 0; n < 8; n++) {
        int  query = w.query + n * 8 + at.col;
        int2 first = *(const int2 *)&shared->first[w.ring.stage][n * 8 + at.col];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int k = at.key + (e >> 1) * 8;
            if (least[e >> 1] > query + (e & 1) || k < (e & 1 ? first.y : first.x)) s[n][e] = 0;
        }
    }
}

/* dp becomes ds = p (dp - delta) times the softcap's slope 1 - t^2, where factor t = score = lse + log p. */
template <int D, int E, bool CAP, int FORM>
static __device__ __forceinline__ void differentiate(float (&dp)[8][4], const float (&p)[8][4], const TurnsShared<D, E> *shared,
                                                     const Work<D, E, FORM> &w, const Place &at, const ScoreOf<CAP> &score)
{
#pragma unroll
    for (int n = 0; n < 8; n++) {
        float2 delta = *(const float2 *)&shared->delta[w.ring.stage][n * 8 + at.col],
               lse2 = *(const float2 *)&shared->lse2[w.ring.stage][n * 8 + at.col];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            dp[n][e] = p[n][e] * (dp[n][e] - (e & 1 ? delta.y : delta.x));
            if (CAP) {
                float t = (__log2f(p[n][e]) + (e & 1 ? lse2.y : lse2.x)) / (score.factor * LOG2E);
                dp[n][e] *= 1.0f - t * t;
            }
        }
    }
    if (!CAP && !needs_mask(shared, w, at)) return;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) dp[n][e] = p[n][e] == 0 ? 0 : dp[n][e];
}

/* Unpacks the weights of a left operand to fp32. */
static __device__ __forceinline__ void as_floats(float (&c)[8][4], const uint32_t (&a)[4][4])
{
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            c[2 * k + i / 2][i % 2 * 2] = __uint_as_float(a[k][i] << 16);
            c[2 * k + i / 2][i % 2 * 2 + 1] = __uint_as_float(a[k][i] & 0xFFFF0000u);
        }
}

/* A warpgroup that multiplies: the state of its 64 keys. */
template <int D, int E, bool CAP, int FORM> struct Multiplier {
    enum { STAGES = TurnsShared<D, E>::STAGES, DK_FIRST = 2 }; /* DK_FIRST of dk's four products come before the next tile's scores */
    const AttentionDims &a;
    const Turns         &turns;
    TurnsShared<D, E>   *shared;
    Work<D, E, FORM>     w;
    const Place          at;
    const ScoreOf<CAP>   score;
    float                dk[D / 8][4] = {}, dv[E / 8][4] = {}, s[8][4], dp[8][4], dq[D / 16][4];

    __device__ __forceinline__ Multiplier(const AttentionDims &a_, const Turns &turns_, TurnsShared<D, E> *shared_,
                                          const Work<D, E, FORM> &w_, int group)
        : a(a_), turns(turns_), shared(shared_), w(w_), at(w_.begin, group), score(a_)
    {
    }

    __device__ __forceinline__ void begin_scores()
    {
        hold(s);
        wgmma_begin();
        wgmma_all_tiles<D>(s, shared->keys[at.group], shared->q[w.ring.stage]);
        wgmma_commit();
    }

    __device__ __forceinline__ void begin_dp()
    {
        hold(dp);
        wgmma_begin();
        wgmma_all_tiles<E>(dp, shared->values[at.group], shared->grad_o[w.ring.stage]);
        wgmma_commit();
    }

    /* The product of scores s is in flight. Starts the product dp, and turns s into weights meanwhile. */
    __device__ __forceinline__ void make_weights()
    {
        begin_dp();
        wgmma_wait<1>();
        hold(s);
        if constexpr (FORM == FORM_BIASED)
            add_biases<true>(s, form_of<FORM>(shared)->bias[w.ring.stage] + BLOCK_KEYS - 1 -
                                    lane_diagonal(at.group * TILE_ROWS + at.warp * 16));
        weigh<D, E, CAP>(s, shared, w, at, score);
        wgmma_wait<0>();
        hold(dp);
    }

    __device__ __forceinline__ void add_dv(const uint32_t (&p)[4][4])
    {
#pragma unroll
        for (int c = 0; c < 4; c++) wgmma_straight(dv, p[c], rows_of(shared->grad_o[w.ring.stage], c));
    }

    __device__ __forceinline__ void add_dk(const uint32_t (&ds)[4][4])
    {
#pragma unroll
        for (int c = 0; c < 4; c++) wgmma_straight(dk, ds[c], rows_of(shared->q[w.ring.stage], c));
    }

    template <int ADD> __device__ __forceinline__ void add_dq_of(const char *all_ds, int k)
    {
        const char *keys = shared->keys[k / 4] + (D == 64 ? at.group * 64 : at.group * PIECE_BYTES);
        wgmma_across<ADD>(reinterpret_cast<float(&)[D == 64 ? 4 : 8][4]>(dq[0]), rows_of(all_ds, k), rows_of(keys, k % 4));
        if constexpr (D == 192)
            wgmma_across<ADD>(reinterpret_cast<float(&)[4][4]>(dq[8]), rows_of(all_ds, k),
                              rows_of(shared->keys[k / 4] + 2 * PIECE_BYTES + at.group * 64, k % 4));
    }

    /* Starts dq's product over all keys of the block, for half of the columns. */
    __device__ __forceinline__ void begin_dq(const char *all_ds)
    {
        hold(dq);
        wgmma_begin();
        add_dq_of<0>(all_ds, 0);
#pragma unroll
        for (int k = 1; k < BLOCK_KEYS / 16; k++) add_dq_of<1>(all_ds, k);
        wgmma_commit();
    }

    /* Starts the products of dv and dk; then, as a group of its own, dq's product over all keys of the block, for half of the columns. */
    __device__ __forceinline__ void begin_sums()
    {
        char    *all_ds = shared->ds[w.left & 1];
        uint32_t p[4][4], ds[4][4];
        as_left(p, s);
        differentiate<D, E, CAP>(dp, s, shared, w, at, score);
        as_left(ds, dp);
        hold(dv);
        hold(dk);
        wgmma_begin();
        add_dv(p);
        add_dk(ds);
        wgmma_commit();
        store_ds(all_ds + at.group * PIECE_BYTES, ds, at.warp);
        publish_tiles();
        barrier_wait<DS_COUNT>(BARRIER_DS);
        begin_dq(all_ds);
    }

    /* On entry a tile's dq is computed. Leaves it in shared memory for keep_turns; at the tile's last turn, adds the sums so far to it and
     * stores dq. */
    __device__ __forceinline__ void add_dq(const Work<D, E, FORM> &of)
    {
        if (!a.dq.data) return;
        int part = at.group * (D / 16) * MMA_THREADS + threadIdx.x % MMA_THREADS;
        if (!of.last_turn()) {
            barrier_wait<TURN_COUNT>(BARRIER_DQ_FREE);
#pragma unroll
            for (int n = 0; n < D / 16; n++)
                ((float4 *)shared->dq)[part + n * MMA_THREADS] = make_float4(dq[n][0], dq[n][1], dq[n][2], dq[n][3]);
            publish_tiles();
        } else {
            barrier_wait<TURN_COUNT>(BARRIER_TURN);
            bool          alone = of.turn(shared->first[of.ring.stage][0]) == 0;
            const float4 *sum = (const float4 *)(turns.sum + tile_of(a, turns, of) * (TILE_ROWS * D)) + part;
#pragma unroll
            for (int n = 0; n < D / 16; n++) {
                float4 before = alone ? make_float4(0, 0, 0, 0) : __ldcg(sum + n * MMA_THREADS);
                dq[n][0] += before.x, dq[n][1] += before.y, dq[n][2] += before.z, dq[n][3] += before.w;
            }
            int query = of.query + at.warp * 16;
            if constexpr (D == 192) {
                store_rows<64>(a.dq, of.b, query, a.len, of.head * 3 + at.group, reinterpret_cast<const float(&)[8][4]>(dq[0]), a.scale,
                               a.scale);
                store_rows<32>(a.dq, of.b, query, a.len, of.head * 6 + 4 + at.group, reinterpret_cast<const float(&)[4][4]>(dq[8]), a.scale,
                               a.scale);
            } else {
                store_rows<D / GROUPS>(a.dq, of.b, query, a.len, of.head * GROUPS + at.group, dq, a.scale, a.scale);
            }
        }
        barrier_arrive<TURN_COUNT>(BARRIER_ADDED);
    }

    /* Scores of the next tile are started before dq of this tile is added. (After the last tile they are started too, and unused.) No
     * product is in flight at the head of the loop; otherwise the compiler would insert a wait after each product. */
    __device__ __forceinline__ void run()
    {
        phase_wait(&shared->full[0], 0);
        begin_scores();
        make_weights();
        do {
            begin_sums();
            wgmma_wait<1>(); /* frees the registers of p and ds */
            hold(dv);
            hold(dk);
            const Work<D, E, FORM> now = w;
            w.next();
            if (w.left) phase_wait(&shared->full[w.ring.stage], w.ring.round);
            begin_scores();
            wgmma_wait<1>();
            hold(dq);
            add_dq(now);
            phase_arrive(&shared->free[now.ring.stage]);
            make_weights();
        } while (w.left);
    }

    /* Starts dk's products with queries [16 begin, 16 end) of the tile in `stage`, from ds in shared memory. */
    __device__ __forceinline__ void begin_dk(int stage, int begin, int end)
    {
        hold(dk);
        wgmma_begin();
#pragma unroll
        for (int k = begin; k < end; k++)
            wgmma_mixed(dk, columns_of(shared->ds[0] + at.group * PIECE_BYTES, k), rows_of(shared->q[stage], k));
        wgmma_commit();
    }

    /* Scores s become weights p. Adds the tile to dv and stores ds. Unless FIRST, dk's products of the previous tile, in `stage`, are in
     * flight; this waits for them. */
    template <bool FIRST> __device__ __forceinline__ void make_ds(int stage, int round)
    {
        uint32_t p[4][4];
        weigh<D, E, CAP>(s, shared, w, at, score);
        as_left(p, s);
        begin_dp();
        hold(dv);
        wgmma_begin();
        add_dv(p);
        wgmma_commit();
        if (!FIRST) {
            wgmma_wait<2>();
            hold(dk);
            phase_arrive(&shared->free[stage]);
        }
        wgmma_wait<1>();
        hold(dp);
        as_floats(s, p);
        differentiate<D, E, CAP>(dp, s, shared, w, at, score);
        uint32_t ds[4][4];
        as_left(ds, dp);
        if (!FIRST) phase_wait(&shared->free[stage], round); /* the other warpgroup has read ds */
        store_ds(shared->ds[0] + at.group * PIECE_BYTES, ds, at.warp);
        publish_tiles();
        wgmma_wait<0>();
        hold(dv);
    }

    /* Another order of products, for kernels without biases whose sums dk and dv leave registers for only two tiles of 64 x 64. dq is added
     * while dk is multiplied, before the next tile's scores start. dk's products read ds from shared memory. ds is computed from the
     * weights that dv's products read, which are rounded to bf16. */
    __device__ __forceinline__ void run_early()
    {
        phase_wait(&shared->full[0], 0);
        begin_scores();
        wgmma_wait<0>();
        hold(s);
        make_ds<true>(0, 0);
        while (true) {
            barrier_wait<DS_COUNT>(BARRIER_DS);
            begin_dq(shared->ds[0]);
            begin_dk(w.ring.stage, 0, DK_FIRST);
            wgmma_wait<1>();
            hold(dq);
            add_dq(w);
            const int stage = w.ring.stage, round = w.ring.round;
            w.next();
            if (!w.left) {
                begin_dk(stage, DK_FIRST, 4);
                break;
            }
            phase_wait(&shared->full[w.ring.stage], w.ring.round);
            begin_scores();
            begin_dk(stage, DK_FIRST, 4);
            wgmma_wait<1>();
            hold(s);
            make_ds<false>(stage, round);
        }
        wgmma_wait<0>();
        hold(dk);
    }

    __device__ __forceinline__ void finish()
    {
        if (a.dq.data) barrier_wait<TURN_COUNT>(BARRIER_DQ_FREE); /* matches the last barrier_arrive of keep_turns */
        int key = at.row + at.warp * 16;
        if (a.dk.data) store_rows<D>(a.dk, w.b, key, a.len, w.g, dk, a.scale, a.scale);
        if (a.dv.data) store_rows<E>(a.dv, w.b, key, a.len, w.g, dv, 1, 1);
    }
};

#endif

template <int D, int E, bool CAP, int FORM>
static __global__ void __launch_bounds__(THREADS, 1) turns_backward(AttentionDims a, Turns turns)
{
#if HAS_WGMMA
    extern __shared__ __align__(1024) char memory[];
    enum { STAGES = TurnsShared<D, E>::STAGES };
    TurnsShared<D, E> *shared = (TurnsShared<D, E> *)memory;
    if (threadIdx.x == 0) shared->block = atomicAdd(turns.next_block, 1);
    if (threadIdx.x < STAGES) {
        phases_init(&shared->full[threadIdx.x], LOADING_WARPS * 32);
        phases_init(&shared->free[threadIdx.x], GROUPS * MMA_THREADS);
    }
    __syncthreads();
    Work<D, E, FORM> work(a, shared->block);
    int              group = __shfl_sync(0xFFFFFFFFu, threadIdx.x / MMA_THREADS, 0);
    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);
        if (warp < LOADING_WARPS - 1)
            copy_tiles(a, shared, work);
        else if (warp == LOADING_WARPS - 1)
            bring_columns(a, shared, work);
        else if (a.dq.data)
            keep_turns(a, turns, shared, work);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        Multiplier<D, E, CAP, FORM> m(a, turns, shared, work, group - 1);
        static_assert(STAGES == 3 || FORM != FORM_BIASED, "run_early adds no biases");
        if constexpr (STAGES == 3)
            m.run();
        else
            m.run_early();
        m.finish();
    }
#endif
}

/* Computes delta[b,h,t] = sum over E of do o, less dlse, with E / 8 threads a vector; resets the counters of turns. */
template <int E> static __global__ void __launch_bounds__(256) turns_prelude(AttentionDims a, float *delta, Turns turns)
{
    enum { LANES = E / 8 };
    int64_t thread = (int64_t)blockIdx.x * 256 + threadIdx.x, at = thread / LANES, rows = (int64_t)a.batch * a.num_heads * a.len;
    if (thread == 0) *turns.next_block = 0;
    if (thread < (int64_t)a.batch * a.num_heads * turns.query_tiles) turns.taken[thread] = 0;
    float sum = 0;
    if (at < rows) {
        int     t = (int)(at % a.len), head = (int)(at / a.len % a.num_heads), b = (int)(at / a.len / a.num_heads);
        int64_t column = (int64_t)head * E + thread % LANES * 8;
        float   x[8], y[8];
        load_pack((const bf16 *)a.o.data + b * a.o.batch_stride + t * a.o.token_stride + column, x);
        load_pack((const bf16 *)a.grad_o.data + b * a.grad_o.batch_stride + t * a.grad_o.token_stride + column, y);
#pragma unroll
        for (int i = 0; i < 8; i++) sum += x[i] * y[i];
    }
#pragma unroll
    for (int i = LANES / 2; i; i /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, i);
    if (at < rows && thread % LANES == 0) delta[at] = a.dlse ? sum - a.dlse[at] : sum;
}

template <int D, int E, bool CAP, int FORM = FORM_CAUSAL>
static Status backward(const AttentionDims *a, void *workspace, cudaStream_t stream)
{
    TurnsBytes    n = attention_turns_bytes(a->batch, a->num_heads, a->len, a->dim);
    AttentionDims dims = *a;
    float        *delta = (float *)workspace;
    int          *ints = (int *)((char *)workspace + n.delta);
    Turns         turns = {.next_block = ints,
                           .taken = ints + 1,
                           .sum = (float *)((char *)workspace + n.delta + n.taken),
                           .key_blocks = (int)cuda_div_up(a->len, BLOCK_KEYS),
                           .query_tiles = (int)cuda_div_up(a->len, TILE_ROWS)};
    size_t        shared = turns_bytes<D, E, FORM>();
    int64_t       threads = (int64_t)a->batch * a->num_heads * a->len * (E / 8);
    dims.delta = delta;
    turns_prelude<E><<<(unsigned)cuda_div_up(threads, 256), 256, 0, stream>>>(*a, delta, turns);
    TRY(CUDA_LAUNCHED());
    CUDA_TRY(cudaFuncSetAttribute((turns_backward<D, E, CAP, FORM>), cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
    turns_backward<D, E, CAP, FORM><<<(unsigned)(turns.key_blocks * a->num_kv_heads * a->batch), THREADS, shared, stream>>>(dims, turns);
    return CUDA_LAUNCHED();
}

Status attention_turns_backward(const AttentionDims *a, void *workspace, cudaStream_t stream)
{
    if (!a->batch || !a->len) return OK;
    if (attention_form(a) == FORM_BIASED) return backward<64, 64, false, FORM_BIASED>(a, workspace, stream);
    if (attention_form(a) == FORM_OPEN && a->dim == 64) return backward<64, 64, false, FORM_OPEN>(a, workspace, stream);
    if (attention_form(a) == FORM_OPEN && a->dim == 192) return backward<192, 128, false, FORM_OPEN>(a, workspace, stream);
    if (attention_form(a) == FORM_OPEN) return backward<128, 128, false, FORM_OPEN>(a, workspace, stream);
    if (a->dim == 64) return backward<64, 64, false>(a, workspace, stream);
    if (a->dim == 192) return backward<192, 128, false>(a, workspace, stream);
    return a->softcap > 0 ? backward<128, 128, true>(a, workspace, stream) : backward<128, 128, false>(a, workspace, stream);
}
