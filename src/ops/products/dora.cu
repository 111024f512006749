/* dora and dora_dm on CUDA. dora: a thread takes 16 bytes of a row at a time, or one element where rows aren't whole packs. dora_dm: each
 * chunk of rows gives partial sums in the workspace, which are added in order. Loads are coalesced along columns. */
#include "device/cuda/vec_f16.cuh"
#include "ops/rows.cuh"

enum { THREADS = 256 };

static __device__ __forceinline__ float column_scale(const TensorView &m, const float *norm, int64_t c)
{
    return any_get(m.data, m.type.dtype, c) / norm[c];
}

static __device__ __forceinline__ float column_bias(const TensorView &bias, int64_t c)
{
    return bias.data ? any_get(bias.data, bias.type.dtype, c) : 0.0f;
}

/* out may be y's memory. A block takes THREADS packs of columns, and rows in steps of gridDim.y. */
template <typename T>
static __global__ void dora_packs(const T *y, TensorView m, const float *norm, TensorView bias, T *out, int64_t rows, int64_t cols)
{
    enum { N = Pack<T>::N };
    int64_t c = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * N;
    float   scale[N], add[N], v[N];
    if (c >= cols) return;
#pragma unroll
    for (int i = 0; i < N; i++) {
        scale[i] = column_scale(m, norm, c + i);
        add[i] = column_bias(bias, c + i);
    }
    for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
        load_pack(y + row * cols + c, v);
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = v[i] * scale[i] + add[i];
        store_pack(out + row * cols + c, v);
    }
}

static __global__ void dora_elements(TensorView y, TensorView m, const float *norm, TensorView bias, TensorView out, int64_t rows,
                                     int64_t cols)
{
    int64_t c = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (c >= cols) return;
    float scale = column_scale(m, norm, c), add = column_bias(bias, c);
    for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
        float v = any_get(y.data, y.type.dtype, row * cols + c);
        any_set(out.data, out.type.dtype, row * cols + c, v * scale + add);
    }
}

/* The grid: `blocks` blocks along columns, and along rows as many as keep a GPU busy. */
static dim3 grid_of(int64_t rows, int64_t blocks)
{
    enum { ENOUGH = 4096 };
    int64_t along = cuda_div_up(ENOUGH, blocks);
    return dim3((unsigned)blocks, (unsigned)(along < rows ? along : rows));
}

template <typename T> static void launch_packs(const KernelArgs *args, int64_t rows, int64_t cols)
{
    dora_packs<<<grid_of(rows, cuda_div_up(cols / Pack<T>::N, THREADS)), THREADS, 0, cuda_stream(args)>>>(
        (const T *)args->in[0].data, args->in[1], (const float *)args->in[2].data, args->in[3], (T *)args->out[0].data, rows, cols);
}

static Status dora_run(const KernelArgs *args)
{
    const TensorView *y = &args->in[0], *out = &args->out[0];
    int64_t           rows = type_rows(&y->type), cols = type_cols(&y->type), bytes = dtype_bytes(y->type.dtype, cols);
    bool              is_packed = bytes % 16 == 0 && is_aligned16(y->data) && is_aligned16(out->data);
    if (is_packed && y->type.dtype == DT_BF16)
        launch_packs<__nv_bfloat16>(args, rows, cols);
    else if (is_packed && y->type.dtype == DT_F16)
        launch_packs<__half>(args, rows, cols);
    else if (is_packed)
        launch_packs<float>(args, rows, cols);
    else
        dora_elements<<<grid_of(rows, cuda_div_up(cols, THREADS)), THREADS, 0, cuda_stream(args)>>>(
            *y, args->in[1], (const float *)args->in[2].data, args->in[3], *out, rows, cols);
    return CUDA_LAUNCHED();
}

static __global__ void dora_dm_chunks(TensorView dy, TensorView y, const float *norm, float *partial, int64_t rows, int64_t cols,
                                      int64_t chunk_rows)
{
    int64_t c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, end = ((int64_t)blockIdx.y + 1) * chunk_rows;
    float   sum = 0;
    if (c >= cols) return;
    for (int64_t row = (int64_t)blockIdx.y * chunk_rows; row < rows && row < end; row++)
        sum += elem_get(dy.data, dy.type.dtype, row * cols + c) * elem_get(y.data, y.type.dtype, row * cols + c);
    partial[(int64_t)blockIdx.y * cols + c] = sum / norm[c];
}

static Status dora_dm_run(const KernelArgs *args)
{
    const TensorView *dy = &args->in[0];
    int64_t           cols = type_cols(&dy->type), rows = type_rows(&dy->type), chunks = sum_num_chunks(rows);
    float            *partial = (float *)args->workspace;
    dim3              grid((unsigned)cuda_div_up(cols, 128), (unsigned)chunks);
    dora_dm_chunks<<<grid, 128, 0, cuda_stream(args)>>>(*dy, args->in[1], (const float *)args->in[2].data, partial, rows, cols,
                                                        sum_chunk_rows(rows));
    launch_combine(args, 0, partial, chunks, cols, cols);
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(dora, {.dtypes = DT_SET_DECODE, .run = dora_run, .name = "packs"})
CUDA_KERNELS(dora_dm, {.dtypes = DT_SET_FLOAT, .run = dora_dm_run, .name = "chunks", .workspace = cuda_planned_workspace})
