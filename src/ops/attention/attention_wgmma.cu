/* Attention by warpgroup products, for bf16 on compute capability 9.0. Tiles and order are the same as in attention_mma.cu, but the matrix
 * units read operands from shared memory themselves. The two warpgroups of a block share the tiles that are streamed in: one multiplies
 * while the other computes exponentials. A warpgroup starts the products of a tile before the previous tile's products have ended
 * (FlashAttention-3, arXiv 2407.08608, section 3.2). */
#include "ops/attention/attention_mma.cuh"
#include "ops/attention/attention_tile.cuh"
#include "ops/wgmma.cuh"

enum { PAIR_THREADS = 2 * MMA_THREADS, PAIR_ROWS = 2 * TILE_ROWS };

/* ---- forward, heads of at most 192 (keys) and 128 (values) ---- */

enum {
    STREAM_KEYS = 2 * TILE_ROWS,
    STREAM_PIECE = 2 * PIECE_BYTES,
    STREAM_THREADS = PAIR_THREADS + MMA_THREADS,
    COPYING = MMA_THREADS / 2
};

/* Tiles of 128 rows, stored in pieces of 64 columns and 16 KiB. Keys have D columns, values E. Queries of more than 128 columns are here,
 * one tile of 64 a warpgroup; others are in registers. */
template <int D, int E> struct StreamShared {
    enum { STAGES = D + E <= 256 ? 3 : 2, Q_TILES = D > 128 ? 2 : 0 }; /* as many stages as fit */
    char     keys[STAGES][2 * SwizzledTile<D>::BYTES], values[STAGES][2 * SwizzledTile<E>::BYTES], q[Q_TILES][SwizzledTile<D>::BYTES];
    uint64_t full[2][STAGES], free[2][STAGES]; /* barriers: [0] of keys, [1] of values */
};
static_assert(sizeof(StreamShared<192, 128>) <= 227 * 1024, "a block's shared memory on 9.0");

/* The biases of 128 queries and the keys of each stage, by distance, after StreamShared. */
template <int STAGES> struct StreamBiases {
    enum { DISTANCES = PAIR_ROWS + STREAM_KEYS };
    float at[STAGES][DISTANCES];

    /* Loads a stage by COPYING threads. distance: from the stage's first key to the block's first query. */
    __device__ __forceinline__ void load(const AttentionDims &a, int head, int distance, int stage)
    {
        for (int i = threadIdx.x % COPYING; i < DISTANCES; i += COPYING)
            at[stage][i] = product_bias(a, head, distance - (STREAM_KEYS - 1) + i);
    }
    /* row: the warp's first row in the block. */
    __device__ __forceinline__ void add(float (&s)[16][4], int stage, int row) const
    {
        add_biases<false>(s, at[stage] + STREAM_KEYS - 1 + lane_diagonal(row));
        __syncwarp(); /* the warp's leader frees the stage */
    }
};

#if HAS_WGMMA

/* Aligns p for tiles, which must begin at multiples of 1024 bytes. */
static __device__ __forceinline__ char *aligned_shared(void *p)
{
    return (char *)p + ((1024 - (shared_address(p) & 1023)) & 1023);
}

/* The index of a thread's warpgroup in its block; the shuffle tells the compiler that it is uniform in a warp. */
static __device__ __forceinline__ int own_group()
{
    return __shfl_sync(0xFFFFFFFFu, threadIdx.x / MMA_THREADS, 0);
}

/* Returns the first tile's first key for the 128 queries from block_row on. *out_least, *out_latest: least and largest first key of the
 * warpgroup's own 64 queries. */
static __device__ __forceinline__ int pair_range(const AttentionDims &a, int b, int block_row, int group, int *scratch, int *out_least,
                                                 int *out_latest)
{
    int least[2], latest[2];
    for (int i = 0; i < 2; i++) document_range(a, b, block_row + i * TILE_ROWS, scratch, &least[i], &latest[i]);
    *out_least = group ? least[1] : least[0];
    *out_latest = group ? latest[1] : latest[0];
    return min(least[0], least[1]) / TILE_ROWS * TILE_ROWS;
}

/* In a block two warps load keys, two load values, and two warpgroups multiply, 64 queries each. */

