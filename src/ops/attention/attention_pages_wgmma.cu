/* Prefill over a key/value cache in pages by warpgroup products (compute capability 9.0), for bf16 heads of 64 and 128. It has the tiles
 * and sums of pages_prefill (attention_pages.cuh), to the bit. A block has 128 queries of one head. Two warps copy tiles with the copy
 * engine, one the keys, one the values; two warpgroups multiply, 64 queries each. A warpgroup starts the scores of a tile together with the
 * value products of the previous tile, and computes the tile's exponentials while these value products run. Tiles of an e4m3 cache go to a
 * ring of their own; two warps decode keys to bf16, and two decode values. */
#include "ops/attention/attention_mma.cuh"
#include "ops/attention/attention_pages_map.cuh"
#include "ops/attention/attention_tile.cuh"
#include "ops/bulk.cuh"

enum {
    GROUPS = 2,
    STAGES = 4,
    BLOCK_ROWS = GROUPS * TILE_ROWS,
    BLOCK_THREADS = (GROUPS + 1) * MMA_THREADS,
    BOX_BYTES = PAGE * TENSOR_MAP_INNER * 2,
    CODING_THREADS = MMA_THREADS / 2, /* threads that decode keys; as many threads decode values */
    CODING_BARRIER = 1 + GROUPS
};

template <int D, typename C> struct StreamShared {
    enum { BYTES = SwizzledTile<D>::BYTES };
    char     keys[STAGES][BYTES], values[STAGES][BYTES];
    uint64_t full[2][STAGES], free[2][STAGES]; /* barriers: [0] of keys, [1] of values */
};

template <int D> struct StreamShared<D, e4m3> {
    enum { BYTES = SwizzledTile<D>::BYTES };
    char     keys[STAGES][BYTES], values[STAGES][BYTES], codes[2][STAGES][PageTile<D, e4m3>::BYTES];
    uint64_t full[2][STAGES], free[2][STAGES], coded[2][STAGES];
};

#if HAS_WGMMA

/* Keys [least, end) that queries of a block, or of a warpgroup, attend; `first` is the first key of their first tile. */
struct Keys {
    int least, end, first;

    __device__ __forceinline__ Keys(const AttentionDims &a, int b, int t, int tokens, int start)
        : least(attention_first_key(a, b, t, start + t)), end(start + t + tokens), first(least / TILE_ROWS * TILE_ROWS)
    {
    }
};

/* The first cache position of each page of a tile. Pages without attended keys are replaced by page 0. */
struct TileCells {
    int first[TILE_PAGES];

    __device__ __forceinline__ TileCells(const CachePages &pages, int b, int key, const Keys &keys)
    {
        const int32_t *table = pages.table + (int64_t)b * pages.row_pages;
#pragma unroll
        for (int i = 0; i < TILE_PAGES; i++) {
            int position = key + i * PAGE, page = 0;
            if (position + PAGE > keys.least && position < keys.end) page = table[position / PAGE];
            first[i] = (unsigned)page < (unsigned)pages.num_pages ? page * PAGE : 0;
        }
    }
};

/* Copies all tiles of keys, or of values, a page as boxes of 64 columns. Called by one lane. The next tile's page numbers are read
 * ahead. */
template <int D>
static __device__ __forceinline__ void stream_tiles(const CachePages &pages, const CUtensorMap *map, char (*tiles)[SwizzledTile<D>::BYTES],
                                                    uint64_t *full, uint64_t *free, int b, int g, const Keys &keys)
{
    Ring<STAGES> at;
    TileCells    cells(pages, b, keys.first, keys);
    for (int key = keys.first; key < keys.end; key += TILE_ROWS, at.next()) {
        const TileCells next(pages, b, key + TILE_ROWS, keys);
        uint32_t        tile = shared_address(tiles[at.stage]);
        phase_wait(&free[at.stage], at.round ^ 1);
        expect_bytes(&full[at.stage], SwizzledTile<D>::BYTES);
#pragma unroll
        for (int i = 0; i < TILE_PAGES; i++)
#pragma unroll
            for (int c = 0; c < D / 64; c++)
                copy_box(tile + c * PIECE_BYTES + i * BOX_BYTES, map, 0, cells.first[i], c, g, &full[at.stage]);
        cells = next;
    }
}

