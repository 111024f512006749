/* Attention for heads of 256 on the matrix units. Tiles and order are the same as in attention_mma.cu, but operands stay in shared memory,
 * one tile of each. One half of a block makes dv, the other half dk, because each sum takes all registers of a thread. */
#include "ops/attention/attention_mma.cuh"
#include "ops/attention/attention_tile.cuh"

enum { D = 256, ELEMENTS = TileOf<D>::ELEMENTS, DKV_THREADS = 2 * MMA_THREADS };

/* Multiplies 16 rows of a tile, from `row` on, with all rows of another tile and adds to c (16 x 64). */
static __device__ __forceinline__ void products(float (&c)[8][4], const bf16 *left_tile, const bf16 *tile, int row)
{
#pragma unroll 4
    for (int k = 0; k < D / 16; k++) {
        uint32_t left[4];
        load_left<D>(left, left_tile, row, k * 16);
        mma_transposed<D>(c, left, tile, k);
    }
}

template <bool CAP, int FORM> static __global__ void __launch_bounds__(MMA_THREADS) wide_forward(AttentionDims a)
{
    extern __shared__ uint4 shared[];
    __shared__ int          range[4];
    __shared__ float        bias_tile[1][TILE_DISTANCES];
    bf16                   *q_tile = (bf16 *)shared, *k_tile = q_tile + ELEMENTS, *v_tile = k_tile + ELEMENTS;
    int                     b = blockIdx.z, head = blockIdx.y, g = head / a.group, row = (int)(gridDim.x - 1 - blockIdx.x) * TILE_ROWS;
    int                     lane = threadIdx.x & 31, warp = threadIdx.x >> 5, least, latest, end = keys_end<FORM>(a, b, row);
    document_range(a, b, row, range, &least, &latest);
    load_tile<D>(q_tile, a.q, b, row, a.len, head);
    float o[D / 8][4] = {}, most[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};
    int   last[2], first[2];

    const ScoreOf<CAP> score(a);
    for (int half = 0; half < 2; half++) {
        int t = min(row + warp * 16 + (lane >> 2) + half * 8, a.len - 1);
        last[half] = last_key<FORM>(a, b, t);
        first[half] = attention_first_key(a, b, t, t);
    }
    BiasTiles<FORM == FORM_BIASED> biases = {bias_tile};
    int                            begin = least / TILE_ROWS * TILE_ROWS, soonest = FORM == FORM_CAUSAL ? row : last_key<FORM>(a, b, row);
    biases.fetch(a, head, row - begin);
    for (int key = begin; key < end; key += TILE_ROWS) {
        __syncthreads(); /* all warps have read the previous tiles */
        load_tile<D>(k_tile, a.k, b, key, end, g);
        copy_commit();
        load_tile<D>(v_tile, a.v, b, key, end, g);
        copy_commit();
        biases.keep(0);
        if (key + TILE_ROWS < end) biases.fetch(a, head, row - key - TILE_ROWS);
        copy_wait<1>();
        __syncthreads();
        float s[8][4] = {};
        products(s, q_tile, k_tile, warp * 16);
        biases.template add<false>(s, 0, warp * 16);
        if (key + TILE_ROWS - 1 > soonest || key < latest)
            softmax_step<D, true>(s, o, most, total, score, key, last, first);
        else
            softmax_step<D, false>(s, o, most, total, score, key, last, first);
        copy_wait<0>();
        __syncthreads();
        uint32_t p[4][4];
        as_left(p, s);
        mma_straight<D>(o, p, v_tile);
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

template <bool CAP, int FORM> static __global__ void __launch_bounds__(MMA_THREADS) wide_dq(AttentionDims a)
{
    extern __shared__ uint4 shared[];
    __shared__ int          range[4];
    __shared__ float        bias_tile[1][TILE_DISTANCES];
    bf16                   *q_tile = (bf16 *)shared, *o_tile = q_tile + ELEMENTS, *k_tile = o_tile + ELEMENTS, *v_tile = k_tile + ELEMENTS;
    int                     b = blockIdx.z, head = blockIdx.y, g = head / a.group, row = (int)(gridDim.x - 1 - blockIdx.x) * TILE_ROWS;
    int                     lane = threadIdx.x & 31, warp = threadIdx.x >> 5, least, latest, end = keys_end<FORM>(a, b, row);
    document_range(a, b, row, range, &least, &latest);
    load_tile<D>(q_tile, a.q, b, row, a.len, head);
    load_tile<D>(o_tile, a.grad_o, b, row, a.len, head);
    float dq[D / 8][4] = {}, lse2[2], delta[2];
    int   last[2], first[2];

    const ScoreOf<CAP> score(a);
    for (int half = 0; half < 2; half++) {
        int     t = min(row + warp * 16 + (lane >> 2) + half * 8, a.len - 1);
        int64_t at = ((int64_t)b * a.num_heads + head) * a.len + t;
        last[half] = last_key<FORM>(a, b, t);
        first[half] = attention_first_key(a, b, t, t);
        lse2[half] = a.lse[at] * LOG2E;
        delta[half] = a.delta[at];
    }
    BiasTiles<FORM == FORM_BIASED> biases = {bias_tile};
    int                            begin = least / TILE_ROWS * TILE_ROWS, soonest = FORM == FORM_CAUSAL ? row : last_key<FORM>(a, b, row);
    DistanceAdder                  adder(v_tile + ELEMENTS);
    const bool                     adds = FORM == FORM_BIASED && a.bias_parts;
    if (adds) adder.begin(a);
    biases.fetch(a, head, row - begin);
    for (int key = begin; key < end; key += TILE_ROWS) {
        __syncthreads();
        if (adds && key > begin) adder.add(a);
        load_tile<D>(k_tile, a.k, b, key, end, g);
        copy_commit();
        load_tile<D>(v_tile, a.v, b, key, end, g);
        copy_commit();
        biases.keep(0);
        if (key + TILE_ROWS < end) biases.fetch(a, head, row - key - TILE_ROWS);
        copy_wait<1>();
        __syncthreads();
        float s[8][4] = {}, dp[8][4] = {};
        products(s, q_tile, k_tile, warp * 16);
        copy_wait<0>();
        __syncthreads();
        products(dp, o_tile, v_tile, warp * 16);
        biases.template add<false>(s, 0, warp * 16);
        if (key + TILE_ROWS - 1 > soonest || key < latest)
            query_gradients<true>(s, dp, score, lse2, delta, key, last, first);
        else
            query_gradients<false>(s, dp, score, lse2, delta, key, last, first);
        if (adds) adder.keep(dp, warp * 16, a.len - row, row - key);
        uint32_t ds[4][4];
        as_left(ds, dp);
        mma_straight<D>(dq, ds, k_tile);
    }
    copy_wait<0>();
    if (adds) adder.store(a, b, head, row / TILE_ROWS, (int)gridDim.x);
    if (FORM != FORM_BIASED || a.dq.data) store_rows<D>(a.dq, b, row + warp * 16, a.len, head, dq, a.scale, a.scale);
}

template <bool CAP, int FORM> static __global__ void __launch_bounds__(DKV_THREADS) wide_dkv(AttentionDims a)
{
    extern __shared__ uint4 shared[];
    __shared__ QueryColumns columns;
    __shared__ float        bias_tile[1][TILE_DISTANCES];
    bf16                   *k_tile = (bf16 *)shared, *v_tile = k_tile + ELEMENTS, *q_tile = v_tile + ELEMENTS, *o_tile = q_tile + ELEMENTS;
    int                     b = blockIdx.z, g = blockIdx.y, row = (int)blockIdx.x * TILE_ROWS, warp = (threadIdx.x >> 5) % MMA_WARPS;
    bool                    makes_dk = threadIdx.x >= MMA_THREADS;
    int                     end = last_query(a, b, row), begin = first_query_tile<FORM>(a, b, row), least[2];
    float                   sum[D / 8][4] = {};

    const ScoreOf<CAP> score(a);
    load_tile<D, DKV_THREADS>(k_tile, a.k, b, row, a.len, g);
    load_tile<D, DKV_THREADS>(v_tile, a.v, b, row, a.len, g);
    first_queries<FORM>(a, b, row + warp * 16, least);
    BiasTiles<FORM == FORM_BIASED> biases = {bias_tile};
    for (int head = g * a.group; head < (g + 1) * a.group; head++)
        for (int query = begin; query < end; query += TILE_ROWS) {
            __syncthreads();
            load_tile<D, DKV_THREADS>(q_tile, a.q, b, query, a.len, head);
            load_tile<D, DKV_THREADS>(o_tile, a.grad_o, b, query, a.len, head);
            load_columns(a, &columns, 0, b, head, query);
            biases.fetch(a, head, query - row);
            biases.keep(0);
            copy_commit();
            copy_wait<0>();
            __syncthreads();
            float s[8][4] = {}, dp[8][4] = {};
            products(s, k_tile, q_tile, warp * 16);
            if (makes_dk) products(dp, v_tile, o_tile, warp * 16);
            biases.template add<true>(s, 0, warp * 16);
            key_gradients<true>(s, dp, score, &columns, 0, query, row + warp * 16, least);
            uint32_t left[4][4];
            if (makes_dk)
                as_left(left, dp);
            else
                as_left(left, s);
            mma_straight<D>(sum, left, makes_dk ? q_tile : o_tile);
        }
    copy_wait<0>();
    const Heads &to = makes_dk ? a.dk : a.dv;
    float        scale = makes_dk ? a.scale : 1.0f;
    if (to.data) store_rows<D>(to, b, row + warp * 16, a.len, g, sum, scale, scale);
}

template <typename K> static Status allow_shared(K kernel, size_t bytes)
{
    CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
    return OK;
}

template <bool CAP, int FORM> static Status forward(const AttentionDims *a, cudaStream_t stream)
{
    size_t bytes = 3 * ELEMENTS * sizeof(bf16);
    TRY(allow_shared((wide_forward<CAP, FORM>), bytes));
    wide_forward<CAP, FORM><<<dim3((unsigned)cuda_div_up(a->len, TILE_ROWS), a->num_heads, a->batch), MMA_THREADS, bytes, stream>>>(*a);
    return CUDA_LAUNCHED();
}

template <bool CAP, int FORM> static Status backward(const AttentionDims *a, cudaStream_t stream)
{
    size_t   bytes = 4 * ELEMENTS * sizeof(bf16);
    unsigned tiles = (unsigned)cuda_div_up(a->len, TILE_ROWS);
    size_t   dq_bytes = bytes + (a->bias_parts ? sizeof(DistanceSums) : 0);
    TRY(allow_shared((wide_dq<CAP, FORM>), dq_bytes));
    TRY(allow_shared((wide_dkv<CAP, FORM>), bytes));
    if (a->dk.data || a->dv.data) wide_dkv<CAP, FORM><<<dim3(tiles, a->num_kv_heads, a->batch), DKV_THREADS, bytes, stream>>>(*a);
    if (a->dq.data || a->bias_parts) wide_dq<CAP, FORM><<<dim3(tiles, a->num_heads, a->batch), MMA_THREADS, dq_bytes, stream>>>(*a);
    return CUDA_LAUNCHED();
}

#define WITH_FORM(call) \
    switch (attention_form(a)) { \
    case FORM_CAUSAL: \
        return a->softcap > 0 ? call<true, FORM_CAUSAL>(a, stream) : call<false, FORM_CAUSAL>(a, stream); \
    case FORM_OPEN: \
        return call<false, FORM_OPEN>(a, stream); \
    default: \
        return call<false, FORM_BIASED>(a, stream); \
    }

Status attention_wide_forward(const AttentionDims *a, cudaStream_t stream){WITH_FORM(forward)}

Status attention_wide_backward(const AttentionDims *a, cudaStream_t stream)
{
    WITH_FORM(backward)
}
