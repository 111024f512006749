/* swiglu on CUDA: h = silu(gate) up, 16 bytes a thread and turn. Gate and up beside each other in a packed row, or apart. */
#include "ops/rows.cuh"

static __device__ __forceinline__ float silu(float x)
{
    return x / (1.0f + __expf(-x));
}

/* Element (row, f) of gate is at row * stride + f, of up the same from `up`. */
template <typename T> static __global__ void swiglu_packs(const T *gate, const T *up, T *h, int64_t rows, int64_t cols, int64_t stride)
{
    enum { N = Pack<T>::N };
    int64_t packs = cols / N;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < rows * packs; i += (int64_t)gridDim.x * blockDim.x) {
        int64_t row = i / packs, c = (i - row * packs) * N;
        float   g[N], u[N];
        load_pack(gate + row * stride + c, g);
        load_pack(up + row * stride + c, u);
#pragma unroll
        for (int k = 0; k < N; k++) u[k] *= silu(g[k]);
        store_pack(h + row * cols + c, u);
    }
}

static __global__ void swiglu_elements(TensorView gate, TensorView up, int64_t up_at, TensorView h, int64_t rows, int64_t cols,
                                       int64_t stride)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < rows * cols; i += (int64_t)gridDim.x * blockDim.x) {
        int64_t row = i / cols, c = i - row * cols;
        float   g = elem_get(gate.data, gate.type.dtype, row * stride + c), u = elem_get(up.data, up.type.dtype, row * stride + up_at + c);
        elem_set(h.data, h.type.dtype, i, g / (1.0f + expf(-g)) * u);
    }
}

static Status swiglu_run(const KernelArgs *args)
{
    const TensorView *gate = &args->in[0], *h = &args->out[0], *up = args->in[1].data ? &args->in[1] : gate;
    int64_t           cols = type_cols(&h->type), rows = type_rows(&h->type), packed = up == gate, stride = packed ? 2 * cols : cols;
    const TensorView *views[] = {gate, up, h};
    if (h->type.dtype == DT_BF16 && cols % 8 == 0 && views_are(DT_BF16, views, 3)) {
        typedef __nv_bfloat16 T;
        const T              *g = (const T *)gate->data, *u = packed ? g + cols : (const T *)up->data;
        swiglu_packs<T><<<cuda_grid(rows * cols / 8, 256), 256, 0, cuda_stream(args)>>>(g, u, (T *)h->data, rows, cols, stride);
    } else {
        swiglu_elements<<<cuda_grid(rows * cols, 256), 256, 0, cuda_stream(args)>>>(*gate, *up, packed ? cols : 0, *h, rows, cols, stride);
    }
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(swiglu, {.dtypes = DT_SET_FLOAT, .run = swiglu_run, .name = "packs"})