/* beside(key, stage): loads what the stage holds besides the tile. */
template <int D, int STAGES, typename B>
static __device__ __forceinline__ void stream_tiles(const Heads &h, int b, int g, char (&tiles)[STAGES][2 * SwizzledTile<D>::BYTES],
                                                    uint64_t (&full)[STAGES], uint64_t (&free)[STAGES], int begin, int end, B beside)
{
    const TileCopy<D, COPYING, STREAM_PIECE> copy(h, b, g, threadIdx.x % COPYING);
    Ring<STAGES>                             at;
    for (int key = begin; key < end; key += STREAM_KEYS, at.next()) {
        phase_wait(&free[at.stage], at.round ^ 1);
        for (int i = 0; i < 2; i++) copy.begin(tiles[at.stage] + i * PIECE_BYTES, key + i * TILE_ROWS, end);
        copy_commit();
        beside(key, at.stage);
        copy_wait<0>();
        publish_tiles();
        phase_arrive(&full[at.stage]);
    }
}

/* 64 queries: left operands of the scores, in registers or, with more than 128 columns, in shared memory. */
template <int D, bool SHARED = (D > 128)> struct Queries {
    uint32_t q[D / 16][4];

    __device__ __forceinline__ Queries(const AttentionDims &a, int b, int row, int head, char *)
    {
        load_rows<D>(q, a.q, b, row + (int)(threadIdx.x >> 5) % MMA_WARPS * 16, a.len, head);
    }
    template <int ADD> __device__ __forceinline__ void multiply(float (&s)[16][4], int k, uint64_t keys) const
    {
        wgmma_turned<ADD>(s, q[k], keys);
    }
};

template <int D> struct Queries<D, true> {
    const char *q;

    /* tile: shared memory for the warpgroup's queries. */
    __device__ __forceinline__ Queries(const AttentionDims &a, int b, int row, int head, char *tile) : q(tile)
    {
        TileCopy<D>(a.q, b, head, threadIdx.x % MMA_THREADS).begin(tile, row, a.len);
        copy_commit();
        copy_wait<0>();
        publish_tiles();
        asm volatile("bar.sync %0, %1;" ::"r"((int)threadIdx.x / MMA_THREADS), "n"((int)MMA_THREADS) : "memory");
    }
    template <int ADD> __device__ __forceinline__ void multiply(float (&s)[16][4], int k, uint64_t keys) const
    {
        wgmma_tiles<ADD>(s, columns_of(q, k), keys);
    }
};

/* Starts the scores of 64 queries and 128 keys. */
template <int D> static __device__ __forceinline__ void begin_scores(float (&s)[16][4], const Queries<D> &q, const char *keys)
{
    hold(s);
    wgmma_begin();
    q.template multiply<0>(s, 0, tile_descriptor(keys, 16));
#pragma unroll
    for (int k = 1; k < D / 16; k++) q.template multiply<1>(s, k, tile_descriptor(keys + k / 4 * STREAM_PIECE + k % 4 * 32, 16));
    wgmma_commit();
}

template <int E> static __device__ __forceinline__ void begin_values(float (&o)[E / 8][4], const uint32_t (&p)[8][4], const char *values)
{
    hold(o);
    wgmma_begin();
#pragma unroll
    for (int c = 0; c < 8; c++) wgmma_straight(o, p[c], tile_descriptor(values + c * 2048, STREAM_PIECE));
    wgmma_commit();
}

/* A warp's 16 queries: the keys [first, last] that each of a thread's two queries attends. row: the first query of the warpgroup's 64.
 * latest, soonest: the largest first key and the least last key of the 64; both decide whether a tile needs a mask. */