/* Copies tiles of e4m3 codes into their ring: each call of `bring` copies one tile. Used by one lane. */
template <int D> struct CodeStream {
    const CachePages  &pages;
    const CUtensorMap *map;
    const Keys        &keys;
    int                b, g, key;
    TileCells          cells; /* cells of the tile that is copied next */
    Ring<STAGES>       at;

    __device__ __forceinline__ CodeStream(const CachePages &pages_, const CUtensorMap *map_, int b_, int g_, const Keys &keys_)
        : pages(pages_), map(map_), keys(keys_), b(b_), g(g_), key(keys_.first), cells(pages_, b_, keys_.first, keys_)
    {
    }

    __device__ __forceinline__ void bring(char (*codes)[PageTile<D, e4m3>::BYTES], uint64_t *coded)
    {
        if (key >= keys.end) return;
        expect_bytes(&coded[at.stage], PageTile<D, e4m3>::BYTES);
#pragma unroll
        for (int i = 0; i < TILE_PAGES; i++)
            copy_box(shared_address(codes[at.stage]) + i * PageTile<D, e4m3>::PAGE_BYTES, map, 0, cells.first[i], 0, g, &coded[at.stage]);
        key += TILE_ROWS;
        cells = TileCells(pages, b, key, keys);
        at.next();
    }
};

/* Decodes a tile of e4m3 codes to bf16. Eight neighbouring threads write to all 32 banks, without conflict. */
template <int D> static __device__ __forceinline__ void decode_tile(char *tile, const char *codes, int thread)
{
    enum { CHUNKS = D / 16 };
#pragma unroll 1 /* not unrolled, as these warps have few registers */
    for (int i = 0; i < TILE_ROWS * CHUNKS; i += CODING_THREADS) {
        int   at = i + thread, row = at / 4 % TILE_ROWS, quad = at / 4 / TILE_ROWS, part = at % 4;
        uint4 chunk = *(const uint4 *)(codes + PageTile<D, e4m3>::at(row, quad * 4 + part));
#pragma unroll
        for (int half = 0; half < 2; half++)
            *(uint4 *)(tile + quad * PIECE_BYTES + row * 128 + ((2 * part + half) ^ (row % 8)) * 16) =
                chunk_numbers<e4m3, bf16>(chunk, half);
    }
}

/* Copies and decodes all tiles of keys (which 0), or of values (which 1). Called by two warps. */
template <int D>
static __device__ __forceinline__ void stream_codes(const CachePages &pages, const CUtensorMap *map, StreamShared<D, e4m3> *shared,
                                                    int which, int b, int g, const Keys &keys)
{
    char(*tiles)[SwizzledTile<D>::BYTES] = which ? shared->values : shared->keys;
    int           thread = (int)threadIdx.x % CODING_THREADS;
    Ring<STAGES>  at;
    CodeStream<D> stream(pages, map, b, g, keys);
    for (int i = 0; i < STAGES && thread == 0; i++) stream.bring(shared->codes[which], shared->coded[which]);
    for (int key = keys.first; key < keys.end; key += TILE_ROWS, at.next()) {
        phase_wait(&shared->coded[which][at.stage], at.round);
        phase_wait(&shared->free[which][at.stage], at.round ^ 1);
        decode_tile<D>(tiles[at.stage], shared->codes[which][at.stage], thread);
        publish_tiles();
        asm volatile("bar.sync %0, %1;" ::"r"(CODING_BARRIER + which), "n"((int)CODING_THREADS) : "memory");
        if (thread) continue;
        phase_arrive(&shared->full[which][at.stage]);
        stream.bring(shared->codes[which], shared->coded[which]);
    }
}

/* Zeroes the values of rows outside [least, end) of a tile, because unattended values may be NaN. Called by a warpgroup right before its
 * products read the tile; the other warpgroup writes the same zeros. */
template <int D> static __device__ __forceinline__ void clear_values(char *tile, int least, int end, int group)
{
    enum { CHUNKS = D / 8 };
    for (int i = threadIdx.x % MMA_THREADS; i < TILE_ROWS * CHUNKS; i += MMA_THREADS) {
        int row = i / CHUNKS, chunk = i % CHUNKS;
        if (row >= least && row < end) continue;
        *(uint4 *)(tile + chunk / 8 * PIECE_BYTES + row * 128 + ((chunk % 8) ^ (row % 8)) * 16) = make_uint4(0, 0, 0, 0);
    }
    publish_tiles();
    asm volatile("bar.sync %0, %1;" ::"r"(group), "n"((int)MMA_THREADS) : "memory");
}

template <int D> static __device__ __forceinline__ void begin_scores(float (&s)[8][4], const uint32_t (&q)[D / 16][4], const char *keys)
{
    hold(s);
    wgmma_begin();
    wgmma_all_turned<D>(s, q, keys);
    wgmma_commit();
}

template <int D> static __device__ __forceinline__ void begin_values(float (&sum)[D / 8][4], const uint32_t (&p)[4][4], const char *values)
{
    hold(sum);
    wgmma_begin();
    wgmma_straight<0>(sum, p[0], rows_of(values, 0));
#pragma unroll
    for (int k = 1; k < 4; k++) wgmma_straight(sum, p[k], rows_of(values, k));
    wgmma_commit();
}

