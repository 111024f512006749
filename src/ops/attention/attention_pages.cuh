/* Attention over a key/value cache in pages on the matrix units. T is bf16 or f16; each is compiled in a file of its own
 * (attention_pages.cu). A query's bits don't depend on what is computed beside it. For that, keys are divided into tiles of 64 that begin
 * at multiples of 64, each tile's sums start from zero, and fold_tile adds them in order. Then any block may compute a tile, and a query
 * may be alone or one of many.
 *
 * Prefill: a block has 64 queries of one head and goes over the tiles that any of them attends, as mma_forward does. Decode: a warp has one
 * token's query heads of one key/value head, and every gridDim.x'th tile. The tiles' sums go to the workspace in f32, and a second kernel
 * adds them. Each key and value is read once for 16 heads. If there is a copy engine, attention_pages_bulk.cuh decodes instead. */
#pragma once

#include "ops/attention/attention_cells.cuh"
#include "ops/attention/attention_mma.cuh"
#include "ops/attention/attention_pages.h"
#include "ops/attention/attention_pages_share.cuh"
#include "ops/attention/attention_tile.cuh"

enum { DECODE_BLOCKS = 4096 };

/* Columns of o that a warp sums at a time: in prefill its registers also hold all of o. */
template <int D> struct ColumnsOf {
    enum { N = D == 256 || D % 64 ? (D % 32 ? 16 : 32) : 64 };
};

/* Finds the cells of a lane's two keys of a tile, key + lane and key + lane + 32; see find_cell. */
static __device__ __forceinline__ void find_cells(int (&cells)[2], const AttentionDims &a, int b, int key, int least, int end, int own)
{
#pragma unroll
    for (int half = 0; half < 2; half++) cells[half] = find_cell(a, b, key + half * 32 + (int)(threadIdx.x & 31), least, end, own);
}

/* Begins to copy a tile of one head's keys, or values, with THREADS threads; see load_half. */
template <int D, int THREADS, typename C, typename T>
static __device__ __forceinline__ void load_cells(T *tile, const Heads &cache, const int (&cells)[2], int g, const T *fresh)
{
#pragma unroll
    for (int half = 0; half < 2; half++) load_half<D, THREADS, C, T>(tile + half * 32 * TileOf<D>::STRIDE, cache, cells[half], g, fresh);
}

/* ---- prefill ---- */

/* A warp's 16 queries: their sums, and for each of a lane's two queries the keys [first, last] that it attends. */
template <int D, typename T> struct Queries {
    float     o[D / 8][4];
    FoldedRow row[2];
    int       last[2], first[2];

    __device__ __forceinline__ Queries(const AttentionDims &a, int b, int t, int start)
    {
#pragma unroll
        for (int n = 0; n < D / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) o[n][e] = 0;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int mine = min(t + (int)(threadIdx.x & 31) / 4 + half * 8, a.len - 1);
            row[half].most = -INFINITY, row[half].total = 0;
            last[half] = start + mine;
            first[half] = attention_first_key(a, b, mine, start + mine);
        }
    }

    /* Adds a tile's sums. p: the tile's exponentials. */
    __device__ __forceinline__ void add(const uint32_t (&p)[4][4], const float (&most)[2], const float (&total)[2], const T *v_tile,
                                        float scale2)
    {
        enum { N = ColumnsOf<D>::N };
        bool any[2];
#pragma unroll
        for (int half = 0; half < 2; half++) any[half] = fold_tile(row[half], most[half], total[half], scale2);
#pragma unroll
        for (int col = 0; col < D; col += N) {
            float sum[N / 8][4] = {};
            mma_straight<D, N>(sum, p, v_tile + col);
#pragma unroll
            for (int n = 0; n < N / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    if (any[e >> 1]) o[col / 8 + n][e] = fold_sum(row[e >> 1], o[col / 8 + n][e], sum[n][e]);
        }
    }
};

