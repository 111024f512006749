/* Attention by warpgroup products, for bf16 on compute capability 9.0: the tiles and the order of attention_mma.cu,
 * with operands read from shared memory by the matrix units themselves. Two blocks share a multiprocessor: one
 * multiplies while the other exponentiates. */
#include "ops/attention_mma.cuh"
#include "ops/attention_tile.cuh"
#include "ops/wgmma.cuh"

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HAS_WGMMA 1
#else
#define HAS_WGMMA 0
#endif

enum { SPLIT_THREADS = 2 * MMA_THREADS };

/* Forward: warpgroups of a block, 64 queries each. Of heads of 256 only one block fits a multiprocessor: its two share tiles of keys. */
template <int D> struct ForwardOf {
    enum { GROUPS = D > 128 ? 2 : 1, THREADS = GROUPS * MMA_THREADS, ROWS = GROUPS * TILE_ROWS };
};

#if HAS_WGMMA

/* Tiles begin at multiples of 1024 bytes. */
static __device__ __forceinline__ char *aligned_shared(void *p)
{
    return (char *)p + ((1024 - (shared_address(p) & 1023)) & 1023);
}

template <int D, bool CAP> static __device__ __forceinline__ void forward_block(const AttentionDims &a, char *shared, int *range)
{
    enum { BYTES = SwizzledTile<D>::BYTES, GROUPS = ForwardOf<D>::GROUPS, THREADS = ForwardOf<D>::THREADS, ROWS = ForwardOf<D>::ROWS };
    int   group = GROUPS > 1 ? __shfl_sync(0xFFFFFFFFu, threadIdx.x / MMA_THREADS, 0) : 0; /* as the compiler knows: the same in a warp */
    char *q_tile = shared + group * BYTES, *k_tiles = shared + GROUPS * BYTES, *v_tiles = k_tiles + 2 * BYTES;
    int   b = blockIdx.z, head = blockIdx.y, g = head / a.group, block_row = (int)(gridDim.x - 1 - blockIdx.x) * ROWS;
    int   lane = threadIdx.x & 31, warp = (threadIdx.x >> 5) % MMA_WARPS, row = block_row + group * TILE_ROWS, least, latest;
    int   end = min(block_row + ROWS, a.len);
    document_range(a, b, block_row, 0, range, &least, &latest);
    if (GROUPS > 1) {
        int second_least, second_latest;
        document_range(a, b, block_row + TILE_ROWS, 0, range, &second_least, &second_latest);
        least = min(least, second_least);
        if (group) latest = second_latest;
    }
    int begin = least / TILE_ROWS * TILE_ROWS;
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
        float s[8][4] = {};
        hold(s);
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < D / 16; k++) wgmma_tiles(s, columns_of(q_tile, k), columns_of(k_tiles + stage * BYTES, k));
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

template <int D, bool CAP> static __device__ __forceinline__ void dq_block(const AttentionDims &a, char *shared, int *range)
{
    enum { BYTES = SwizzledTile<D>::BYTES };
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
        float s[8][4] = {}, dp[8][4] = {};
        hold(s);
        hold(dp);
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < D / 16; k++) wgmma_tiles(s, columns_of(q_tile, k), columns_of(k_tiles + stage * BYTES, k));
#pragma unroll
        for (int k = 0; k < D / 16; k++) wgmma_tiles(dp, columns_of(o_tile, k), columns_of(v_tiles + stage * BYTES, k));
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

template <int D, bool CAP> static __device__ __forceinline__ void dkv_block(const AttentionDims &a, char *shared, QueryColumns *columns)
{
    enum { BYTES = SwizzledTile<D>::BYTES };
    char *k_tile = shared, *v_tile = k_tile + BYTES, *q_tiles = v_tile + BYTES, *o_tiles = q_tiles + 2 * BYTES;
    int   b = blockIdx.z, g = blockIdx.y, row = (int)blockIdx.x * TILE_ROWS, warp = threadIdx.x >> 5;
    int   head = g * a.group, end = last_query(a, b, row), query = row, stage = 0;
    float dk[D / 8][4] = {}, dv[D / 8][4] = {};

    const ScoreOf<CAP> score(a);
    load_swizzled<D>(k_tile, a.k, b, row, a.len, g);
    load_swizzled<D>(v_tile, a.v, b, row, a.len, g);
    load_swizzled<D>(q_tiles, a.q, b, query, a.len, head);
    load_swizzled<D>(o_tiles, a.grad_o, b, query, a.len, head);
    copy_commit();
    load_columns(a, columns, 0, b, head, query);
    while (head < (g + 1) * a.group) {
        int next_query = query + TILE_ROWS < end ? query + TILE_ROWS : row, next_head = next_query == row ? head + 1 : head;
        __syncthreads();
        if (next_head < (g + 1) * a.group) {
            load_swizzled<D>(q_tiles + (stage ^ 1) * BYTES, a.q, b, next_query, a.len, next_head);
            load_swizzled<D>(o_tiles + (stage ^ 1) * BYTES, a.grad_o, b, next_query, a.len, next_head);
            load_columns(a, columns, stage ^ 1, b, next_head, next_query);
        }
        copy_commit();
        copy_wait<1>();
        publish_tiles();
        __syncthreads();
        float s[8][4] = {}, dp[8][4] = {};
        hold(s);
        hold(dp);
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < D / 16; k++) wgmma_tiles(s, columns_of(k_tile, k), columns_of(q_tiles + stage * BYTES, k));
#pragma unroll
        for (int k = 0; k < D / 16; k++) wgmma_tiles(dp, columns_of(v_tile, k), columns_of(o_tiles + stage * BYTES, k));
        wgmma_end();
        hold(s);
        hold(dp);
        key_gradients(s, dp, score, columns, stage, query, row + warp * 16);
        uint32_t p[4][4], ds[4][4];
        as_left(p, s);
        as_left(ds, dp);
        hold(dv);
        hold(dk);
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < 4; k++) wgmma_straight(dv, p[k], rows_of(o_tiles + stage * BYTES, k));
#pragma unroll
        for (int k = 0; k < 4; k++) wgmma_straight(dk, ds[k], rows_of(q_tiles + stage * BYTES, k));
        wgmma_end();
        hold(dv);
        hold(dk);
        query = next_query;
        head = next_head;
        stage ^= 1;
    }
    copy_wait<0>();
    if (a.dk.data) store_rows<D>(a.dk, b, row + warp * 16, a.len, g, dk, a.scale, a.scale);
    if (a.dv.data) store_rows<D>(a.dv, b, row + warp * 16, a.len, g, dv, 1, 1);
}