/* A warpgroup's 64 queries. For each of a thread's two queries: the keys [first, last] that it attends, and its sums so far. */
template <int D> struct Queries {
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

    __device__ __forceinline__ void add(const float (&sum)[D / 8][4], const float (&most)[2], const float (&total)[2], float scale2)
    {
        bool any[2], shrinks = false;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            any[half] = fold_tile(row[half], most[half], total[half], scale2);
            shrinks |= !any[half] || row[half].shrink != 1;
        }
        if (!__any_sync(0xFFFFFFFFu, shrinks)) { /* no new largest score: the same bits without rescaling */
#pragma unroll
            for (int n = 0; n < D / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) o[n][e] = fmaf(sum[n][e], row[e >> 1].grow, o[n][e]);
            return;
        }
#pragma unroll
        for (int n = 0; n < D / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (any[e >> 1]) o[n][e] = fold_sum(row[e >> 1], o[n][e], sum[n][e]);
    }
};

/* A warpgroup's position in the ring of keys, or of values. Each of its warps arrives once to free a stage. */
struct Reader {
    uint64_t    *full, *free;
    Ring<STAGES> at;

    __device__ __forceinline__ void wait() const
    {
        phase_wait(&full[at.stage], at.round);
    }
    __device__ __forceinline__ void done()
    {
        __syncwarp();
        if ((threadIdx.x & 31) == 0) phase_arrive(&free[at.stage]);
        at.next();
    }
    /* Skips a tile that only the other warpgroup reads. Waits first: an earlier arrival would count for the stage's previous tile. */
    __device__ __forceinline__ void pass()
    {
        wait();
        done();
    }
};