template <int FORM> struct Reach {
    int first[2], last[2], row, latest, soonest;

    __device__ __forceinline__ Reach(const AttentionDims &a, int b, int row_) : row(row_)
    {
        for (int half = 0; half < 2; half++) {
            last[half] = min(row + (int)(threadIdx.x >> 5) % MMA_WARPS * 16 + (int)(threadIdx.x & 31) / 4 + half * 8, a.len - 1);
            first[half] = attention_first_key(a, b, last[half], last[half]);
            last[half] = last_key<FORM>(a, b, last[half]);
        }
        soonest = FORM == FORM_CAUSAL ? row : last_key<FORM>(a, b, min(row, a.len - 1));
        int end = min(row + TILE_ROWS, a.len) - 1;
        latest = attention_first_key(a, b, max(end, 0), end);
    }
    __device__ __forceinline__ bool masks(int key) const
    {
        return key + STREAM_KEYS - 1 > soonest || key < latest;
    }
};

/* Computes 128 queries of a head. A tile's scores become exponentials while the previous tile's values are multiplied. */
template <int D, int E, bool CAP, int FORM>
static __device__ __forceinline__ void forward_block(const AttentionDims &a, StreamShared<D, E> *shared)
{
    enum { STAGES = StreamShared<D, E>::STAGES };
    int b = blockIdx.z, head = blockIdx.y, g = head / a.group, block_row = (int)(gridDim.x - 1 - blockIdx.x) * PAIR_ROWS;
    int begin = attention_first_key(a, b, block_row, block_row) / TILE_ROWS * TILE_ROWS;
    int end = keys_end<FORM, PAIR_ROWS>(a, b, block_row), group = own_group();

    StreamBiases<STAGES> *biases = (StreamBiases<STAGES> *)(shared + 1);
    if (threadIdx.x < 2 * STAGES) {
        phases_init(&shared->full[0][threadIdx.x], COPYING);
        phases_init(&shared->free[0][threadIdx.x], 2 * MMA_WARPS);
    }
    __syncthreads();
    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (__shfl_sync(0xFFFFFFFFu, threadIdx.x / COPYING, 0) == 0)
            stream_tiles<D>(a.k, b, g, shared->keys, shared->full[0], shared->free[0], begin, end, [&](int key, int stage) {
                if (FORM == FORM_BIASED) biases->load(a, head, block_row - key, stage);
            });
        else
            stream_tiles<E>(a.v, b, g, shared->values, shared->full[1], shared->free[1], begin, end, [](int, int) {});
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    int lane = threadIdx.x & 31, warp = (threadIdx.x >> 5) % MMA_WARPS, row = block_row + (group - 1) * TILE_ROWS,
        first_row = row + warp * 16;
    bool leads = lane == 0;

    const Queries<D> q(a, b, row, head, shared->q[group - 1]);
    uint32_t         p[8][4];
    float            o[E / 8][4] = {}, s[16][4], most[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0}, shrink[2];

    const ScoreOf<CAP> score(a);
    const Reach<FORM>  reach(a, b, row);
    Ring<STAGES>       of_keys, of_values;
    phase_wait(&shared->full[0][0], 0);
    begin_scores<D>(s, q, shared->keys[0]);
    wgmma_wait<0>();
    hold(s);
    if (FORM == FORM_BIASED) biases->add(s, 0, first_row - block_row);
    if (leads) phase_arrive(&shared->free[0][0]);
    softmax_scores<true>(s, most, total, shrink, score, begin, reach.last, reach.first);
    as_left(p, s);
    for (int key = begin + STREAM_KEYS; key < end; key += STREAM_KEYS) {
        of_keys.next();
        phase_wait(&shared->full[0][of_keys.stage], of_keys.round);
        begin_scores<D>(s, q, shared->keys[of_keys.stage]);
        phase_wait(&shared->full[1][of_values.stage], of_values.round);
        begin_values<E>(o, p, shared->values[of_values.stage]);
        wgmma_wait<1>();
        hold(s);
        if (FORM == FORM_BIASED) biases->add(s, of_keys.stage, first_row - block_row);
        if (leads) phase_arrive(&shared->free[0][of_keys.stage]);
        if (reach.masks(key))
            softmax_scores<true>(s, most, total, shrink, score, key, reach.last, reach.first);
        else
            softmax_scores<false>(s, most, total, shrink, score, key, reach.last, reach.first);
        wgmma_wait<0>();
        hold(o);
        if (leads) phase_arrive(&shared->free[1][of_values.stage]);
        of_values.next();
        as_left(p, s);
        if (__any_sync(0xFFFFFFFFu, shrink[0] != 1 || shrink[1] != 1)) scale_rows<E>(o, shrink);
    }
    phase_wait(&shared->full[1][of_values.stage], of_values.round);
    begin_values<E>(o, p, shared->values[of_values.stage]);
    wgmma_wait<0>();
    hold(o);
    float whole[2];
    for (int half = 0; half < 2; half++) {
        total[half] = quad_sum(total[half]);
        whole[half] = finish_row(a, head, score.factor, most[half], total[half]);
    }
    if (a.o.data) store_rows<E>(a.o, b, first_row, a.len, head, o, whole[0], whole[1]);
    for (int half = 0; half < 2 && a.lse; half++) {
        int t = first_row + (lane >> 2) + half * 8;
        if ((lane & 3) == 0 && t < a.len)
            a.lse[((int64_t)b * a.num_heads + head) * a.len + t] = most[half] * score.factor + log2f(total[half]) * LN2;
    }
}

