/* Attention by warpgroup products, for bf16 on compute capability 9.0: the tiles and the order of attention_mma.cu,
 * with operands read from shared memory by the matrix units themselves. The two warpgroups of a block share the tiles that
 * stream by: one multiplies while the other exponentiates. A warpgroup begins the products of a tile before it ends those of
 * the tile before (FlashAttention-3, arXiv 2407.08608, section 3.2). */
#include "ops/attention_mma.cuh"
#include "ops/attention_tile.cuh"
#include "ops/wgmma.cuh"

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HAS_WGMMA 1
#else
#define HAS_WGMMA 0
#endif

enum { PAIR_THREADS = 2 * MMA_THREADS, PAIR_ROWS = 2 * TILE_ROWS };

#if HAS_WGMMA

/* Tiles begin at multiples of 1024 bytes. */
static __device__ __forceinline__ char *aligned_shared(void *p)
{
    return (char *)p + ((1024 - (shared_address(p) & 1023)) & 1023);
}

/* Which of a block's warpgroups; the compiler sees that it is the same in a warp. */
static __device__ __forceinline__ int own_group()
{
    return __shfl_sync(0xFFFFFFFFu, threadIdx.x / MMA_THREADS, 0);
}

/* The first tile of keys for the 128 queries from block_row on; least and largest first key of the warpgroup's own 64. */
static __device__ __forceinline__ int pair_range(const AttentionDims &a, int b, int block_row, int group, int *scratch, int *out_least,
                                                 int *out_latest)
{
    int least[2], latest[2];
    for (int i = 0; i < 2; i++) document_range(a, b, block_row + i * TILE_ROWS, 0, scratch, &least[i], &latest[i]);
    *out_least = group ? least[1] : least[0];
    *out_latest = group ? latest[1] : latest[0];
    return min(least[0], least[1]) / TILE_ROWS * TILE_ROWS;
}

/* Two tiles of keys from `key` on, and of their values. */
template <int D> struct PairCopy {
    TileCopy<D, PAIR_THREADS> k, v;

    __device__ __forceinline__ PairCopy(const AttentionDims &a, int b, int g) : k(a.k, b, g), v(a.v, b, g) {}

    __device__ __forceinline__ void begin(char *k_tiles, char *v_tiles, int key, int end) const
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            k.begin(k_tiles + i * SwizzledTile<D>::BYTES, key + i * TILE_ROWS, end);
            v.begin(v_tiles + i * SwizzledTile<D>::BYTES, key + i * TILE_ROWS, end);
        }
    }
};

/* Scores of both tiles are begun together: one tile's become exponentials while the other's are made, and the second's while values
 * are summed by the first's. */