/* Computes attention of the 64 queries from tile_row on, tile by tile. Also frees the block's tiles that these queries don't attend. */
template <int D, bool CAP, typename C>
static __device__ __forceinline__ void attend(const AttentionDims &a, StreamShared<D, C> *shared, int b, int head, int group, int tile_row,
                                              int start, const Keys &block)
{
    int                tokens = max(0, min(TILE_ROWS, a.len - tile_row)), first_row = tile_row + (int)(threadIdx.x >> 5) % MMA_WARPS * 16;
    const Keys         keys(a, b, min(tile_row, a.len - 1), tokens, start);
    const int          own = start + tile_row, latest = attention_first_key(a, b, max(0, tile_row + tokens - 1), own + tokens - 1);
    const ScoreOf<CAP> score(a);
    const float        scale2 = tile_scale(score.factor);
    Queries<D>         queries(a, b, first_row, start);
    Reader             k = {shared->full[0], shared->free[0]}, v = {shared->full[1], shared->free[1]};
    uint32_t           q[D / 16][4], p[4][4];
    float              s[8][4], sum[D / 8][4], most[2], total[2];
    load_rows<D>(q, a.q, b, first_row, a.len, head);
    int  begin = block.first, end = min(tokens ? keys.end : begin, block.end);
    auto softmax = [&](int key, float(&most)[2], float(&total)[2]) {
        if (key + TILE_ROWS - 1 > own || key < latest)
            softmax_tile<true>(s, most, total, score, key, queries.last, queries.first);
        else
            softmax_tile<false>(s, most, total, score, key, queries.last, queries.first);
    };
    auto await_values = [&](int key) {
        v.wait();
        if (key < block.least || key + TILE_ROWS > block.end)
            clear_values<D>(shared->values[v.at.stage], block.least - key, block.end - key, 1 + group);
    };
    if (begin < end) {
        k.wait();
        begin_scores<D>(s, q, shared->keys[k.at.stage]);
        wgmma_wait<0>();
        hold(s);
        k.done();
        softmax(begin, most, total);
        as_left(p, s);
    }
    for (int key = begin + TILE_ROWS; key < end; key += TILE_ROWS) {
        float next_most[2], next_total[2];
        k.wait();
        begin_scores<D>(s, q, shared->keys[k.at.stage]);
        await_values(key - TILE_ROWS);
        begin_values<D>(sum, p, shared->values[v.at.stage]);
        wgmma_wait<1>();
        hold(s);
        k.done();
        softmax(key, next_most, next_total);
        wgmma_wait<0>();
        hold(sum);
        v.done();
        queries.add(sum, most, total, scale2);
        as_left(p, s);
        for (int half = 0; half < 2; half++) most[half] = next_most[half], total[half] = next_total[half];
    }
    if (begin < end) {
        await_values((end - 1) / TILE_ROWS * TILE_ROWS);
        begin_values<D>(sum, p, shared->values[v.at.stage]);
        wgmma_wait<0>();
        hold(sum);
        v.done();
        queries.add(sum, most, total, scale2);
    }
#pragma unroll 1
    for (int key = max(begin, (end + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS); key < block.end; key += TILE_ROWS) k.pass(), v.pass();
    store_rows<D>(a.o, b, first_row, a.len, head, queries.o, fold_end(a, head, score.factor, queries.row[0]),
                  fold_end(a, head, score.factor, queries.row[1]));
}

#endif

template <int D, bool CAP, typename C>
static __global__ void __launch_bounds__(BLOCK_THREADS, 1) pages_prefill_wgmma(AttentionDims a, const __grid_constant__ CacheMaps maps)
{
#if HAS_WGMMA
    extern __shared__ __align__(1024) char stream[];
    StreamShared<D, C>                    *shared = (StreamShared<D, C> *)stream;
    constexpr bool                         CODED = sizeof(C) == 1;
    int  b = blockIdx.z, head = blockIdx.x, g = head / a.group, t = (int)(gridDim.y - 1 - blockIdx.y) * BLOCK_ROWS; /* most keys first */
    int  group = __shfl_sync(0xFFFFFFFFu, threadIdx.x / MMA_THREADS, 0);
    bool has_room = attention_has_room(a, b);
    int  start = has_room ? a.pages.starts[b] : 0;
    Keys keys(a, b, t, min((int)BLOCK_ROWS, a.len - t), start);
    if (!has_room) keys.end = keys.first; /* no room: no keys, so the result is NaN */
    if (threadIdx.x < 2 * STAGES) {
        phases_init(&shared->full[0][threadIdx.x], 1);
        phases_init(&shared->free[0][threadIdx.x], GROUPS * MMA_WARPS);
        if constexpr (CODED) phases_init(&shared->coded[0][threadIdx.x], 1);
    }
    publish_phases();
    __syncthreads();
    if (group == GROUPS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if constexpr (CODED) {
            int which = __shfl_sync(0xFFFFFFFFu, (int)threadIdx.x % MMA_THREADS / CODING_THREADS, 0);
            stream_codes<D>(a.pages, which ? &maps.v : &maps.k, shared, which, b, g, keys);
        } else {
            if (threadIdx.x == GROUPS * MMA_THREADS)
                stream_tiles<D>(a.pages, &maps.k, shared->keys, shared->full[0], shared->free[0], b, g, keys);
            if (threadIdx.x == GROUPS * MMA_THREADS + 32)
                stream_tiles<D>(a.pages, &maps.v, shared->values, shared->full[1], shared->free[1], b, g, keys);
        }
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    attend<D, CAP>(a, shared, b, head, group, t + group * TILE_ROWS, start, keys);
#endif
}

template <int D, bool CAP, typename C> static Status prefill_over(const AttentionDims *a, cudaStream_t stream)
{
    enum { BYTES = sizeof(StreamShared<D, C>), BLOCKS = sizeof(C) == 1 ? PageTile<D, C>::HEAD_BYTES / PageTile<D, C>::ROW_BYTES : 1 };
    CacheMaps maps;
    dim3      grid(a->num_heads, (unsigned)cuda_div_up(a->len, BLOCK_ROWS), a->batch);
    TRY((map_caches<D, C>(a, BLOCKS, &maps)));
    CUDA_TRY(cudaFuncSetAttribute(pages_prefill_wgmma<D, CAP, C>, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES));
    pages_prefill_wgmma<D, CAP, C><<<grid, BLOCK_THREADS, BYTES, stream>>>(*a, maps);
    return CUDA_LAUNCHED();
}

template <int D, bool CAP> static Status prefill(const AttentionDims *a, cudaStream_t stream)
{
    return a->cached == DT_E4M3 ? prefill_over<D, CAP, e4m3>(a, stream) : prefill_over<D, CAP, bf16>(a, stream);
}

bool attention_pages_wgmma_serves(const AttentionDims *a)
{
    cudaFuncAttributes attributes;
    if (a->dtype != DT_BF16) return false;
    if (a->dim != 128 && (a->dim != 64 || a->softcap > 0)) return false;
    return a->pages.page_len == PAGE && cudaFuncGetAttributes(&attributes, pages_prefill_wgmma<128, false, bf16>) == cudaSuccess &&
           attributes.ptxVersion == 90;
}

Status attention_pages_wgmma_prefill(const AttentionDims *a, cudaStream_t stream)
{
    if (a->dim == 64) return prefill<64, false>(a, stream);
    return a->softcap > 0 ? prefill<128, true>(a, stream) : prefill<128, false>(a, stream);
}