template <int D, bool CAP, typename T, typename C> static __global__ void __launch_bounds__(MMA_THREADS) pages_prefill(AttentionDims a)
{
    extern __shared__ uint4 shared[];
    enum { ELEMENTS = TileOf<D>::ELEMENTS };
    T   *q_tile = (T *)shared, *k_tile = q_tile + ELEMENTS, *v_tile = k_tile + ELEMENTS;
    int  b = blockIdx.z, head = blockIdx.y, g = head / a.group, t = (int)(gridDim.x - 1 - blockIdx.x) * TILE_ROWS;
    int  warp = threadIdx.x >> 5, tokens = min(TILE_ROWS, a.len - t), cells[2];
    bool has_room = attention_has_room(a, b);
    int  start = has_room ? a.pages.starts[b] : 0, own = start + t, end = has_room ? own + tokens : 0; /* no room: no keys, so NaN */
    int  least = attention_first_key(a, b, t, own), latest = attention_first_key(a, b, t + tokens - 1, own + tokens - 1);

    const ScoreOf<CAP> score(a);
    Queries<D, T>      queries(a, b, t + warp * 16, start);
    int                key = least / TILE_ROWS * TILE_ROWS;
    load_tile<D>(q_tile, a.q, b, t, a.len, head);
    find_cells(cells, a, b, key, least, end, -1);
    load_cells<D, MMA_THREADS, C, T>(k_tile, a.k, cells, g, NULL);
    copy_commit();
    load_cells<D, MMA_THREADS, C, T>(v_tile, a.v, cells, g, NULL);
    copy_commit();
    copy_wait<1>();
    __syncthreads();
    for (; key < end; key += TILE_ROWS) {
        bool  goes_on = key + TILE_ROWS < end;
        float s[8][4] = {}, most[2], total[2];
#pragma unroll 4
        for (int k = 0; k < D / 16; k++) {
            uint32_t left[4];
            load_left<D>(left, q_tile, warp * 16, k * 16);
            mma_transposed<D>(s, left, k_tile, k);
        }
        if (key + TILE_ROWS - 1 > own || key < latest)
            softmax_tile<true>(s, most, total, score, key, queries.last, queries.first);
        else
            softmax_tile<false>(s, most, total, score, key, queries.last, queries.first);
        uint32_t p[4][4];
        as_left<T>(p, s);
        copy_wait<0>();
        __syncthreads(); /* the values have arrived, and all warps have read the keys */
        if (goes_on) {
            find_cells(cells, a, b, key + TILE_ROWS, least, end, -1);
            load_cells<D, MMA_THREADS, C, T>(k_tile, a.k, cells, g, NULL);
        }
        copy_commit();
        queries.add(p, most, total, v_tile, tile_scale(score.factor));
        copy_wait<0>();
        __syncthreads(); /* the next keys have arrived, and all warps have read the values */
        if (goes_on) load_cells<D, MMA_THREADS, C, T>(v_tile, a.v, cells, g, NULL);
        copy_commit();
    }
    copy_wait<0>();
    store_rows<D, T>(a.o, b, t + warp * 16, a.len, head, queries.o, fold_end(a, head, score.factor, queries.row[0]),
                     fold_end(a, head, score.factor, queries.row[1]));
}

/* ---- decode ---- */

/* Loads one token's query heads [head, head + count) as a left operand; rows after these heads are zeros. */
template <int D, typename T>
static __device__ __forceinline__ void load_heads(uint32_t (&q)[D / 16][4], const Heads &h, int b, int head, int count)
{
    int      lane = threadIdx.x & 31, row = lane >> 2;
    const T *from = (const T *)h.data + b * h.batch_stride + (int64_t)(head + row) * D + (lane & 3) * 2;
#pragma unroll
    for (int k = 0; k < D / 16; k++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            q[k][e] = row + (e & 1) * 8 < count ? *(const uint32_t *)(from + (e & 1) * 8 * D + k * 16 + (e >> 1) * 8) : 0;
}

/* Writes the new token's key and value of one head into its cell of the cache. */
template <int D, typename C, typename T>
static __device__ __forceinline__ void append_head(const AttentionDims &a, int b, int own, int g, const T *k, const T *v)
{
    int64_t to = (int64_t)attention_cell(a.pages, b, own) * a.k.token_stride + (int64_t)g * D;
    for (int i = (threadIdx.x & 31) * ChunkOf<C>::N; i < D; i += 32 * ChunkOf<C>::N) {
        *(uint4 *)((C *)a.k.data + to + i) = cached_chunk<C, T>(k + i);
        *(uint4 *)((C *)a.v.data + to + i) = cached_chunk<C, T>(v + i);
    }
}

/* Writes the new token's key and value of one head into their tiles, once earlier launches have made them. */
template <int D, typename C, typename T>
static __device__ __forceinline__ void put_new(T *k_tile, T *v_tile, int row, const T *k, const T *v)
{
    for (int i = (threadIdx.x & 31) * ChunkOf<C>::N; i < D; i += 32 * ChunkOf<C>::N) {
        put_chunk<C, T>(k_tile + row * TileOf<D>::STRIDE + i, cached_chunk<C, T>(k + i));
        put_chunk<C, T>(v_tile + row * TileOf<D>::STRIDE + i, cached_chunk<C, T>(v + i));
    }
}

/* Stores one tile's sums for the first `count` of 16 heads. row: b * H + the first head, as in the dims of d.totals. */
template <int D, typename T>
static __device__ __forceinline__ void store_tile(const Decode &d, int64_t row, int count, int tile, const uint32_t (&p)[4][4],
                                                  const float (&most)[2], const float (&total)[2], const T *v_tile)
{
    enum { N = ColumnsOf<D>::N };
    int     lane = threadIdx.x & 31;
    int64_t at = (row + (lane >> 2)) * d.tiles + tile;
    for (int half = 0; half < 2; half++)
        if ((lane >> 2) + half * 8 < count && (lane & 3) == 0) d.totals[at + half * 8 * d.tiles] = make_float2(most[half], total[half]);
#pragma unroll
    for (int col = 0; col < D; col += N) {
        float sum[N / 8][4] = {};
        mma_straight<D, N>(sum, p, v_tile + col);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if ((lane >> 2) + half * 8 >= count) continue;
            float *to = d.sums + (at + half * 8 * d.tiles) * D + col + (lane & 3) * 2;
#pragma unroll
            for (int n = 0; n < N / 8; n++) *(float2 *)(to + n * 8) = make_float2(sum[n][2 * half], sum[n][2 * half + 1]);
        }
    }
}