template <int D, bool CAP> static __device__ __forceinline__ void forward_block(const AttentionDims &a, char *shared, int *range)
{
    enum { BYTES = SwizzledTile<D>::BYTES, PAIR = 2 * BYTES };
    char             *k_tiles = shared, *v_tiles = k_tiles + 2 * PAIR;
    int               group = own_group(), b = blockIdx.z, head = blockIdx.y, g = head / a.group;
    int               block_row = (int)(gridDim.x - 1 - blockIdx.x) * PAIR_ROWS, row = block_row + group * TILE_ROWS;
    int               lane = threadIdx.x & 31, warp = (threadIdx.x >> 5) % MMA_WARPS, least, latest;
    int               end = min(block_row + PAIR_ROWS, a.len), begin = pair_range(a, b, block_row, group, range, &least, &latest);
    const PairCopy<D> copy(a, b, g);
    copy.begin(k_tiles, v_tiles, begin, end);
    copy_commit();
    uint32_t q[D / 16][4];
    load_rows<D>(q, a.q, b, row + warp * 16, a.len, head);
    float o[D / 8][4] = {}, most[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};
    int   last[2], first[2];

    const ScoreOf<CAP> score(a);
    for (int half = 0; half < 2; half++) {
        last[half] = min(row + warp * 16 + (lane >> 2) + half * 8, a.len - 1);
        first[half] = attention_first_key(a, b, last[half], last[half]);
    }
    int stage = 0;
    for (int key = begin; key < end; key += 2 * TILE_ROWS, stage ^= 1) {
        const char *k = k_tiles + stage * PAIR, *v = v_tiles + stage * PAIR;
        copy_wait<0>();
        publish_tiles();
        wgmma_wait<0>();
        hold(o);
        __syncthreads(); /* this stage is there, the other was read */
        if (key + 2 * TILE_ROWS < end) copy.begin(k_tiles + (stage ^ 1) * PAIR, v_tiles + (stage ^ 1) * PAIR, key + 2 * TILE_ROWS, end);
        copy_commit();
        float s[2][8][4];
        hold(s[0]);
        hold(s[1]);
        wgmma_begin();
#pragma unroll
        for (int i = 0; i < 2; i++) {
            wgmma_all_turned<D>(s[i], q, k + i * BYTES);
            wgmma_commit();
        }
        wgmma_wait<1>();
        hold(s[0]);
        uint32_t p[2][4][4];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int   from = key + i * TILE_ROWS;
            float shrink[2];
            if (i == 1) {
                wgmma_wait<1>();
                hold(s[1]);
            }
            if (from < row + TILE_ROWS && from + TILE_ROWS > least) {
                if (from + TILE_ROWS - 1 > row || from < latest)
                    softmax_scores<true>(s[i], most, total, shrink, score, from, last, first);
                else
                    softmax_scores<false>(s[i], most, total, shrink, score, from, last, first);
                as_left(p[i], s[i]);
                if (i == 1) {
                    wgmma_wait<0>();
                    hold(o);
                }
                if (__any_sync(0xFFFFFFFFu, shrink[0] != 1 || shrink[1] != 1)) scale_rows<D>(o, shrink);
                hold(o);
                wgmma_begin();
#pragma unroll
                for (int c = 0; c < 4; c++) wgmma_straight(o, p[i][c], rows_of(v + i * BYTES, c));
            }
            wgmma_commit();
        }
    }
    wgmma_wait<0>();
    hold(o);
    for (int half = 0; half < 2; half++) total[half] = quad_sum(total[half]);
    if (a.o.data) store_rows<D>(a.o, b, row + warp * 16, a.len, head, o, 1.0f / total[0], 1.0f / total[1]);
    for (int half = 0; half < 2 && a.lse; half++) {
        int t = row + warp * 16 + (lane >> 2) + half * 8;
        if ((lane & 3) == 0 && t < a.len)
            a.lse[((int64_t)b * a.num_heads + head) * a.len + t] = most[half] * score.factor + log2f(total[half]) * LN2;
    }
}

/* Heads of 256: queries stay in shared memory, and one tile of keys is there at a time. */
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
        __syncthreads(); /* the other stage was read */
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
    for (int half = 0; half < 2; half++) total[half] = quad_sum(total[half]);
    if (a.o.data) store_rows<D>(a.o, b, row + warp * 16, a.len, head, o, 1.0f / total[0], 1.0f / total[1]);
    for (int half = 0; half < 2 && a.lse; half++) {
        int t = row + warp * 16 + (lane >> 2) + half * 8;
        if ((lane & 3) == 0 && t < a.len)
            a.lse[((int64_t)b * a.num_heads + head) * a.len + t] = most[half] * score.factor + log2f(total[half]) * LN2;
    }
}

