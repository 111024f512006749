/* head_rows on CUDA, bound by reading w: each element is read once for 8 rows of x (64 if matrix units multiply). Loads of w bypass the L1
 * cache, which keeps x. A warp has whole rows of w, so that nothing is summed across warps.
 *
 * fma: w in fp32 or 8 bits, sums in fp32. Each lane has 4 of every 128 elements along a row; lanes are added up at the end, in pairs. A
 * row's sum has the same bits for any number of rows of x.
 *
 * mma: w in bf16 or f16. A tile of 16 rows of w is the left operand, 8 rows of x are the right one. Both are loaded alike: lanes 4 g + t
 * have 16 bytes of row g, from element 32 s + 8 t on. The first 8 of these bytes are elements 2t, 2t + 1, 2t + 8 and 2t + 9 of a product's
 * 16 along the sum; the other 8 bytes are the same elements of the next product. So a sum doesn't follow the order of memory, but its order
 * is the same for all rows. Each sum is one chain. Compute capability 8.0 and later.
 *
 * stream: fma's sums for 2 to 8 rows of x, by head_stream.cu. Compute capability 9.0 and later.
 *
 * bulk: w in bf16, by few_rows_bulk.cu, whose chain follows the order of memory. Compute capability 9.0 and later. */
#include "device/cuda/vec.cuh"
#include "ops/products/few_rows.h"
#include "ops/products/head_rows.h"
#include "ops/products/head_stream.h"

#include <cuda_fp16.h>

enum { GROUP = 4, FMA_WARPS = 4, FMA_MOST = 8, MMA_MOST = 64, CONVERT_THREADS = 256 };

/* ---- loads of w that bypass the L1 cache; 0 unless `there`. Volatile: all loads of a turn are issued before the first is used ---- */

static __device__ __forceinline__ uint4 stream_load(const uint4 *p, bool there)
{
    uint4 r;
    asm volatile("{.reg .pred there; setp.ne.s32 there, %5, 0; mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0;\n\t"
                 "@there ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];}"
                 : "=&r"(r.x), "=&r"(r.y), "=&r"(r.z), "=&r"(r.w)
                 : "l"(p), "r"((int)there));
    return r;
}

static __device__ __forceinline__ uint32_t stream_load(const uint32_t *p, bool there)
{
    uint32_t r;
    asm volatile("{.reg .pred there; setp.ne.s32 there, %2, 0; mov.b32 %0, 0;\n\t"
                 "@there ld.global.nc.L1::no_allocate.L2::128B.u32 %0, [%1];}"
                 : "=&r"(r)
                 : "l"(p), "r"((int)there));
    return r;
}

/* ---- fma ---- */

/* 4 elements as stored in memory. */
template <typename T> struct Four;
template <> struct Four<float> {
    uint4                                  words;
    static __device__ __forceinline__ Four load(const float *p, bool there)
    {
        return {stream_load((const uint4 *)p, there)};
    }
    static __device__ __forceinline__ Four load_some(const float *p, int count)
    {
        Four r = {make_uint4(0, 0, 0, 0)};
        if (count > 0) r.words.x = __float_as_uint(p[0]);
        if (count > 1) r.words.y = __float_as_uint(p[1]);
        if (count > 2) r.words.z = __float_as_uint(p[2]);
        if (count > 3) r.words.w = __float_as_uint(p[3]);
        return r;
    }
    __device__ __forceinline__ void widen(float (&out)[4]) const
    {
        out[0] = __uint_as_float(words.x), out[1] = __uint_as_float(words.y);
        out[2] = __uint_as_float(words.z), out[3] = __uint_as_float(words.w);
    }
};
template <> struct Four<int8_t> {
    uint32_t                               word;
    static __device__ __forceinline__ Four load(const int8_t *p, bool there)
    {
        return {stream_load((const uint32_t *)p, there)};
    }
    static __device__ __forceinline__ Four load_some(const int8_t *p, int count)
    {
        Four r = {0};
        for (int i = 0; i < 4; i++)
            if (i < count) r.word |= (uint32_t)(uint8_t)p[i] << 8 * i;
        return r;
    }
    /* A byte in the low bits of the float 2^23 adds its value to it. Subtracting 2^23 + 128 makes the byte signed again. */
    __device__ __forceinline__ void widen(float (&out)[4]) const
    {
        uint32_t flipped = word ^ 0x80808080u;
#pragma unroll
        for (int i = 0; i < 4; i++) out[i] = __uint_as_float(__byte_perm(flipped, 0x4B000000u, 0x7540u + i)) - 8388736.0f;
    }
};