/* A block is one warp, so that a multiprocessor has many tiles in flight. A tile's values are loaded while its scores are computed; the
 * next tile's keys are loaded while the values are multiplied. */
template <int D, bool CAP, typename T, typename C> static __global__ void __launch_bounds__(32) pages_decode(AttentionDims a, Decode d)
{
    extern __shared__ uint4 shared[];
    T                      *k_tile = (T *)shared, *v_tile = k_tile + TileOf<D>::ELEMENTS;
    int                     b = blockIdx.z, g = (int)blockIdx.y / d.passes, pass = (int)blockIdx.y % d.passes, tile = blockIdx.x, cells[2];
    int                     head = g * a.group + pass * WARP_HEADS, count = min(WARP_HEADS, a.group - pass * WARP_HEADS);

    release_launches();
    if (!d.early) await_launches();
    const RowTiles row = row_tiles(a, b);
    if (tile >= row.count) {
        if (tile == 0) await_launches(); /* at least one block of a launch must wait for earlier launches */
        return;
    }
    const T *new_k = (const T *)d.k.data + b * d.k.batch_stride + (int64_t)g * D;
    const T *new_v = (const T *)d.v.data + b * d.v.batch_stride + (int64_t)g * D;
    int      key = (row.first + tile) * TILE_ROWS;
    find_cells(cells, a, b, key, row.first_key, row.own + 1, row.own);
    load_cells<D, 32, C, T>(k_tile, a.k, cells, g, NULL);
    copy_commit();
    load_cells<D, 32, C, T>(v_tile, a.v, cells, g, NULL);
    copy_commit();
    await_launches();
    if (row.own - key < TILE_ROWS) put_new<D, C>(k_tile, v_tile, row.own - key, new_k, new_v);
    uint32_t q[D / 16][4];
    load_heads<D, T>(q, a.q, b, head, count);
    /* No block reads the new cell in this launch. */
    if (tile == 0 && pass == 0) append_head<D, C>(a, b, row.own, g, new_k, new_v);

    const ScoreOf<CAP> score(a);
    const int          last[2] = {row.own, row.own}, first[2] = {row.first_key, row.first_key};
    for (; tile < row.count; tile += gridDim.x) {
        int   next = key + (int)gridDim.x * TILE_ROWS;
        bool  goes_on = tile + (int)gridDim.x < row.count;
        float s[8][4] = {}, most[2], total[2];
        copy_wait<1>();
        __syncwarp();
#pragma unroll
        for (int k = 0; k < D / 16; k++) mma_transposed<D>(s, q[k], k_tile, k);
        __syncwarp();
        if (goes_on) {
            find_cells(cells, a, b, next, row.first_key, row.own + 1, row.own);
            load_cells<D, 32, C, T>(k_tile, a.k, cells, g, new_k);
        }
        copy_commit();
        softmax_tile<true>(s, most, total, score, key, last, first);
        uint32_t p[4][4];
        as_left<T>(p, s);
        copy_wait<1>();
        __syncwarp();
        store_tile<D>(d, (int64_t)b * a.num_heads + head, count, tile, p, most, total, v_tile);
        __syncwarp();
        if (goes_on) load_cells<D, 32, C, T>(v_tile, a.v, cells, g, new_v);
        copy_commit();
        key = next;
    }
    copy_wait<0>();
}

