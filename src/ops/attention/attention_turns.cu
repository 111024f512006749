/* attention_bwd by warpgroup products in one pass, for heads of 64 and 128. A block has 128 keys; for each tile of 64 queries it computes
 * what the tile adds to dk, dv and dq. dk and dv stay in registers. dq is summed in fp32 in the workspace: blocks add to a tile in turns,
 * the block with the first keys first, so the order of each sum is fixed. A block goes from its last tile to its first; in the other
 * direction the block before it would reach each tile two tiles later, and this block would wait for it. Blocks with few tiles, at a row's
 * end, begin last.
 *
 * One warpgroup loads tiles and waits for turns; two multiply (FlashAttention-3, arXiv 2407.08608, section 3.1), 64 keys each. */
#include "ops/attention/attention_mma.cuh"
#include "ops/attention/attention_tile.cuh"
#include "ops/attention/attention_turns.h"
#include "ops/wgmma.cuh"

enum { GROUPS = 2, THREADS = (1 + GROUPS) * MMA_THREADS, BLOCK_KEYS = GROUPS * TILE_ROWS, STAGES = 3 };

/* State in the workspace, besides AttentionDims. */
typedef struct Turns {
    int   *next_block; /* blocks are numbered in the order in which they begin, so a block only waits for blocks that run or ended */
    int   *taken;      /* (B,H,tiles of queries): number of turns that are over */
    float *sum;        /* sums of dq of each tile of queries, (64,D) in register layout */
    int    key_blocks, query_tiles;
} Turns;

template <int D> struct TurnsShared {
    enum { BYTES = SwizzledTile<D>::BYTES, DS_BYTES = GROUPS * PIECE_BYTES };
    char     keys[GROUPS][BYTES], values[GROUPS][BYTES];
    char     q[STAGES][BYTES], grad_o[STAGES][BYTES];
    char     ds[2][DS_BYTES];   /* ds of two tiles, each (keys, queries) */
    float    dq[TILE_ROWS * D]; /* this block's part of a tile's dq, in register layout */
    float    lse2[STAGES][TILE_ROWS], delta[STAGES][TILE_ROWS];
    int      first[STAGES][TILE_ROWS]; /* the first key that a query attends; INT_MAX past the row's end */
    int      block;
    uint64_t full[STAGES], free[STAGES];
};

/* For bidirectional attention and biases, after TurnsShared. BIASED has biases of 64 queries and the block's keys by distance. */
template <int FORM> struct TurnsForm {
    enum { DISTANCES = TILE_ROWS + BLOCK_KEYS };
    int   first_query[BLOCK_KEYS]; /* the first query that attends a key; INT_MAX past the row's end */
    float bias[FORM == FORM_BIASED ? STAGES : 0][DISTANCES];
};