/* Elements [k, k + 4) of a row, 0 beyond its end. */
template <typename T, bool WIDE> static __device__ __forceinline__ Four<T> four_of(const T *row, int k, int dim)
{
    if (WIDE) return Four<T>::load(row + k, k < dim);
    return Four<T>::load_some(row + k, dim - k);
}

template <bool WIDE> static __device__ __forceinline__ float4 x_of(const float *row, int k, int dim)
{
    if (WIDE) return k < dim ? *(const float4 *)(row + k) : make_float4(0, 0, 0, 0);
    float4 r;
    r.x = k < dim ? row[k] : 0.0f, r.y = k + 1 < dim ? row[k + 1] : 0.0f;
    r.z = k + 2 < dim ? row[k + 2] : 0.0f, r.w = k + 3 < dim ? row[k + 3] : 0.0f;
    return r;
}

/* A warp has GROUP rows of w, with AHEAD loads of each in flight, and ROWS rows of x from blockIdx.y * ROWS on. */
template <typename T, int ROWS, int AHEAD, bool WIDE> static __global__ void __launch_bounds__(FMA_WARPS * 32) head_fma(Head h)
{
    int          lane = threadIdx.x & 31, first = blockIdx.y * ROWS;
    int64_t      v = ((int64_t)blockIdx.x * FMA_WARPS + (threadIdx.x >> 5)) * GROUP;
    const T     *w[GROUP];
    const float *x = (const float *)h.x + (int64_t)first * h.dim;
    float        sum[GROUP][ROWS] = {};
    if (v >= h.cols) return;
#pragma unroll
    for (int r = 0; r < GROUP; r++) w[r] = (const T *)h.w + min(v + r, h.vocab - 1) * h.dim;
    for (int begin = 0; begin < h.dim; begin += 128 * AHEAD) {
        Four<T> part[AHEAD][GROUP];
#pragma unroll
        for (int a = 0; a < AHEAD; a++)
#pragma unroll
            for (int r = 0; r < GROUP; r++) part[a][r] = four_of<T, WIDE>(w[r], begin + 128 * a + 4 * lane, h.dim);
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            int   k = begin + 128 * a + 4 * lane;
            float numbers[GROUP][4];
#pragma unroll
            for (int r = 0; r < GROUP; r++) part[a][r].widen(numbers[r]);
#pragma unroll
            for (int b = 0; b < ROWS; b++) {
                float4 of_x = ROWS == 1 || first + b < h.rows ? x_of<WIDE>(x + (int64_t)b * h.dim, k, h.dim) : make_float4(0, 0, 0, 0);
#pragma unroll
                for (int r = 0; r < GROUP; r++) {
                    sum[r][b] = fmaf(of_x.x, numbers[r][0], sum[r][b]);
                    sum[r][b] = fmaf(of_x.y, numbers[r][1], sum[r][b]);
                    sum[r][b] = fmaf(of_x.z, numbers[r][2], sum[r][b]);
                    sum[r][b] = fmaf(of_x.w, numbers[r][3], sum[r][b]);
                }
            }
        }
    }
#pragma unroll
    for (int b = 0; b < ROWS; b++)
#pragma unroll
        for (int r = 0; r < GROUP; r++) {
            float all = warp_sum(sum[r][b]);
            if (lane == r) head_store(h, first + b, v + r, all);
        }
}

/* AHEAD depends on T: loads of 16 bytes are four times as wide as loads of 4. */
template <typename T, int ROWS, bool WIDE> static void launch_fma(const Head &h, cudaStream_t stream)
{
    enum { AHEAD = sizeof(T) == 4 ? (ROWS > 2 ? 2 : 4) : (ROWS > 2 ? 5 : 10) };
    dim3 grid((unsigned)cuda_div_up(h.cols, FMA_WARPS * GROUP), (unsigned)cuda_div_up(h.rows, ROWS));
    head_fma<T, ROWS, AHEAD, WIDE><<<grid, FMA_WARPS * 32, 0, stream>>>(h);
}

template <typename T, bool WIDE> static void choose_fma(const Head &h, cudaStream_t stream)
{
    if (h.rows == 1)
        launch_fma<T, 1, WIDE>(h, stream);
    else if (h.rows == 2)
        launch_fma<T, 2, WIDE>(h, stream);
    else if (h.rows <= 4)
        launch_fma<T, 4, WIDE>(h, stream);
    else
        launch_fma<T, FMA_MOST, WIDE>(h, stream);
}

/* ---- mma ---- */