/* A tile's products with values and keys begin while dq of the tile before is still summed. */
template <int D, bool CAP> static __device__ __forceinline__ void dq_block(const AttentionDims &a, char *shared, int *range)
{
    enum { BYTES = SwizzledTile<D>::BYTES, THREADS = PAIR_THREADS };
    char                      *k_tiles = shared, *v_tiles = k_tiles + 2 * BYTES;
    int                        group = own_group(), b = blockIdx.z, head = blockIdx.y, g = head / a.group;
    int                        block_row = (int)(gridDim.x - 1 - blockIdx.x) * PAIR_ROWS, row = block_row + group * TILE_ROWS;
    int                        lane = threadIdx.x & 31, warp = (threadIdx.x >> 5) % MMA_WARPS, least, latest;
    int                        end = min(block_row + PAIR_ROWS, a.len), begin = pair_range(a, b, block_row, group, range, &least, &latest);
    const TileCopy<D, THREADS> copy_k(a.k, b, g), copy_v(a.v, b, g);
    copy_k.begin(k_tiles, begin, end);
    copy_v.begin(v_tiles, begin, end);
    copy_commit();
    uint32_t q[D / 16][4], grad_o[D / 16][4], ds[4][4];
    load_rows<D>(q, a.q, b, row + warp * 16, a.len, head);
    load_rows<D>(grad_o, a.grad_o, b, row + warp * 16, a.len, head);
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
        const char *k = k_tiles + stage * BYTES, *v = v_tiles + stage * BYTES;
        bool        live = key < row + TILE_ROWS && key + TILE_ROWS > least;
        copy_wait<0>();
        publish_tiles();
        __syncthreads();
        float s[8][4], dp[8][4];
        hold(s);
        hold(dp);
        wgmma_begin();
        if (live) {
            wgmma_all_turned<D>(s, q, k);
            wgmma_all_turned<D>(dp, grad_o, v);
        }
        wgmma_end();
        hold(s);
        hold(dp);
        hold(dq);
        __syncthreads(); /* the other stage was read */
        if (key + TILE_ROWS < end) {
            copy_k.begin(k_tiles + (stage ^ 1) * BYTES, key + TILE_ROWS, end);
            copy_v.begin(v_tiles + (stage ^ 1) * BYTES, key + TILE_ROWS, end);
        }
        copy_commit();
        if (!live) continue;
        if (key + TILE_ROWS - 1 > row || key < latest)
            query_gradients<true>(s, dp, score, lse2, delta, key, last, first);
        else
            query_gradients<false>(s, dp, score, lse2, delta, key, last, first);
        as_left(ds, dp);
        hold(dq);
        wgmma_begin();
#pragma unroll
        for (int c = 0; c < 4; c++) wgmma_straight(dq, ds[c], rows_of(k, c));
        wgmma_commit();
    }
    wgmma_wait<0>();
    hold(dq);
    store_rows<D>(a.dq, b, row + warp * 16, a.len, head, dq, a.scale, a.scale);
}