template <int D, int FORM> static __host__ __device__ constexpr size_t turns_bytes()
{
    return sizeof(TurnsShared<D>) + (FORM == FORM_CAUSAL ? 0 : sizeof(TurnsForm<FORM>));
}
static_assert(turns_bytes<128, FORM_OPEN>() <= 227 * 1024 && turns_bytes<64, FORM_BIASED>() <= 227 * 1024,
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

/* ---- the tiles of a block ---- */

/* The tiles of queries that attend a block's keys, for each query head of the group: an iterator. */
template <int FORM> struct Work {
    int          b, g, key_block, begin, earliest, latest, head, query, left;
    int          next_first; /* the first query that attends the next block */
    Ring<STAGES> ring;       /* the stage that holds the tile */

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

template <int FORM> static __device__ __forceinline__ int64_t tile_of(const AttentionDims &a, const Turns &turns, const Work<FORM> &w)
{
    return ((int64_t)w.b * a.num_heads + w.head) * turns.query_tiles + w.query / TILE_ROWS;
}

/* ---- the warpgroup that loads: two warps copy tiles, one loads lse, delta and first keys, one keeps turns ---- */

template <int D, int FORM> static __device__ __forceinline__ void copy_tiles(const AttentionDims &a, TurnsShared<D> *shared, Work<FORM> w)
{
    enum { COPYING = (LOADING_WARPS - 1) * 32 };
    const TileCopy<D, COPYING> q(a.q, w.b, 0), grad_o(a.grad_o, w.b, 0);
    for (int i = 0; i < GROUPS; i++) {
        load_swizzled<D, COPYING>(shared->keys[i], a.k, w.b, w.begin + i * TILE_ROWS, a.len, w.g);
        load_swizzled<D, COPYING>(shared->values[i], a.v, w.b, w.begin + i * TILE_ROWS, a.len, w.g);
    }
    for (; w.left; w.next()) {
        phase_wait(&shared->free[w.ring.stage], w.ring.round ^ 1);
        q.begin(shared->q[w.ring.stage], w.query, a.len, (int64_t)w.head * D);
        grad_o.begin(shared->grad_o[w.ring.stage], w.query, a.len, (int64_t)w.head * D);
        copy_commit();
        copy_wait<0>();
        publish_tiles();
        phase_arrive(&shared->full[w.ring.stage]);
    }
}

template <int D, int FORM>
static __device__ __forceinline__ void bring_columns(const AttentionDims &a, TurnsShared<D> *shared, Work<FORM> w)
{
    TurnsForm<FORM> *form = (TurnsForm<FORM> *)(shared + 1);
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
template <int D, int FORM>
static __device__ __forceinline__ void keep_turns(const AttentionDims &a, const Turns &turns, TurnsShared<D> *shared, Work<FORM> w)
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
    int group, warp, row, key, col; /* row: the warpgroup's first key; key: the thread's, also key + 8; col: its first query */

    __device__ __forceinline__ Place(int begin, int group_)
        : group(group_), warp((threadIdx.x >> 5) % MMA_WARPS), row(begin + group * TILE_ROWS),
          key(row + warp * 16 + (threadIdx.x >> 2) % 8), col((threadIdx.x & 3) * 2)
    {
    }
};

/* Whether some pair of the tile's queries and the warpgroup's keys is masked. */
template <int D, int FORM>
static __device__ __forceinline__ bool needs_mask(const TurnsShared<D> *shared, const Work<FORM> &w, const Place &at)
{
    const TurnsForm<FORM> *form = (const TurnsForm<FORM> *)(shared + 1);
    if (FORM != FORM_CAUSAL)
        return w.query < form->first_query[(at.group + 1) * TILE_ROWS - 1] || shared->first[w.ring.stage][TILE_ROWS - 1] > at.row;
    return w.query < at.row + TILE_ROWS || shared->first[w.ring.stage][TILE_ROWS - 1] > at.row;
}

/* Products s of keys and queries become weights p = exp(score - lse). */
template <int D, bool CAP, int FORM>
static __device__ __forceinline__ void weigh(float (&s)[8][4], const TurnsShared<D> *shared, const Work<FORM> &w, const Place &at,
                                             const ScoreOf<CAP> &score)
{
#pragma unroll
    for (int n = 0; n < 8; n++) {
        float2 lse2 = *(const float2 *)&shared->lse2[w.ring.stage][n * 8 + at.col];
#pragma unroll
        for (int e = 0; e < 4; e++) s[n][e] = power_of_two(score(s[n][e]) * (score.factor * LOG2E) - (e & 1 ? lse2.y : lse2.x));
    }
    if (!needs_mask(shared, w, at)) return;
    const TurnsForm<FORM> *form = (const TurnsForm<FORM> *)(shared + 1);
    int                    least[2];
    for (int half = 0; half < 2; half++)
        least[half] = FORM == FORM_CAUSAL ? at.key + half * 8 : form->first_query[at.key + half * 8 - w.begin];
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
template <int D, bool CAP, int FORM>
static __device__ __forceinline__ void differentiate(float (&dp)[8][4], const float (&p)[8][4], const TurnsShared<D> *shared,
                                                     const Work<FORM> &w, const Place &at, const ScoreOf<CAP> &score)
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

/* A warpgroup that multiplies: the state of its 64 keys. */
template <int D, bool CAP, int FORM> struct Multiplier {
    const AttentionDims &a;
    const Turns         &turns;
    TurnsShared<D>      *shared;
    Work<FORM>           w;
    const Place          at;
    const ScoreOf<CAP>   score;
    float                dk[D / 8][4] = {}, dv[D / 8][4] = {}, s[8][4], dp[8][4], dq[D / 16][4];

    __device__ __forceinline__ Multiplier(const AttentionDims &a_, const Turns &turns_, TurnsShared<D> *shared_, const Work<FORM> &w_,
                                          int group)
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

    /* The product of scores s is in flight. Starts the product dp, and turns s into weights meanwhile. */
    __device__ __forceinline__ void make_weights()
    {
        hold(dp);
        wgmma_begin();
        wgmma_all_tiles<D>(dp, shared->values[at.group], shared->grad_o[w.ring.stage]);
        wgmma_commit();
        wgmma_wait<1>();
        hold(s);
        if constexpr (FORM == FORM_BIASED)
            add_biases<true>(s, ((const TurnsForm<FORM> *)(shared + 1))->bias[w.ring.stage] + BLOCK_KEYS - 1 -
                                    lane_diagonal(at.group * TILE_ROWS + at.warp * 16));
        weigh<D, CAP>(s, shared, w, at, score);
        wgmma_wait<0>();
        hold(dp);
    }

    /* Starts the products of dv and dk; then, as a group of its own, dq over all keys of the block, half of the columns. */
    __device__ __forceinline__ void begin_sums()
    {
        char    *all_ds = shared->ds[w.left & 1];
        uint32_t p[4][4], ds[4][4];
        as_left(p, s);
        differentiate<D, CAP>(dp, s, shared, w, at, score);
        as_left(ds, dp);
        hold(dv);
        hold(dk);
        wgmma_begin();
#pragma unroll
        for (int c = 0; c < 4; c++) wgmma_straight(dv, p[c], rows_of(shared->grad_o[w.ring.stage], c));
#pragma unroll
        for (int c = 0; c < 4; c++) wgmma_straight(dk, ds[c], rows_of(shared->q[w.ring.stage], c));
        wgmma_commit();
        store_ds(all_ds + at.group * PIECE_BYTES, ds, at.warp);
        publish_tiles();
        barrier_wait<DS_COUNT>(BARRIER_DS);
        hold(dq);
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < BLOCK_KEYS / 16; k++) {
            const char *keys = shared->keys[k / 4] + (D == 128 ? at.group * PIECE_BYTES : at.group * 64);
            if (k == 0)
                wgmma_across<0>(dq, rows_of(all_ds, k), rows_of(keys, k % 4));
            else
                wgmma_across<1>(dq, rows_of(all_ds, k), rows_of(keys, k % 4));
        }
        wgmma_commit();
    }

    /* dq of a tile is computed. Leaves it in shared memory for keep_turns; at the tile's last turn, adds the sums so far and stores dq. */
    __device__ __forceinline__ void add_dq(const Work<FORM> &of)
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
            store_rows<D / GROUPS>(a.dq, of.b, of.query + at.warp * 16, a.len, of.head * GROUPS + at.group, dq, a.scale, a.scale);
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
            const Work<FORM> now = w;
            w.next();
            if (w.left) phase_wait(&shared->full[w.ring.stage], w.ring.round);
            begin_scores();
            wgmma_wait<1>();
            hold(dq);
            add_dq(now);
            phase_arrive(&shared->free[now.ring.stage]);
            make_weights();
        } while (w.left);
        if (a.dq.data) barrier_wait<TURN_COUNT>(BARRIER_DQ_FREE); /* matches the last barrier_arrive of keep_turns */
        int key = at.row + at.warp * 16;
        if (a.dk.data) store_rows<D>(a.dk, w.b, key, a.len, w.g, dk, a.scale, a.scale);
        if (a.dv.data) store_rows<D>(a.dv, w.b, key, a.len, w.g, dv, 1, 1);
    }
};