template <typename H>
static __device__ __forceinline__ void mma_halves(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                                  uint32_t b1);
template <>
__device__ __forceinline__ void mma_halves<__nv_bfloat16>(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                                          uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void mma_halves<__half>(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                                   uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ uint4 eight_some(const uint16_t *p, int count)
{
    uint32_t word[4] = {};
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (i < count) word[i / 2] |= (uint32_t)p[i] << 16 * (i % 2);
    return make_uint4(word[0], word[1], word[2], word[3]);
}

/* Elements [k, k + 8) of a row of w, or of x; 0 beyond the end. */
template <bool WIDE> static __device__ __forceinline__ uint4 eight_of_w(const uint16_t *row, int k, int dim)
{
    if (WIDE) return stream_load((const uint4 *)(row + k), k < dim);
    return eight_some(row + k, dim - k);
}

template <bool WIDE> static __device__ __forceinline__ uint4 eight_of_x(const uint16_t *row, int k, int dim)
{
    if (WIDE) return k < dim ? *(const uint4 *)(row + k) : make_uint4(0, 0, 0, 0);
    return eight_some(row + k, dim - k);
}

/* A warp has TILES tiles of w and 8 * EIGHTS rows of x, from blockIdx.y * 8 * EIGHTS on; AHEAD steps of 32 elements of w are in flight. */
template <typename H, int EIGHTS, int TILES, int AHEAD, int WARPS, bool WIDE>
static __global__ void __launch_bounds__(WARPS * 32) head_mma(Head h)
{
    int             lane = threadIdx.x & 31, g = lane >> 2, k0 = 8 * (lane & 3), first = blockIdx.y * 8 * EIGHTS, steps = (h.dim + 31) / 32;
    int64_t         v = ((int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5)) * TILES * 16 + g;
    const uint16_t *w[TILES][2], *x = (const uint16_t *)h.x + (int64_t)(first + g) * h.dim;
    float           sum[TILES][EIGHTS][4] = {};
    uint4           part[AHEAD][TILES][2];
    if (v - g >= h.cols) return;
#pragma unroll
    for (int m = 0; m < 2 * TILES; m++) w[m / 2][m % 2] = (const uint16_t *)h.w + min(v + 8 * m, h.vocab - 1) * h.dim;
#pragma unroll
    for (int a = 0; a < AHEAD; a++)
#pragma unroll
        for (int m = 0; m < 2 * TILES; m++) part[a][m / 2][m % 2] = eight_of_w<WIDE>(w[m / 2][m % 2], 32 * a + k0, h.dim);
    for (int begin = 0; begin < steps; begin += AHEAD) {
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            int k = 32 * (begin + a) + k0;
            if (begin + a >= steps) break;
#pragma unroll
            for (int n = 0; n < EIGHTS; n++) {
                uint4 b = make_uint4(0, 0, 0, 0);
                if (first + 8 * n + g < h.rows) b = eight_of_x<WIDE>(x + (int64_t)(8 * n) * h.dim, k, h.dim);
#pragma unroll
                for (int m = 0; m < TILES; m++) {
                    const uint4 &low = part[a][m][0], &high = part[a][m][1];
                    mma_halves<H>(sum[m][n], low.x, high.x, low.y, high.y, b.x, b.y);
                    mma_halves<H>(sum[m][n], low.z, high.z, low.w, high.w, b.z, b.w);
                }
            }
#pragma unroll
            for (int m = 0; m < 2 * TILES; m++) part[a][m / 2][m % 2] = eight_of_w<WIDE>(w[m / 2][m % 2], k + 32 * AHEAD, h.dim);
        }
    }
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int n = 0; n < EIGHTS; n++)
#pragma unroll
            for (int c = 0; c < 4; c++) head_store(h, first + 8 * n + 2 * (lane & 3) + c % 2, v + 16 * m + 8 * (c / 2), sum[m][n][c]);
}

template <typename H, int EIGHTS, int TILES, int AHEAD, int WARPS, bool WIDE> static void launch_mma(const Head &h, cudaStream_t stream)
{
    dim3 grid((unsigned)cuda_div_up(h.cols, WARPS * TILES * 16), (unsigned)cuda_div_up(h.rows, 8 * EIGHTS));
    head_mma<H, EIGHTS, TILES, AHEAD, WARPS, WIDE><<<grid, WARPS * 32, 0, stream>>>(h);
}

/* How many tiles each warp computes in turn, `tiles` at a time, if 132 multiprocessors run one block each at a time. A warp reads x once
 * for all tiles that it computes at a time. */
static int64_t turns_of(int64_t cols, int tiles)
{
    enum { PROCESSORS = 132, WARPS = 8 };
    return cuda_div_up(cuda_div_up(cols, WARPS * tiles * 16), PROCESSORS) * tiles;
}

