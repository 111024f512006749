/* swiglu on CUDA: h = silu(gate) up, 16 bytes a thread and turn. Gate and up beside each other in a packed row, or apart. */
#include "ops/fp8_rows.cuh"
#include "ops/rows.cuh"

enum { OUT_H, OUT_CODES };

/* Element (row, f) of gate is at row * stride + f, of up the same from `up`. CODES: those of h are wanted, h needn't be. */
template <typename T, bool CODES> static __global__ void swiglu_packs(const T *gate, const T *up, T *h, RowCodes q, int64_t stride)
{
    enum { N = Pack<T>::N };
    int64_t packs = q.cols / N;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < q.rows * packs; i += (int64_t)gridDim.x * blockDim.x) {
        int64_t row = i / packs, c = (i - row * packs) * N;
        float   g[N], u[N];
        load_pack(gate + row * stride + c, g);
        load_pack(up + row * stride + c, u);
#pragma unroll
        for (int k = 0; k < N; k++) u[k] *= g[k] / (1.0f + exp_for<T>(-g[k]));
        store_result<CODES>(h, u, q, row, c);
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

template <typename T> static void launch_packs(const KernelArgs *args, const TensorView *gate, const TensorView *up, const RowCodes &q)
{
    bool     packed = up == gate, codes = row_codes_wanted(&q);
    const T *g = (const T *)gate->data, *u = packed ? g + q.cols : (const T *)up->data;
    auto     kernel = codes ? swiglu_packs<T, true> : swiglu_packs<T, false>;
    kernel<<<cuda_grid(q.rows * q.cols / Pack<T>::N, 256), 256, 0, cuda_stream(args)>>>(g, u, (T *)args->out[OUT_H].data, q,
                                                                                        packed ? 2 * q.cols : q.cols);
}

static Status swiglu_run(const KernelArgs *args)
{
    const TensorView *gate = &args->in[0], *h = &args->out[OUT_H], *up = args->in[1].data ? &args->in[1] : gate;
    bool              packed = up == gate;
    int64_t           stride = type_cols(&gate->type), cols = packed ? stride / 2 : stride, rows = type_rows(&gate->type);
    RowCodes          q = row_codes(args, OUT_CODES, rows, cols);
    const TensorView *views[] = {gate, up, h};
    if (row_codes_wanted(&q)) {
        CUDA_FLOAT(gate->type.dtype, T, launch_packs<T>(args, gate, up, q));
    } else if (cols % 8 == 0 && views_are(DT_BF16, views, 3)) {
        launch_packs<__nv_bfloat16>(args, gate, up, q);
    } else {
        swiglu_elements<<<cuda_grid(rows * cols, 256), 256, 0, cuda_stream(args)>>>(*gate, *up, packed ? cols : 0, *h, rows, cols, stride);
    }
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(swiglu,
             {.dtypes = DT_SET_FLOAT, .run = swiglu_run, .name = "packs", .except = {{.out = 1u << OUT_CODES, .dtypes = DT_SET(DT_E4M3)}}})