#endif

template <int D, bool CAP, int FORM> static __global__ void __launch_bounds__(THREADS, 1) turns_backward(AttentionDims a, Turns turns)
{
#if HAS_WGMMA
    extern __shared__ __align__(1024) char memory[];
    TurnsShared<D>                        *shared = (TurnsShared<D> *)memory;
    if (threadIdx.x == 0) shared->block = atomicAdd(turns.next_block, 1);
    if (threadIdx.x < STAGES) {
        phases_init(&shared->full[threadIdx.x], LOADING_WARPS * 32);
        phases_init(&shared->free[threadIdx.x], GROUPS * MMA_THREADS);
    }
    __syncthreads();
    Work<FORM> work(a, shared->block);
    int        group = __shfl_sync(0xFFFFFFFFu, threadIdx.x / MMA_THREADS, 0);
    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);
        if (warp < LOADING_WARPS - 1)
            copy_tiles<D>(a, shared, work);
        else if (warp == LOADING_WARPS - 1)
            bring_columns<D>(a, shared, work);
        else if (a.dq.data)
            keep_turns<D>(a, turns, shared, work);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        Multiplier<D, CAP, FORM>(a, turns, shared, work, group - 1).run();
    }
#endif
}

/* Computes delta[b,h,t] = sum over D of do o, less dlse, with D / 8 threads a vector; resets the counters of turns. */
template <int D> static __global__ void __launch_bounds__(256) turns_prelude(AttentionDims a, float *delta, Turns turns)
{
    enum { LANES = D / 8 };
    int64_t thread = (int64_t)blockIdx.x * 256 + threadIdx.x, at = thread / LANES, rows = (int64_t)a.batch * a.num_heads * a.len;
    if (thread == 0) *turns.next_block = 0;
    if (thread < (int64_t)a.batch * a.num_heads * turns.query_tiles) turns.taken[thread] = 0;
    float sum = 0;
    if (at < rows) {
        int     t = (int)(at % a.len), head = (int)(at / a.len % a.num_heads), b = (int)(at / a.len / a.num_heads);
        int64_t column = (int64_t)head * D + thread % LANES * 8;
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

template <int D, bool CAP, int FORM = FORM_CAUSAL> static Status backward(const AttentionDims *a, void *workspace, cudaStream_t stream)
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
    size_t        shared = turns_bytes<D, FORM>();
    int64_t       threads = (int64_t)a->batch * a->num_heads * a->len * (D / 8);
    dims.delta = delta;
    turns_prelude<D><<<(unsigned)cuda_div_up(threads, 256), 256, 0, stream>>>(*a, delta, turns);
    TRY(CUDA_LAUNCHED());
    CUDA_TRY(cudaFuncSetAttribute((turns_backward<D, CAP, FORM>), cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
    turns_backward<D, CAP, FORM><<<(unsigned)(turns.key_blocks * a->num_kv_heads * a->batch), THREADS, shared, stream>>>(dims, turns);
    return CUDA_LAUNCHED();
}

Status attention_turns_backward(const AttentionDims *a, void *workspace, cudaStream_t stream)
{
    if (!a->batch || !a->len) return OK;
    if (attention_form(a) == FORM_BIASED) return backward<64, false, FORM_BIASED>(a, workspace, stream);
    if (attention_form(a) == FORM_OPEN && a->dim == 64) return backward<64, false, FORM_OPEN>(a, workspace, stream);
    if (attention_form(a) == FORM_OPEN) return backward<128, false, FORM_OPEN>(a, workspace, stream);
    if (a->dim == 64) return backward<64, false>(a, workspace, stream);
    return a->softcap > 0 ? backward<128, true>(a, workspace, stream) : backward<128, false>(a, workspace, stream);
}