/* For heads of 256: queries stay in shared memory, and one tile of keys is multiplied at a time. */
template <bool CAP> static __device__ __forceinline__ void wide_forward_block(const AttentionDims &a, char *shared, int *range)
{
    enum { D = 256, BYTES = SwizzledTile<D>::BYTES, GROUPS = 2, THREADS = PAIR_THREADS, ROWS = PAIR_ROWS };
    int   group = own_group();
    char *q_tile = shared + group * BYTES, *k_tiles = shared + GROUPS * BYTES, *v_tiles = k_tiles + 2 * BYTES;
    int   b = blockIdx.z, head = blockIdx.y, g = head / a.group, block_row = (int)(gridDim.x - 1 - blockIdx.x) * ROWS;
    int   lane = threadIdx.x & 31, warp = (threadIdx.x >> 5) % MMA_WARPS, row = block_row + group * TILE_ROWS, least, latest;
    int   end = min(block_row + ROWS, a.len), begin = pair_range(a, b, block_row, group, range, &least, &latest);
    for (int i = 0; i < GROUPS; i++) load_swizzled<D, THREADS>(shared + i * BYTES, a.q, b, block_row + i * TILE_ROWS, a.len, head);
    load_swizzled<D, THREADS>(k_tiles, a.k, b, begin, end, g);
    load_swizzled<D, THREADS>(v_tiles, a.v, b, begin, end, g);
    copy_commit();
    float o[D / 8][4] = {}, most[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};
    int   last[2], first[2];

    const ScoreOf<CAP> score(a);
    for (int half = 0; half < 2; half++) {
        last[half] = min(row + warp * 16 + (lane >> 2) + half * 8, a.len - 1);
        first[half] = attention_first_key(a, b, last[half], last[half]);
    }
    int stage = 0;
    for (int key = begin; key < end; key += TILE_ROWS, stage ^= 1) {
        __syncthreads(); /* all warps have read the other stage */
        if (key + TILE_ROWS < end) {
            load_swizzled<D, THREADS>(k_tiles + (stage ^ 1) * BYTES, a.k, b, key + TILE_ROWS, end, g);
            load_swizzled<D, THREADS>(v_tiles + (stage ^ 1) * BYTES, a.v, b, key + TILE_ROWS, end, g);
        }
        copy_commit();
        copy_wait<1>();
        publish_tiles();
        __syncthreads();
        float s[8][4];
        hold(s);
        wgmma_begin();
        wgmma_all_tiles<D>(s, q_tile, k_tiles + stage * BYTES);
        wgmma_end();
        hold(s);
        if (key + TILE_ROWS - 1 > row || key < latest)
            softmax_step<D, true>(s, o, most, total, score, key, last, first);
        else
            softmax_step<D, false>(s, o, most, total, score, key, last, first);
        uint32_t p[4][4];
        as_left(p, s);
        hold(o);
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < 4; k++) wgmma_straight(o, p[k], rows_of(v_tiles + stage * BYTES, k));
        wgmma_end();
        hold(o);
    }
    copy_wait<0>();
    float whole[2];
    for (int half = 0; half < 2; half++) {
        total[half] = quad_sum(total[half]);
        whole[half] = finish_row(a, head, score.factor, most[half], total[half]);
    }
    if (a.o.data) store_rows<D>(a.o, b, row + warp * 16, a.len, head, o, whole[0], whole[1]);
    for (int half = 0; half < 2 && a.lse; half++) {
        int t = row + warp * 16 + (lane >> 2) + half * 8;
        if ((lane & 3) == 0 && t < a.len)
            a.lse[((int64_t)b * a.num_heads + head) * a.len + t] = most[half] * score.factor + log2f(total[half]) * LN2;
    }
}