/* Heads of 256: sums of dk and dv take the registers of a warpgroup each. The first makes dv, the second dk. */
template <bool CAP> static __device__ __forceinline__ void split_dkv_block(const AttentionDims &a, char *shared, QueryColumns *columns)
{
    enum { D = 256, BYTES = SwizzledTile<D>::BYTES, THREADS = SPLIT_THREADS };
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
        float    s[8][4] = {}, dp[8][4] = {};
        uint32_t left[4][4];
        hold(s);
        hold(dp);
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < D / 16; k++) wgmma_tiles(s, columns_of(k_tile, k), columns_of(q_tiles + stage * BYTES, k));
        if (makes_dk) {
            wgmma_begin();
#pragma unroll
            for (int k = 0; k < D / 16; k++) wgmma_tiles(dp, columns_of(v_tile, k), columns_of(o_tiles + stage * BYTES, k));
        }
        wgmma_end();
        hold(s);
        hold(dp);
        key_gradients(s, dp, score, columns, stage, query, row + warp * 16);
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

template <int D, bool CAP> static __global__ void __launch_bounds__(ForwardOf<D>::THREADS, D > 128 ? 1 : 2) wgmma_forward(AttentionDims a)
{
#if HAS_WGMMA
    extern __shared__ uint4 shared[];
    __shared__ int          range[4];
    forward_block<D, CAP>(a, aligned_shared(shared), range);
#endif
}

template <int D, bool CAP> static __global__ void __launch_bounds__(MMA_THREADS, D > 128 ? 1 : 2) wgmma_dq(AttentionDims a)
{
#if HAS_WGMMA
    extern __shared__ uint4 shared[];
    __shared__ int          range[4];
    dq_block<D, CAP>(a, aligned_shared(shared), range);
#endif
}

template <int D, bool CAP> static __global__ void __launch_bounds__(MMA_THREADS, D > 128 ? 1 : 2) wgmma_dkv(AttentionDims a)
{
#if HAS_WGMMA
    extern __shared__ uint4 shared[];
    __shared__ QueryColumns columns;
    dkv_block<D, CAP>(a, aligned_shared(shared), &columns);
#endif
}

template <bool CAP> static __global__ void __launch_bounds__(SPLIT_THREADS, 1) wgmma_split_dkv(AttentionDims a)
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
    size_t bytes = (ForwardOf<D>::GROUPS + 4) * SwizzledTile<D>::BYTES + 1024;
    dim3   grid((unsigned)cuda_div_up(a->len, ForwardOf<D>::ROWS), a->num_heads, a->batch);
    TRY(allow_shared((wgmma_forward<D, CAP>), bytes));
    wgmma_forward<D, CAP><<<grid, ForwardOf<D>::THREADS, bytes, stream>>>(*a);
    return CUDA_LAUNCHED();
}

template <int D, bool CAP> static Status backward_dkv(const AttentionDims *a, dim3 grid, size_t bytes, cudaStream_t stream)
{
    if constexpr (D > 128) {
        TRY(allow_shared(wgmma_split_dkv<CAP>, bytes));
        wgmma_split_dkv<CAP><<<grid, SPLIT_THREADS, bytes, stream>>>(*a);
    } else {
        TRY(allow_shared((wgmma_dkv<D, CAP>), bytes));
        wgmma_dkv<D, CAP><<<grid, MMA_THREADS, bytes, stream>>>(*a);
    }
    return CUDA_LAUNCHED();
}

template <int D, bool CAP> static Status backward(const AttentionDims *a, cudaStream_t stream)
{
    size_t   bytes = 6 * SwizzledTile<D>::BYTES + 1024;
    unsigned tiles = (unsigned)cuda_div_up(a->len, TILE_ROWS);
    if (a->dk.data || a->dv.data) TRY((backward_dkv<D, CAP>(a, dim3(tiles, a->num_kv_heads, a->batch), bytes, stream)));
    if (!a->dq.data) return OK;
    TRY(allow_shared((wgmma_dq<D, CAP>), bytes));
    wgmma_dq<D, CAP><<<dim3(tiles, a->num_heads, a->batch), MMA_THREADS, bytes, stream>>>(*a);
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