/* Computes one column of a query head's result from the sums of `count` tiles. The sums of the first `len` tiles are already folded and
 * stored as tile 0. For FOLDS tiles at a time, all loads and factors come first; then only the additions of sums form a chain. */
template <typename T>
static __device__ __forceinline__ void combine_column(const AttentionDims &a, const Decode &d, int b, int head, int col, int count, int len)
{
    enum { FOLDS = 8 };
    int64_t       at = ((int64_t)b * a.num_heads + head) * d.tiles;
    const float  *sums = d.sums + at * a.dim + col;
    const float2 *totals = d.totals + at;
    float         factor = a.softcap > 0 ? a.softcap : a.scale, scale2 = tile_scale(factor), o = 0;
    FoldedRow     row = {-INFINITY, 0, 0, 0};
    for (int begin = 0; begin < count; begin += FOLDS) {
        FoldedRow rows[FOLDS];
        float     tiles[FOLDS];
        float2    tops[FOLDS];
        bool      any[FOLDS];
#pragma unroll
        for (int i = 0; i < FOLDS; i++) {
            bool there = begin + i < count && (begin + i == 0 || begin + i >= len);
            tops[i] = there ? totals[begin + i] : make_float2(0, 0);
            tiles[i] = there ? sums[(int64_t)(begin + i) * a.dim] : 0;
        }
#pragma unroll
        for (int i = 0; i < FOLDS; i++) {
            any[i] = fold_tile(row, tops[i].x, tops[i].y, scale2);
            rows[i] = row;
        }
#pragma unroll
        for (int i = 0; i < FOLDS; i++)
            if (any[i]) o = fold_sum(rows[i], o, tiles[i]);
    }
    ((T *)a.o.data)[b * a.o.batch_stride + (int64_t)head * a.dim + col] = from_float<T>(o * fold_end(a, head, factor, row));
}

/* A block has one head of one row; a thread has one column. */
template <typename T> static __global__ void pages_combine(AttentionDims a, Decode d)
{
    release_launches();
    if (!d.early) await_launches();
    int   head = blockIdx.x, b = blockIdx.y, count = row_tiles(a, b).count;
    Share share = {count, 1};
    if (d.shares) share = share_of(count, share_quota(a, a.num_kv_heads * d.passes, SHARE_BLOCKS));
    if (d.shares && share.pieces == 1) { /* the result is in o already */
        if (head == 0 && b == 0) await_launches();
        return;
    }
    if (d.early) await_launches();
    combine_column<T>(a, d, b, head, threadIdx.x, count, share.len);
}

#include "ops/attention/attention_pages_bulk.cuh"

/* ---- launches ---- */

template <typename K> static Status allow_shared(K kernel, size_t bytes)
{
    CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
    return OK;
}

template <int D, bool CAP, typename T, typename C> static Status prefill(const AttentionDims *a, const Decode *, cudaStream_t stream)
{
    size_t bytes = 3 * TileOf<D>::ELEMENTS * sizeof(T);
    TRY(allow_shared((pages_prefill<D, CAP, T, C>), bytes));
    pages_prefill<D, CAP, T, C><<<dim3((unsigned)cuda_div_up(a->len, TILE_ROWS), a->num_heads, a->batch), MMA_THREADS, bytes, stream>>>(*a);
    return CUDA_LAUNCHED();
}

/* Whether the copy engine can serve this cache on this GPU. */
static bool is_bulk(const AttentionDims *a)
{
    int device, major = 0, shared = 0;
    int bytes = PagedTile<64, 2, e4m3>::SHARED_BYTES; /* e4m3 has more stages, so more barriers than T */
    if (a->dim > 64) bytes = a->dim > 128 ? (int)PagedTile<256, 2, e4m3>::SHARED_BYTES : (int)PagedTile<128, 2, e4m3>::SHARED_BYTES;
    if (a->dim % 64 || a->pages.page_len != PAGE) return false;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess && major >= 9 &&
           cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) == cudaSuccess && shared >= bytes;
}