/* dq for heads of 256: one warpgroup; q and do stay in shared memory. */
template <bool CAP> static __device__ __forceinline__ void wide_dq_block(const AttentionDims &a, char *shared, int *range)
{
    enum { D = 256, BYTES = SwizzledTile<D>::BYTES };
    char *q_tile = shared, *o_tile = q_tile + BYTES, *k_tiles = o_tile + BYTES, *v_tiles = k_tiles + 2 * BYTES;
    int   b = blockIdx.z, head = blockIdx.y, g = head / a.group, row = (int)(gridDim.x - 1 - blockIdx.x) * TILE_ROWS;
    int   lane = threadIdx.x & 31, warp = threadIdx.x >> 5, least, latest, end = min(row + TILE_ROWS, a.len);
    document_range(a, b, row, range, &least, &latest);
    int begin = least / TILE_ROWS * TILE_ROWS;
    load_swizzled<D>(q_tile, a.q, b, row, a.len, head);
    load_swizzled<D>(o_tile, a.grad_o, b, row, a.len, head);
    load_swizzled<D>(k_tiles, a.k, b, begin, end, g);
    load_swizzled<D>(v_tiles, a.v, b, begin, end, g);
    copy_commit();
    float dq[D / 8][4] = {}, lse2[2], delta[2];
    int   last[2], first[2];

    const ScoreOf<CAP> score(a);
    for (int half = 0; half < 2; half++) {
        int     t = min(row + warp * 16 + (lane >> 2) + half * 8, a.len - 1);
        int64_t at = ((int64_t)b * a.num_heads + head) * a.len + t;
        last[half] = t;
        first[half] = attention_first_key(a, b, t, t);
        lse2[half] = a.lse[at] * LOG2E;
        delta[half] = a.delta[at];
    }
    int stage = 0;
    for (int key = begin; key < end; key += TILE_ROWS, stage ^= 1) {
        __syncthreads();
        if (key + TILE_ROWS < end) {
            load_swizzled<D>(k_tiles + (stage ^ 1) * BYTES, a.k, b, key + TILE_ROWS, end, g);
            load_swizzled<D>(v_tiles + (stage ^ 1) * BYTES, a.v, b, key + TILE_ROWS, end, g);
        }
        copy_commit();
        copy_wait<1>();
        publish_tiles();
        __syncthreads();
        float s[8][4], dp[8][4];
        hold(s);
        hold(dp);
        wgmma_begin();
        wgmma_all_tiles<D>(s, q_tile, k_tiles + stage * BYTES);
        wgmma_all_tiles<D>(dp, o_tile, v_tiles + stage * BYTES);
        wgmma_end();
        hold(s);
        hold(dp);
        if (key + TILE_ROWS - 1 > row || key < latest)
            query_gradients<true>(s, dp, score, lse2, delta, key, last, first);
        else
            query_gradients<false>(s, dp, score, lse2, delta, key, last, first);
        uint32_t ds[4][4];
        as_left(ds, dp);
        hold(dq);
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < 4; k++) wgmma_straight(dq, ds[k], rows_of(k_tiles + stage * BYTES, k));
        wgmma_end();
        hold(dq);
    }
    copy_wait<0>();
    store_rows<D>(a.dq, b, row + warp * 16, a.len, head, dq, a.scale, a.scale);
}

