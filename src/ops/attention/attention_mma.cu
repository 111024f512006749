/* Attention on the matrix units for bf16, by tiles of 64 queries x 64 keys; the whole T x T matrix of scores never exists (Dao,
 * "FlashAttention-2", 2023). Only tiles that a document touches are visited: a row of packed documents costs as much as its documents
 * alone. Backward makes dq in one kernel and dk, dv in another, so that one thread block owns each sum and adds it in a fixed order. */
#include "ops/attention/attention_mma.cuh"
#include "ops/attention/attention_tile.cuh"

template <int D, bool CAP, int FORM> static __global__ void __launch_bounds__(MMA_THREADS) mma_forward(AttentionDims a)
{
    extern __shared__ uint4 shared[];
    __shared__ int          range[4];
    __shared__ float        bias_tiles[FORM == FORM_BIASED ? 2 : 1][TILE_DISTANCES];
    enum { ELEMENTS = TileOf<D>::ELEMENTS };
    bf16 *k_tiles = (bf16 *)shared, *v_tiles = k_tiles + 2 * ELEMENTS;
    int   b = blockIdx.z, head = blockIdx.y, g = head / a.group, row = (int)(gridDim.x - 1 - blockIdx.x) * TILE_ROWS;
    int   lane = threadIdx.x & 31, warp = threadIdx.x >> 5, least, latest, end = keys_end<FORM>(a, b, row);
    document_range(a, b, row, range, &least, &latest);
    int      begin = least / TILE_ROWS * TILE_ROWS;
    uint32_t q[D / 16][4];
    load_tile<D>(k_tiles + ELEMENTS, a.q, b, row, a.len, head); /* q passes through a buffer that is still unused */
    copy_commit();
    load_tile<D>(k_tiles, a.k, b, begin, end, g);
    load_tile<D>(v_tiles, a.v, b, begin, end, g);
    copy_commit();
    copy_wait<1>();
    __syncthreads();
#pragma unroll
    for (int k = 0; k < D / 16; k++) load_left<D>(q[k], k_tiles + ELEMENTS, warp * 16, k * 16);
    float o[D / 8][4] = {}, most[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};
    int   last[2], first[2];

    const ScoreOf<CAP> score(a);
    for (int half = 0; half < 2; half++) {
        int t = min(row + warp * 16 + (lane >> 2) + half * 8, a.len - 1);
        last[half] = last_key<FORM>(a, b, t);
        first[half] = attention_first_key(a, b, t, t);
    }
    BiasTiles<FORM == FORM_BIASED> biases = {bias_tiles};
    biases.fetch(a, head, row - begin);
    biases.keep(0);
    int stage = 0, soonest = FORM == FORM_CAUSAL ? row : last_key<FORM>(a, b, row);
    for (int key = begin; key < end; key += TILE_ROWS, stage ^= 1) {
        __syncthreads(); /* all warps have read the other stage (and q) */
        if (key + TILE_ROWS < end) {
            load_tile<D>(k_tiles + (stage ^ 1) * ELEMENTS, a.k, b, key + TILE_ROWS, end, g);
            load_tile<D>(v_tiles + (stage ^ 1) * ELEMENTS, a.v, b, key + TILE_ROWS, end, g);
            biases.fetch(a, head, row - key - TILE_ROWS);
        }
        copy_commit();
        copy_wait<1>();
        __syncthreads();
        float s[8][4] = {};
#pragma unroll
        for (int k = 0; k < D / 16; k++) mma_transposed<D>(s, q[k], k_tiles + stage * ELEMENTS, k);
        biases.template add<false>(s, stage, warp * 16);
        if (key + TILE_ROWS - 1 > soonest || key < latest)
            softmax_step<D, true>(s, o, most, total, score, key, last, first);
        else
            softmax_step<D, false>(s, o, most, total, score, key, last, first);
        uint32_t p[4][4];
        as_left(p, s);
        mma_straight<D>(o, p, v_tiles + stage * ELEMENTS);
        biases.keep(stage ^ 1);
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

template <int D, bool CAP, int FORM> static __global__ void __launch_bounds__(MMA_THREADS) mma_dq(AttentionDims a)
{
    extern __shared__ uint4 shared[];
    __shared__ int          range[4];
    __shared__ float        bias_tiles[FORM == FORM_BIASED ? 2 : 1][TILE_DISTANCES];
    enum { ELEMENTS = TileOf<D>::ELEMENTS };
    bf16 *k_tiles = (bf16 *)shared, *v_tiles = k_tiles + 2 * ELEMENTS;
    int   b = blockIdx.z, head = blockIdx.y, g = head / a.group, row = (int)(gridDim.x - 1 - blockIdx.x) * TILE_ROWS;
    int   lane = threadIdx.x & 31, warp = threadIdx.x >> 5, least, latest, end = keys_end<FORM>(a, b, row);
    document_range(a, b, row, range, &least, &latest);
    int      begin = least / TILE_ROWS * TILE_ROWS;
    uint32_t q[D / 16][4], grad_o[D / 16][4];
    load_tile<D>(k_tiles + ELEMENTS, a.q, b, row, a.len, head);
    load_tile<D>(v_tiles + ELEMENTS, a.grad_o, b, row, a.len, head);
    copy_commit();
    load_tile<D>(k_tiles, a.k, b, begin, end, g);
    load_tile<D>(v_tiles, a.v, b, begin, end, g);
    copy_commit();
    copy_wait<1>();
    __syncthreads();
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        load_left<D>(q[k], k_tiles + ELEMENTS, warp * 16, k * 16);
        load_left<D>(grad_o[k], v_tiles + ELEMENTS, warp * 16, k * 16);
    }
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
    BiasTiles<FORM == FORM_BIASED> biases = {bias_tiles};
    biases.fetch(a, head, row - begin);
    biases.keep(0);
    DistanceAdder adder(v_tiles + 2 * ELEMENTS);
    const bool    adds = FORM == FORM_BIASED && a.bias_parts;
    if (adds) adder.begin(a);
    int stage = 0, soonest = FORM == FORM_CAUSAL ? row : last_key<FORM>(a, b, row);
    for (int key = begin; key < end; key += TILE_ROWS, stage ^= 1) {
        __syncthreads();
        if (adds && key > begin) adder.add(a);
        if (key + TILE_ROWS < end) {
            load_tile<D>(k_tiles + (stage ^ 1) * ELEMENTS, a.k, b, key + TILE_ROWS, end, g);
            load_tile<D>(v_tiles + (stage ^ 1) * ELEMENTS, a.v, b, key + TILE_ROWS, end, g);
            biases.fetch(a, head, row - key - TILE_ROWS);
        }
        copy_commit();
        copy_wait<1>();
        __syncthreads();
        float s[8][4] = {}, dp[8][4] = {};
#pragma unroll
        for (int k = 0; k < D / 16; k++) {
            mma_transposed<D>(s, q[k], k_tiles + stage * ELEMENTS, k);
            mma_transposed<D>(dp, grad_o[k], v_tiles + stage * ELEMENTS, k);
        }
        biases.template add<false>(s, stage, warp * 16);
        if (key + TILE_ROWS - 1 > soonest || key < latest)
            query_gradients<true>(s, dp, score, lse2, delta, key, last, first);
        else
            query_gradients<false>(s, dp, score, lse2, delta, key, last, first);
        if (adds) adder.keep(dp, warp * 16, a.len - row, row - key);
        uint32_t ds[4][4];
        as_left(ds, dp);
        mma_straight<D>(dq, ds, k_tiles + stage * ELEMENTS);
        biases.keep(stage ^ 1);
    }
    copy_wait<0>();
    if (adds) adder.store(a, b, head, row / TILE_ROWS, (int)gridDim.x);
    if (FORM != FORM_BIASED || a.dq.data) store_rows<D>(a.dq, b, row + warp * 16, a.len, head, dq, a.scale, a.scale);
}

template <int D, bool CAP, int FORM> static __global__ void __launch_bounds__(MMA_THREADS) mma_dkv(AttentionDims a)
{
    extern __shared__ uint4 shared[];
    __shared__ QueryColumns columns;
    __shared__ float        bias_tiles[FORM == FORM_BIASED ? 2 : 1][TILE_DISTANCES];
    enum { ELEMENTS = TileOf<D>::ELEMENTS };
    bf16 *k_tile = (bf16 *)shared, *v_tile = k_tile + ELEMENTS, *q_tiles = v_tile + ELEMENTS, *o_tiles = q_tiles + 2 * ELEMENTS;
    int   b = blockIdx.z, g = blockIdx.y, row = (int)blockIdx.x * TILE_ROWS, warp = threadIdx.x >> 5;
    int   head = g * a.group, end = last_query(a, b, row), begin = first_query_tile<FORM>(a, b, row), query = begin, stage = 0, least[2];
    float dk[D / 8][4] = {}, dv[D / 8][4] = {};

    const ScoreOf<CAP> score(a);
    load_tile<D>(k_tile, a.k, b, row, a.len, g);
    load_tile<D>(v_tile, a.v, b, row, a.len, g);
    load_tile<D>(q_tiles, a.q, b, query, a.len, head);
    load_tile<D>(o_tiles, a.grad_o, b, query, a.len, head);
    copy_commit();
    load_columns(a, &columns, 0, b, head, query);
    first_queries<FORM>(a, b, row + warp * 16, least);
    BiasTiles<FORM == FORM_BIASED> biases = {bias_tiles};
    biases.fetch(a, head, query - row);
    biases.keep(0);
    while (head < (g + 1) * a.group) {
        int next_query = query + TILE_ROWS < end ? query + TILE_ROWS : begin, next_head = next_query == begin ? head + 1 : head;
        __syncthreads();
        if (next_head < (g + 1) * a.group) {
            load_tile<D>(q_tiles + (stage ^ 1) * ELEMENTS, a.q, b, next_query, a.len, next_head);
            load_tile<D>(o_tiles + (stage ^ 1) * ELEMENTS, a.grad_o, b, next_query, a.len, next_head);
            load_columns(a, &columns, stage ^ 1, b, next_head, next_query);
            biases.fetch(a, next_head, next_query - row);
        }
        copy_commit();
        copy_wait<1>();
        __syncthreads();
        float s[8][4] = {}, dp[8][4] = {};
#pragma unroll
        for (int k = 0; k < D / 16; k++) {
            uint32_t left[4];
            load_left<D>(left, k_tile, warp * 16, k * 16);
            mma_transposed<D>(s, left, q_tiles + stage * ELEMENTS, k);
            load_left<D>(left, v_tile, warp * 16, k * 16);
            mma_transposed<D>(dp, left, o_tiles + stage * ELEMENTS, k);
        }
        biases.template add<true>(s, stage, warp * 16);
        key_gradients<true>(s, dp, score, &columns, stage, query, row + warp * 16, least);
        uint32_t left[4][4];
        as_left(left, s);
        mma_straight<D>(dv, left, o_tiles + stage * ELEMENTS);
        as_left(left, dp);
        mma_straight<D>(dk, left, q_tiles + stage * ELEMENTS);
        biases.keep(stage ^ 1);
        query = next_query;
        head = next_head;
        stage ^= 1;
    }
    copy_wait<0>();
    if (a.dk.data) store_rows<D>(a.dk, b, row + warp * 16, a.len, g, dk, a.scale, a.scale);
    if (a.dv.data) store_rows<D>(a.dv, b, row + warp * 16, a.len, g, dv, 1, 1);
}

template <typename K> static Status allow_shared(K kernel, size_t bytes)
{
    CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
    return OK;
}

template <int D, bool CAP, int FORM> static Status forward(const AttentionDims *a, cudaStream_t stream)
{
    size_t bytes = 4 * TileOf<D>::ELEMENTS * sizeof(bf16);
    TRY(allow_shared((mma_forward<D, CAP, FORM>), bytes));
    mma_forward<D, CAP, FORM><<<dim3((unsigned)cuda_div_up(a->len, TILE_ROWS), a->num_heads, a->batch), MMA_THREADS, bytes, stream>>>(*a);
    return CUDA_LAUNCHED();
}

template <int D, bool CAP, int FORM> static Status backward(const AttentionDims *a, cudaStream_t stream)
{
    size_t   tile = TileOf<D>::ELEMENTS * sizeof(bf16);
    unsigned tiles = (unsigned)cuda_div_up(a->len, TILE_ROWS);
    size_t   dq_bytes = 4 * tile + (a->bias_parts ? sizeof(DistanceSums) : 0);
    TRY(allow_shared((mma_dq<D, CAP, FORM>), dq_bytes));
    TRY(allow_shared((mma_dkv<D, CAP, FORM>), 6 * tile));
    if (a->dk.data || a->dv.data) mma_dkv<D, CAP, FORM><<<dim3(tiles, a->num_kv_heads, a->batch), MMA_THREADS, 6 * tile, stream>>>(*a);
    if (a->dq.data || a->bias_parts) mma_dq<D, CAP, FORM><<<dim3(tiles, a->num_heads, a->batch), MMA_THREADS, dq_bytes, stream>>>(*a);
    return CUDA_LAUNCHED();
}

/* The head dims that attention_mma_serves accepts, except 256. */
#define WITH_FORM(call, dim, form) \
    switch (form) { \
    case FORM_CAUSAL: \
        return call<dim, false, FORM_CAUSAL>(a, stream); \
    case FORM_OPEN: \
        return call<dim, false, FORM_OPEN>(a, stream); \
    default: \
        return call<dim, false, FORM_BIASED>(a, stream); \
    }
#define WITH_DIM(call) \
    bool cap = a->softcap > 0; \
    int  form = attention_form(a); \
    switch (a->dim + cap) { \
    case 16: \
        WITH_FORM(call, 16, form) \
    case 32: \
        WITH_FORM(call, 32, form) \
    case 64: \
        WITH_FORM(call, 64, form) \
    case 64 + 1: \
        return call<64, true, FORM_CAUSAL>(a, stream); \
    case 96: \
        WITH_FORM(call, 96, form) \
    case 128: \
        WITH_FORM(call, 128, form) \
    case 128 + 1: \
        return call<128, true, FORM_CAUSAL>(a, stream); \
    default: \
        FAIL(ERR_INTERNAL, "no matrix kernel for head_dim %d%s", a->dim, cap ? " with a cap" : ""); \
    }

Status attention_mma_forward(const AttentionDims *a, cudaStream_t stream)
{
    if (!a->batch || !a->len) return OK;
    if (a->dim == 256) return attention_wide_forward(a, stream);
    WITH_DIM(forward)
}

Status attention_mma_backward(const AttentionDims *a, cudaStream_t stream)
{
    if (!a->batch || !a->len) return OK;
    if (a->dim == 256) return attention_wide_backward(a, stream);
    WITH_DIM(backward)
}