/* Launches enough blocks for all pieces: one for each head of each row, and SHARE_BLOCKS more. */
template <int D, bool CAP, int HALVES, typename T, typename C>
static Status decode_bulk(const AttentionDims *a, const Decode *d, cudaStream_t stream)
{
    typedef PagedTile<D, HALVES, C> Tile;
    int64_t   heads = (int64_t)a->num_kv_heads * d->passes * a->batch, most = heads * d->tiles, blocks = heads + SHARE_BLOCKS;
    CacheMaps maps;
    TRY((map_caches<D, C>(a, Tile::HEAD_BYTES / Tile::ROW_BYTES, &maps)));
    TRY(allow_shared((pages_decode_bulk<D, CAP, HALVES, T, C>), Tile::SHARED_BYTES));
    return cuda_launch_early(d->early, pages_decode_bulk<D, CAP, HALVES, T, C>, dim3((unsigned)(blocks < most ? blocks : most)),
                             BULK_THREADS, Tile::SHARED_BYTES, stream, *a, *d, maps);
}

/* Launches enough blocks for a few waves on the largest GPU, but at most one block a tile. Blocks beyond a row's tiles return at once. */
template <int D, bool CAP, typename T, typename C> static Status decode(const AttentionDims *a, const Decode *d, cudaStream_t stream)
{
    size_t  bytes = 2 * TileOf<D>::ELEMENTS * sizeof(T);
    int64_t heads = (int64_t)a->num_kv_heads * d->passes, blocks = cuda_div_up(DECODE_BLOCKS, heads * a->batch);
    dim3    grid((unsigned)(blocks < d->tiles ? blocks : d->tiles), (unsigned)heads, (unsigned)a->batch);
    if (d->shares) {
        enum { DIM = D % 64 ? 64 : D };
        TRY((a->group <= 8 ? decode_bulk<DIM, CAP, 1, T, C>(a, d, stream) : decode_bulk<DIM, CAP, 2, T, C>(a, d, stream)));
    } else {
        TRY(allow_shared((pages_decode<D, CAP, T, C>), bytes));
        TRY(cuda_launch_early(d->early, pages_decode<D, CAP, T, C>, grid, 32, bytes, stream, *a, *d));
    }
    return cuda_launch_early(d->early, pages_combine<T>, dim3((unsigned)a->num_heads, (unsigned)a->batch), D, 0, stream, *a, *d);
}

/* The head dims that attention_mma_serves accepts. */
#define WITH_DIM(call, T, C) \
    switch (a->dim + (a->softcap > 0)) { \
    case 16: \
        return call<16, false, T, C>(a, d, stream); \
    case 32: \
        return call<32, false, T, C>(a, d, stream); \
    case 64: \
        return call<64, false, T, C>(a, d, stream); \
    case 64 + 1: \
        return call<64, true, T, C>(a, d, stream); \
    case 96: \
        return call<96, false, T, C>(a, d, stream); \
    case 128: \
        return call<128, false, T, C>(a, d, stream); \
    case 128 + 1: \
        return call<128, true, T, C>(a, d, stream); \
    case 256: \
        return call<256, false, T, C>(a, d, stream); \
    case 256 + 1: \
        return call<256, true, T, C>(a, d, stream); \
    default: \
        FAIL(ERR_INTERNAL, "no matrix kernel over pages for head_dim %d%s", a->dim, a->softcap > 0 ? " with a cap" : ""); \
    }

template <typename T> static Status prefill_of(const AttentionDims *a, cudaStream_t stream)
{
    const Decode *d = NULL;
    if (a->cached == DT_E4M3) WITH_DIM(prefill, T, e4m3)
    WITH_DIM(prefill, T, T)
}

template <typename T>
static Status decode_of(const AttentionDims *a, const Heads *k, const Heads *v, const HeadTurns *turns, bool early, void *workspace,
                        cudaStream_t stream)
{
    int64_t window = a->window == INT_MAX ? 0 : a->window;
    int64_t tiles = attention_pages_tiles(window, (int64_t)a->pages.row_pages * a->pages.page_len);
    Decode  decode_of = {*k, *v, *turns}, *d = &decode_of;
    d->tiles = (int)tiles;
    d->early = early;
    d->shares = is_bulk(a);
    d->passes = (int)cuda_div_up(a->group, WARP_HEADS);
    d->totals = (float2 *)workspace;
    d->sums = (float *)(d->totals + (int64_t)a->batch * a->num_heads * tiles);
    if (a->cached == DT_E4M3) WITH_DIM(decode, T, e4m3)
    WITH_DIM(decode, T, T)
}