/* dk and dv for heads of 256: each fills the registers of a warpgroup, so the first warpgroup makes dv, the second dk. */
template <bool CAP> static __device__ __forceinline__ void split_dkv_block(const AttentionDims &a, char *shared, QueryColumns *columns)
{
    enum { D = 256, BYTES = SwizzledTile<D>::BYTES, THREADS = PAIR_THREADS };
    char *k_tile = shared, *v_tile = k_tile + BYTES, *q_tiles = v_tile + BYTES, *o_tiles = q_tiles + 2 * BYTES;
    int   b = blockIdx.z, g = blockIdx.y, row = (int)blockIdx.x * TILE_ROWS, warp = (threadIdx.x >> 5) % MMA_WARPS;
    int   head = g * a.group, end = last_query(a, b, row), query = row, stage = 0;
    bool  makes_dk = __shfl_sync(0xFFFFFFFFu, threadIdx.x / MMA_THREADS, 0) != 0; /* the shuffle makes it uniform in a warp */
    float sum[D / 8][4] = {};
    int   least[2];
    first_queries<FORM_CAUSAL>(a, b, row + warp * 16, least);

    const ScoreOf<CAP> score(a);
    load_swizzled<D, THREADS>(k_tile, a.k, b, row, a.len, g);
    load_swizzled<D, THREADS>(v_tile, a.v, b, row, a.len, g);
    load_swizzled<D, THREADS>(q_tiles, a.q, b, query, a.len, head);
    load_swizzled<D, THREADS>(o_tiles, a.grad_o, b, query, a.len, head);
    copy_commit();
    load_columns(a, columns, 0, b, head, query);
    while (head < (g + 1) * a.group) {
        int next_query = query + TILE_ROWS < end ? query + TILE_ROWS : row, next_head = next_query == row ? head + 1 : head;
        __syncthreads();
        if (next_head < (g + 1) * a.group) {
            load_swizzled<D, THREADS>(q_tiles + (stage ^ 1) * BYTES, a.q, b, next_query, a.len, next_head);
            load_swizzled<D, THREADS>(o_tiles + (stage ^ 1) * BYTES, a.grad_o, b, next_query, a.len, next_head);
            load_columns(a, columns, stage ^ 1, b, next_head, next_query);
        }
        copy_commit();
        copy_wait<1>();
        publish_tiles();
        __syncthreads();
        float    s[8][4], dp[8][4];
        uint32_t left[4][4];
        hold(s);
        hold(dp);
        wgmma_begin();
        wgmma_all_tiles<D>(s, k_tile, q_tiles + stage * BYTES);
        if (makes_dk) {
            wgmma_begin();
            wgmma_all_tiles<D>(dp, v_tile, o_tiles + stage * BYTES);
        }
        wgmma_end();
        hold(s);
        hold(dp);
        key_gradients<true>(s, dp, score, columns, stage, query, row + warp * 16, least);
        if (makes_dk)
            as_left(left, dp);
        else
            as_left(left, s);
        const char *right = (makes_dk ? q_tiles : o_tiles) + stage * BYTES;
        hold(sum);
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < 4; k++) wgmma_straight(sum, left[k], rows_of(right, k));
        wgmma_end();
        hold(sum);
        query = next_query;
        head = next_head;
        stage ^= 1;
    }
    copy_wait<0>();
    if (makes_dk && a.dk.data) store_rows<D>(a.dk, b, row + warp * 16, a.len, g, sum, a.scale, a.scale);
    if (!makes_dk && a.dv.data) store_rows<D>(a.dv, b, row + warp * 16, a.len, g, sum, 1, 1);
}

#endif

template <int D, int E, bool CAP, int FORM> static __global__ void __launch_bounds__(STREAM_THREADS, 1) wgmma_forward(AttentionDims a)
{
#if HAS_WGMMA
    extern __shared__ __align__(1024) char stream[];
    forward_block<D, E, CAP, FORM>(a, (StreamShared<D, E> *)stream);
#endif
}

template <bool CAP> static __global__ void __launch_bounds__(PAIR_THREADS, 1) wgmma_wide_forward(AttentionDims a)
{
#if HAS_WGMMA
    extern __shared__ uint4 shared[];
    __shared__ int          range[4];
    wide_forward_block<CAP>(a, aligned_shared(shared), range);
#endif
}

template <bool CAP> static __global__ void __launch_bounds__(MMA_THREADS, 1) wgmma_dq(AttentionDims a)
{
#if HAS_WGMMA
    extern __shared__ uint4 shared[];
    __shared__ int          range[4];
    wide_dq_block<CAP>(a, aligned_shared(shared), range);
#endif
}