/* Heads of 256: one warpgroup, q and do in shared memory. */
template <bool CAP> static __device__ __forceinline__ void wide_dq_block(const AttentionDims &a, char *shared, int *range)
{
    enum { D = 256, BYTES = SwizzledTile<D>::BYTES };
    char *q_tile = shared, *o_tile = q_tile + BYTES, *k_tiles = o_tile + BYTES, *v_tiles = k_tiles + 2 * BYTES;
    int   b = blockIdx.z, head = blockIdx.y, g = head / a.group, row = (int)(gridDim.x - 1 - blockIdx.x) * TILE_ROWS;
    int   lane = threadIdx.x & 31, warp = threadIdx.x >> 5, least, latest, end = min(row + TILE_ROWS, a.len);
    document_range(a, b, row, 0, range, &least, &latest);
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

/* 64 keys a warpgroup. A tile's products begin while dk and dv of the tile before are still summed. */
template <int D, bool CAP> static __device__ __forceinline__ void dkv_block(const AttentionDims &a, char *shared, QueryColumns *columns)
{
    enum { BYTES = SwizzledTile<D>::BYTES, THREADS = PAIR_THREADS };
    int   group = own_group(), b = blockIdx.z, g = blockIdx.y, block_row = (int)blockIdx.x * PAIR_ROWS, row = block_row + group * TILE_ROWS;
    char *k_tile = shared + group * 2 * BYTES, *v_tile = k_tile + BYTES, *q_tiles = shared + 4 * BYTES, *o_tiles = q_tiles + 2 * BYTES;
    int   warp = (threadIdx.x >> 5) % MMA_WARPS, head = g * a.group, query = block_row, stage = 0;
    int   ends[2] = {last_query(a, b, block_row), last_query(a, b, block_row + TILE_ROWS)}, end = max(ends[0], ends[1]);
    float dk[D / 8][4] = {}, dv[D / 8][4] = {};

    const ScoreOf<CAP> score(a);
    for (int i = 0; i < 2; i++) {
        load_swizzled<D, THREADS>(shared + i * 2 * BYTES, a.k, b, block_row + i * TILE_ROWS, a.len, g);
        load_swizzled<D, THREADS>(shared + i * 2 * BYTES + BYTES, a.v, b, block_row + i * TILE_ROWS, a.len, g);
    }
    const TileCopy<D, THREADS> copy_q(a.q, b, 0), copy_o(a.grad_o, b, 0);
    copy_q.begin(q_tiles, query, a.len, (int64_t)head * D);
    copy_o.begin(o_tiles, query, a.len, (int64_t)head * D);
    copy_commit();
    load_columns(a, columns, 0, b, head, query);
    while (head < (g + 1) * a.group) {
        int next_query = query + TILE_ROWS < end ? query + TILE_ROWS : block_row, next_head = next_query == block_row ? head + 1 : head;
        const char *q = q_tiles + stage * BYTES, *o = o_tiles + stage * BYTES;
        bool        live = query + TILE_ROWS > row && query < ends[group];
        copy_wait<0>();
        publish_tiles();
        __syncthreads();
        float s[8][4], dp[8][4];
        hold(s);
        hold(dp);
        wgmma_begin();
        if (live) {
            wgmma_all_tiles<D>(s, k_tile, q);
            wgmma_all_tiles<D>(dp, v_tile, o);
        }
        wgmma_end();
        hold(s);
        hold(dp);
        hold(dk);
        hold(dv);
        __syncthreads(); /* the other stage was read */
        if (next_head < (g + 1) * a.group) {
            copy_q.begin(q_tiles + (stage ^ 1) * BYTES, next_query, a.len, (int64_t)next_head * D);
            copy_o.begin(o_tiles + (stage ^ 1) * BYTES, next_query, a.len, (int64_t)next_head * D);
            load_columns(a, columns, stage ^ 1, b, next_head, next_query);
        }
        copy_commit();
        if (live) {
            if (query < row + TILE_ROWS || columns->first[stage][TILE_ROWS - 1] > row)
                key_gradients<true>(s, dp, score, columns, stage, query, row + warp * 16);
            else
                key_gradients<false>(s, dp, score, columns, stage, query, row + warp * 16);
            uint32_t p[4][4], ds[4][4];
            as_left(p, s);
            as_left(ds, dp);
            hold(dv);
            hold(dk);
            wgmma_begin();
#pragma unroll
            for (int c = 0; c < 4; c++) wgmma_straight(dv, p[c], rows_of(o, c));
#pragma unroll
            for (int c = 0; c < 4; c++) wgmma_straight(dk, ds[c], rows_of(q, c));
            wgmma_commit();
        }
        query = next_query;
        head = next_head;
        stage ^= 1;
    }
    wgmma_wait<0>();
    hold(dv);
    hold(dk);
    if (a.dk.data) store_rows<D>(a.dk, b, row + warp * 16, a.len, g, dk, a.scale, a.scale);
    if (a.dv.data) store_rows<D>(a.dv, b, row + warp * 16, a.len, g, dv, 1, 1);
}

/* Heads of 256: sums of dk and dv take the registers of a warpgroup each. The first makes dv, the second dk. */
template <bool CAP> static __device__ __forceinline__ void split_dkv_block(const AttentionDims &a, char *shared, QueryColumns *columns)
{
    enum { D = 256, BYTES = SwizzledTile<D>::BYTES, THREADS = PAIR_THREADS };
    char *k_tile = shared, *v_tile = k_tile + BYTES, *q_tiles = v_tile + BYTES, *o_tiles = q_tiles + 2 * BYTES;
    int   b = blockIdx.z, g = blockIdx.y, row = (int)blockIdx.x * TILE_ROWS, warp = (threadIdx.x >> 5) % MMA_WARPS;
    int   head = g * a.group, end = last_query(a, b, row), query = row, stage = 0;
    bool  makes_dk = __shfl_sync(0xFFFFFFFFu, threadIdx.x / MMA_THREADS, 0) != 0; /* as the compiler knows: the same in a warp */
    float sum[D / 8][4] = {};

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
        key_gradients<true>(s, dp, score, columns, stage, query, row + warp * 16);
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

template <int D, bool CAP> static __global__ void __launch_bounds__(PAIR_THREADS, 1) wgmma_forward(AttentionDims a)
{
#if HAS_WGMMA
    extern __shared__ uint4 shared[];
    __shared__ int          range[4];
    if constexpr (D > 128)
        wide_forward_block<CAP>(a, aligned_shared(shared), range);
    else
        forward_block<D, CAP>(a, aligned_shared(shared), range);
#endif
}

template <int D> struct BackwardOf {
    enum { GROUPS = D > 128 ? 1 : 2, THREADS = GROUPS * MMA_THREADS, ROWS = GROUPS * TILE_ROWS };
};

template <int D, bool CAP> static __global__ void __launch_bounds__(BackwardOf<D>::THREADS, 1) wgmma_dq(AttentionDims a)
{
#if HAS_WGMMA
    extern __shared__ uint4 shared[];
    __shared__ int          range[4];
    if constexpr (D > 128)
        wide_dq_block<CAP>(a, aligned_shared(shared), range);
    else
        dq_block<D, CAP>(a, aligned_shared(shared), range);
#endif
}

template <int D, bool CAP> static __global__ void __launch_bounds__(PAIR_THREADS, 1) wgmma_dkv(AttentionDims a)
{
#if HAS_WGMMA
    extern __shared__ uint4 shared[];
    __shared__ QueryColumns columns;
    dkv_block<D, CAP>(a, aligned_shared(shared), &columns);
#endif
}

template <bool CAP> static __global__ void __launch_bounds__(PAIR_THREADS, 1) wgmma_split_dkv(AttentionDims a)
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

template <int D, bool CAP> static Status forward(const AttentionDims *a, cudaStream_t stream)
{
    size_t bytes = (D > 128 ? 6 : 8) * SwizzledTile<D>::BYTES + 1024;
    dim3   grid((unsigned)cuda_div_up(a->len, PAIR_ROWS), a->num_heads, a->batch);
    TRY(allow_shared((wgmma_forward<D, CAP>), bytes));
    wgmma_forward<D, CAP><<<grid, PAIR_THREADS, bytes, stream>>>(*a);
    return CUDA_LAUNCHED();
}

template <int D, bool CAP> static Status backward_dkv(const AttentionDims *a, cudaStream_t stream)
{
    size_t bytes = (D > 128 ? 6 : 8) * SwizzledTile<D>::BYTES + 1024;
    dim3   grid((unsigned)cuda_div_up(a->len, BackwardOf<D>::ROWS), a->num_kv_heads, a->batch);
    if constexpr (D > 128) {
        TRY(allow_shared(wgmma_split_dkv<CAP>, bytes));
        wgmma_split_dkv<CAP><<<grid, PAIR_THREADS, bytes, stream>>>(*a);
    } else {
        TRY(allow_shared((wgmma_dkv<D, CAP>), bytes));
        wgmma_dkv<D, CAP><<<grid, PAIR_THREADS, bytes, stream>>>(*a);
    }
    return CUDA_LAUNCHED();
}

template <int D, bool CAP> static Status backward(const AttentionDims *a, cudaStream_t stream)
{
    size_t bytes = (D > 128 ? 6 : 4) * SwizzledTile<D>::BYTES + 1024;
    dim3   grid((unsigned)cuda_div_up(a->len, BackwardOf<D>::ROWS), a->num_heads, a->batch);
    if (a->dk.data || a->dv.data) TRY((backward_dkv<D, CAP>(a, stream)));
    if (!a->dq.data) return OK;
    TRY(allow_shared((wgmma_dq<D, CAP>), bytes));
    wgmma_dq<D, CAP><<<grid, BackwardOf<D>::THREADS, bytes, stream>>>(*a);
    return CUDA_LAUNCHED();
}

bool attention_wgmma_there(void)
{
    cudaFuncAttributes attributes;
    return cudaFuncGetAttributes(&attributes, wgmma_forward<128, false>) == cudaSuccess && attributes.ptxVersion == 90;
}

/* Those that attention_wgmma_serves says. */
#define WITH_DIM(call) \
    if (a->dim == 64) return call<64, false>(a, stream); \
    if (a->dim == 128) return a->softcap > 0 ? call<128, true>(a, stream) : call<128, false>(a, stream); \
    return a->softcap > 0 ? call<256, true>(a, stream) : call<256, false>(a, stream);

Status attention_wgmma_forward(const AttentionDims *a, cudaStream_t stream)
{
    if (!a->batch || !a->len) return OK;
    WITH_DIM(forward)
}

Status attention_wgmma_backward(const AttentionDims *a, cudaStream_t stream)
{
    if (!a->batch || !a->len) return OK;
    WITH_DIM(backward)
}