template <typename H, bool WIDE> static void choose_mma(const Head &h, cudaStream_t stream)
{
    if (h.rows <= 8)
        launch_mma<H, 1, 1, 5, 4, WIDE>(h, stream);
    else if (h.rows <= 16)
        launch_mma<H, 2, 1, 8, 4, WIDE>(h, stream);
    else if (h.rows <= 32)
        launch_mma<H, 4, 2, 4, 4, WIDE>(h, stream);
    else if (turns_of(h.cols, 3) <= turns_of(h.cols, 2))
        launch_mma<H, 8, 3, 3, 8, WIDE>(h, stream);
    else
        launch_mma<H, 8, 2, 3, 8, WIDE>(h, stream);
}

/* ---- x in another format ---- */

static __device__ __forceinline__ float number_of(const __half *p, int64_t i)
{
    return __half2float(p[i]);
}
static __device__ __forceinline__ float number_of(const __nv_bfloat16 *p, int64_t i)
{
    return __bfloat162float(p[i]);
}
static __device__ __forceinline__ float number_of(const float *p, int64_t i)
{
    return p[i];
}

static __device__ __forceinline__ void put_number(float *p, int64_t i, float x)
{
    p[i] = x;
}
static __device__ __forceinline__ void put_number(__nv_bfloat16 *p, int64_t i, float x)
{
    p[i] = __float2bfloat16_rn(x);
}
/* As dtype_encode: finite values stay finite. */
static __device__ __forceinline__ void put_number(__half *p, int64_t i, float x)
{
    p[i] = __float2half_rn(fabsf(x) < INFINITY ? fminf(fmaxf(x, -65504.0f), 65504.0f) : x);
}

template <typename FROM, typename TO>
static __global__ void __launch_bounds__(CONVERT_THREADS) head_convert(const FROM *x, TO *to, int64_t numel)
{
    int64_t i = (int64_t)blockIdx.x * CONVERT_THREADS + threadIdx.x;
    if (i < numel) put_number(to, i, number_of(x, i));
}

template <typename TO> static void convert(const TensorView *x, void *to, cudaStream_t stream)
{
    int64_t  numel = type_numel(&x->type);
    unsigned blocks = (unsigned)cuda_div_up(numel, CONVERT_THREADS);
    if (x->type.dtype == DT_F32)
        head_convert<<<blocks, CONVERT_THREADS, 0, stream>>>((const float *)x->data, (TO *)to, numel);
    else if (x->type.dtype == DT_BF16)
        head_convert<<<blocks, CONVERT_THREADS, 0, stream>>>((const __nv_bfloat16 *)x->data, (TO *)to, numel);
    else
        head_convert<<<blocks, CONVERT_THREADS, 0, stream>>>((const __half *)x->data, (TO *)to, numel);
}

/* ---- launching ---- */

/* The job, with x converted to the format that the kernels read. */
static Head head_of(const KernelArgs *args)
{
    const TensorView *x = &args->in[HEAD_X], *w = &args->in[HEAD_W];
    Head              h = {x->data,
                           w->data,
                           (const float *)args->in[HEAD_SCALE].data,
                           (const float *)args->in[HEAD_BIAS].data,
                           (float *)args->out[0].data,
                           (int)x->type.dim[0],
                           (int)x->type.dim[1],
                           w->type.dim[0],
                           args->out[0].type.dim[1]};
    if (!head_wants_copy(x->type.dtype, w->type.dtype)) return h;
    h.x = args->workspace;
    if (w->type.dtype == DT_BF16)
        convert<__nv_bfloat16>(x, args->workspace, cuda_stream(args));
    else if (w->type.dtype == DT_F16)
        convert<__half>(x, args->workspace, cuda_stream(args));
    else
        convert<float>(x, args->workspace, cuda_stream(args));
    return h;
}

/* Whether rows can be loaded 16 bytes at a time (8-bit codes: 4 bytes). */
static bool is_wide(const Head &h, int multiple)
{
    return h.dim % multiple == 0 && is_aligned16(h.x) && is_aligned16(h.w);
}

static Status fma(const Head &h, DType w, cudaStream_t stream)
{
    bool wide = is_wide(h, 4);
    if (w == DT_I8)
        wide ? choose_fma<int8_t, true>(h, stream) : choose_fma<int8_t, false>(h, stream);
    else
        wide ? choose_fma<float, true>(h, stream) : choose_fma<float, false>(h, stream);
    return CUDA_LAUNCHED();
}

static Status head_fma_run(const KernelArgs *args)
{
    return fma(head_of(args), args->in[HEAD_W].type.dtype, cuda_stream(args));
}