template <bool CAP> static __global__ void __launch_bounds__(PAIR_THREADS, 1) wgmma_dkv(AttentionDims a)
{
#if HAS_WGMMA
    extern __shared__ uint4 shared[];
    __shared__ QueryColumns columns;
    split_dkv_block<CAP>(a, aligned_shared(shared), &columns);
#endif
}

template <typename K> static Status allow_shared(K kernel, size_t bytes)
{
    CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
    return OK;
}

template <int D, int E, bool CAP, int FORM = FORM_CAUSAL> static Status forward(const AttentionDims *a, cudaStream_t stream)
{
    dim3 grid((unsigned)cuda_div_up(a->len, PAIR_ROWS), a->num_heads, a->batch);
    if constexpr (D == 256) {
        size_t bytes = 6 * SwizzledTile<D>::BYTES + 1024;
        TRY(allow_shared(wgmma_wide_forward<CAP>, bytes));
        wgmma_wide_forward<CAP><<<grid, PAIR_THREADS, bytes, stream>>>(*a);
    } else {
        size_t bytes = sizeof(StreamShared<D, E>) + (FORM == FORM_BIASED ? sizeof(StreamBiases<StreamShared<D, E>::STAGES>) : 0);
        TRY(allow_shared((wgmma_forward<D, E, CAP, FORM>), bytes));
        wgmma_forward<D, E, CAP, FORM><<<grid, STREAM_THREADS, bytes, stream>>>(*a);
    }
    return CUDA_LAUNCHED();
}

template <bool CAP> static Status backward(const AttentionDims *a, cudaStream_t stream)
{
    size_t   bytes = 6 * SwizzledTile<256>::BYTES + 1024;
    unsigned blocks = (unsigned)cuda_div_up(a->len, TILE_ROWS);
    if (a->dk.data || a->dv.data) {
        TRY(allow_shared(wgmma_dkv<CAP>, bytes));
        wgmma_dkv<CAP><<<dim3(blocks, a->num_kv_heads, a->batch), PAIR_THREADS, bytes, stream>>>(*a);
        TRY(CUDA_LAUNCHED());
    }
    if (!a->dq.data) return OK;
    TRY(allow_shared(wgmma_dq<CAP>, bytes));
    wgmma_dq<CAP><<<dim3(blocks, a->num_heads, a->batch), MMA_THREADS, bytes, stream>>>(*a);
    return CUDA_LAUNCHED();
}

bool attention_wgmma_there(void)
{
    cudaFuncAttributes attributes;
    return cudaFuncGetAttributes(&attributes, (wgmma_forward<128, 128, false, FORM_CAUSAL>)) == cudaSuccess && attributes.ptxVersion == 90;
}

Status attention_wgmma_forward(const AttentionDims *a, cudaStream_t stream)
{
    bool cap = a->softcap > 0;
    if (!a->batch || !a->len) return OK;
    if (attention_form(a) == FORM_OPEN && a->dim == 192) return forward<192, 128, false, FORM_OPEN>(a, stream);
    if (attention_form(a) == FORM_OPEN)
        return a->dim == 64 ? forward<64, 64, false, FORM_OPEN>(a, stream) : forward<128, 128, false, FORM_OPEN>(a, stream);
    if (attention_form(a) == FORM_BIASED)
        return a->dim == 64 ? forward<64, 64, false, FORM_BIASED>(a, stream) : forward<128, 128, false, FORM_BIASED>(a, stream);
    if (a->dim == 64) return forward<64, 64, false>(a, stream);
    if (a->dim == 192) return forward<192, 128, false>(a, stream);
    if (a->dim == 128) return cap ? forward<128, 128, true>(a, stream) : forward<128, 128, false>(a, stream);
    return cap ? forward<256, 256, true>(a, stream) : forward<256, 256, false>(a, stream);
}

Status attention_wgmma_backward(const AttentionDims *a, cudaStream_t stream)
{
    if (!a->batch || !a->len) return OK;
    return a->softcap > 0 ? backward<true>(a, stream) : backward<false>(a, stream);
}