static Status head_mma_run(const KernelArgs *args)
{
    Head         h = head_of(args);
    bool         wide = is_wide(h, 8);
    cudaStream_t stream = cuda_stream(args);
    if (args->in[HEAD_W].type.dtype == DT_BF16)
        wide ? choose_mma<__nv_bfloat16, true>(h, stream) : choose_mma<__nv_bfloat16, false>(h, stream);
    else
        wide ? choose_mma<__half, true>(h, stream) : choose_mma<__half, false>(h, stream);
    return CUDA_LAUNCHED();
}

/* Runs head_stream if x and w are aligned to 16 bytes, else fma. */
static Status head_stream_launch(const KernelArgs *args)
{
    Head       h = head_of(args);
    HeadLaunch how = {0, 0, args->early, (bool)(args->constant >> HEAD_W & 1)};
    int        device = 0;
    DType      w = args->in[HEAD_W].type.dtype;
    CUDA_TRY(cudaGetDevice(&device));
    CUDA_TRY(cudaDeviceGetAttribute(&how.processors, cudaDevAttrMultiProcessorCount, device));
    CUDA_TRY(cudaDeviceGetAttribute(&how.shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    return is_wide(h, 4) ? head_stream_run(&h, w, &how, cuda_stream(args)) : fma(h, w, cuda_stream(args));
}

/* The product of rows [begin, begin + count) of x, in bf16. */
static Gemm bulk_product(const KernelArgs *args, const Head &h, int64_t begin, int64_t count)
{
    GemmOperand none = {}, x = {}, w = {}, y = {}, bias = {};
    x.data = (void *)h.x, x.dtype = DT_BF16, x.stride = h.dim, x.offset = begin * h.dim;
    w.data = (void *)h.w, w.dtype = DT_BF16, w.stride = h.dim, w.trans = true;
    y.data = h.y, y.dtype = DT_F32, y.stride = h.cols, y.offset = begin * h.cols;
    bias.data = (void *)h.bias, bias.dtype = DT_F32;
    Gemm product = gemm_of(count, h.cols, h.dim, x, w, y, 1, false);
    product.epilogue = h.bias ? GEMM_BIAS : GEMM_PLAIN;
    product.bias = h.bias ? bias : none;
    product.rows_alone = true;
    product.early = args->early;
    product.b_constant = args->constant >> HEAD_W & 1;
    return product;
}

static Status head_bulk_run(const KernelArgs *args)
{
    Head h = head_of(args);
    for (int64_t begin = 0; begin < h.rows; begin += MMA_MOST) {
        Gemm product = bulk_product(args, h, begin, h.rows - begin < MMA_MOST ? h.rows - begin : (int64_t)MMA_MOST);
        TRY(few_rows_bulk_run(&product, h.vocab, NULL, args->stream));
    }
    return CUDA_LAUNCHED();
}

/* Whether few_rows_bulk.cu serves. This depends on the weights alone, so that rows have the same bits for any number of rows. */
static bool by_bulk(const Node *node, CudaDevice *device)
{
    const TensorType *w = &node->in[HEAD_W]->type;
    Gemm              product = {};
    product.m = 1, product.n = node->out[0]->type.dim[1], product.k = w->dim[1];
    return w->dtype == DT_BF16 && few_rows_bulk_serves(device) && few_rows_bulk_fit(&product);
}

static bool by_halves(const Node *node, CudaDevice *device)
{
    (void)device;
    return head_by_halves(node->in[HEAD_W]->type.dtype);
}

static bool by_floats(const Node *node, CudaDevice *device)
{
    return !by_halves(node, device);
}

static bool by_stream(const Node *node, CudaDevice *device)
{
    const TensorType *w = &node->in[HEAD_W]->type;
    return by_floats(node, device) &&
           head_stream_fits((int)node->in[HEAD_X]->type.dim[0], (int)w->dim[1], w->dtype, (int)cuda_shared_bytes(device));
}

CUDA_KERNELS(
    head_rows,
    {.dtypes = HEAD_DTYPES, .min_sm = 90, .run = head_bulk_run, .name = "bulk", .workspace = cuda_planned_workspace, .match = by_bulk},
    {.dtypes = HEAD_DTYPES, .min_sm = 80, .run = head_mma_run, .name = "mma", .workspace = cuda_planned_workspace, .match = by_halves},
    {.dtypes = HEAD_DTYPES,
     .min_sm = 90,
     .run = head_stream_launch,
     .name = "stream",
     .workspace = cuda_planned_workspace,
     .match = by_stream},
    {.dtypes = HEAD_DTYPES, .run = head_fma_run, .name = "fma", .workspace = cuda_planned_workspace, .match = by_floats})
